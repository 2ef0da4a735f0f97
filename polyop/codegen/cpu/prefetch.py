"""Prefetching what lanes read once and only add up: rows that follow each other in memory.

    for r { for c in steps of 64 { for v in [0, 64) (lanes 64) { part[v] += X[r, c + v] } } }      becomes
    for r { for c in steps of 64 { for v in [0, 64) (lanes 64) { prefetch X[r, c + v + 1024]; part[v] += X[r, c + v] } } }

Where rows are long that is further on in the row, where they are short in one of the next rows, if they lie one after the
other. The hardware's own prefetchers see a stream only in the first case: 262144 rows of 32 came at 9 of 43 GB/s. Of several
long rows that are multiplied by a vector it is nearer. How far ahead, and into which cache, each processor has numbers for
(`ir/target.py`, `Hints`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from polyop.ir.expr import Affine, Load, affine, expr_names, is_computed, loads, names, quasi
from polyop.ir.loops import LOCKSTEP, Buffer, For, Kind, LoopNest, Node, Prefetch, Space, rebuild, stores, walk
from polyop.ir.target import USUAL_HINTS, Hints

SEVERAL = 4
"""Rows in lock step that are as many streams, beside something that they share: a matrix times a vector."""

LONG = 8192
"""Bytes of such rows from which they are long; short ones are found in a second cache, where further ahead is sooner."""

Body = tuple[Node, ...]
Stream = tuple[str, tuple[Affine, ...]]
"""A tensor, and where in it lanes read, up to a constant along them."""


@dataclass(frozen=True, slots=True)
class Around:
    """The loops around a node: all that are carried out one by one, those over tiles of rows among them, and rows in lock step.

    Over a tile of rows there are so few at a time that what they share is hardly read again.
    """

    serial: frozenset[str] = frozenset()
    tiles: frozenset[str] = frozenset()
    rows: tuple[For, ...] = ()


def read_ahead(nest: LoopNest, hints: Hints = USUAL_HINTS) -> LoopNest:
    """`nest` with prefetches in lanes loops that read memory and write none."""
    spaces = {b.name: b.space for b in nest.buffers}
    first: dict[Stream, str] = {}  # the statement that reads it before others do: those then find it in a cache

    def go(body: Body, around: Around) -> Body:
        return tuple(one(n, around) for n in body)

    def one(n: Node, around: Around) -> Node:
        if not isinstance(n, For):
            return rebuild(n, lambda body: go(body, around))
        if n.kind not in LOCKSTEP:
            return replace(n, body=go(n.body, _within(n, around)))
        if n.kind == Kind.ROWS or any(isinstance(x, For) and x.kind not in LOCKSTEP for x in walk(n.body)):
            return replace(n, body=go(n.body, replace(around, rows=(*around.rows, n))))
        if not around.serial or any(spaces[s.target.source] != Space.REG for s in stores(n.body)):
            return n
        return replace(n, body=(*_asked(nest, n, around, first, hints), *n.body))

    return replace(nest, body=go(nest.body, Around()))


def _within(n: For, around: Around) -> Around:
    """What stands around the body of `n`, which stands in `around`."""
    rows_follow = any(isinstance(c, For) and c.kind == Kind.ROWS for c in n.body)
    if around.serial and n.step != 1 and rows_follow:
        return replace(around, tiles=around.tiles | {n.index})
    return replace(around, serial=around.serial | {n.index})


def _asked(nest: LoopNest, n: For, around: Around, first: dict[Stream, str], hints: Hints) -> tuple[Prefetch, ...]:
    """Prefetches of the streams that the lanes `n` read before other statements do."""
    inside = frozenset(x.index for x in walk(n.body) if isinstance(x, For))

    def is_for_tiles(x: Load) -> bool:
        return around.tiles <= expr_names(x) or any(f.index in expr_names(x) for f in around.rows)

    found = [x for s, (x, stmt) in streams(nest, n, around.serial, inside).items()
             if first.setdefault(s, stmt) == stmt and is_for_tiles(x)]
    several = len(found) > 1 and all(len(x.index) == 1 for x in found)
    reads = [x for s in stores(n.body) for x in loads(s.expr)]
    locked = {f.index: f.extent or 1 for f in around.rows if any(f.index not in expr_names(x) for x in reads)}

    def asked(x: Load) -> Prefetch:
        b = nest.buffer(x.source)
        if prod(e for i, e in locked.items() if i in expr_names(x)) >= SEVERAL:
            by = _by_length(b, hints)
        else:
            by = affine((hints.beside if several else hints.alone) // b.dtype.bytes_)
        return Prefetch(_later(b, x, by), cache=hints.cache, least=hints.least, ahead=by)

    return tuple(map(asked, found))


def _by_length(b: Buffer, hints: Hints) -> Affine:
    """Elements ahead in rows of `b` that are read side by side: the fewer, the longer they are, as far as they are long."""
    assert b.unit is not None
    least, most, long = (affine(x // b.dtype.bytes_) for x in (hints.long, hints.rows, LONG))
    return quasi("max", least, quasi("min", most, least + long - b.dims[b.unit][0]))


def further_on(nest: LoopNest, lanes: For, bytes_: int) -> tuple[Prefetch, ...]:
    """Prefetches of what `lanes` read side by side, so many bytes further on."""
    found = streams(nest, lanes, frozenset(), frozenset())
    return tuple(Prefetch(_later(nest.buffer(x.source), x, affine(bytes_ // x.dtype.bytes_))) for x, _ in found.values())


def streams(nest: LoopNest, n: For, around: frozenset[str], inside: frozenset[str]) -> dict[Stream, tuple[Load, str]]:
    """What the lanes `n` read side by side, and no other iteration of the loops `around` reads; with the statement that reads it.

    Of neighbours the last one.
    """
    found: dict[Stream, tuple[Load, str]] = {}
    for x, stmt in ((x, s.stmt) for s in stores(n.body) for x in loads(s.expr)):
        b = nest.buffer(x.source)
        index = tuple(p for p in x.index if isinstance(p, Affine))
        if b.space != Space.TENSOR or b.unit is None or any(map(is_computed, x.index)):
            continue
        used = frozenset[str]().union(*map(names, index))
        side_by_side = [d for d, p in enumerate(index) if n.index in names(p)] == [b.unit] and index[b.unit].factor(n.index) == 1
        if side_by_side and around <= used and not used & inside:
            at = index[b.unit].const
            stream = x.source, tuple(p - at if d == b.unit else p for d, p in enumerate(index))
            if stream not in found or at > _at(found[stream][0], b.unit):
                found[stream] = x, stmt
    return found


def _at(x: Load, unit: int) -> int:
    p = x.index[unit]
    return p.const if isinstance(p, Affine) else 0


def _later(b: Buffer, x: Load, by: Affine) -> Load:
    """`x`, so many elements further on."""
    at = enumerate(x.index)
    return replace(x, guard=(), index=tuple(p + by if d == b.unit and isinstance(p, Affine) else p for d, p in at))
