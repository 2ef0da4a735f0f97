"""Conditions: comparisons, which are tests where they can be, and what joins them, folded as they are written."""

from __future__ import annotations

from polyop.dsl.values import Typed, Value, Weak, boolean, common, placed, to, total, weakest
from polyop.ir.dtypes import BOOL, I64, DType
from polyop.ir.errors import fail
from polyop.ir.expr import Affine, Apply, Const, Expr, Test
from polyop.ir.span import Span


def compare(fn: str, a: Value, b: Value, default: DType, span: Span | None) -> Typed:
    """`fn(a, b)` for lt, le, gt, ge, eq, ne; a `Test` where both are quasi-affine."""
    if isinstance(a, Weak) and isinstance(b, Weak):
        if a.form is not None and b.form is not None:
            placed(a.form - b.form, span)
            return _test(fn, a.form, b.form)
        t = default if weakest((a, b)) == "float" else I64
    else:
        t = common((a, b), default) or I64
        for x in (a, b):
            if t.kind == "uint" and isinstance(x, Weak) and x.constant is not None and x.constant < 0:
                raise fail("E213", f"{x.constant} does not fit into {t}, so this is always the same", span)
        zero = b if fn in ("ge", "lt") else a if fn in ("le", "gt") else None
        if t.kind == "uint" and isinstance(zero, Weak) and zero.constant == 0:
            return boolean(fn in ("ge", "le"))  # no natural number is below 0; the dtype may be a variable's
    return Typed(Apply(fn, (to(a, t, default), to(b, t, default)), BOOL), total((a, b), span))


def _test(fn: str, a: Affine, b: Affine) -> Typed:
    match fn:
        case "lt":
            return Typed(test(b - a - 1))
        case "le":
            return Typed(test(b - a))
        case "gt":
            return Typed(test(a - b - 1))
        case "ge":
            return Typed(test(a - b))
        case "eq":
            return Typed(test(a - b, b - a))
    return Typed(either(test(a - b - 1), test(b - a - 1)))


def test(*tests: Affine) -> Expr:
    """Whether all `tests` are >= 0, folded where they are constant."""
    if any(t.is_constant and t.const < 0 for t in tests):
        return Const(False, BOOL)
    kept = tuple(dict.fromkeys(t for t in tests if not t.is_constant))
    return Test(kept) if kept else Const(True, BOOL)


def both(a: Expr, b: Expr) -> Expr:
    """`a and b`."""
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Const):
            return y if x.value else x
    if isinstance(a, Test) and isinstance(b, Test):
        return test(*a.tests, *b.tests)
    return Apply("and", (a, b), BOOL)


def either(a: Expr, b: Expr) -> Expr:
    """`a or b`."""
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Const):
            return x if x.value else y
    return a if a == b else Apply("or", (a, b), BOOL)


def negated(e: Expr) -> Expr:
    """`not e`; a negated test stays one, or becomes a disjunction of such."""
    match e:
        case Const(value=v):
            return Const(not v, BOOL)
        case Test(tests=tests):
            out: Expr = Const(False, BOOL)
            for t in tests:
                out = either(out, test(t * -1 - 1))
            return out
        case Apply(fn="not", args=(a,)):
            return a
        case Apply(fn="and", args=(a, b)):
            return either(negated(a), negated(b))
        case Apply(fn="or", args=(a, b)):
            return both(negated(a), negated(b))
    return Apply("not", (e,), BOOL)
