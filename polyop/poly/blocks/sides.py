"""The sides of a tile of results: how each is cut by blocks, by threads, and what is left for each of them.

A side runs over one iterator or several, of which a block has so many values each: 128 rows are 128 pixels of a line, or 8 lines
of 16 pixels. Such iterators need not be one in memory, and no index divides: where a tile has one number for a row, it is a sum.

    { [p, q] -> [16 p + q] : 0 <= p < 8 and 0 <= q < 16 }

What a matrix unit takes at once may be several lines of a side that is narrower than its atom.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from polyop.ir.expr import Affine
from polyop.poly.tiles import Coord

AT_ONCE, WIDEST = 16, 4  # bytes of operands that a thread has side by side, and numbers at most

Side = tuple[tuple[str, int], ...]
"""The iterators of a side with the extents that a tile has of them; the last one runs fastest."""


@dataclass(frozen=True, slots=True)
class SideCut:
    """How the iterators of a side are cut; coordinates of slower ones come first.

    of      iterator -> its coordinates
    blocks  which tile; threads: which part of it; rows: what a thread or a warp has there; atom: what a matrix unit takes of it
    has_lanes  whether the last of the threads are lanes of one warp, which has others along the other side
    """

    of: dict[str, tuple[Coord, ...]]
    blocks: tuple[Coord, ...]
    threads: tuple[Coord, ...]
    rows: tuple[Coord, ...]
    atom: tuple[Coord, ...]
    has_lanes: bool = False


def along(side: Side, values: Mapping[str, Affine]) -> Affine:
    """The number of a place on a `side`, by its `values` in the tile."""
    at = Affine()
    for i, extent in side:
        at = at * extent + values[i]
    return at


def cut(side: Side, own: Mapping[str, str], mine: int, bytes_: int, atom: int = 0, block: Coord | None = None,
        lanes: int = 0) -> SideCut:
    """`side` by blocks, and `mine` values of it by a thread: in groups that it reads at once, beside those of its neighbours.

    With an `atom`, `mine` are a warp's, in as many atoms as there are. own: the names of iterators; block: the coordinate of the
    tiles, if there is one; bytes_: of a number that is read; lanes: how many threads of a warp lie along the fastest iterator, if
    not all do that have other parts of it.
    """
    groups = 1 if atom else min(side[0][1], -(-mine // min(WIDEST, max(1, AT_ONCE // bytes_))))
    left, unit = mine // groups, atom
    of: dict[str, tuple[Coord, ...]] = {}
    found: list[tuple[tuple[Coord, ...], ...]] = []
    for i, extent in reversed(side):
        q, is_last = own[i], i == side[0][0]
        span = extent // groups if is_last else extent
        here, left = gcd(span, left), left // gcd(span, left)
        each, unit = (gcd(here, unit), unit // gcd(here, unit)) if atom else (here, 0)
        whole = (block or Coord(f"{q}_c", extent),)
        threads = _if(is_last or here < span, Coord(f"{q}_w" if atom else f"{q}_t", here, span))
        if lanes and i == side[-1][0] and span > lanes * here:
            threads = Coord(f"{q}_w", lanes * here, span), Coord(f"{q}_t", here, lanes * here)
        rows = _if(each < here, Coord(f"{q}_q", each, here)) if atom else _if(span < extent, Coord(f"{q}_q", span, extent))
        last = _if(each > 1, Coord(f"{q}_p", 1, each))
        of[i] = (*whole, *threads, *rows, *last)
        found.insert(0, (whole, threads, rows, last) if atom else (whole, threads, (*rows, *last), ()))
    blocks, threads, rows, last = (tuple(c for x in found for c in x[k]) for k in range(4))
    return SideCut(of, blocks, threads, rows, last, any(len(x[1]) > 1 for x in found))


def _if(there: bool, c: Coord) -> tuple[Coord, ...]:
    return (c,) if there else ()
