"""The scalar functions: arity, and what each means on NumPy scalars. This file is their definition.

Every other implementation (vector code, C text) is tested against this one. A function of `Apply` takes arguments of
one dtype unless it is listed in `MIXED`; comparisons and predicates give bool.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from polyop.ir.dtypes import BF16, F16, F32, DType
from polyop.ir.errors import InternalError
from polyop.ir.expr import Apply, Const, Expr, Scalar, walk

UNARY_FLOAT = ("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos", "atan",
               "sinh", "cosh", "tanh", "sigmoid", "erf", "gelu", "silu", "softplus")
"""Functions of one float; an integer argument is converted to the widest float of the operator first."""

COMPUTED = frozenset((*UNARY_FLOAT, "pow", "atan2", "mod")) - {"sqrt", "rsqrt"}
"""Functions of tens of instructions."""

UNARY = ("neg", "abs", "sign", "relu", "floor", "ceil", "round", "trunc", "not", "invert")
PREDICATES = ("isnan", "isinf", "isfinite")
BINARY_FLOAT = ("pow", "atan2", "nextafter")
BINARY = ("add", "sub", "mul", "div", "mod", "max", "min", "and", "or", "bitand", "bitor", "bitxor", "shl", "shr")
COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
MIXED = ("select", "cast")

ARITY = {
    **dict.fromkeys((*UNARY_FLOAT, *UNARY, *PREDICATES, "cast"), 1),
    **dict.fromkeys((*BINARY_FLOAT, *BINARY, *COMPARE), 2),
    "fma": 3, "select": 3,
}


def computes(e: Expr) -> bool:
    """Whether a function of these is part of `e`, so that a vector of it takes tens of instructions."""
    return any(isinstance(x, Apply) and x.fn in COMPUTED for x in walk(e))


def _erf(x: float) -> float:
    return math.erf(x)


def _float(fn: Callable[..., float]) -> Callable[..., Any]:
    """`fn` evaluated in float64 with IEEE results where Python raises."""
    def run(*args: Any) -> Any:
        try:
            return fn(*map(float, args))
        except (ValueError, OverflowError, ZeroDivisionError):
            return math.nan
    return run


def _whole(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`fn`, which changes no integer; NumPy would take some through float64."""
    return lambda x: fn(x) if np.issubdtype(np.result_type(x), np.floating) else x


def _power(fn: Callable[[Any], Any]) -> Callable[..., Any]:
    """`fn`; a second argument says what the first is at most, a third one below what nobody sees the power, and it may be 0."""
    return lambda x, *bounds: fn(x)


def _div(a: Any, b: Any) -> Any:
    if np.issubdtype(np.result_type(a), np.integer):
        return np.zeros_like(a) if b == 0 else np.floor_divide(a, b)
    return np.true_divide(a, b)


def _mod(a: Any, b: Any) -> Any:
    if np.issubdtype(np.result_type(a), np.integer) and b == 0:
        return np.zeros_like(a)
    return np.mod(a, b)


def _sigmoid(x: Any) -> Any:
    x = np.float64(x)
    return 1 / (1 + np.exp(-x)) if x >= 0 else np.exp(x) / (1 + np.exp(x))


def _gelu(x: Any) -> Any:
    x = float(x)
    return x * 0.5 * math.erfc(-x * math.sqrt(0.5)) if not math.isinf(x) else max(x, 0.0)


def _shift(a: Any, b: Any, left: bool) -> Any:
    """Shifts by less than 0 or by the width and more give 0 (or the sign, to the right)."""
    bits = np.result_type(a).itemsize * 8
    n = int(b)
    if left:
        return np.zeros_like(a) if not 0 <= n < bits else np.left_shift(a, np.asarray(n, np.result_type(a)))
    n = n if 0 <= n < bits else bits - 1 if np.result_type(a).kind == "i" else bits
    return np.zeros_like(a) if n >= bits else np.right_shift(a, np.asarray(n, np.result_type(a)))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _div, "mod": _mod,
    "max": np.maximum, "min": np.minimum, "neg": np.negative, "abs": np.abs, "sign": np.sign,
    "relu": lambda x: np.maximum(x, np.zeros_like(x)),
    "floor": _whole(np.floor), "ceil": _whole(np.ceil), "round": _whole(np.rint), "trunc": _whole(np.trunc),
    "not": np.logical_not, "invert": np.invert, "and": np.logical_and, "or": np.logical_or,
    "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor,
    "shl": lambda a, b: _shift(a, b, True), "shr": lambda a, b: _shift(a, b, False),
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
    "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
    "exp": _power(np.exp), "exp2": _power(np.exp2), "expm1": np.expm1, "log": np.log, "log2": np.log2, "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.float64(1) / np.sqrt(x), "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "sigmoid": _sigmoid,
    "erf": _float(_erf), "gelu": _gelu, "silu": lambda x: x * _sigmoid(x), "softplus": lambda x: np.logaddexp(np.float64(x), 0),
    "pow": np.power, "atan2": np.arctan2, "nextafter": np.nextafter,
    "fma": lambda a, b, c: a * b + c,
}


