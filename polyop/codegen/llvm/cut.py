"""Powers that are 0 where their exponent is less than a bound take the bound instead of their own: no instruction more.

    x < c ? 0 : e^x
"""

from __future__ import annotations

from math import copysign

from polyop.codegen.llvm.state import State
from polyop.codegen.llvm.types import register
from polyop.codegen.vecmath.table import BOTTOM
from polyop.ir.dtypes import F32, F64
from polyop.ir.expr import Apply, Const, Expr


def power_from(s: State, e: Expr) -> Apply | None:
    """The power in `e` if that is such a one; not one that a loop computes ahead."""
    match e:
        case Apply(fn="select", dtype=t, args=(
            Apply(fn="lt", args=(x, Const(value=bound))), Const(value=zero), Apply(fn="exp" | "exp2", args=(y,)) as power)):
            if t not in (F32, F64) or not BOTTOM[power.fn][register(t)] <= bound <= 0:
                return None
            same = x == y and power.dtype == t and power not in s.steady
            return power if same and zero == 0 and copysign(1, zero) > 0 else None
    return None
