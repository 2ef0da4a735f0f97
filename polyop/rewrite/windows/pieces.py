"""Cutting a step into pieces where a condition on indices chooses between expressions.

    A[i] = 1 <= i < N-1 ? f(A[i-1], A[i], A[i+1]) : A[i]

becomes three steps, each over its own box. The interior then reads without guards and its vectors need no masks; each
border is a loop of its own. Conditions that tie several indices together, such as `j <= i`, are left alone: their pieces
are no boxes, and a row stays one loop.
"""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.expr import Affine, Apply, Expr, Load, Test, loads, map_loads, names
from polyop.ir.op import Op, Step
from polyop.rewrite.folds import said_by

MOST = 16
"""Pieces of one step; beyond that it is left whole."""


def cut_into_pieces(op: Op) -> Op:
    """`op` with every `=` step cut along the box-like conditions its expression starts with.

    Notes   Only where a branch reads under a guard: there the cut saves masks.
    """
    steps: list[Step] = []
    for s in op.steps:
        pieces = _pieces(s) if s.reduce is None and any(x.guard for x in loads(s.expr)) else [s]
        steps += pieces if len(pieces) <= MOST else [s]
    return replace(op, steps=tuple(steps))


def _pieces(s: Step) -> list[Step]:
    match s.expr:
        case Apply(fn="select", args=(Test(tests=tests), yes, no)) if all(is_box_like(t, s) for t in tests):
            out = _pieces(_over(s, tests, yes))
            for k, t in enumerate(tests):  # not (a and b) is: not a, or a and not b
                out += _pieces(_over(s, (*tests[:k], t * -1 - 1), no))
            return out
    return [s]


def is_box_like(t: Affine, s: Step) -> bool:
    """Whether `t` bounds a single index by sizes."""
    return len(names(t) & set(s.indices)) <= 1 and all(isinstance(a, str) for a, _ in t.terms)


def _over(s: Step, tests: tuple[Affine, ...], expr: Expr) -> Step:
    """`s` where `tests` hold, with `expr`; a guard that they imply word for word is dropped."""
    where = (*s.where, *(Test((t,)) for t in tests))
    known = said_by(where)

    def unguarded(x: Load) -> Load:
        return replace(x, guard=tuple(g for g in x.guard if g not in known))

    return replace(s, where=where, expr=map_loads(expr, unguarded))
