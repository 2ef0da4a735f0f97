"""In which order the blocks of a kernel are numbered. Their loops are parallel, so any is as good for the result.

Blocks run at one time about in order of their numbers. Where two tensors are staged, one that changes with the rows of blocks and
one with their columns, blocks of a square share both, and those of a line only one: so GROUP rows of blocks are gone through
column by column, which is another numbering of the same box:

    { [GROUP g + r, c] -> [GROUP g columns + h c + r] : 0 <= r < h = min(GROUP, rows - GROUP g) and 0 <= c < columns }

Where a loop's later blocks have more turns, as those of rows that see the keys before them, they are numbered from its end: those
that take longest begin first, and at the end of all there are short ones to share out.
"""

from __future__ import annotations

from polyop.codegen.gpu.split import Part
from polyop.ir.expr import Affine, Load, evaluate, loads, names
from polyop.ir.loops import For, Kind, LoopNest, Space, stores, walk

GROUP = 8
"""Rows of blocks: with some hundred blocks at one time, and tiles at most twice as wide as high, that is about a square."""


_FAR = 1 << 16
"""A place far from the beginning, and still inside."""


def is_shared_both_ways(k: Part, nest: LoopNest) -> bool:
    """Whether the last two loops over blocks each change one of two staged tensors and leave the other."""
    if len(k.axes) < 2 or not all(a.exact for a in k.axes):
        return False
    row, column = (a.loop.index for a in k.axes[-2:])
    staged = [x for s in stores(k.body) if nest.buffer(s.target.source).space == Space.SHARED for x in loads(s.expr)]
    ways = {(row in used, column in used) for x in staged if (used := _names(x))}
    return {(True, False), (False, True)} <= ways


def grow(k: Part) -> frozenset[str]:
    """The loops over blocks whose later points have more turns of some loop."""
    turns = [n.upper - n.lower for n in walk(k.body) if isinstance(n, For) and n.kind == Kind.SERIAL]
    around = {a.loop.index for a in k.axes}

    def more(x: Affine, i: str) -> bool:
        known = dict.fromkeys(names(x), 2 * _FAR)
        return i in names(x) and names(x) & around == {i} and evaluate(x, known | {i: _FAR}) > evaluate(x, known | {i: 0})

    return frozenset(i for i in around if any(more(x, i) for x in turns if not any(n.index in names(x) for n in _serial(k))))


def _serial(k: Part) -> list[For]:
    return [n for n in walk(k.body) if isinstance(n, For) and n.kind != Kind.PARALLEL]


def _names(x: Load) -> frozenset[str]:
    return frozenset[str]().union(*(names(p) for p in x.index if isinstance(p, Affine)))


def numbered(started: str, counts: list[str]) -> str:
    """The number of a block in order of the loops, of which there are `counts`, from that by which it is `started`."""
    return f"pop_grouped<{GROUP}>({started}, (pop_u32){counts[-2]}, (pop_u32){counts[-1]})"
