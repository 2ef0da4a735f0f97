"""Prefetching the rows of the tile after next, where each has its own, and its few columns leave little to do with what is read.

    for k { acc[p, v] += A[m + p, k] * B[k, v] }                                                   becomes
    if 512 - K >= 0 { for k { if k mod 16 = 0 { for p { prefetch A[m + p + 12, k] } } acc[p, v] += .. } } else { .. }

Rows are then read once, in pieces too short for hardware to see them coming.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace

from polyop.ir.expr import Affine, Load, affine, bounds, loads, names, place, quasi
from polyop.ir.loops import LOCKSTEP, Buffer, For, If, Kind, LoopNest, Node, Prefetch, Space, Store, stores, walk
from polyop.ir.target import LINE

NARROW = 2
"""Vectors of a tile's columns that leave so little to do with what is read of a row that it must come early."""

MOST_STEPS = 512
"""Of a tile whose rows are pieces too short for hardware to see a stream in them."""

TILES = 2  # early that rows come: of 20 MB in rows of 400 bytes 1.22 ms, one early 1.27, all at once 1.75, none 1.65


def with_next_rows(nest: LoopNest, n: For, tile: For, width: int) -> Node:
    """`n` with hints for what the tile after next reads of rows of its own, where `tile` has few columns and `n` few steps.

    A loop that also copies is one of many. Rows that a window moves along are read again by its other steps: with hints in each,
    3 x 3 of 3 to 24 channels took 1.05 to 1.25 times as long.
    """
    steps = [b - n.lower for b in bounds(n.upper)]
    brief = tuple(affine(MOST_STEPS) - b for b in steps if not b.is_constant)
    hints = tuple(_next_rows(nest, n, tile)) if tile.extent is not None and tile.extent <= NARROW * width else ()
    is_long = not brief and min(b.const for b in steps) > MOST_STEPS
    if not hints or is_long or any(nest.buffer(s.target.source).space != Space.REG for s in stores(n.body)):
        return n
    hinted = replace(n, body=(*hints, *n.body))
    return If(brief, (hinted,), (n,)) if brief else hinted


def _next_rows(nest: LoopNest, n: For, tile: For) -> Iterator[Node]:
    steps = {f.index for f in walk(tile.body) if isinstance(f, For) and f.kind not in LOCKSTEP}
    for rows in (x for x in n.body if isinstance(x, For) and x.kind == Kind.ROWS and x.extent):
        updates = [s for s in rows.body if isinstance(s, Store) and s.reduce]
        reads = dict.fromkeys(x for s in updates for x in loads(s.expr))
        for x in (x for x in reads if _has_row(nest.buffer(x.source), x, rows.index, n.index, steps)):
            again = affine(n.index) - n.lower
            first = quasi("mod", again, affine(LINE // x.dtype.bytes_)) * -1
            later = place(x, {rows.index: affine(rows.index) + TILES * (rows.extent or 1)})
            yield If((first,), (replace(rows, body=(Prefetch(replace(later, guard=())),)),))


def _has_row(b: Buffer, x: Load, row: str, step: str, steps: Set[str]) -> bool:
    """Whether `row` alone is a row of the tensor `b` to `x`, and `step` of all `steps` goes along it element by element."""
    used = [names(p) if isinstance(p, Affine) else frozenset() for p in x.index]
    along = x.index[b.unit] if b.space == Space.TENSOR and b.unit is not None else None
    is_along = isinstance(along, Affine) and along.factor(step) == 1 and row not in names(along)
    own = [u for u in used if row in u]
    return is_along and len(own) == 1 and not own[0] & steps and sum(step in u for u in used) == 1
