"""Powers whose exponents have bounds take these instead of their own: no instruction more.

    x < c ? 0 : e^x     0 below c, for `exp(x, top)`, too
    exp(x, c)           e^x, where x is a difference that is known to be at most c
    exp(x, c, b)        the same, or 0 where x is less than b
"""

from __future__ import annotations

from math import copysign

from polyop.codegen.llvm.state import State
from polyop.codegen.llvm.types import register
from polyop.codegen.vecmath.table import BOTTOM
from polyop.ir.dtypes import F32, F64
from polyop.ir.expr import Apply, Const, Expr


def power_from(s: State, e: Apply) -> tuple[str, tuple[Expr, ...]] | None:
    """The power that `e` is with such bounds, and its arguments, as `vecmath` has them; not one that a loop computes ahead."""
    if e.dtype not in (F32, F64):
        return None
    match e:
        case Apply(fn="select", dtype=t, args=(
            Apply(fn="lt", args=(x, Const(value=bound) as c)), Const(value=zero),
            Apply(fn="exp" | "exp2", args=(y, *top)) as power)):
            same = x == y and power.dtype == t and power not in s.steady and BOTTOM[power.fn][register(t)] <= bound <= 0
            return (power.fn, (x, c, *top[:1])) if same and zero == 0 and copysign(1, zero) > 0 else None
        case Apply(fn="exp" | "exp2" as fn, dtype=t, args=(x, top, *least)):
            return fn, (x, Const(BOTTOM[fn][register(t)], t), top, *least)
    return None
