"""LoopNest -> LoopNest for kernels with matrix units: registers begin with what the first update, or turn, makes of them.

    for n (atom) { m[n] = -inf }  for n (atom) { m[n] max= s[n] }           becomes   m[n] = -inf   m[n] = s[n]

of elements each of which is updated once, and then only folded in the same way; the first store is no work where all are updated.

    m = -inf   for t { m = max(t >= 1 ? m : -inf, s[t]) }                   becomes   m = -inf   for t { m = max(m, s[t]) }

where the register holds that very number when the first turn reads it: no element is chosen in each turn then.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from polyop.codegen.nested import Tile, tile
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, affine, loads
from polyop.ir.expr import Test as Tests
from polyop.ir.expr import rebuild as rebuild_expr
from polyop.ir.loops import Buffer, For, Kind, LoopNest, Node, Space, Store, rebuild, stores

Place = tuple[str, tuple[int | None, ...]]
"""A register, and the numbers among its places: which of several it is."""

_OVER = (Kind.THREADS, Kind.ROWS, Kind.ATOM)


def begun(nest: LoopNest) -> LoopNest:
    """`nest`, whose registers begin so."""
    registers = {b.name: b for b in nest.buffers if b.space == Space.REG}
    every = stores(nest.body)

    def is_folded(x: Store) -> bool:
        readers = [s for s in every if any(y.source == x.target.source for y in loads(s.expr))]
        return all(s.reduce == x.reduce and isinstance(s.expr, Load) for s in readers)

    def go(body: tuple[Node, ...]) -> tuple[Node, ...]:
        out: list[Node] = []
        for n in body:
            first, then = tile(out[-1], _OVER) if out else None, tile(n, _OVER)
            if first and then and _begins(first, then, registers) and is_folded(then.store):
                n = _assigned(n)
            out.append(rebuild(n, go))
        return tuple(out)

    return replace(nest, body=_Turns(registers).entered(go(nest.body), {}))


def _begins(first: Tile, then: Tile, registers: Container[str]) -> bool:
    """Whether `first` writes what changes nothing of the update `then`, which comes to each element once."""
    a, b = first.store, then.store
    if a.target.source not in registers or a.target != b.target or a.reduce or first.tests or b.reduce is None:
        return False
    if any(x.source == a.target.source for x in loads(b.expr)) or {f.index for f in first.loops} != {f.index for f in then.loops}:
        return False
    return a.expr == Const(b.reduce.identity, a.target.dtype)


def _assigned(n: Node) -> Node:
    return replace(n, reduce=None) if isinstance(n, Store) else rebuild(n, lambda body: tuple(map(_assigned, body)))


@dataclass(frozen=True, slots=True)
class _Turns:
    registers: Mapping[str, Buffer]

    def entered(self, body: tuple[Node, ...], held: dict[Place, Const]) -> tuple[Node, ...]:
        """`body`, where registers hold these numbers before it; `held` is changed to what they hold behind it."""
        out = []
        for n in body:
            if isinstance(n, For) and n.kind == Kind.SERIAL and n.lower == Affine() and n.step == 1:
                n = replace(n, body=self.first(n.body, affine(n.index) - 1, dict(held)))
            elif isinstance(n, For) and n.kind == Kind.PARALLEL:
                n = rebuild(n, lambda inner: self.entered(inner, {}))
            self.done(n, held)
            out.append(n)
        return tuple(out)

    def first(self, body: tuple[Node, ...], later: Affine, held: dict[Place, Const]) -> tuple[Node, ...]:
        """The body of a loop of which all turns but the first are `later`, whose first one finds what is `held`."""
        out = []
        for n in body:
            t = tile(n, _OVER)
            new = _unchosen(t.store.expr, t.store.target, later, held) if t else None
            out.append(_with(n, new) if t and new is not t.store.expr and new else n)
            self.done(n, held)
        return tuple(out)

    def done(self, n: Node, held: dict[Place, Const]) -> None:
        """`held` behind `n`: a number in all elements, or what another register holds in all of them."""
        t = tile(n, _OVER)
        if t and self.is_all(t) and t.store.reduce is None:
            match t.store.expr:
                case Const() as c:
                    held[_place(t.store.target)] = c
                    return
                case Load(guard=()) as x if _place(x) in held:
                    held[_place(t.store.target)] = held[_place(x)]
                    return
        for s in stores((n,)):
            for k in [k for k in held if k[0] == s.target.source]:
                del held[k]

    def is_all(self, t: Tile) -> bool:
        """Whether all elements of a register are written, but for those of other numbers."""
        b, ends = self.registers.get(t.store.target.source), {f.index: affine(f.end) for f in t.loops}
        return b is not None and not t.tests and all(isinstance(p, Affine) and (p.is_constant or ends.get(p.name or "") == e)
                                                     for p, (e, _) in zip(t.store.target.index, b.dims, strict=True))


def _with(n: Node, e: Expr) -> Node:
    return replace(n, expr=e) if isinstance(n, Store) else rebuild(n, lambda body: tuple(_with(x, e) for x in body))


def _unchosen(e: Expr, target: Load, later: Affine, held: Mapping[Place, Const]) -> Expr:
    """`e`, which is stored to `target`, without choices of what is held anyway."""
    match e:
        case Apply(fn="select", args=(Tests(tests=tests), Load() as x, Const() as c)):
            # of what is written at the same time only its own element is still what it was
            stays = x.index == target.index or _apart(x, target)
            if stays and tests == (later,) and _is(held.get(_place(x)), c):
                return replace(x, guard=())
    return rebuild_expr(e, lambda x: _unchosen(x, target, later, held))


def _is(a: Const | None, b: Const) -> bool:
    """Whether they are one number, and one zero."""
    return a == b and a is not None and str(float(a.value)) == str(float(b.value))


def _apart(a: Load, b: Load) -> bool:
    """Whether they are of two registers, or of several by other numbers."""
    return a.source != b.source or any(p != q for p, q in zip(_place(a)[1], _place(b)[1], strict=True) if None not in (p, q))


def _place(x: Load) -> Place:
    return x.source, tuple(p.const if isinstance(p, Affine) and p.is_constant else None for p in x.index)
