"""Prefetching the rows of the next tiles, where each has its own, and its few columns leave little to do with what is read.

    for k { acc[p, v] += A[m + p, k] * B[k, v] }                                                   becomes
    if 512 - K >= 0 { for k { if k mod 16 = 0 { for p { prefetch A[m + p + 12, k] } } acc[p, v] += .. } } else { .. }

Rows are then read once, in pieces too short for hardware to see them coming. So are long rows that are taken in blocks of 512
steps. Of these the next tile's come, in each step another line, one row after the other,

    if K - k_c - 512 >= 0 and M - m - 24 >= 0 {
        for k { prefetch A[m + 12 + k div 32, k_c + 16 (k mod 32)]; acc[p, v] += A[m + p, k_c + k] * B[k_c + k, v] } }

since rows side by side come from as many places of memory at once, and from one part of it where they lie whole pages apart.
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

ROOMY = 2  # the cache for rows that come one after the other: many steps before they are read, and too much for the first one


def with_next_rows(nest: LoopNest, n: For, tile: For, width: int, cache: int = 1) -> Node:
    """`n` with hints for what the next tiles read of rows of their own, where `tile` has few columns and `n` few steps.

    Short rows come to `cache`. A loop that also copies is one of many. Rows that a window moves along are read again by its
    other steps: with hints in each, 3 x 3 of 3 to 24 channels took 1.05 to 1.25 times as long.
    """
    is_narrow = tile.extent is not None and tile.extent <= NARROW * width
    own = tuple(_own_rows(nest, n, tile)) if is_narrow else ()
    if not own or any(nest.buffer(s.target.source).space != Space.REG for s in stores(n.body)):
        return n
    steps = [b - n.lower for b in bounds(n.upper)]
    some = [b for b in steps if not b.is_constant]
    most = min((b.const for b in steps if b.is_constant), default=None)
    if not some and most is not None and most > MOST_STEPS:
        return n
    whole = replace(n, body=(*(_side_by_side(n, rows, x, cache) for rows, x in own), *n.body))
    brief = If(tuple(affine(MOST_STEPS) - b for b in some), (whole,), (n,)) if some else whole
    if not some or most is None or most > MOST_STEPS or n.step != 1:
        return brief
    hints = (h for rows, x in own for h in _row_by_row(n, most, rows, x))
    more = [x for rows, read in own for x in _whole_next(nest, rows, read)]
    return If(tuple(dict.fromkeys((*(b - most for b in some), *more))), (replace(n, body=(*hints, *n.body)),), (brief,))


def _side_by_side(n: For, rows: For, x: Load, cache: int) -> Node:
    """A line of each row of the tile after next, where a line of this one's begins."""
    first = quasi("mod", affine(n.index) - n.lower, affine(LINE // x.dtype.bytes_)) * -1
    later = place(x, {rows.index: affine(rows.index) + TILES * (rows.extent or 1)})
    return If((first,), (replace(rows, body=(Prefetch(replace(later, guard=()), cache=cache),)),))


def _row_by_row(n: For, most: int, rows: For, x: Load) -> Iterator[Prefetch]:
    """The lines of the next tile, one row after the other, in each of `most` steps another one, or as many as are needed."""
    line = LINE // x.dtype.bytes_
    lines = -(-most // line)
    step = affine(n.index) - n.lower
    for first in range(0, rows.extent or 1, max(1, most // lines)):
        row = quasi("div", step, affine(lines)) + (rows.extent or 1) + first
        later = place(x, {rows.index: row, n.index: n.lower + quasi("mod", step, affine(lines)) * line})
        yield Prefetch(replace(later, guard=()), cache=ROOMY)


def _whole_next(nest: LoopNest, rows: For, x: Load) -> Iterator[Affine]:
    """What is not negative if the tensor has all rows of the next tile."""
    last = place(x, {rows.index: affine(2 * (rows.extent or 1) - 1)})
    for (extent, _), p, q in zip(nest.buffer(x.source).dims, x.index, last.index, strict=True):
        if isinstance(p, Affine) and isinstance(q, Affine) and rows.index in names(p):
            yield extent - q - 1


def _own_rows(nest: LoopNest, n: For, tile: For) -> Iterator[tuple[For, Load]]:
    """What `n` reads along rows of its own, each with the loop over these rows."""
    steps = {f.index for f in walk(tile.body) if isinstance(f, For) and f.kind not in LOCKSTEP}
    for rows in (x for x in n.body if isinstance(x, For) and x.kind == Kind.ROWS and x.extent):
        updates = [s for s in rows.body if isinstance(s, Store) and s.reduce]
        for x in dict.fromkeys(x for s in updates for x in loads(s.expr)):
            if _has_row(nest.buffer(x.source), x, rows.index, n.index, steps):
                yield rows, x


def _has_row(b: Buffer, x: Load, row: str, step: str, steps: Set[str]) -> bool:
    """Whether `row` alone is a row of the tensor `b` to `x`, and `step` of all `steps` goes along it element by element."""
    used = [names(p) if isinstance(p, Affine) else frozenset() for p in x.index]
    along = x.index[b.unit] if b.space == Space.TENSOR and b.unit is not None else None
    is_along = isinstance(along, Affine) and along.factor(step) == 1 and row not in names(along)
    own = [u for u in used if row in u]
    return is_along and len(own) == 1 and not own[0] & steps and sum(step in u for u in used) == 1
