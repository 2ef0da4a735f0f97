"""Fixing sizes: at 1, where the loops over them disappear, and what is left may be another kind of operator; or small windows.

A product of matrices whose result has one column is a product of a matrix and a vector: its lanes then run along the
contraction, and not along that one column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyop.ir.expr import Affine, Expr, Load, Test, affine, map_affine, substitute
from polyop.ir.op import Op, Range, Step


def fix_sizes(op: Op, sizes: Mapping[str, int]) -> Op:
    """`op` for calls in which `sizes` have these values; they stay arguments, and the facts say so."""
    if not sizes:
        return op
    env = {s: affine(n) for s, n in sizes.items()}
    tensors = tuple(replace(t, shape=tuple(substitute(e, env) for e in t.shape)) for t in op.tensors)
    return replace(assumed(op, sizes), tensors=tensors, steps=tuple(_fixed(s, env) for s in op.steps))


def assumed(op: Op, sizes: Mapping[str, int]) -> Op:
    """`op` with the facts that `sizes` have these values."""
    facts = tuple(Test((affine(s) - n, affine(n) - affine(s))) for s, n in sizes.items())
    return replace(op, facts=(*op.facts, *facts)) if facts else op


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