_HALVES = (F16.numpy.type, BF16.numpy.type)


def convert(value: Any, target: DType) -> Any:
    """The cast of the language: float to integer truncates and saturates, NaN gives 0; integers wrap; bool is `!= 0`."""
    if type(value) is target.numpy.type:
        return value
    if target.kind == "bool":
        return np.bool_(value != 0)
    source = np.asarray(value).dtype
    if target.is_integer and source.kind not in "iub":
        x = float(value)
        if math.isnan(x):
            return target.numpy.type(0)
        if math.isinf(x):
            return target.numpy.type(target.highest if x > 0 else target.lowest)
        return target.numpy.type(min(max(math.trunc(x), int(target.lowest)), int(target.highest)))
    if target.is_integer:
        wrapped = int(value) & ((1 << target.bits) - 1)
        if target.kind == "int" and wrapped >> (target.bits - 1):
            wrapped -= 1 << target.bits
        return target.numpy.type(wrapped)
    with np.errstate(all="ignore"):
        return target.numpy.type(value)


def counted(value: int) -> Any:
    """What an index expression is worth as a number: an i64, which wraps like any integer."""
    return np.int64((value + 2**63) % 2**64 - 2**63)


def apply(fn: str, args: tuple[Any, ...], dtype: DType) -> Any:
    """`fn(args)` rounded to `dtype`. 16-bit floats are computed in f32, transcendental functions in f64."""
    with np.errstate(all="ignore"):
        return function(fn, dtype)(*args)


def function(fn: str, dtype: DType) -> Callable[..., Any]:
    """`fn` as `apply` has it, for many arguments: NumPy may warn of what comes to an infinity or NaN."""
    if fn == "cast":
        return lambda x: convert(x, dtype)
    if fn == "select":
        return lambda c, a, b: convert(a if c else b, dtype)
    f = FUNCTIONS.get(fn)
    if f is None:
        raise InternalError(f"no scalar function {fn}")
    if fn == "nextafter" and dtype in (F16, BF16):
        raise InternalError("nextafter of a 16-bit float")
    in_f64, exact = fn in UNARY_FLOAT or fn in ("pow", "atan2"), dtype.numpy.type

    def run(*args: Any) -> Any:
        if in_f64:
            args = tuple(np.float64(a) for a in args)
        elif type(args[0]) in _HALVES:
            args = tuple(F32.numpy.type(a) if type(a) in _HALVES else a for a in args)
        out = f(*args)
        if type(out) is exact:
            return out
        return exact(np.asarray(out).astype(dtype.numpy)) if dtype.is_integer else convert(out, dtype)
    return run


def combine(body: Expr, a: Any, b: Any, kind: Callable[[DType], DType] = lambda t: t) -> Any:
    """A monoid's body at two values; `kind` says in which dtype that of an expression is computed."""
    with np.errstate(all="ignore"):
        return combining(body, kind)(a, b)


def combining(body: Expr, kind: Callable[[DType], DType] = lambda t: t) -> Callable[[Any, Any], Any]:
    """The same for many values; NumPy may warn."""
    match body:
        case Scalar(name="a"):
            return lambda a, b: a
        case Scalar(name="b"):
            return lambda a, b: b
        case Const(value=v, dtype=t):
            constant = kind(t).numpy.type(v)
            return lambda a, b: constant
        case Apply(fn="select", args=args):
            test, yes, no = (combining(x, kind) for x in args)
            return lambda a, b: yes(a, b) if test(a, b) else no(a, b)
        case Apply(fn=fn, args=(Scalar(name="a"), Scalar(name="b")), dtype=t):
            return function(fn, kind(t))
        case Apply(fn=fn, args=args, dtype=t):
            f, each = function(fn, kind(t)), tuple(combining(x, kind) for x in args)
            return lambda a, b: f(*(x(a, b) for x in each))
    raise InternalError(f"{body} in the body of a monoid")
