"""Indices of a sum that one factor alone has: that factor is added up along them first.

    Y[m, n] += T[m, p, k] * W[n, k]     becomes     S[m, k] += T[m, p, k];   Y[m, n] += S[m, k] * W[n, k]

The sum over p is one of T alone, which is done once so and not for each n: M N K P multiplications are M N K, and M K P additions
before. S has an element for each one of T along p, so it is no larger. It is the same by distributing W over the sum, which is no
more exact than reassociating it; only infinities may tell, as in `factors.py`. Not done where sums go in the order of the text.
"""

from __future__ import annotations

from polyop.ir.expr import Affine, Expr, Load, affine, expr_names, loads, names
from polyop.ir.op import Op, Range, Step, Tensor
from polyop.rewrite.folds import is_box
from polyop.rewrite.instead import Instead, with_steps
from polyop.rewrite.names import all_names, fresh
from polyop.rewrite.sums.terms import factors_of, product_of


def own_sums_first(op: Op) -> Op:
    """`op` with a temporary for each factor of a sum of products that alone has some of the indices that are added up."""
    taken = all_names(op)
    return with_steps(op, lambda s: _summed_first(op, s, taken))


def _summed_first(op: Op, s: Step, taken: set[str]) -> Instead | None:
    factors, dtype = factors_of(s.expr), s.target.dtype
    if s.reduce is None or s.reduce.name != "add" or not dtype.is_float or s.where or len(factors) < 2 or not is_box(op, s):
        return None
    tensors, steps, left, ranges = list[Tensor](), list[Step](), list[Expr](), list(s.ranges)
    for n, x in enumerate(factors):
        others = frozenset().union(expr_names(s.target), *(expr_names(y) for m, y in enumerate(factors) if m != n))
        own = [r for r in s.ranges if r.index in expr_names(x) - others]
        rest = _rest(op, s, x, own) if x.dtype == dtype else None
        if rest is None:
            left.append(x)
            continue
        t = Tensor(fresh(f"{s.target.source}_alone", taken), dtype, tuple(r.upper for r in rest), "temp")
        place = Load(t.name, tuple(affine(r.index) for r in rest), dtype)
        tensors.append(t)
        steps.append(Step(place, s.reduce, x, (*rest, *own), (), s.span))
        left.append(place)
        ranges = [r for r in ranges if r not in own]
    if not steps:
        return None
    return tensors, (*steps, Step(s.target, s.reduce, product_of(left), tuple(ranges), (), s.span))


def _rest(op: Op, s: Step, x: Expr, own: list[Range]) -> tuple[Range, ...] | None:
    """The ranges of what `x` is for, added up along `own`; None if that is worth nothing, or takes more memory than `x` does.

    They are in the order in which the first read has them that has them all.
    """
    reads = loads(x)
    at = expr_names(x) & {*s.indices} - {r.index for r in own}
    whole = next((y for y in reads if expr_names(y) >= at), None)
    sharing = [r for r in s.ranges if r.index not in expr_names(x) and r.upper != Affine(const=1)]
    if not sharing or whole is None or not any(r.upper != Affine(const=1) for r in own):
        return None
    if op.follow_from((s.target.source,)) & {y.source for y in reads}:
        return None  # in each turn of a recurrence
    positions = [p for y in reads for p in y.index if not isinstance(p, Load)]
    if any(len((names(p) if isinstance(p, Affine) else expr_names(p)) & at) > 1 for p in positions):
        return None  # a window has more elements than what it slides along
    order = [i for p in whole.index for i in sorted((names(p) if isinstance(p, Affine) else expr_names(p)) & at)]
    of = {r.index: r for r in s.ranges}
    return tuple(of[i] for i in dict.fromkeys((*order, *sorted(at))))
