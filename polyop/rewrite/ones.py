"""Fixing sizes at 1: the loops over them disappear, and what is left may be another kind of operator.

A product of matrices whose result has one column is a product of a matrix and a vector: its lanes then run along the
contraction, and not along that one column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyop.ir.expr import Affine, Expr, Load, Test, affine, map_affine, substitute
from polyop.ir.op import Op, Range, Step


def fix_at_one(op: Op, sizes: tuple[str, ...]) -> Op:
    """`op` for calls in which every one of `sizes` is 1; they stay arguments, and the facts say so."""
    if not sizes:
        return op
    env = {s: affine(1) for s in sizes}
    facts = tuple(Test((affine(s) - 1, affine(1) - affine(s))) for s in sizes)
    tensors = tuple(replace(t, shape=tuple(substitute(e, env) for e in t.shape)) for t in op.tensors)
    return replace(op, tensors=tensors, steps=tuple(_fixed(s, env) for s in op.steps), facts=(*op.facts, *facts))


def _fixed(s: Step, env: Mapping[str, Affine]) -> Step:
    """`s` with the sizes of `env` put in, and without the indices that then have a single value."""
    known, kept = dict(env), list[Range]()
    for r in s.ranges:
        lower, upper = substitute(r.lower, known), substitute(r.upper, known)
        if upper == lower + 1:
            known[r.index] = lower
        else:
            kept.append(Range(r.index, lower, upper))

    def within(e: Expr) -> Expr:
        return map_affine(e, lambda x: substitute(x, known))

    target = within(s.target)
    assert isinstance(target, Load)
    return replace(s, target=target, expr=within(s.expr), ranges=tuple(kept), where=tuple(map(within, s.where)))
