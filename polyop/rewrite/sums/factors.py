"""Factors that do without an index of a sum, taken out of the sum over that index.

    Y[i, r] += X[i, j, k] * B[j, r] * C[k, r]      becomes
    T[i, j, r] += X[i, j, k] * C[k, r];  Y[i, r] += T[i, j, r] * B[j, r]

That is one multiplication fewer for each term, and what is left inside is a product of two, whose operands are packed. It is
paid for by writing T and reading it, so the sum over k must be long: of 1000 x 1000 x 32 in 8 columns it takes half the time,
of 500 x 500 x 16 in 16 it took half as long again. Where an index of the whole sum is only outside, as e of O[i, e] += Q[i,
d] * K[j, d] * V[j, e], both have far fewer terms than the text, and any length will do. Distributing multiplication over a
sum is no more exact than reassociating it; only infinities may tell: inf * 2 + inf * -1 is NaN, and inf * (2 - 1) is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from polyop.ir.expr import Affine, Apply, Expr, Load, affine, evaluate, expr_names
from polyop.ir.op import Op, Range, Step, Tensor
from polyop.rewrite.folds import is_box, plain_indices
from polyop.rewrite.instead import Instead, each_instead
from polyop.rewrite.names import all_names, fresh
from polyop.rewrite.sums.terms import product_of

DEPTH = 32
"""Terms of the inner sum that make it worth it to write it down."""
COLUMNS = 4
"""Elements of a row of the result from which lanes are not mostly empty."""
MOST = 2
"""Elements of the inner sum's result for each one of its larger operand, or of the whole result: else memory may not hold it."""
FEWER = 8
"""How many times fewer terms both sums have that make it worth it however short the inner one is."""
ROOM = 1 << 24
"""Elements of the inner sum's result that memory may hold then."""


@dataclass(frozen=True, slots=True)
class Inner:
    """A sum inside another one: of the step `step` the factors `inside` alone have its index `over`; those `outside` do without.

    kept   the indices of the inner sum's result
    """

    step: Step
    over: str
    inside: tuple[Load, ...]
    outside: tuple[Load, ...]
    kept: tuple[str, ...]

    def extent(self, index: str) -> Affine:
        return next(r.upper for r in self.step.ranges if r.index == index)


def find_inner(op: Op) -> tuple[tuple[Inner, ...], ...]:
    """The sums of `op` of which factors may be taken out, each with the ways to do so."""
    return tuple(x for x in (tuple(_ways(op, s)) for s in op.steps) if x)


def way(found: Sequence[Sequence[Inner]], sizes: Mapping[str, int]) -> int:
    """Which way, from 1 on, to take factors out in a call of these sizes; 0 if none pays.

    That is the first one for which sums are long enough and their results not too large, or another one with half as many terms.
    """
    chosen, terms = 0, 0
    for n, xs in enumerate(zip(*found, strict=False), 1):
        own = sum(_terms(x, sizes) for x in xs)
        if all(_pays(x, sizes) for x in xs) and (not chosen or 2 * own < terms):
            chosen, terms = n, own
    return chosen


def _count(x: Inner, indices: Sequence[str], sizes: Mapping[str, int]) -> int:
    return prod(evaluate(x.extent(i), sizes) for i in indices)


def _pays(x: Inner, sizes: Mapping[str, int]) -> bool:
    largest = max(_count(x, plain_indices(y) or (), sizes) for y in (*x.inside, x.step.target))
    elements, is_less = _count(x, x.kept, sizes), FEWER * _terms(x, sizes) <= _count(x, x.step.indices, sizes)
    return ((is_less or _count(x, (x.over,), sizes) >= DEPTH) and _count(x, x.kept[-1:], sizes) >= COLUMNS
            and (elements <= MOST * largest or (is_less and elements <= ROOM)))


def inner_rows(x: Inner, sizes: Mapping[str, int]) -> int:
    """How many rows the inner sum has, which is a product of matrices."""
    without, having = sorted((plain_indices(y) or () for y in x.inside), key=lambda at: x.kept[-1] in at)
    return _count(x, [i for i in x.kept if i in without and i not in having], sizes)


