"""Sums of products as register tiles like them: plain products of two operands.

    C[m, n] += A[m, k] * B[k, n] - a[m, k] * b[k, n]      C[m, n] += A[m, k] * B[k, n];   C[m, n] += -(a[m, k] * b[k, n])
    C[m, n] += 2 * A[m, k] * B[k, n] * d[n]               t[m, n] += A[m, k] * B[k, n];   C[m, n] = t[m, n] * 2 * d[n]
    C[m] += A[m, k] / K                                   t[m] += A[m, k];                C[m] = t[m] / K

Two products in one sum have four operands, none of which is packed. A factor that does without what is added up costs a
multiplication in each step of a tile. Distributing multiplication over a sum is no more exact than reassociating it; only
infinities may tell, as in `factors.py`. Operands that are computed are made before (`early.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from polyop.ir.expr import Affine, Apply, Const, Expr, Load, expr_names, loads
from polyop.ir.op import Op, Step, Tensor
from polyop.rewrite.folds import plain_indices
from polyop.rewrite.instead import Instead, with_steps
from polyop.rewrite.names import all_names, fresh


def single_products(op: Op) -> Op:
    """`op` with a sum of its own for each product, and behind it the factors that do without what is added up."""
    taken = all_names(op)
    op = with_steps(op, _one_by_one)
    return with_steps(op, lambda s: _outside(op, s, taken))


def _one_by_one(s: Step) -> Instead | None:
    """A sum of several products as several sums."""
    terms = _terms(s.expr)
    if len(terms) < 2 or not all(is_contraction(s, factors_of(x)) for x in terms):
        return None
    return (), tuple(replace(s, expr=x) for x in terms)


def _terms(e: Expr) -> tuple[Expr, ...]:
    match e:
        case Apply(fn="add", args=(a, b)):
            return (*_terms(a), *_terms(b))
        case Apply(fn="sub", args=(a, b)):
            return (*_terms(a), *(Apply("neg", (x,), x.dtype) for x in _terms(b)))
    return (e,)


def factors_of(e: Expr) -> tuple[Expr, ...]:
    match e:
        case Apply(fn="mul", args=(a, b), dtype=t) if t.is_float:
            return (*factors_of(a), *factors_of(b))
        case Apply(fn="neg", args=(Apply(fn="mul") as x,)):
            first, *rest = factors_of(x)
            return (Apply("neg", (first,), first.dtype), *rest)
        case Apply(fn="div", args=(a, b), dtype=t) if t.is_float:
            return (*factors_of(a), Apply("div", (Const(1.0, t), b), t))
    return (e,)


def product_of(factors: Sequence[Expr]) -> Expr:
    """Their product, from left to right."""
    return reduce(_times, factors)


def _times(a: Expr, b: Expr) -> Expr:
    match b:
        case Apply(fn="div", args=(Const(value=1.0), x)):
            return Apply("div", (a, x), a.dtype)
    return Apply("mul", (a, b), a.dtype)


def _adds_up(s: Step) -> bool:
    """Whether `s` is a sum of floats over some index."""
    return (s.reduce is not None and s.reduce.name == "add" and s.target.dtype.is_float
            and {*s.indices} > {*(plain_indices(s.target) or ())})


def is_contraction(s: Step, factors: Sequence[Expr]) -> bool:
    """Whether of the sum of these products some two operands each have an index of the result that the other has not."""
    kept = frozenset(plain_indices(s.target) or ())
    if not _adds_up(s):
        return False
    has = [expr_names(x) & kept for x in factors]
    return any(a - b and b - a for a in has for b in has)


def _outside(op: Op, s: Step, taken: set[str]) -> Instead | None:
    """A sum with the factors that do without what is added up behind it."""
    kept, factors = plain_indices(s.target) or (), factors_of(s.expr)
    added = frozenset(s.indices) - frozenset(kept)
    behind = [x for x in factors if not expr_names(x) & added and x.dtype == s.target.dtype
              and (not s.where or (not _is_quotient(x) and all(_is_whole(op, s, y) for y in loads(x))))]
    inside = [x for x in factors if x not in behind]
    shape = op.tensor(s.target.source).shape
    whole = len(op.steps_of(s.target.source)) == 1 and all(
        r.lower == Affine() and (shape[kept.index(r.index)] == r.upper if r.index in kept else _is_some(op, r.upper))
        for r in s.ranges)
    if not behind or not inside or not whole or not (is_contraction(s, inside) or _divides(op, s, behind)):
        return None
    t = Tensor(fresh(f"{s.target.source}_sum", taken), s.target.dtype, shape, "temp")
    place = replace(s.target, source=t.name)
    rows = tuple(r for r in s.ranges if r.index in kept)
    last = replace(s, reduce=None, expr=product_of((place, *behind)), ranges=rows, where=())
    return (t,), (replace(s, target=place, expr=product_of(inside)), last)


def _is_quotient(x: Expr) -> bool:
    return isinstance(x, Apply) and x.fn == "div"


def _divides(op: Op, s: Step, behind: Sequence[Expr]) -> bool:
    """Whether `s` is a sum whose terms are divided by one of `behind`, and no turn of a recurrence.

    That takes as long as a dozen additions. What nothing is added to is 0, whatever it is divided by, so there are no conditions.
    """
    return (_adds_up(s) and plain_indices(s.target) is not None and not s.where and any(map(_is_quotient, behind))
            and not op.follow_from((s.target.source,)) & {y.source for y in loads(s.expr)})


def _is_whole(op: Op, s: Step, x: Load) -> bool:
    """Whether `x` reads an argument from its first element to its last, whatever conditions `s` has."""
    at, t = plain_indices(x, s.indices), op.tensor(x.source)
    ranges = {r.index: r for r in s.ranges}
    return at is not None and t.role == "in" and all(
        ranges[i].lower == Affine() and ranges[i].upper == e for i, e in zip(at, t.shape, strict=True))


def _is_some(op: Op, extent: Affine) -> bool:
    """Whether sizes of at least 1 leave something to be added up."""
    return extent.const > 0 if extent.is_constant else extent.name in op.sizes
