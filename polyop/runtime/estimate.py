"""How much a call computes, roughly and at no cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import prod
from operator import itemgetter

from polyop.ir.expr import Affine, evaluate, names
from polyop.ir.op import Op

SERIAL = 1 << 15
"""Points of a call below which waking other threads costs more than it saves."""

Count = Callable[[Mapping[str, int]], int]
"""Of something, in a call of such sizes."""


def work(op: Op, sizes: Mapping[str, int]) -> int:
    """How many points the steps of `op` have, conditions aside."""
    total = 0
    for s in op.steps:
        env, points = dict(sizes), 1
        for r in s.ranges:
            low, high = evaluate(r.lower, env), evaluate(r.upper, env)
            env[r.index] = max(low, high - 1)  # later ranges may use it: its end stands for all of it
            points *= max(0, high - low)
        total += points
    return total


def boxes(op: Op) -> list[tuple[Affine, ...]] | None:
    """The extents of each step; None if those of some depend on where it is, as of a triangle."""
    steps = [tuple(r.upper - r.lower for r in s.ranges) for s in op.steps]
    known = set(op.sizes)
    return steps if all(names(e) <= known for extents in steps for e in extents) else None


def points_of(op: Op) -> Count:
    """`work` for calls of many sizes: what they need not ask is found once."""
    steps = boxes(op)
    return partial(work, op) if steps is None else _sum_of(steps)


def elements_of(op: Op) -> Count:
    """How many elements the arrays of a call of `op` have together."""
    return _sum_of([t.shape for t in op.tensors if t.role != "temp"])


def _sum_of(boxes: Iterable[Iterable[Affine]]) -> Count:
    """The points of boxes of these extents together; sizes are at least 1, other extents may come out below 0."""
    parts = [_box(b) for b in boxes]
    return parts[0] if len(parts) == 1 else lambda sizes: sum([p(sizes) for p in parts])


def _box(extents: Iterable[Affine]) -> Count:
    plain, rest, factor = list[str](), list[Affine](), 1
    for e in extents:
        if e.is_constant:
            factor *= max(0, e.const)
        elif e.name:
            plain.append(e.name)
        else:
            rest.append(e)
    if rest or len(plain) < 2:
        rest += [Affine(((n, 1),)) for n in plain]
        return lambda sizes: factor * prod([max(0, evaluate(e, sizes)) for e in rest])
    values = itemgetter(*plain)
    return lambda sizes: factor * prod(values(sizes))
