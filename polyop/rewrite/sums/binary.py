"""Powers of e about the greatest of what a factor scales are powers of 2, which is what GPUs have an instruction for.

    top[i] max= c * x[i, j];                e[i, j] = exp(c * x[i, j] - top[i])                                         becomes
    top[i] max= (c / ln 2) * x[i, j];       e[i, j] = exp2((c / ln 2) * x[i, j] - top[i])

where such powers are all that reads `top`: the factor is one number for all, so each power has a product less.
"""

from __future__ import annotations

from dataclasses import replace
from math import log

from polyop.ir.dtypes import F32
from polyop.ir.expr import Apply, Const, Expr, Load, Scalar, loads, walk
from polyop.ir.op import Op, Step
from polyop.rewrite.folds import replaced, resolved
from polyop.rewrite.sums.faint import is_from_the_top


def binary(op: Op) -> Op:
    """`op` with such powers of 2."""
    for s in op.steps:
        if s.reduce is not None and s.reduce.name == "max" and op.tensor(s.target.source).role == "temp":
            op = _scaled(op, s)
    return op


def _scaled(op: Op, top: Step) -> Op:
    """`op` with powers of 2 about what `top` makes, if it is of scaled numbers and nothing else reads it."""
    name, factor = top.target.source, _factor(top.expr)
    readers = [s for s in op.steps if any(x.source == name for x in loads(s.expr))]
    powers = {id(s): [x for x in walk(s.expr) if _is_about(op, s, x, name)] for s in readers}
    one = all(len(powers[id(s)]) == sum(x.source == name for x in loads(s.expr)) == 1 for s in readers)
    if factor is None or not readers or not one or len(op.steps_of(name)) != 1:
        return op

    def again(s: Step) -> Step:
        if s is top:
            return replace(s, expr=_times(s.expr, factor))
        for x in powers.get(id(s), ()):
            assert isinstance(x, Apply) and isinstance(x.args[0], Apply)
            a, b = x.args[0].args
            less = replace(x.args[0], args=(_times(a, factor), b))
            return replace(s, expr=replaced(s.expr, x, Apply("exp2", (less,), x.dtype)))
        return s

    return replace(op, steps=tuple(map(again, op.steps)))


def _is_about(op: Op, s: Step, x: Expr, name: str) -> bool:
    """Whether `x` is e to the power of a scaled number less the greatest of these, which is `name`."""
    match x:
        case Apply(fn="exp", args=(Apply(fn="sub", args=(a, Load(source=source))),)) if source == name and resolved(op, a) == a:
            return _factor(a) is not None and is_from_the_top(op, s, x)
    return False


def _factor(e: Expr) -> Expr | None:
    """The number by which `e` is scaled."""
    match e:
        case Apply(fn="mul", args=(Scalar() | Const() as c, _)) | Apply(fn="mul", args=(_, Scalar() | Const() as c)):
            return c if e.dtype == c.dtype == F32 else None
    return None


def _times(e: Expr, factor: Expr) -> Expr:
    """`e` with 1 / ln 2 times that factor."""
    assert isinstance(e, Apply)
    more = Apply("mul", (factor, Const(1 / log(2), F32)), F32)
    return replace(e, args=tuple(more if x == factor else x for x in e.args))
