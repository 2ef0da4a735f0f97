"""The reducing operators: built in, and the user's own."""

from __future__ import annotations

from collections.abc import Callable

from polyop.dsl import syntax as s
from polyop.dsl import values as v
from polyop.dsl.functions import apply_function
from polyop.dsl.names import FUNCTIONS, REDUCING, did_you_mean
from polyop.dsl.scope import Scope, Work
from polyop.dsl.values import Typed, Value, Weak
from polyop.ir.dtypes import BOOL, DType
from polyop.ir.errors import fail
from polyop.ir.expr import Const, Scalar
from polyop.ir.op import Monoid, builtin_monoid
from polyop.ir.span import Span

Lower = Callable[[s.Syntax, Work], Value]

BUILT_IN = frozenset(REDUCING.values())


def monoid_of(name: str, dtype: DType, scope: Scope, span: Span, lower: Lower) -> Monoid:
    """The monoid called `name` ("add", ..., or a user's) over `dtype`.

    Raises  UserError E201 (no such operator), E223 (not for this dtype), E225 (a broken definition).
    """
    own = scope.monoid(name)
    if own is None:
        if name not in BUILT_IN:
            known = [*REDUCING, "argmax", "argmin", *(m.name for m in scope.program.monoids)]
            raise fail("E201", f"`{name}=` is no reducing operator" + did_you_mean(name, known), span)
        if name.startswith("bit") and dtype.is_float:
            raise fail("E223", "`&=`, `|=` and `^=` work on integers, and this is a float", span)
        if name in ("and", "or") and dtype != BOOL:
            raise fail("E223", f"`{name}=` joins conditions, and this is {dtype}", span)
        return builtin_monoid(name, dtype)
    scope = scope if scope.program.monoid(name) else scope.of_library
    identity = lower(own.identity, Work(scope, {}, set(), indices_allowed=False, tensors_allowed=False, arguments={}))
    if not isinstance(identity, Weak) or identity.constant is None:
        raise fail("E225", f"the identity of `{name}` is no constant", own.span)
    body = v.to(_combined(own, dtype, scope, lower), dtype, scope.default)
    const = v.to(identity, dtype, scope.default)
    assert isinstance(const, Const)
    return Monoid(name, const.value, None, body)


def _combined(own: s.MonoidDef, dtype: DType, scope: Scope, lower: Lower) -> Value:
    """What the monoid's function, the user's or a built-in one, makes of `a` and `b`."""
    a, b = Typed(Scalar("a", dtype)), Typed(Scalar("b", dtype))
    fn = scope.fn(own.combine)
    if fn is not None and len(fn.params) == 2:
        return lower(fn.body, Work(scope, {}, set(), arguments=dict(zip(fn.params, (a, b), strict=True)), calling=(fn.name,)))
    if fn is None and FUNCTIONS.get(own.combine) in (2, -1):
        return apply_function(own.combine, (a, b), scope.default, own.span)
    raise fail("E225", f"`{own.combine}` is no function of two arguments", own.span)
