"""What a reduction does not notice: updates by its own identity, where a value is read that is not there.

    acc += (X[p + r - 1] if p + r - 1 >= 0) * F[r]          adds 0 where p + r - 1 < 0
    acc max= p + r - 1 >= 0 ? X[p + r - 1] : -inf           takes the greater of itself and the least there is

A factor beside such a 0 may be infinite, and their product then is no number; and -0 + 0 is 0. Strict numerics keep both.
"""

from __future__ import annotations

from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Test, is_computed, loads
from polyop.ir.loops import Store
from polyop.ir.op import Monoid

Tests = frozenset[Affine]


def idle_without(n: Store, strict: bool) -> Tests:
    """Tests of which one that is < 0 is enough for `n` to change nothing, and to read nothing from a computed place."""
    computed = any(is_computed(p) for x in (n.target, *loads(n.expr)) for p in x.index)
    if n.reduce is None or n.reduce.fn is None or computed:
        return frozenset()
    if n.reduce.fn == "add":
        return frozenset() if strict and n.expr.dtype.is_float else _zero_without(n.expr)
    return _chosen(n.expr, n.reduce)


def _zero_without(e: Expr) -> Tests:
    """Tests of which one that is < 0 is enough for `e` to be 0."""
    match e:
        case Load(guard=guard):
            return frozenset(guard)
        case Apply(fn="mul", args=args):
            return frozenset[Affine]().union(*map(_zero_without, args))
        case Apply(fn="cast" | "neg", args=(x,)):
            return _zero_without(x)
        case Apply(fn="select", args=(Test(tests=tests), yes, Const(value=value))) if value == 0:
            return frozenset(tests) | _zero_without(yes)
    return frozenset()


def _chosen(e: Expr, m: Monoid) -> Tests:
    """The tests that choose between a value and the identity of `m`."""
    match e:
        case Apply(fn="select", args=(Test(tests=tests), yes, Const(value=value))) if value == m.identity:
            return frozenset(tests) | _chosen(yes, m)
    return frozenset()
