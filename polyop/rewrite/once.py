"""Reductions with one term for each element: the term is what they give, and nothing starts at the identity.

    Z[a, b] += X[a] * Y[b]                     becomes     Z[a, b] = X[a] * Y[b]
    Z[a, b] += X[a] * Y[b];  Z[i, j] += X[i]   becomes     Z[a, b] = X[a] * Y[b] + X[a]

So equations of which no index is left out are written. A loop that updates memory would fill it first and read it again.
Notes   A sum of the one term -0 is -0, as in NumPy.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from polyop.ir.expr import Apply, Expr, affine, substitute_expr
from polyop.ir.op import Op, Step
from polyop.rewrite.folds import is_once, plain_indices


def terms_alone(op: Op) -> Op:
    """`op` with a plain step for each reduction that has no index of its own."""
    steps: list[Step] = []
    for s in op.steps:
        of = op.steps_of(s.target.source)
        if not _are_once(op, of):
            steps.append(s)
        elif s is of[-1]:
            steps.append(_together(of))
    return replace(op, steps=tuple(steps)) if tuple(steps) != op.steps else op


def _are_once(op: Op, of: tuple[Step, ...]) -> bool:
    """Whether `of`, all that write a tensor, follow each other, reduce it in a way that `ir/scalars.py` has, and each of them
    goes to each element once. None of them reads it: recurrences stay as they are.
    """
    name, first = of[0].target.source, of[0]
    if first.reduce is None or first.reduce.fn is None or any(s.reduce != first.reduce or not is_once(op, s) for s in of):
        return False
    at = [next(k for k, x in enumerate(op.steps) if x is s) for s in of]
    return all(b == a + 1 for a, b in pairwise(at)) and not any(x.source == name for s in of for x in s.reads)


def _together(of: tuple[Step, ...]) -> Step:
    first = of[0]
    kept = plain_indices(first.target)
    assert kept is not None and first.reduce is not None and first.reduce.fn is not None
    total: Expr = first.expr
    for s in of[1:]:
        own = plain_indices(s.target)
        assert own is not None
        term = substitute_expr(s.expr, {mine: affine(i) for mine, i in zip(own, kept, strict=True)})
        total = Apply(first.reduce.fn, (total, term), first.target.dtype)
    return replace(first, reduce=None, expr=total)