def _terms(x: Inner, sizes: Mapping[str, int]) -> int:
    """The terms of both sums."""
    rest = tuple(i for i in x.step.indices if i != x.over)
    return _count(x, (*x.kept, x.over), sizes) + _count(x, rest, sizes)


def taken_out(op: Op, way: int = 1) -> Op:
    """`op` with such factors outside of the sums, in this way."""
    taken = all_names(op)

    def instead(x: Inner) -> Instead:
        s, dtype = x.step, x.step.target.dtype
        t = Tensor(fresh(f"{s.target.source}_inner", taken), dtype, tuple(x.extent(i) for i in x.kept), "temp")
        whole = Load(t.name, tuple(map(affine, x.kept)), dtype)
        return (t,), (replace(s, target=whole, expr=product_of(x.inside), ranges=_ranges(s, (*x.kept, x.over)),
                            where=tuple(w for w in s.where if expr_names(w) <= {*x.kept, *op.sizes})),
                      replace(s, expr=product_of((whole, *x.outside)), ranges=tuple(r for r in s.ranges if r.index != x.over)))

    return each_instead(op, (xs[way - 1] for xs in find_inner(op) if len(xs) >= way), instead)


def _ways(op: Op, s: Step) -> Iterator[Inner]:
    """For indices of a plain sum of products whose ranges are boxes from 0 on, that which lies last in memory first.

    The inner sum is one of two factors, of which one has the last index of its result. What comes second is the last of a factor:
    with `X[i, j, k]` added up along j first, 500 x 500 x 16 in 16 columns takes 2.8 times as long as along k first.
    """
    first = True
    kept = plain_indices(s.target)
    reads = _factors(s.expr, s)
    if s.reduce is None or s.reduce.name != "add" or not s.target.dtype.is_float or not kept or len(reads) < 3:
        return
    if not is_box(op, s):
        return
    places = [plain_indices(x) for x in reads]
    summed = [i for i in s.indices if i not in kept]
    if None in places or len(summed) < 2:
        return
    asked = frozenset[str]().union(*map(expr_names, s.where))
    for over in (i for i in reversed(summed) if i not in asked):
        inside = tuple(x for x, at in zip(reads, places, strict=True) if at and over in at)
        outside = tuple(x for x in reads if x not in inside)
        has = {i for x in inside for i in plain_indices(x) or ()}
        last = _last(outside, kept, summed)
        beside = [i for i in (*kept, *summed) if i in has and i not in (over, last)] + [i for i in (last,) if i in has]
        apart = [x for x in inside if beside and beside[-1] not in (plain_indices(x) or ())]
        if outside and len(inside) == 2 and len(apart) == 1 and any(i in has for i in summed if i != over) and (
                first or any((plain_indices(x) or ())[-1] == over for x in inside)):
            first = False
            yield Inner(s, over, inside, outside, tuple(beside))


def _last(outside: Sequence[Load], kept: Sequence[str], summed: Sequence[str]) -> str:
    """The index along which the inner sum's result had better lie: the last one of the result, or along which it is added up.

        Y[b] += A[b, i] * W[i, j] * C[b, j]       T[b, i] += W[i, j] * C[b, j];  Y[b] += T[b, i] * A[b, i]
    """
    ends = [at[-1] for x in outside if (at := plain_indices(x)) and kept[-1] in at]
    return ends[0] if len(ends) == len(outside) == 1 and ends[0] in summed else kept[-1]


def _factors(e: Expr, s: Step) -> tuple[Load, ...]:
    """The factors of a product of elements of the result's dtype; () if `e` is something else."""
    match e:
        case Load(dtype=d, guard=()) if d == s.target.dtype:
            return (e,)
        case Apply(fn="mul", args=(a, b), dtype=d) if d == s.target.dtype:
            left, right = _factors(a, s), _factors(b, s)
            return (*left, *right) if left and right else ()
    return ()


def _ranges(s: Step, indices: tuple[str, ...]) -> tuple[Range, ...]:
    return tuple(next(r for r in s.ranges if r.index == i) for i in indices)
