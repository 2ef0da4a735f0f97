"""Choices of NaN that another operand makes anyway.

    z[i]    = c(i) ? nan : y[i]                         z[i]    = c(i) ? nan : y[i]
    O[i, v] = (c(i) ? nan : x[i, v]) / z[i]             O[i, v] = x[i, v] / z[i]

NaN makes NaN of whatever it is added to, multiplied with or divided by, so who meets `z` need not ask that again for each v.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import isnan

from polyop.ir.expr import Apply, Const, Expr, Load, rebuild
from polyop.ir.op import Op
from polyop.rewrite.folds import resolved

_SPREADING = frozenset(("add", "sub", "mul", "div"))


def chosen_once(op: Op) -> Op:
    """`op` without choices of NaN beside an operand that is NaN by the same choice."""
    steps = tuple(replace(s, expr=e) if (e := _once(s.expr, op)) is not s.expr else s for s in op.steps)
    return replace(op, steps=steps)


def _once(e: Expr, op: Op) -> Expr:
    new = rebuild(e, partial(_once, op=op))
    match new:
        case Apply(fn=fn, args=(a, b)) if fn in _SPREADING and new.dtype.is_float:
            if found := _choice(a):
                return replace(new, args=(found[1], b)) if found[0] == _lost(b, op) else new
            if found := _choice(b):
                return replace(new, args=(a, found[1])) if found[0] == _lost(a, op) else new
    return new


def _choice(e: Expr) -> tuple[Expr, Expr] | None:
    """(c, x), if `e` is c ? nan : x."""
    match e:
        case Apply(fn="select", args=(c, Const(value=v), x)) if isinstance(v, float) and isnan(v):
            return c, x
    return None


def _lost(e: Expr, op: Op) -> Expr | None:
    """When `e` is NaN, as far as its text says: as it stands, or as the temporary that it reads is computed."""
    found = _choice(resolved(op, e, frozenset(t.name for t in op.tensors if t.name != e.source)) if isinstance(e, Load) else e)
    return found[0] if found else None
