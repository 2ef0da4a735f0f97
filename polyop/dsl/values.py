"""What an expression is worth while it is being checked: typed, or weak until it meets a dtype.

Numbers, indices, sizes and consts are weak. A weak integer that is quasi-affine keeps its `Affine`, so that it can serve
as a position, an extent or a test; one that is not says why in `product`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polyop.ir.casts import passes_through
from polyop.ir.dtypes import BOOL, I64, DType, promote
from polyop.ir.errors import fail
from polyop.ir.expr import Affine, Apply, Const, Expr, Number, Quasi, affine, quasi
from polyop.ir.scalars import UNARY_FLOAT
from polyop.ir.span import Span

MAX_NODES = 100_000
SMALL = 127  # every dtype of numbers holds integers up to here
_MAX_FACTOR, _MAX_TERM = 2**32, 2**62
"""Of what is a place, a bound or a condition: 64 bits then hold it for every index below 2^29, and it never wraps."""


@dataclass(frozen=True, slots=True, eq=False)
class Typed:
    """An expression whose dtype is settled; `size` counts its nodes as if shared ones were written out."""

    expr: Expr
    size: int = 1

    @property
    def dtype(self) -> DType:
        return self.expr.dtype


@dataclass(frozen=True, slots=True, eq=False)
class Weak:
    """A value that takes the dtype it meets.

    kind     "unknown" (a tensor whose dtype is still being inferred), "int" or "float"
    build    the expression in a dtype; a float for kind "float"
    form     the index expression, if it is quasi-affine
    value    the number, if it is constant and a float
    product  where an index is multiplied by a run-time value, if one is
    """

    kind: str
    build: Callable[[DType], Expr]
    form: Affine | None = None
    value: float | None = None
    product: Span | None = None
    size: int = 1

    @property
    def constant(self) -> int | float | None:
        if self.form is not None and self.form.is_constant:
            return self.form.const
        return self.value


Value = Typed | Weak


def weak_int(form: Affine, span: Span | None = None) -> Weak:
    """An index expression."""
    if abs(form.const) >= 2**64 or any(abs(f) >= 2**63 for _, f in form.terms):
        raise fail("E213", "this integer does not fit into 64 bits", span)

    def build(t: DType) -> Expr:
        if form.is_constant:
            return Const(_fitted(form.const, t, span), t)
        return Number(form, t)

    return Weak("int", build, form)


def is_small(form: Affine) -> bool:
    """Whether no factor in `form` is so large that 64 bits may not hold the whole for indices of a usual size."""
    if abs(form.const) > _MAX_TERM or any(abs(f) > _MAX_FACTOR for _, f in form.terms):
        return False
    return all(is_small(x) for atom, _ in form.terms if isinstance(atom, Quasi) for x in atom.args)


def placed(form: Affine, span: Span | None) -> Affine:
    """`form`, which is a place, an extent, a bound or a difference that is compared.

    Raises  UserError E213, where it might not fit into 64 bits.
    """
    if not is_small(form):
        raise fail("E213", f"`{form}` may not fit into 64 bits: an index or size is multiplied by at most 2^32 here", span)
    return form


def _fitted(value: int, t: DType, span: Span | None) -> int | float | bool:
    if t.is_float:
        return float(value)
    if t == BOOL:
        return bool(value)
    if not -(2 ** (t.bits - 1)) <= value <= t.highest:
        raise fail("E213", f"{value} does not fit into {t}", span)
    return value % 2**t.bits if t.kind == "uint" else value


def weak_float(value: float) -> Weak:
    return Weak("float", lambda t: Const(value, t), value=value)


def boolean(value: bool) -> Typed:
    return Typed(Const(value, BOOL))


def computed(e: Expr, size: int, product: Span | None = None) -> Weak:
    """A weak integer that is not affine: worked out in i64."""
    return Weak("int", lambda t: cast(e, t), product=product, size=size)


def cast(e: Expr, t: DType) -> Expr:
    """`e` in dtype `t`; a choice between small integers is one between numbers of `t`: `i == j ? 1 : 0` needs no lanes of i64."""
    match e:
        case Apply(fn="select", args=(c, Const() as a, Const() as b), dtype=d) if d.is_integer and t != BOOL and all(
                0 <= x.value <= SMALL for x in (a, b)):
            yes, no = (Const(float(x.value) if t.is_float else x.value, t) for x in (a, b))
            return Apply("select", (c, yes, no), t)
        case Apply(fn="cast", args=(x,)) if passes_through(x.dtype, e.dtype, t):
            return cast(x, t)  # as of u8 * i8, which is i16, in a sum of i32
    return e if e.dtype == t else Apply("cast", (e,), t)


def to(v: Value, t: DType, default: DType) -> Expr:
    """`v` in dtype `t`; a weak float becomes `default` first where `t` holds no fractions."""
    if isinstance(v, Typed):
        return cast(v.expr, t)
    if v.kind == "float" and not t.is_float:
        return cast(v.build(default), t)
    if v.kind == "int" and t == BOOL:
        return cast(v.build(I64), t)
    return v.build(t)


_EXACT = ("add", "sub", "mul", "neg", "abs", "max", "min", "fma", "relu")
_FLOATING = ("div", "mod", "sign", "floor", "ceil", "round", "trunc", *UNARY_FLOAT, "pow", "atan2")


def widened(e: Expr) -> Expr:
    """`e`, the operand of a reduction: what is computed only to be cast to the accumulator is computed in it.

        f32(A[m, k] * B[k, n])      becomes      f32(A[m, k]) * f32(B[k, n])
    """
    if not (isinstance(e, Apply) and e.fn == "cast" and isinstance(e.args[0], Apply)):
        return e
    inner, t = e.args[0], e.dtype
    if inner.dtype.kind not in (t.kind, "uint") or inner.dtype.bits >= t.bits or inner.dtype == BOOL:
        return e
    if inner.fn == "select":
        return Apply("select", (inner.args[0], *(widened(cast(a, t)) for a in inner.args[1:])), t)
    if inner.fn == "otherwise":
        return Apply("otherwise", (inner.args[0], widened(cast(inner.args[1], t))), t)
    if inner.fn in _EXACT or (t.is_float and inner.fn in _FLOATING):
        return Apply(inner.fn, tuple(_wide(a, t) for a in inner.args), t)
    return e


def _wide(a: Expr, t: DType) -> Expr:
    match a:
        case Const(value=x):
            return Const(float(x) if t.is_float else x, t)
        case Number(value=x):
            return Number(x, t)
    return widened(cast(a, t))


def alone(v: Value, default: DType) -> DType:
    """The dtype of a value that meets no other."""
    if isinstance(v, Typed):
        return v.dtype
    return default if v.kind == "float" else I64


def common(values: tuple[Value, ...], default: DType) -> DType | None:
    """The dtype in which `values` meet, or None if all are weak."""
    typed = [v.dtype for v in values if isinstance(v, Typed)]
    if not typed:
        return None
    t = typed[0]
    for other in typed[1:]:
        t = promote(t, other)
    for v in values:
        if isinstance(v, Weak) and v.kind == "float" and not t.is_float:
            t = default
        elif isinstance(v, Weak) and v.kind == "int" and t == BOOL:
            t = I64
    return t


_RANK = {"unknown": 0, "int": 1, "float": 2}


def weakest(values: tuple[Value, ...]) -> str:
    """The kind in which weak values meet."""
    return max((v.kind for v in values if isinstance(v, Weak)), key=lambda k: _RANK[k])


def total(values: tuple[Value, ...], span: Span | None) -> int:
    """The size of a node over `values`.

    Raises  UserError E215, if functions inside functions made it too large.
    """
    size = 1 + sum(v.size for v in values)
    if size > MAX_NODES:
        raise fail("E215", f"written out, this expression has more than {MAX_NODES:,} parts", span)
    return size


def arithmetic(fn: str, a: Value, b: Value, default: DType, span: Span | None) -> Value:
    """`fn(a, b)` for add, sub, mul, div, mod, max, min, bitand, bitor, bitxor, shl, shr."""
    size = total((a, b), span)
    t = common((a, b), default)
    if t is not None:
        t = I64 if t == BOOL and not fn.startswith("bit") and fn not in ("max", "min") else t
        return Typed(Apply(fn, (to(a, t, default), to(b, t, default)), t), size)
    assert isinstance(a, Weak) and isinstance(b, Weak)
    kind = weakest((a, b))
    if kind == "float":
        if a.constant is not None and b.constant is not None:
            folded = _fold(fn, float(a.constant), float(b.constant))
            if folded is not None:
                return weak_float(folded)
        return Weak("float", lambda t: Apply(fn, (to(a, t, default), to(b, t, default)), t), size=size)
    if kind == "unknown":
        return Weak("unknown", lambda t: Apply(fn, (a.build(t), b.build(t)), t), size=size)
    form = _affine(fn, a.form, b.form) if a.form is not None and b.form is not None else None
    if form is not None:
        return weak_int(form, span)
    product = a.product or b.product or (span if fn == "mul" else None)
    return computed(Apply(fn, (to(a, I64, default), to(b, I64, default)), I64), size, product)


def _fold(fn: str, a: float, b: float) -> float | None:
    match fn:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "div" if b != 0:
            return a / b
    return None


def _affine(fn: str, a: Affine, b: Affine) -> Affine | None:
    match fn:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b.const if b.is_constant else b * a.const if a.is_constant else None
        case "min" | "max" | "div" | "mod" if not ((is_small(a) and is_small(b)) or (a.is_constant and b.is_constant)):
            return None  # a value, which wraps in i64
        case "min" | "max":
            return quasi(fn, a, b)
        case "div" | "mod" if b.is_constant:
            if b.const == 0:
                return Affine()
            if b.const > 0:
                return quasi(fn, a, b)
            return quasi("div", a * -1, b * -1) if fn == "div" else quasi("mod", a * -1, b * -1) * -1
        case "bitand" | "bitor" | "bitxor" | "shl" | "shr" if a.is_constant and b.is_constant:
            return affine(_bits(fn, a.const, b.const))
    return None


def _bits(fn: str, a: int, b: int) -> int:
    match fn:
        case "bitand":
            return a & b
        case "bitor":
            return a | b
        case "bitxor":
            return a ^ b
        case "shl":
            return a << b if 0 <= b < 64 else 0
    return a >> b if 0 <= b < 64 else -1 if a < 0 else 0


def negative(v: Value, default: DType, span: Span | None) -> Value:
    """`-v`."""
    if isinstance(v, Typed):
        t = I64 if v.dtype == BOOL else v.dtype
        return Typed(Apply("neg", (cast(v.expr, t),), t), total((v,), span))
    if v.form is not None:
        return weak_int(v.form * -1, span)
    if v.value is not None:
        return weak_float(-v.value)
    if v.kind == "int":
        return computed(Apply("neg", (v.build(I64),), I64), total((v,), span), v.product)
    return Weak(v.kind, lambda t: Apply("neg", (to(v, t, default),), t), size=total((v,), span))
