"""Every function of `ir/scalars.py` on what registers hold: one dispatch for scalars and vectors of all dtypes."""

from __future__ import annotations

from polyop.codegen.llvm.convert import cast, round_to
from polyop.codegen.vecmath.ops import Function, V
from polyop.codegen.vecmath.table import FLOAT
from polyop.ir.dtypes import BF16, BOOL, F16, DType
from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.scalars import BINARY_FLOAT, COMPARE, UNARY_FLOAT
from polyop.ir.target import Target

ARITHMETIC: dict[str, Function] = {"add": V.__add__, "sub": V.__sub__, "mul": V.__mul__, "div": V.__truediv__}
"""What is needed most often, and first."""

CONVERTING = (*UNARY_FLOAT, *BINARY_FLOAT)
"""Functions that turn integers into floats first."""


def apply(fn: str, xs: list[V], source: DType, result: DType, target: Target) -> V:
    """`fn(xs)` of arguments of dtype `source`, as a value of dtype `result`.

    Raises  UnsupportedError for what no target of this family can do.
    """
    if fn in ARITHMETIC and source == result and source.is_float:
        return round_to(ARITHMETIC[fn](xs[0], xs[1]), source, target)
    if fn in COMPARE:
        return compare(fn, xs[0], xs[1], source)
    if fn in ("isnan", "isinf", "isfinite"):
        return _predicate(fn, xs[0], source)
    if fn in ("not", "and", "or"):
        out, have = _bool(fn, [cast(x, source, BOOL, target) for x in xs]), BOOL
    elif source == BOOL:
        out, have = _bool(fn, xs), BOOL
    elif source.is_float:
        out, have = _float(fn, xs, source, target), source
    elif fn in CONVERTING:
        if not result.is_float:
            raise InternalError(f"emit: {fn} of {source} gives {result}")
        out, have = _float(fn, [cast(x, source, result, target) for x in xs], result, target), result
    else:
        out, have = _integer(fn, xs, source), source
    return cast(out, have, result, target) if have != result else out


def compare(fn: str, a: V, b: V, t: DType) -> V:
    if t.is_float:
        return a.cmp("une" if fn == "ne" else "o" + fn, b)
    if fn in ("eq", "ne"):
        return a.cmp(fn, b)
    return a.cmp(("s" if t.kind == "int" else "u") + fn, b)


def _predicate(fn: str, x: V, t: DType) -> V:
    if not t.is_float:
        return x.const(fn == "isfinite", "i1")
    if fn == "isnan":
        return x.cmp("uno", x)
    return x.abs().cmp("oeq" if fn == "isinf" else "one", float("inf"))


def _bool(fn: str, xs: list[V]) -> V:
    match fn:
        case "not" | "invert":
            return xs[0] ^ 1
        case "and" | "bitand" | "min" | "mul":
            return xs[0] & xs[1]
        case "or" | "bitor" | "max" | "add":
            return xs[0] | xs[1]
        case "bitxor":
            return xs[0] ^ xs[1]
        case "abs" | "relu" | "floor" | "ceil" | "trunc" | "round":
            return xs[0]
    raise UnsupportedError(f"`{fn}` of bool")


def _float(fn: str, xs: list[V], t: DType, target: Target) -> V:
    x = xs[0]
    match fn:
        case "neg":
            return -x
        case "abs":
            return x.abs()
        case "max" | "min":
            return _extreme(x, xs[1], "ogt" if fn == "max" else "olt")
        case "relu":
            return x.cmp("olt", 0).pick(x.const(0), x)
        case "sign":
            one = x.const(1.0).copysign(x)
            return x.cmp("une", 0).pick(x.cmp("uno", x).pick(x, one), x.const(0.0))
        case "floor" | "ceil" | "trunc":
            return x.intrinsic(fn)
        case "round":
            return x.rint()
        case "nextafter" if t in (F16, BF16):
            raise UnsupportedError("`nextafter` of a 16-bit float")
        case "add" | "sub" | "mul" | "div":
            out = ARITHMETIC[fn](x, xs[1])
        case "fma":
            out = x * xs[1] + xs[2]
        case "sqrt":
            out = x.sqrt()
        case _ if fn in FLOAT:
            digits = t.name if t in (F16, BF16) and x.flags else ""
            out = FLOAT[fn](*(y.to_digits(digits) for y in xs)).to_digits("")
        case _:
            raise UnsupportedError(f"`{fn}` of {t}")
    return round_to(out, t, target)


def _extreme(a: V, b: V, order: str) -> V:
    """The greater (or lesser): NaN if one is NaN, the first of equals.

    One instruction gives `a` if one is NaN; what is left is a `b` that is.
    """
    return b.cmp(order, a).pick(b, a).unless_nan(b, a.waits)


def _integer(fn: str, xs: list[V], t: DType) -> V:
    x, signed = xs[0], t.kind == "int"
    match fn:
        case "add":
            return x + xs[1]
        case "sub":
            return x - xs[1]
        case "mul":
            return x * xs[1]
        case "fma":
            return x * xs[1] + xs[2]
        case "div" | "mod":
            return _divide(fn, x, xs[1], t)
        case "max" | "min":
            return x.intrinsic(("s" if signed else "u") + fn, xs[1])
        case "neg":
            return -x
        case "abs":
            return x.cmp("slt", 0).pick(-x, x) if signed else x
        case "relu":
            return x.intrinsic("smax", x.const(0)) if signed else x
        case "sign":
            positive = x.cmp("ne", 0).cast("zext", x.element)
            return positive | x.ashr(t.bits - 1) if signed else positive
        case "floor" | "ceil" | "trunc" | "round":
            return x
        case "invert":
            return x ^ -1
        case "bitand":
            return x & xs[1]
        case "bitor":
            return x | xs[1]
        case "bitxor":
            return x ^ xs[1]
        case "shl" | "shr":
            return _shift(fn, x, xs[1], t)
    raise UnsupportedError(f"`{fn}` of {t}")


def _shift(fn: str, x: V, n: V, t: DType) -> V:
    """By less than 0 or by the width and more: 0, or the sign to the right."""
    inside = n.cmp("ult", t.bits)
    safe = inside.pick(n, n.const(0))
    if fn == "shr" and t.kind == "int":
        return x.ashr(inside.pick(n, n.const(t.bits - 1)))
    shifted = x.shl(safe) if fn == "shl" else x.lshr(safe)
    return inside.pick(shifted, x.const(0))


def _divide(fn: str, a: V, b: V, t: DType) -> V:
    """Floor division, or the remainder with the divisor's sign; by zero 0; the least integer by -1 wraps."""
    zero = b.cmp("eq", 0)
    if t.kind == "uint":
        out = a.op("udiv" if fn == "div" else "urem", zero.pick(b.const(1), b))
        return zero.pick(a.const(0), out)
    minus = b.cmp("eq", -1)
    safe = (zero | minus).pick(b.const(1), b)
    r = a.op("srem", safe)
    wrong = r.cmp("ne", 0) & (r ^ safe).cmp("slt", 0)
    if fn == "mod":
        return (zero | minus).pick(a.const(0), wrong.pick(r + safe, r))
    q = a.op("sdiv", safe) - wrong.cast("zext", a.element)
    return zero.pick(a.const(0), minus.pick(-a, q))
