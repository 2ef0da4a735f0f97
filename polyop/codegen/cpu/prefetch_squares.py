"""Prefetching the next square of an operand whose rows are copied as columns.

    for s (rows) { for l (lanes) { W[s, l] = B[n + l, k + s] } }                         becomes
    for l (rows) { prefetch B[n + l, k + 96] } for s (rows) { for l (lanes) { W[s, l] = B[n + l, k + s] } }

where a block is known to have few steps of the depth, here 96: what comes next is further on in the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyop.ir.expr import Affine, Load, is_computed, names, place
from polyop.ir.loops import For, Kind, LoopNest, Node, Prefetch, Space, Store

FEW_STEPS = 128
"""Steps, if these are known, of a loop that copies rows of an operand: 16 steps early, an eighth and more would be none of it."""


def next_square(nest: LoopNest, n: For) -> Iterator[Node]:
    """Hints for what the same square of the next block reads, where `n` copies a whole one: rows of an operand become columns.

    These rows are as long as the sum, and each lies on a page of its own; mostly the next block's follow them.
    """
    lanes = n.body[0]
    if not isinstance(lanes, For) or lanes.kind != Kind.LANES or not lanes.is_full or not n.is_full or len(lanes.body) > 1:
        return
    s = lanes.body[0]
    if not isinstance(s, Store) or not isinstance(s.expr, Load) or any(map(is_computed, (*s.target.index, *s.expr.index))):
        return
    to, b = nest.buffer(s.target.source), nest.buffer(s.expr.source)
    if to.space != Space.WORK or b.space != Space.TENSOR or b.unit is None:
        return
    along = s.expr.index[b.unit]
    position = zip(s.target.index, to.dims, strict=True)
    steps = [extent for p, (extent, _) in position if isinstance(p, Affine) and n.index in names(p)]
    is_upright = isinstance(along, Affine) and along.factor(n.index) == 1 and lanes.index not in names(along)
    if is_upright and len(steps) == 1 and steps[0].is_constant and steps[0].const <= FEW_STEPS:
        later = place(s.expr, {n.index: steps[0]})
        yield replace(lanes, kind=Kind.ROWS, body=(Prefetch(replace(later, guard=())),))
