"""Whether an update changes nothing: what it reduces by is worked out as far as it is known, and is the identity.

    acc += (X[p + r - 1] if p + r - 1 >= 0) * F[r]      at p = r = 0 the first factor is 0, and so is the product
"""

from __future__ import annotations

from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Test, loads
from polyop.ir.loops import Barrier, For, If, IfData, Node, Store, children
from polyop.poly.verify.known import Known
from polyop.poly.verify.ranges import range_of

Value = float | int | bool | None


def is_idle(n: Node, k: Known, strict: bool) -> bool:
    """Whether all that `n` does where `k` holds changes nothing, and takes nothing from a computed place.

    strict   whether adding a float that is 0 changes -0, and a product with it may be no number
    """
    match n:
        case Store(reduce=m, expr=e):
            computes = any(not isinstance(p, Affine) for x in (n.target, *loads(e)) for p in x.index)
            exact = strict and e.dtype.is_float and m is not None and m.fn in (None, "add", "mul")
            found = None if m is None or computes or exact else _value(e, k)
            return (m is not None and found is not None and found == m.identity) or bool(k.domain.is_empty())
        case For():
            inner = k.inside(n).also(range_of(n))
            return all(is_idle(c, inner, strict) for c in n.body)
        case If():
            return (all(is_idle(c, k.also(n.tests), strict) for c in n.then)
                    and all(is_idle(c, k.unless(n.tests), strict) for c in n.other))
        case IfData() | Barrier():
            return False
    return all(is_idle(c, k, strict) for c in children(n))


def _value(e: Expr, k: Known) -> Value:
    """The value of `e` everywhere in `k`, if it is known to have one."""
    match e:
        case Const(value=value):
            return value
        case Load(guard=guard) if guard and k.decides(guard) is False:
            return 0
        case Apply(fn="cast" | "neg", args=(x,)):
            return 0 if _value(x, k) == 0 else None
        case Apply(fn="mul", args=args):
            return 0 if any(_value(x, k) == 0 for x in args) else None
        case Apply(fn="select", args=(Test(tests=tests), yes, no)):
            truth = k.decides(tests)
            return None if truth is None else _value(yes if truth else no, k)
    return None
