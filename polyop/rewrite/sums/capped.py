"""Powers of distances from the greatest element say that they are at most 1.

    top[i] max= t[i, j];  e[i, j] = exp(t[i, j] - top[i])
    e[i, j] = exp(t[i, j] - top[i], 0)

A power that may be far above 1 and far below needs two factors made of bits for its scale, where no instruction applies it; one
that is at most 1 needs one, and its argument no bound above (`vecmath/scaling.py`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from polyop.ir.expr import Apply, Const, Expr, rebuild
from polyop.ir.op import Op, Step
from polyop.rewrite.sums.faint import LEAST, is_from_the_top


def capped(op: Op) -> Op:
    """`op` with such powers."""
    steps = tuple(_capped(op, s) for s in op.steps)
    return op if all(a is b for a, b in zip(steps, op.steps, strict=True)) else replace(op, steps=steps)


def _capped(op: Op, s: Step) -> Step:
    e = _at_most_one(s.expr, op, s)
    return s if e is s.expr else replace(s, expr=e)


def _at_most_one(e: Expr, op: Op, s: Step) -> Expr:
    match e:
        case Apply(fn=fn, args=(Apply(fn="sub") as d,)) if (fn, e.dtype) in LEAST and is_from_the_top(op, s, e):
            return replace(e, args=(d, Const(0.0, d.dtype)))
    return rebuild(e, partial(_at_most_one, op=op, s=s))
