"""The built-in functions over typed and weak values."""

from __future__ import annotations

from itertools import islice

from polyop.dsl import values as v
from polyop.dsl.values import Typed, Value, Weak
from polyop.ir.dtypes import BF16, BOOL, F16, I64, DType
from polyop.ir.errors import fail
from polyop.ir.expr import Affine, Apply, Const, Expr, affine, quasi, walk
from polyop.ir.scalars import BINARY_FLOAT, PREDICATES, UNARY_FLOAT
from polyop.ir.span import Span

SHORT = 8
"""Parts of an expression that is multiplied with itself: powers of powers do not grow beyond measure."""
_ROUNDING = ("floor", "ceil", "round", "trunc")


def apply_function(name: str, args: tuple[Value, ...], default: DType, span: Span) -> Value:
    """`name(args)`; the number of arguments was checked.

    Raises  UserError E224 where the dtype has no such function.
    """
    size = v.total(args, span)
    if name in ("max", "min"):
        out = args[0]
        for a in args[1:]:
            out = v.arithmetic(name, out, a, default, span)
        return out
    t = v.common(args, default)
    if name in PREDICATES:
        t = t if t is not None and t.is_float else default
        return Typed(Apply(name, tuple(v.to(a, t, default) for a in args), BOOL), size)
    if name in UNARY_FLOAT or name in BINARY_FLOAT:
        if t is None:
            return Weak("float", lambda t: Apply(name, tuple(v.to(a, t, default) for a in args), t), size=size)
        t = t if t.is_float else default
        if name == "nextafter" and t in (F16, BF16):
            raise fail("E224", f"`nextafter` has no {t} form", span)
        values = tuple(v.to(a, t, default) for a in args)
        return Typed(_power(*values) if name == "pow" else Apply(name, values, t), size)
    if t is None:
        return _weak(name, args, default, size, span)
    t = I64 if t == BOOL else t
    values = tuple(v.to(a, t, default) for a in args)
    if name in _ROUNDING and not t.is_float:
        return Typed(values[0], size)
    return Typed(Apply(name, values, t), size)


def _power(x: Expr, n: Expr) -> Expr:
    """`x` to the `n`: by multiplication where it is a small whole number, and `x`, which stands there several times, is short.

    Squares and inverses are rounded once, as the function is. A square so is one to whoever looks for variances.
    """
    t, short = x.dtype, len(list(islice(walk(x), SHORT + 1))) <= SHORT
    match n:
        case Const(value=1):
            return x
        case Const(value=-1):
            return Apply("div", (Const(1.0, t), x), t)
        case Const(value=2 | 3 | 4 as k) if short and (k == 2 or t.bits >= 32):
            square = Apply("mul", (x, x), t)
            return square if k == 2 else Apply("mul", (square, x if k == 3 else square), t)
    return Apply("pow", (x, n), t)


def _weak(name: str, args: tuple[Value, ...], default: DType, size: int, span: Span) -> Value:
    """fma, abs, sign, relu or a rounding of weak values."""
    kind, first = v.weakest(args), args[0]
    assert isinstance(first, Weak)
    if name == "fma":
        product = v.arithmetic("mul", args[0], args[1], default, span)
        return v.arithmetic("add", product, args[2], default, span)
    if kind == "int" and name in _ROUNDING:
        return first
    if kind == "int":
        x = first.form
        if x is not None and name in ("abs", "relu"):
            return v.weak_int(quasi("max", x, x * -1 if name == "abs" else Affine()), span)
        if x is not None:  # sign(x) = max(-1, min(1, x))
            return v.weak_int(quasi("max", affine(-1), quasi("min", affine(1), x)), span)
        return v.computed(Apply(name, (first.build(I64),), I64), size, first.product)
    return Weak(kind, lambda t: Apply(name, (v.to(first, t, default),), t), size=size)
