"""Sums over an image, as sums over the window that slides along it.

    O[k, p] += X[c, i] * F[c, k, p + 1 - 2*i]  where 0 <= p + 1 - 2*i < R

Here the filter slides, so that it differs from pixel to pixel, and most of it lies outside. With { i -> r = p + 1 - 2 i }, whose
inverse is { i = (p + 1 - r) / 2 }, it is a transposed convolution as others write it, whose remainder `residues.py` cuts off:

    O[k, p] += X[c, (p + 1 - r) / 2] * F[c, k, r]  where (p + 1 - r) mod 2 = 0, 0 <= (p + 1 - r) / 2 < W

The terms are the same ones, so infinities and NaN are too. The other way round a convolution would become such a sum, so sizes
choose: the shorter of both is summed over. A condition `i == p + r - 1` is a window of one element, whose index is gone then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from polyop.ir.expr import Affine, Expr, Load, Test, affine, evaluate, expr_names, loads, names, quasi, substitute_expr
from polyop.ir.op import Op, Range, Step
from polyop.rewrite.folds import said_by
from polyop.rewrite.windows.residues import LARGEST


@dataclass(frozen=True, slots=True)
class Taps:
    """The range of the reduced `index` of `step`, of which a condition of it says { 0 <= place < extent }.

    other   how many values the index has
    """

    step: int
    index: str
    place: Affine
    extent: Affine
    other: Affine

    @property
    def factor(self) -> int:
        return self.place.factor(self.index)


def find_taps(op: Op) -> tuple[Taps, ...]:
    """What may be summed over instead of indices of `op`: of each step several things that do without each other's indices.

    Of a step that writes a temporary one thing, as what two of them leave of its conditions was not looked at.
    """
    found = list[Taps]()
    for n, s in enumerate(op.steps):
        own = list[Taps]()
        for t in (t for i in s.indices if (t := _taps(op, n, s, i))):
            apart = all(t.index not in names(x.place) and x.index not in names(t.place) for x in own)
            if not own or (apart and op.tensor(s.target.source).role != "temp"):
                own.append(t)
        found += own
    return tuple(found)


def pays(t: Taps, sizes: Mapping[str, int], strict: bool = False) -> bool:
    """Whether fewer places than values of the index are gone through in a call of these sizes; if `strict`, in the same order."""
    return evaluate(t.extent, sizes) < evaluate(t.other, sizes) and (t.factor > 0 or not strict)


def along_taps(op: Op, chosen: Sequence[Taps]) -> Op:
    """`op` with sums over these, which `find_taps` has found in it."""
    steps = list(op.steps)
    for t in chosen:
        steps[t.step] = _along(steps[t.step], t)
    return replace(op, steps=tuple(steps)) if chosen else op


def _taps(op: Op, n: int, s: Step, i: str) -> Taps | None:
    r = s.ranges[s.indices.index(i)]
    if s.reduce is None or i in expr_names(s.target) or not names(r.lower) | names(r.upper) <= set(op.sizes):
        return None
    if any(i in names(x.lower) | names(x.upper) for x in s.ranges):
        return None
    tests = said_by(s.where)
    for e in (t for t in tests if 1 <= abs(t.factor(i)) <= LARGEST and all(isinstance(a, str) for a, _ in t.terms)):
        for other in tests:
            extent = e + other + 1
            if names(extent) <= set(op.sizes) and (extent == affine(1) or any(_slides(op, s, x, i, e) for x in loads(s.expr))):
                found = Taps(n, i, e, extent, r.upper - r.lower)
                return found if _is_whole(op, s, found) else None
    return None


def _slides(op: Op, s: Step, x: Load, i: str, e: Affine) -> bool:
    """Whether `x` is read at `e`, but for a number, and all that it has of its indices is there: `F[c, k, p + 1 - 2*i]`."""
    own = names(e) & set(s.indices)
    at = [p for p in x.index if not isinstance(p, Affine) or names(p) & own]
    if len(at) != 1 or not isinstance(at[0], Affine) or not own & expr_names(s.target):
        return False
    return not names(at[0] - e) & set(s.indices) and any(i in expr_names(y) for y in loads(s.expr) if y is not x)


def _is_whole(op: Op, s: Step, t: Taps) -> bool:
    """Whether each new condition of a temporary still has a reduced index: one without says where there are elements."""
    new, reduced = _along(s, t), set(s.indices) - expr_names(s.target)
    left = reduced & set(new.indices)
    return op.tensor(s.target.source).role != "temp" or all(expr_names(w) & left for w in new.where if expr_names(w) & (
        reduced | expr_names(s.target)))


def _along(s: Step, t: Taps) -> Step:
    """`s` as a sum over { index' = place }, by the name of the index that it had; without it, if there is but one place."""
    a, r = t.factor, s.ranges[s.indices.index(t.index)]
    one = t.extent == affine(1)
    value = (affine(0 if one else t.index) - (t.place - affine(t.index) * a)) * (1 if a > 0 else -1)  # |a| index
    env = {t.index: quasi("div", value, affine(abs(a)))}
    known = {t.place, t.extent - t.place - 1}
    inside = [env[t.index] - r.lower, r.upper - env[t.index] - 1]
    remainder = [quasi("mod", value, affine(abs(a))) * -1] if abs(a) > 1 else []
    ranges = tuple(Range(t.index, Affine(), t.extent) if x is r else x for x in s.ranges if x is not r or not one)
    return replace(s, expr=substitute_expr(s.expr, env), ranges=ranges,
                   where=(*(substitute_expr(w, env) for w in _without(s.where, known)), Test((*remainder, *inside))))


def _without(where: Sequence[Expr], known: set[Affine]) -> Iterator[Expr]:
    """`where` without the tests `known`."""
    for w in where:
        left = tuple(x for x in w.tests if x not in known) if isinstance(w, Test) else ()
        if left or not isinstance(w, Test):
            yield Test(left) if isinstance(w, Test) else w
