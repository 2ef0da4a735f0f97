"""Prefetching the rows of the next turn of a loop around, where those of this turn were read before and lie in a cache.

    for t { for i { .. A[8*t + i, j] .. } for v (lanes) { for i in [0, 8) { prefetch A[8*t + i + 8, v]; .. A[8*t + i, v] .. } } }

Meanwhile memory would wait.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyop.ir.expr import Affine, Load, affine, is_computed, loads, place
from polyop.ir.loops import For, LoopNest, Node, Prefetch, Space, stores


@dataclass(frozen=True, slots=True)
class Outer:
    """A `loop` around, and what of tensors its turn has `read` so far."""

    loop: For
    read: frozenset[Load] = frozenset()


def after(nest: LoopNest, n: Node, around: tuple[Outer, ...]) -> tuple[Outer, ...]:
    """The loops `around` behind `n`, which stands in them."""
    read = _tensors(nest, n) if around else frozenset()
    return tuple(replace(o, read=o.read | read) for o in around)


def next_turn(nest: LoopNest, x: Load, around: tuple[Outer, ...], cache: int) -> Prefetch | None:
    """A hint for what `x` will be in the next turn of the innermost loop whose turns have rows of their own, read before."""
    loop = next((o.loop for o in reversed(around) if any(_same_rows(nest, x, y, o.loop.index) for y in o.read)), None)
    return Prefetch(place(x, {loop.index: affine(loop.index) + loop.step}), cache=cache) if loop else None


def _tensors(nest: LoopNest, n: Node) -> frozenset[Load]:
    """What `n` reads of tensors, at positions that are not computed."""
    found = (x for s in stores((n,)) for x in loads(s.expr) if nest.buffer(x.source).space == Space.TENSOR)
    return frozenset(x for x in found if not any(map(is_computed, x.index)))


def _same_rows(nest: LoopNest, x: Load, y: Load, loop: str) -> bool:
    """Whether both reads are of rows of one tensor that each turn of `loop` has for itself."""
    if x.source != y.source:
        return False
    pairs = zip(x.index, y.index, strict=True)
    moves = [(p.factor(loop), q.factor(loop)) for p, q in pairs if isinstance(p, Affine) and isinstance(q, Affine)]
    unit = nest.buffer(x.source).unit
    along = unit is not None and not moves[unit][0]
    return along and any(a for a, _ in moves) and all(a == b for a, b in moves)
