"""Registers of a block of threads with all their dimensions again, those by which lanes and threads share them out included.

    for i, j (atom) { s[0] = .. }      is, of registers s[0, i, j],      for i, j (atom) { s[0, i, j] = .. }

Each lane, and each thread, has registers of its own, so a nest that is printed names them without the indices of these loops.
What they mean is told by the nest that was proved, which has these positions: those of each register in each statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Expr, Load, Position, affine, loads, map_loads, names
from polyop.ir.loops import For, If, IfData, Kind, LoopNest, Node, Space, Store, stores, walk

ANY = "*"
"""With which the name of a position begins that stands for all elements: a test of data asks of all that lanes hold."""

_HANDED = (Kind.THREADS, Kind.ATOM)

Places = tuple[Position, ...]


def with_elements(nests: tuple[LoopNest, ...], proved: LoopNest) -> tuple[LoopNest, ...]:
    """`nests` with the registers of the nest that was `proved`; equal nodes of them are one.

    Raises  UnsupportedError, if it is not plain which elements a statement means.
    """
    lost = lost_dims(proved)
    for b in (b for nest in nests for b in nest.buffers):
        left = tuple(x for d, x in enumerate(proved.buffer(b.name).dims) if d not in lost.get(b.name, ()))
        if b.dims != left:
            raise UnsupportedError(f"{b} has lost other dimensions than those of lanes")
    found = _Elements(lost, {}, {}, {}, {})
    counted = {n.index for n in walk(proved.body) if isinstance(n, For) and n.kind == Kind.ROWS and n.step > 1}
    for s in stores(proved.body):
        for x in (s.target, *loads(s.expr)):
            if x.source in lost:
                at = tuple(p for d, p in enumerate(x.index) if d in lost[x.source])
                if any(not isinstance(p, Affine) or names(p) & counted for p in at):
                    raise UnsupportedError(f"which element {x} is depends on rows that are counted")
                found.here.setdefault((s.stmt, x.source), set()).add(at)
                found.every.setdefault(x.source, set()).add(at)
    return tuple(replace(nest, buffers=proved.buffers, body=tuple(found.node(n, frozenset()) for n in nest.body))
                 for nest in nests)


def lost_dims(proved: LoopNest) -> dict[str, frozenset[int]]:
    """The dimensions of each register that lanes or threads index."""
    handed = {n.index for n in walk(proved.body) if isinstance(n, For) and n.kind in _HANDED}
    registers = {b.name for b in proved.buffers if b.space == Space.REG}
    lost: dict[str, frozenset[int]] = {}
    for s in stores(proved.body):
        for x in (s.target, *loads(s.expr)):
            here = frozenset(d for d, p in enumerate(x.index) if isinstance(p, Affine) and p.name in handed)
            if here and x.source in registers:
                lost[x.source] = lost.get(x.source, frozenset()) | here
    return lost


@dataclass(frozen=True, eq=False)
class _Elements:
    """lost   the dimensions that each register has lost
    here   (statement, register) -> its positions in them; `every`: those of all statements
    made   what has become of each node among these loops; `equal`: one of all nodes that are equal
    """

    lost: Mapping[str, frozenset[int]]
    here: dict[tuple[str, str], set[Places]]
    every: dict[str, set[Places]]
    made: dict[tuple[int, frozenset[str]], Node]
    equal: dict[object, Node]

    def node(self, n: Node, around: frozenset[str]) -> Node:
        key = id(n), around
        if key not in self.made:
            new = self.anew(n, around)
            self.made[key] = self.equal.setdefault(_key(new), new)
        return self.made[key]

    def anew(self, n: Node, around: frozenset[str]) -> Node:
        match n:
            case For():
                inner = around | {n.index}
                return replace(n, body=tuple(self.node(x, inner) for x in n.body))
            case If(tests=tests, then=then, other=other):
                return If(tests, tuple(self.node(x, around) for x in then), tuple(self.node(x, around) for x in other))
            case IfData(test=test, then=then, other=other):
                return IfData(map_loads(test, self.all_of), tuple(self.node(x, around) for x in then),
                              tuple(self.node(x, around) for x in other))
            case Store(stmt=stmt, target=target, expr=expr):
                def one(x: Load) -> Expr:
                    return self.placed(x, stmt, around)

                new = map_loads(target, one)
                assert isinstance(new, Load)
                return replace(n, target=new, expr=map_loads(expr, one))
        return n

    def placed(self, x: Load, stmt: str, around: frozenset[str]) -> Load:
        if x.source not in self.lost:
            return x
        found = self.here.get((stmt, x.source)) or {
            at for at in self.every.get(x.source, set()) if all(isinstance(p, Affine) and names(p) <= around for p in at)}
        if len(found) != 1:
            raise UnsupportedError(f"it is not plain which element of {x.source} statement {stmt} means")
        return self.full(x, *found)

    def all_of(self, x: Load) -> Load:
        if x.source not in self.lost:
            return x
        return self.full(x, tuple(affine(f"{ANY}{d}") for d in sorted(self.lost[x.source])))

    def full(self, x: Load, at: Places) -> Load:
        kept, gone, lost = iter(x.index), iter(at), self.lost[x.source]
        index = tuple(next(gone) if d in lost else next(kept) for d in range(len(x.index) + len(at)))
        return replace(x, index=index)


def _key(n: Node) -> object:
    """What is equal for equal nodes, of which those inside are one if they are equal."""
    match n:
        case For(body=body):
            return replace(n, body=()), *map(id, body)
        case If(tests=about) | IfData(test=about):
            return about, tuple(map(id, n.then)), tuple(map(id, n.other))
    return n
