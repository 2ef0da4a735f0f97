"""The reducing operators: built in, and the user's own."""

from __future__ import annotations

from collections.abc import Callable

from polyop.dsl import syntax as s
from polyop.dsl import values as v
from polyop.dsl.names import REDUCING, did_you_mean
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
    fn = scope.fn(own.combine)
    if fn is None or len(fn.params) != 2:
        raise fail("E225", f"`{own.combine}` is no function of two arguments", own.span)
    identity = lower(own.identity, Work(scope, {}, set(), indices_allowed=False, tensors_allowed=False, arguments={}))
    if not isinstance(identity, Weak) or identity.constant is None:
        raise fail("E225", f"the identity of `{name}` is no constant", own.span)
    given = dict(zip(fn.params, (Typed(Scalar(n, dtype)) for n in "ab"), strict=True))
    body = v.to(lower(fn.body, Work(scope, {}, set(), arguments=given, calling=(fn.name,))), dtype, scope.default)
    const = v.to(identity, dtype, scope.default)
    assert isinstance(const, Const)
    return Monoid(name, const.value, None, body)
