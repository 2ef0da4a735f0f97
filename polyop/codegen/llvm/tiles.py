"""Sums of products through matrix tiles: sixteen iterations of a serial loop around dot products are one instruction.

    for k in steps of 2 { acc[p, v] += a[p, k + f] * b[k, v, f] }     p rows, v lanes, f the steps of a lane (`dots.py`)

Of sixteen iterations the left operand has 64 bytes for each p, and the right one sixteen rows of 64 bytes for each vector of v:
they are tiles as they lie in memory. Sums are tiles while the loop runs, and vectors around it; what is left of the loop after
whole tiles runs vector by vector. So there is no new kind of loop, and no nest knows of this.

LLVM finds the registers of tiles, writes their configuration and puts it before the loop, if they are values of type `x86_amx`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polyop.codegen.llvm.addresses import gep, run_along, strides
from polyop.codegen.llvm.dots import Operands, operands, sided
from polyop.codegen.llvm.registers import key_of, register_axes, register_type
from polyop.codegen.llvm.rounds import go_round
from polyop.codegen.llvm.state import Axis, RegKey, State
from polyop.codegen.llvm.types import Int, alignment
from polyop.ir.dots import TILE, Matrix, matrix, product
from polyop.ir.expr import Affine, names
from polyop.ir.loops import For, Kind, Store

LINE = 64  # bytes of a row

Branch = Callable[[State, str, Callable[[], None], Callable[[], None]], None]


@dataclass(frozen=True, eq=False)
class _Tiles:
    """A serial loop around the store `n` that tiles can carry out, in the rows `row` and the steps of a lane `fine`."""

    loop: For
    n: Store
    row: For
    fine: For
    instruction: Matrix


def emit_tiles(s: State, n: For, lower: Int, upper: Int, branch: Branch) -> Int:
    """Carry out as many iterations of `n` as tiles can; where the others begin."""
    t = _tiles(s, n)
    if t is None:
        return lower
    b, step = s.b, n.step * TILE
    # trips, not what lies between the bounds: the last trip of { k < K - 1 } in steps of 2 begins one before the end
    count = b.floor_div(b.extreme("max", b.add(b.sub(upper, lower), n.step - 1), 0), step)
    end = b.add(lower, b.mul(count, step))
    branch(s, b.compare("slt", lower, end), lambda: _loop(s, t, lower, end), lambda: None)
    return end


def _tiles(s: State, n: For) -> _Tiles | None:
    """What tiles have to do in `n`; None if they cannot."""
    match n.body:
        case (For(kind=Kind.ROWS, body=(For(kind=Kind.ROWS, body=(Store() as store,)) as fine,)) as row,):
            pass
        case _:
            return None
    factors = product(store.expr)
    if factors is None or s.lanes is None or s.rows or not (row.is_full and fine.is_full) or (row.extent or 0) > TILE:
        return None
    if factors.raised is not None:
        return None
    left, right = sided(store, factors)
    found = matrix(s.shared.target, store.target.dtype, left.dtype, right.dtype)
    if found is None or (s.shared.strict and store.target.dtype.is_float) or n.step != fine.extent:
        return None
    if any(not isinstance(p, Affine) or _is_bent(p, (row.index, n.index)) for x in (left, right) for p in x.index):
        return None
    t = _Tiles(n, store, row, fine, found)
    close = _open(s, t, 0)
    fits = operands(s, store) is not None and run_along(s, left, n.index) == 1
    fits = fits and register_axes(s, store.target)[0] == {row.index}
    close()
    return t if fits else None


def _is_bent(p: Affine, indices: tuple[str, ...]) -> bool:
    """Whether one of `indices` stands in a quotient, remainder, minimum or maximum of `p`."""
    return any(not isinstance(a, str) and names(Affine(((a, 1),))) & set(indices) for a, _ in p.terms)


def _open(s: State, t: _Tiles, lower: Int) -> Callable[[], None]:
    """Open the axes of the rows at this iteration of the loop; what closes them again."""
    keep = s.env, s.loops
    s.env, s.loops = {**s.env, t.loop.index: lower}, (*s.loops, t.loop)
    for x in (t.row, t.fine):
        assert x.extent is not None
        s.open_axis(Axis(x.index, x.kind, x.extent, None, x.upper))

    def close() -> None:
        for x in (t.fine, t.row):
            s.close_axis(x.index)
        s.env, s.loops = keep

    return close


def _loop(s: State, t: _Tiles, lower: Int, end: Int) -> None:
    """The loop over whole tiles, at least one of them."""
    b, rows, vectors = s.b, t.row.extent or 0, s.vectors()
    keys = [[_key(s, t, p, v) for p in range(rows)] for v in range(vectors)]
    room = b.pure(f"alloca [{TILE * LINE} x i8], align {LINE} ; {t.n.target.source} tile")
    start = [_tile_of(s, [s.regs[k] for k in of], of[0], room, rows) for of in keys]

    def iteration(at: str, sums: list[str]) -> list[str]:
        close = _open(s, t, at)
        ops = operands(s, t.n)
        assert ops is not None
        point = {**dict.fromkeys(s.axes, 0)}
        left = _load(s, rows, ops.left.base(point, None), _apart(s, t, ops, True))
        new = []
        for v, total in enumerate(sums):
            place = gep(s, ops.right.element, ops.right.base(point, None), v * s.width * ops.dot.steps)
            right = _load(s, TILE, place, _apart(s, t, ops, False))
            new.append(b.call("x86_amx", t.instruction.intrinsic, ("i16", rows), ("i16", LINE), ("i16", LINE),
                              ("x86_amx", total), ("x86_amx", left), ("x86_amx", right)))
        close()
        return new

    new = go_round(s, lower, end, t.loop.step * TILE, [("x86_amx", x) for x in start], iteration, runs=True)
    for of, tile in zip(keys, new, strict=True):
        b.call("void", "llvm.x86.tilestored64.internal", ("i16", rows), ("i16", LINE), ("ptr", room), ("i64", LINE),
               ("x86_amx", tile))
        for p, key in enumerate(of):
            s.regs[key] = b.do(f"load {register_type(s, key)}, ptr {_row(s, room, p)}, align {LINE}")


def _key(s: State, t: _Tiles, p: int, v: int) -> RegKey:
    return key_of(s, t.n.target, {t.row.index: p}, v)


def _row(s: State, room: str, p: int) -> str:
    return gep(s, "i8", room, p * LINE)


def _tile_of(s: State, values: list[str], key: RegKey, room: str, rows: int) -> str:
    """A tile of these vectors, through memory; of none but zeros without."""
    if all(v == "zeroinitializer" for v in values):
        return s.b.call("x86_amx", "llvm.x86.tilezero.internal", ("i16", rows), ("i16", LINE))
    for p, v in enumerate(values):
        s.b.line(f"store {register_type(s, key)} {v}, ptr {_row(s, room, p)}, align {LINE}")
    return _load(s, rows, room, LINE)


def _load(s: State, rows: int, place: str, apart: Int) -> str:
    return s.b.call("x86_amx", "llvm.x86.tileloadd64.internal", ("i16", rows), ("i16", LINE), ("ptr", place), ("i64", apart))


def _apart(s: State, t: _Tiles, o: Operands, is_left: bool) -> Int:
    """Bytes from row to row of a tile: of the left operand the rows of the nest, of the right one iterations of its loop."""
    place, index, by = (o.left, t.row.index, 1) if is_left else (o.right, t.loop.index, t.loop.step)
    total: Int = 0
    for p, step, (_, unit) in zip(place.load.index, strides(s, place.buffer), place.buffer.dims, strict=True):
        assert isinstance(p, Affine)
        total = s.b.add(total, s.b.mul(step, p.factor(index) * by // unit))
    return s.b.mul(total, alignment(place.element))
