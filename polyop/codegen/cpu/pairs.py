"""Lanes over two indices: where one leaves vectors half empty, and rows in lock step lie beside it in what is packed.

    for v in [0, 24) (lanes 24) { for q in [0, 2) (rows 2) { T } }      becomes      for v in [0, 48) (lanes 48) { T' }

T' is T with { [v] -> [q = floor(v / 24), v = v mod 24] }. In vectors of 16 a third of 24 lanes is empty, and 48 are three whole
vectors. What is packed has both indices side by side, so it is read as before; elsewhere a vector lies in pieces (`Place.runs`).
A register buffer with a dimension for each index has one for both. Lock step means any order, so this is no other nest: the
emitter makes it just before it writes, as it cuts runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce

from polyop.ir.expr import Affine, Expr, Load, affine, bounds, loads, map_affine, map_loads, names, quasi, substitute
from polyop.ir.loops import Buffer, For, If, Kind, LoopNest, Node, Prefetch, Space, Store, children, rebuild, walk

Dims = tuple[int, int]
"""The dimensions of a register buffer along the rows and the lanes of a pair."""

ELSEWHERE: Dims = (-1, -1)


@dataclass(frozen=True, slots=True)
class Pair:
    """Lanes `lanes`, of which there are `extent` in each iteration of the rows loop `rows`, `count` of these at most."""

    lanes: str
    extent: int
    rows: str
    count: int
    upper: Affine

    def __call__(self, x: Affine) -> Affine:
        """`x`, where the lanes count through both."""
        v, e = affine(self.lanes), affine(self.extent)
        return substitute(x, {self.rows: quasi("div", v, e), self.lanes: quasi("mod", v, e)})


def paired(nest: LoopNest, width: int) -> LoopNest:
    """`nest` with lanes over pairs of indices, wherever vectors of `width` lanes are fuller then; itself if there are none."""
    pairs = {id(n): p for n in walk(nest.body) if isinstance(n, For) and n.kind == Kind.LANES and (p := pair_of(nest, n, width))}
    found: dict[str, set[Dims]] = {}
    for x, p in _registers(nest, nest.body, pairs, None) if pairs else ():
        found.setdefault(x.source, set()).add(_along(x, p))
    merged = {name: next(iter(d)) for name, d in found.items() if d != {ELSEWHERE}}
    if not pairs or any(len(found[name]) > 1 or d[0] == d[1] for name, d in merged.items()):
        return nest

    lanes = frozenset(p.lanes for p in pairs.values())

    def load(x: Load) -> Load:
        if x.source not in merged:
            return x
        row, lane = merged[x.source]
        both = frozenset(n for i in x.index if isinstance(i, Affine) for n in names(i)) & lanes
        return replace(x, index=tuple(affine(min(both)) if d == lane else i for d, i in enumerate(x.index) if d != row))

    def within(e: Expr, p: Pair) -> Expr:
        return map_loads(map_affine(e, p), load)

    def one(n: Node, p: Pair | None) -> tuple[Node, ...]:
        def all_(body: tuple[Node, ...]) -> tuple[Node, ...]:
            return tuple(x for c in body for x in one(c, own or p))

        own = pairs.get(id(n))
        match n:
            case For() if own:
                upper = reduce(lambda a, b: quasi("min", a, b), (u * own.extent for u in bounds(own.upper)))
                return (replace(n, upper=upper, extent=own.extent * own.count, body=all_(n.body)),)
            case For(index=i) if p and i == p.rows:
                return all_(n.body)
            case Store() if p:
                target = within(n.target, p)
                assert isinstance(target, Load)
                return (replace(n, instance=tuple(map(p, n.instance)), lift=tuple(map(p, n.lift)), target=target,
                                expr=within(n.expr, p)),)
            case If() if p:
                return (replace(n, tests=tuple(map(p, n.tests)), then=all_(n.then), other=all_(n.other)),)
            case Prefetch(place=x) if p:
                at = within(x, p)
                assert isinstance(at, Load)
                return (replace(n, place=at),)
        return (rebuild(n, all_),)

    buffers = tuple(_both(b, merged[b.name]) if b.name in merged else b for b in nest.buffers)
    return replace(nest, buffers=buffers, body=tuple(x for n in nest.body for x in one(n, None)))


def pair_of(nest: LoopNest, n: For, width: int) -> Pair | None:
    """The rows loop inside the lanes `n` that goes with them: around everything, and beside them in an operand that is packed."""
    e = n.extent or 0
    if not n.is_full or e % width == 0:
        return None
    rows = [{(f.index, f.extent, f.upper) for f in around} for around in _leaves(n.body, ())]
    for q, count, upper in sorted(frozenset.intersection(*map(frozenset, rows)), key=str) if rows else ():
        every = [x for s in walk(n.body) if isinstance(s, Store) and s.reduce is not None for x in loads(s.expr)]
        beside = [(affine(count or 0), 1), (affine(e), 1)]
        if count and any(nest.buffer(x.source).space == Space.WORK and list(nest.buffer(x.source).dims[-2:]) == beside
                         and x.index[-2:] == (affine(q), affine(n.index)) for x in every):
            return Pair(n.index, e, q, count, upper)
    return None


def _leaves(body: tuple[Node, ...], around: tuple[For, ...]) -> Iterator[tuple[For, ...]]:
    """The rows loops around each store and prefetch of `body`."""
    for n in body:
        if isinstance(n, Store | Prefetch):
            yield around
        yield from _leaves(children(n), (*around, n) if isinstance(n, For) and n.kind == Kind.ROWS and n.step == 1 else around)


def _registers(nest: LoopNest, body: tuple[Node, ...], pairs: dict[int, Pair],
               p: Pair | None) -> Iterator[tuple[Load, Pair | None]]:
    """What is in registers, with the pair of lanes and rows around it."""
    for n in body:
        if isinstance(n, Store):
            for x in (n.target, *loads(n.expr)):
                if nest.buffer(x.source).space == Space.REG:
                    yield x, p
        yield from _registers(nest, children(n), pairs, pairs.get(id(n), p))


def _along(x: Load, p: Pair | None) -> Dims:
    """Where the indices of `p` stand in `x`; the same place twice, if there is no such place for each."""
    if p is None or not any(names(y) & {p.rows, p.lanes} for y in x.index if isinstance(y, Affine)):
        return ELSEWHERE
    row, lane = ([d for d, y in enumerate(x.index) if y == affine(i)] for i in (p.rows, p.lanes))
    return (row[0], lane[0]) if len(row) == len(lane) == 1 else (0, 0)


def _both(b: Buffer, at: Dims) -> Buffer:
    row, lane = at
    whole = (b.dims[row][0] * b.dims[lane][0].const, 1)
    return replace(b, dims=tuple(whole if d == lane else x for d, x in enumerate(b.dims) if d != row))
