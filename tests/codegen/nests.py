"""Short spellings for hand-built nests."""

from __future__ import annotations

from polyop.ir.dtypes import F32, DType
from polyop.ir.expr import Affine, Apply, Expr, Load, affine, quasi
from polyop.ir.loops import Buffer, For, If, Kind, LoopNest, Node, Space, Store
from polyop.ir.op import Monoid, builtin_monoid


def A(*terms) -> Affine:
    """The sum of names, numbers and (factor, name) pairs."""
    total = Affine()
    for t in terms:
        total = total + (affine(t[1]) * t[0] if isinstance(t, tuple) else affine(t))
    return total


def least(*xs) -> Affine:
    return quasi("min", *(affine(x) for x in xs))


def ld(source: str, *index, t: DType = F32, guard: tuple = ()) -> Load:
    return Load(source, tuple(affine(i) if isinstance(i, str | int) else i for i in index), t, guard)


def ap(fn: str, *args: Expr, t: DType = F32) -> Apply:
    return Apply(fn, args, t)


def st(target: Load, expr: Expr, reduce: str | Monoid | None = None, stream: bool = False) -> Store:
    m = builtin_monoid(reduce, target.dtype) if isinstance(reduce, str) else reduce
    return Store("s", (), None, (), target, m, expr, stream)


def tensor(name: str, *dims, t: DType = F32, unit: int | None = -1) -> Buffer:
    at = None if unit is None or not dims else unit % len(dims)
    return Buffer(name, t, tuple((affine(d), 1) for d in dims), Space.TENSOR, at)


def work(name: str, *dims, t: DType = F32, pad: int = 1, private: bool = False) -> Buffer:
    return Buffer(name, t, tuple(d if isinstance(d, tuple) else (affine(d), 1) for d in dims), Space.WORK, None, pad, private)


def reg(name: str, *dims, t: DType = F32) -> Buffer:
    return Buffer(name, t, tuple((affine(d), 1) for d in dims), Space.REG)


def loop(index: str, upper, *body: Node, lower=0, step: int = 1, parallel: bool = False) -> For:
    return For(index, affine(lower), affine(upper), body, step, Kind.PARALLEL if parallel else Kind.SERIAL)


def lanes(index: str, extent: int, upper, *body: Node) -> For:
    return For(index, Affine(), affine(extent if upper is None else upper), body, 1, Kind.LANES, extent)


def rows(index: str, extent: int, upper, *body: Node) -> For:
    return For(index, Affine(), affine(extent if upper is None else upper), body, 1, Kind.ROWS, extent)


def when(tests, then, other=()) -> If:
    return If(tuple(tests), tuple(then), tuple(other))


def nest(buffers, body, sizes=("N",), scalars=(), name: str = "kernel") -> LoopNest:
    return LoopNest(name, tuple(sizes), tuple(scalars), tuple(buffers), tuple(body))


def strip(index: str, extent: int, n: str, *body: Node) -> For:
    """`for i_c in [0, n) by extent { for i_v (lanes) .. }`: element i is i_c + i_v."""
    return loop(f"{index}_c", n, lanes(f"{index}_v", extent, least(extent, A(n, (-1, f"{index}_c"))), *body), step=extent)
