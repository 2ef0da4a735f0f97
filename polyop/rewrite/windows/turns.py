"""Cutting a step where a row that it reads turns round, and a copy also where the row stays at an edge.

    Y[j] = X[max(j - 1, 1 - j)]     becomes     Y[j] = X[j - 1] where j >= 1;     Y[j] = X[1 - j] where j < 1

Neighbours of a vector across that place lie forwards and backwards, so all such vectors are chosen from two; in pieces each row
is copied. Where a position only stays at an edge (`max(j - 1, 0)`) a mask does, and what computes something stays whole;
a copy of rows of 28 takes half as long without.
"""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.clamps import cases, decided, innermost
from polyop.ir.expr import Affine, Load, Quasi, Test, affine, loads, map_loads
from polyop.ir.op import Op, Step
from polyop.rewrite.windows.pieces import MOST, is_box_like


def cut_at_turns(op: Op) -> Op:
    """`op` with every `=` step cut where what it reads along the last index of its target turns round."""
    steps: list[Step] = []
    for s in op.steps:
        pieces = _pieces(s) if s.reduce is None else [s]
        steps += pieces if len(pieces) <= MOST else [s]
    return replace(op, steps=tuple(steps))


def _pieces(s: Step) -> list[Step]:
    turn = next((q for x in loads(s.expr) if (q := _turn(s, x))), None)
    if turn is None:
        return [s]
    tests, first, rest = cases(turn)
    if not all(is_box_like(t, s) for t in tests):
        return [s]
    out = _pieces(_over(s, tests, turn, first))
    for k, t in enumerate(tests):  # not (a and b) is: not a, or a and not b
        out += _pieces(_over(s, (*tests[:k], t * -1 - 1), turn, rest))
    return out


def _turn(s: Step, x: Load) -> Quasi | None:
    """A minimum or maximum, in the last index of `x`, of what runs different ways along the last index of the target."""
    last, along = x.index[-1] if x.index else None, s.target.index[-1] if s.target.index else None
    for r in s.ranges:
        if isinstance(last, Affine) and along == affine(r.index):
            clamp = innermost(last, r.index)
            ways = {(f > 0) - (f < 0) for a in clamp.args for f in (a.factor(r.index),)} if clamp else set()
            return clamp if {1, -1} <= ways or (isinstance(s.expr, Load) and len(ways) > 1) else None
    return None


def _over(s: Step, tests: tuple[Affine, ...], clamp: Quasi, value: Affine) -> Step:
    """`s` where `tests` hold, and so `clamp` is `value`."""
    def plain(x: Load) -> Load:
        return replace(x, index=tuple(decided(p, clamp, value) if isinstance(p, Affine) else p for p in x.index))

    return replace(s, where=(*s.where, *(Test((t,)) for t in tests)), expr=map_loads(s.expr, plain))
