"""Products of narrow integers less what is the same for all of a sum, as zero points are: multiplied out.

    Y[m, n] += (i32(X[m, k]) - a) * (i32(W[n, k]) - b[n])

    t[m, n] += i32(X[m, k]) * i32(W[n, k]);   u[n] += i32(W[n, k]);   v[m] += i32(X[m, k])
    Y[m, n] = t[m, n] - a * u[n] - b[n] * v[m] + a * b[n] * K

There are instructions for products of bytes as they are, and sums of rows and columns cost little beside them. Sums of integers
are taken modulo 2^32, so this is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from polyop.ir.dots import ROWS, product
from polyop.ir.expr import Apply, Expr, Load, Number, affine, expr_names
from polyop.ir.op import Op, Step, Tensor
from polyop.rewrite.folds import is_box, plain_indices
from polyop.rewrite.instead import Instead, with_steps
from polyop.rewrite.names import all_names, fresh
from polyop.rewrite.sums.terms import product_of

TERMS = 4
"""Terms of two factors of two terms each."""

Term = tuple[bool, tuple[Expr, ...]]
"""Whether it is taken off, and its factors."""


def multiplied_out(op: Op) -> Op:
    """`op` with such sums of products in parts."""
    taken = all_names(op)
    return with_steps(op, lambda s: _instead(op, s, taken))


def _instead(op: Op, s: Step, taken: set[str]) -> Instead | None:
    if not _is_plain(op, s):
        return None
    added = frozenset(s.indices) - frozenset(plain_indices(s.target) or ())
    terms = tuple(_terms(s.expr))
    inside = [tuple(x for x in factors if expr_names(x) & added) for _, factors in terms]
    if not 2 <= len(terms) <= TERMS or sum(len(x) == 2 for x in inside) != 1 or not all(map(_is_sum, inside)):
        return None
    tensors, steps, parts = list[Tensor](), list[Step](), list[tuple[bool, Expr]]()
    for (is_off, factors), own in sorted(zip(terms, inside, strict=True), key=lambda x: len(x[1])):
        beside = tuple(x for x in factors if x not in own)
        counts = tuple(Number(r.upper, s.target.dtype) for r in s.ranges if r.index in added) if not own else ()
        if own:
            t, step = _part(s, own, added, taken)
            tensors.append(t)
            steps.append(step)
        parts.append((is_off, product_of((*((steps[-1].target,) if own else ()), *beside, *counts))))
    (is_off, whole), *others = reversed(parts)
    whole = Apply("neg", (whole,), s.target.dtype) if is_off else whole
    for is_off, x in others:
        whole = Apply("sub" if is_off else "add", (whole, x), s.target.dtype)
    rows = tuple(r for r in s.ranges if r.index not in added)
    return tuple(tensors), (*steps, replace(s, reduce=None, expr=whole, ranges=rows))


def _part(s: Step, factors: Sequence[Expr], added: frozenset[str], taken: set[str]) -> tuple[Tensor, Step]:
    """The sum of the product of these, for each element of the result that has one of its own."""
    has = frozenset[str]().union(*map(expr_names, factors))
    kept = tuple(r for r in s.ranges if r.index in has and r.index not in added)
    t = Tensor(fresh(f"{s.target.source}_part", taken), s.target.dtype, tuple(r.upper for r in kept), "temp")
    place = Load(t.name, tuple(affine(r.index) for r in kept), t.dtype)
    return t, replace(s, target=place, expr=product_of(factors), ranges=(*kept, *(r for r in s.ranges if r.index in added)))


def _is_plain(op: Op, s: Step) -> bool:
    """Whether `s` alone writes its result, a sum of integers that instructions add products up in, over a box from 0 on."""
    return (s.reduce is not None and s.reduce.name == "add" and any(s.target.dtype in x.sums for x in ROWS)
            and s.target.dtype.is_integer and not s.where and bool(plain_indices(s.target))
            and len(op.steps_of(s.target.source)) == 1 and is_box(op, s))


def _is_sum(inside: Sequence[Expr]) -> bool:
    """Whether there is nothing to be added up, or elements of one operand, or products of two bytes."""
    if len(inside) == 2:
        found = product(product_of(inside))
        return found is not None and all(x.dtype.bits == 8 and not x.guard for x in (found.a, found.b))
    return not inside or (len(inside) == 1 and isinstance(inside[0], Apply) and inside[0].fn == "cast")


def _terms(e: Expr) -> Iterator[Term]:
    """The terms that `e` is the sum of, once products are multiplied out."""
    match e:
        case Apply(fn="add" | "sub" as fn, args=(a, b)):
            yield from _terms(a)
            yield from ((off != (fn == "sub"), x) for off, x in _terms(b))
        case Apply(fn="mul", args=(a, b)):
            yield from ((p != q, (*x, *y)) for p, x in _terms(a) for q, y in _terms(b))
        case _:
            yield False, (e,)
