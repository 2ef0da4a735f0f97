"""Sums over the digits of a place, as sums over the place; and sums of sums over groups, as one sum.

    Y[m, n] += X[m, 32*g + j] * W[n, 32*g + j] * S[n, g]  where j in 0:32      (1)
    Y[m, n] += X[m, k] * W[n, k] * S[n, floor(k/32)]                           (2)

    P[m, n, g] += X[m, 32*g + j] * W[n, 32*g + j]  where j in 0:32             (3)
    Y[m, n] += P[m, n, g] * S[n, g]

(1) reads at { 32 g + j }, which { k -> g = floor(k/32), j = k mod 32 } takes apart in one way alone, so nothing slides along
anything: as (2), k is a depth like others. (3) is (1) by distributing S over the sum over j, which is no more exact than
reassociating it; only infinities may tell, as in `factors.py`. Each partial sum is used once, so (1) has no more terms than (3).
Neither is done where sums go in the order of the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyop.ir.expr import (
    Affine,
    Load,
    Quasi,
    affine,
    affines,
    expr_names,
    loads,
    map_loads,
    names,
    quasi,
    substitute,
    substitute_expr,
)
from polyop.ir.op import Op, Range, Step
from polyop.rewrite.folds import plain_indices, resolved, said_by
from polyop.rewrite.names import all_names, fresh
from polyop.rewrite.sums.ownsums import own_sums_first
from polyop.rewrite.sums.terms import factors_of, is_contraction


def joined(op: Op) -> Op:
    """`op` with partial sums put in where they are added up, digits joined that are summed over, and sums of one factor first."""
    op = _with_sums_put_in(op)
    steps = tuple(_joined(op, s) for s in op.steps)
    op = op if all(a is b for a, b in zip(steps, op.steps, strict=True)) else replace(op, steps=steps)
    return own_sums_first(op)


# --- digits ------------------------------------------------------------------------------------------------------------


def _joined(op: Op, s: Step) -> Step:
    """`s` with one index for each pair of reduced ones that are digits of a place wherever the lower one is used."""
    if s.reduce is None:
        return s
    for low in s.ranges:
        for high in s.ranges:
            if low is not high and _are_digits(op, s, high, low):
                return _joined(op, _with_place(op, s, high, low))
    return s


def _are_digits(op: Op, s: Step, high: Range, low: Range) -> bool:
    """Whether { base * high + low } is read, and `low` used nowhere else, where base is how many values `low` has."""
    i, j, base = high.index, low.index, low.upper.const
    if not low.upper.is_constant or base < 2 or not (high.lower == low.lower == Affine()) or not names(high.upper) <= {*op.sizes}:
        return False
    if {i, j} & expr_names(s.target).union(*map(expr_names, s.where), *(names(r.lower) | names(r.upper) for r in s.ranges)):
        return False
    used = [(a, b) for p in affines(s.expr) for a, b in _factors(p, i, j) if b]
    return bool(used) and all(a == base * b for a, b in used)


def _factors(p: Affine, i: str, j: str) -> Iterator[tuple[int, int]]:
    """The factors of `i` and `j` in `p`, and in what it divides and compares."""
    yield p.factor(i), p.factor(j)
    for a, _ in p.terms:
        if isinstance(a, Quasi):
            for arg in a.args:
                yield from _factors(arg, i, j)


def _with_place(op: Op, s: Step, high: Range, low: Range) -> Step:
    """`s` over places, by the name that the upper digit had."""
    i, j, base = high.index, low.index, low.upper.const
    env = {i: quasi("div", affine(i), affine(base)), j: affine(i) - quasi("div", affine(i), affine(base)) * base}
    ranges = tuple(Range(i, Affine(), _simpler(op, high.upper * base)) if r is high else r for r in s.ranges if r is not low)
    return replace(s, expr=substitute_expr(s.expr, env), ranges=ranges)


def _simpler(op: Op, x: Affine) -> Affine:
    """`x` without divisions that leave nothing, as the facts of `op` say: { 32 * floor(K/32) = K } where { K mod 32 = 0 }."""
    nothing = {t.terms[0][0] for t in said_by(op.facts) if not t.const and len(t.terms) == 1 and t.terms[0][1] == -1}
    total = affine(x.const)
    for a, f in x.terms:
        whole = isinstance(a, Quasi) and a.op == "div" and f % a.args[1].const == 0 and Quasi("mod", a.args) in nothing
        total = total + (a.args[0] * (f // a.args[1].const) if whole and isinstance(a, Quasi) else affine(a) * f)
    return total


# --- sums of sums ------------------------------------------------------------------------------------------------------


def _with_sums_put_in(op: Op) -> Op:
    """`op` with each contraction put into the one sum that takes every element of it once, as a factor."""
    for s in op.steps:
        for x in loads(s.expr):
            inner = _put_in(op, s, x)
            if inner is not None:
                steps = tuple(_merged(op, s, x, inner) if y is s else y for y in op.steps if y is not inner)
                op = replace(op, steps=steps, tensors=tuple(t for t in op.tensors if t.name != x.source))
                return _with_sums_put_in(op)
    return op


def _put_in(op: Op, s: Step, x: Load) -> Step | None:
    """The contraction that makes what `s` reads as `x`, if it may be put in; both are made of arguments, element by element."""
    steps, t = op.steps_of(x.source), op.tensor(x.source)
    users = sum(y.source == x.source for z in op.steps for y in z.reads)
    at, kept = plain_indices(x), plain_indices(steps[0].target) if len(steps) == 1 else None
    factors = factors_of(s.expr)
    if t.role != "temp" or users != 1 or at is None or kept is None or {*at} != {*s.indices} or factors.count(x) != 1:
        return None
    inner, (outer, own) = steps[0], (s.target.dtype, t.dtype)
    if outer != own or s.reduce is None or s.reduce.name != "add" or not is_contraction(inner, factors_of(inner.expr)):
        return None
    given = (y for e in (inner.expr, *factors) if e != x for y in loads(resolved(op, e)))
    return inner if all(op.tensor(y.source).role == "in" for y in given) else None


def _merged(op: Op, s: Step, x: Load, inner: Step) -> Step:
    """`s` with the terms of `inner` in the place of `x`."""
    taken = all_names(op)
    env = {p.name: q for p, q in zip(inner.target.index, x.index, strict=True)
           if isinstance(p, Affine) and isinstance(q, Affine) and p.name is not None}
    own = [r for r in inner.ranges if r.index not in env]
    env |= {r.index: affine(fresh(r.index, taken)) for r in own}
    more = tuple(Range(env[r.index].name or r.index, substitute(r.lower, env), substitute(r.upper, env)) for r in own)
    expr = map_loads(s.expr, lambda y: substitute_expr(inner.expr, env) if y == x else y)
    return replace(s, expr=expr, ranges=(*s.ranges, *more), where=(*s.where, *(substitute_expr(w, env) for w in inner.where)))
