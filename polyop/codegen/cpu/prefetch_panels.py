"""Prefetching the next panel of what tiles of rows read where it lies, while these compute with this one.

    for n_c by 64 { for m_r by 6 { for v (lanes 64) { for k { acc[p, v] += A[m_r + p, k] * B[k, n_c + v] } } } }

becomes, with four lines of 16 numbers in each row of a panel,

    .. for k { prefetch B[k, n_c + 64 + 16 min(m_r div 6, 3)]; acc[p, v] += A[m_r + p, k] * B[k, n_c + v] } ..

Rows of a panel lie far apart, so that no hardware sees a stream in them. The first tile of rows would wait for memory, and memory
for all others. Behind the last panel of a row comes the first one of the next turn of a loop around, a of B[a, k, n].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyop.ir.expr import Affine, Load, affine, bounds, expr_names, is_computed, loads, names, place, quasi
from polyop.ir.loops import LOCKSTEP, For, Kind, LoopNest, Node, Prefetch, Space, has_loop, rebuild, stores
from polyop.ir.target import LINE

FAR = 1 << 40
"""More than any position."""

Body = tuple[Node, ...]
Loops = tuple[For, ...]


def prefetch_panels(nest: LoopNest) -> LoopNest:
    """`nest` with a hint in each step of a tile for a line of the next panel, where the tiles of some rows read the same."""
    return replace(nest, body=_go(nest, nest.body, ()))


def _go(nest: LoopNest, body: Body, around: Loops) -> Body:
    return tuple(_one(nest, n, around) for n in body)


def _one(nest: LoopNest, n: Node, around: Loops) -> Node:
    if not isinstance(n, For):
        return rebuild(n, lambda body: _go(nest, body, around))
    if n.kind not in LOCKSTEP and not has_loop(n.body):
        hint = _hint(nest, n, around)
        return replace(n, body=(hint, *n.body)) if hint else n
    return replace(n, body=_go(nest, n.body, (*around, n)))


def _hint(nest: LoopNest, n: For, around: Loops) -> Prefetch | None:
    """What a step of `n`, which stands in the loops `around`, asks for; None if no tile of rows shares a panel with others."""
    at = next((k for k, f in enumerate(around) if f.kind == Kind.LANES), 0)
    if not at or any(f.kind not in LOCKSTEP for f in around[at:]):
        return None
    rows, lanes = around[at - 1], around[at]
    added = [s for s in stores(n.body) if nest.buffer(s.target.source).space == Space.REG]  # no copies
    found = [x for x in dict.fromkeys(x for s in added for x in loads(s.expr)) if _is_panel(nest, x, n, lanes)]
    if len(found) != 1 or rows.step == 1 or rows.kind in LOCKSTEP or rows.index in expr_names(found[0]):
        return None
    x, = found
    moving = [f for f in reversed(around[:at - 1]) if f.index in expr_names(x)]
    if not moving:
        return None
    lines = -(-moving[0].step * x.dtype.bytes_ // LINE)
    line = quasi("min", quasi("div", affine(rows.index) - rows.lower, affine(rows.step)), affine(lines - 1))
    to = place(x, {lanes.index: line * (LINE // x.dtype.bytes_), **_next_panel(moving)})
    return Prefetch(replace(to, guard=()))


def _is_panel(nest: LoopNest, x: Load, n: For, lanes: For) -> bool:
    """Whether `x` is of a tensor, along whose rows the `lanes` lie, and each step of `n` reads another row."""
    b = nest.buffer(x.source)
    if b.space != Space.TENSOR or b.unit is None or any(map(is_computed, x.index)):
        return False
    used = [names(p) if isinstance(p, Affine) else frozenset() for p in x.index]
    along = x.index[b.unit]
    straight = isinstance(along, Affine) and along.factor(lanes.index) == 1 and n.index not in used[b.unit]
    return straight and sum(n.index in u for u in used) == 1 and sum(lanes.index in u for u in used) == 1


def _next_panel(moving: list[For]) -> Mapping[str, Affine]:
    """Where the next panel is, of the loops that move it, inside first: a step of the first one, or of the second one's.

    { [a, n] -> [a, n + 64] : n + 64 < N;  [a, n] -> [a + 1, 0] : n + 64 >= N }
    """
    inner = moving[0]
    next_ = affine(inner.index) + inner.step
    ends = bounds(inner.upper)
    if len(moving) < 2 or len(ends) != 1 or inner.lower != Affine():
        return {inner.index: next_}
    outer, is_last = moving[1], quasi("min", affine(1), quasi("max", Affine(), next_ - ends[0] + 1))
    return {inner.index: quasi("min", next_, (affine(1) - is_last) * FAR),
            outer.index: affine(outer.index) + is_last * outer.step}
