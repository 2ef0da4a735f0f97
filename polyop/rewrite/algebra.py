"""Laws of single expressions that hold exactly: for NaN, the infinities and -0 as for any other number.

    x * 1 = x    x / 1 = x    x - 0 = x    x + -0 = x           in floats; x + 0 is not x where x = -0
    x + 0 = x                                                   in integers
    max(x, -inf) = x    min(x, inf) = x                         also for NaN, which wins
"""

from __future__ import annotations

import math
from typing import Any

from polyop.ir import scalars
from polyop.ir.casts import passes_through
from polyop.ir.dtypes import BF16, BOOL, F16, I64, DType
from polyop.ir.errors import InternalError
from polyop.ir.expr import Apply, Const, Expr, Number, Test


def apply_laws(e: Expr) -> Expr:
    """`e` in fewer operations, if a law applies at its root."""
    match e:
        case Number(value=v) if v.is_constant:
            return constant(scalars.convert(I64.numpy.type(v.const), e.dtype), e.dtype)
        case Test(tests=()):
            return Const(True, BOOL)
        case Apply(fn="cast", args=(x,)):
            return _cast(x, e.dtype, e)
        case Apply(fn="select", args=(c, yes, no)):
            return _select(c, yes, no, e)
        case Apply(fn="and" | "or", args=(a, b)):
            return _logic(e.fn, a, b, e)
        case Apply(fn="not" | "neg" as fn, args=(Apply(fn=inner, args=(x,)),)) if inner == fn and x.dtype == e.dtype:
            return x
        case Apply(args=args) if args and all(isinstance(a, Const) for a in args):
            return _folded(e)
        case Apply(args=(a, b)):
            return _neutral(e.fn, a, b, e)
    return e


def constant(value: Any, dtype: DType) -> Const:
    """A NumPy scalar as a Const."""
    return Const(float(value) if dtype.is_float else int(value) if dtype.is_integer else bool(value), dtype)


def is_number(e: Expr, value: float) -> bool:
    """Whether `e` is the constant `value`; 0.0 and -0.0 differ."""
    if not isinstance(e, Const) or isinstance(e.value, bool) or e.value != value:
        return False
    return not e.dtype.is_float or math.copysign(1.0, e.value) == math.copysign(1.0, value)


def _folded(e: Apply) -> Expr:
    args = tuple(a.dtype.numpy.type(a.value) for a in e.args if isinstance(a, Const))
    if e.fn == "nextafter" and e.dtype in (F16, BF16):
        return e
    try:
        return constant(scalars.apply(e.fn, args, e.dtype), e.dtype)
    except InternalError:
        return e  # no value is defined for it; the function itself is refused elsewhere, with a reason


def _cast(x: Expr, to: DType, e: Expr) -> Expr:
    if x.dtype == to:
        return x
    match x:
        case Const(value=v, dtype=t):
            return constant(scalars.convert(t.numpy.type(v), to), to)
        case Number(value=v, dtype=t) if t == I64:
            return Number(v, to)
        case Apply(fn="cast", args=(inner,)) if passes_through(inner.dtype, x.dtype, to):
            return inner if inner.dtype == to else Apply("cast", (inner,), to)
    return e


def _as(x: Expr, dtype: DType) -> Expr:
    return x if x.dtype == dtype else _cast(x, dtype, Apply("cast", (x,), dtype))


def _select(c: Expr, yes: Expr, no: Expr, e: Expr) -> Expr:
    if isinstance(c, Const):
        return _as(yes if c.value else no, e.dtype)
    if yes == no:
        return _as(yes, e.dtype)
    if isinstance(c, Apply) and c.fn == "not":
        return Apply("select", (c.args[0], no, yes), e.dtype)
    return e


def _logic(fn: str, a: Expr, b: Expr, e: Expr) -> Expr:
    decides = fn == "or"  # the value that settles it: true for `or`, false for `and`
    for x, other in ((a, b), (b, a)):
        if isinstance(x, Const):
            return Const(decides, BOOL) if bool(x.value) == decides else other
    if a == b:
        return a
    if fn == "and" and isinstance(a, Test) and isinstance(b, Test):
        return Test(tuple(dict.fromkeys((*a.tests, *b.tests))))
    return e


def _neutral(fn: str, a: Expr, b: Expr, e: Apply) -> Expr:
    """`e` without an operand that changes nothing; both operands have the dtype of the result."""
    if a.dtype != e.dtype or b.dtype != e.dtype:
        return e
    t = e.dtype
    nothing: dict[str, float] = {"add": -0.0 if t.is_float else 0, "sub": 0, "mul": 1, "div": 1, "max": t.lowest,
                                 "min": t.highest, "bitor": 0, "bitxor": 0, "shl": 0, "shr": 0}
    if fn not in nothing or t == BOOL:
        return e
    if is_number(b, nothing[fn]):
        return a
    if fn in ("add", "mul", "max", "min", "bitor", "bitxor") and is_number(a, nothing[fn]):
        return b
    return e
