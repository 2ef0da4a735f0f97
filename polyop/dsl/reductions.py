"""`sum[k](e)` inside an expression: a draft of its own, over a temporary."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from polyop.dsl import syntax as s
from polyop.dsl import values as v
from polyop.dsl.draft import Draft, reading_order
from polyop.dsl.monoids import monoid_of
from polyop.dsl.names import REDUCTIONS, did_you_mean, fresh
from polyop.dsl.scope import Work
from polyop.dsl.values import Typed, Value, Weak
from polyop.ir.dtypes import BOOL, I64, accumulator
from polyop.ir.errors import fail
from polyop.ir.expr import Apply, Const, Expr, Load, affine, expr_names


def inner_reduction(e: s.Reduction, w: Work, lower: Callable[[s.Syntax, Work], Value]) -> Value:
    """The value of `name[index](body)`: a Load from a temporary that `w.hidden` then says how to fill."""
    if w.arguments is not None:
        raise fail("E209", "a function is one expression of its arguments; it cannot reduce", e.span)
    if e.name not in REDUCTIONS and not w.scope.monoid(e.name):
        if e.name in w.scope.tensors:
            raise fail("E120", "an operator is missing between the two brackets", e.span)
        raise fail("E201", f"`{e.name}` does not reduce" + did_you_mean(e.name, REDUCTIONS), e.span)
    if not e.index:
        raise fail("E217", "a reduction runs over plain indices", e.span, hint=f"such as `{e.name}[k](...)`")
    outer_bound, outer_hidden = dict(w.bound), w.hidden
    mine = [_bind(i, w) for i in e.index]
    w.hidden = []
    value = lower(e.body, w)
    w.bound, inner, w.hidden = outer_bound, w.hidden, outer_hidden
    if isinstance(value, Weak) and value.kind == "unknown":
        return Weak("unknown", value.build)
    dtype = v.alone(value, w.scope.default)
    if dtype == BOOL and e.name in ("sum", "prod"):
        dtype = I64
    dtype = accumulator(dtype)
    monoid = monoid_of(REDUCTIONS.get(e.name, e.name), dtype, w.scope, e.span, lower)
    body = v.widened(v.to(value, dtype, w.scope.default))
    sizes = size_names(w)
    local = dict(zip((x.name for x in e.index if isinstance(x, s.Name)), mine, strict=True))
    free = _ordered(body, sizes | set(mine))
    for c in w.where:
        mentioned = expr_names(c)
        if mentioned & set(local):
            free += [n for n in sorted(mentioned) if n not in sizes and n not in local and n not in free]
    for c in w.conditions:
        free += [n for n in _ordered(c, sizes | set(mine)) if n not in free]
        body = Apply("select", (c, body, Const(monoid.identity, dtype)), dtype)
    name = fresh(f"{w.target}_{e.name}", w.taken)
    at = tuple(affine(n) for n in free)
    w.hidden.append(Draft(name, at, monoid, body, hidden=tuple(inner), bound=tuple(mine), span=e.span, left=e.span))
    return Typed(Load(name, at, dtype, (), e.span), 1)


def _bind(i: s.Syntax, w: Work) -> str:
    if not isinstance(i, s.Name):
        raise fail("E217", "a reduction runs over plain indices", i.span, hint="such as `sum[k](...)`")
    scope = w.scope
    if i.name in w.bound or i.name in w.left:
        raise fail(
            "E218", f"`{i.name}` is an index outside already; one name means one thing", i.span, hint="take another letter"
        )
    if i.name in scope.tensors or i.name in scope.sizes or i.name in scope.scalars or i.name in scope.consts:
        raise fail("E218", f"`{i.name}` is a parameter or a tensor, not an index", i.span)
    w.serial[0] += 1
    w.bound[i.name] = f"{scope.safe.get(i.name, i.name)}@{w.serial[0]}"
    return w.bound[i.name]


def size_names(w: Work) -> set[str]:
    """The sizes as the Op calls them."""
    return {w.scope.safe.get(n, n) for n in w.scope.sizes}


def _ordered(e: Expr, without: Iterable[str]) -> list[str]:
    """The indices of `e`, in reading order."""
    hide = set(without)
    return [n for n in reading_order(e) if n not in hide]
