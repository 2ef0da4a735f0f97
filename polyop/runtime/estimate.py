"""How much a call computes, roughly and at no cost."""

from __future__ import annotations

from collections.abc import Mapping

from polyop.ir.expr import evaluate
from polyop.ir.op import Op


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
