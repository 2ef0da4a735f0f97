"""Counting the iterations of a sum that a remainder leaves, instead of going through all of them.

    C[m, n] += A[m, k] * B[k, n]  where k mod 4 = 1   becomes   C[m, n] += A[m, 4 k + 1] * B[4 k + 1, n]  where k in 0:(K + 2) / 4

What tiles a loop, as a block of a GPU's threads does, may then start anywhere in it.
"""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.expr import Affine, Expr, Quasi, Test, affine, evaluate, names, quasi, substitute, substitute_expr
from polyop.ir.op import Op, Range, Step
from polyop.rewrite.folds import said_by


def thin(op: Op) -> Op:
    """`op` with every sum over an index of which a condition leaves one in `d`, for a constant `d`, over just these."""
    return replace(op, steps=tuple(map(_thinned, op.steps)))


def _thinned(s: Step) -> Step:
    if s.reduce is None:
        return s
    kept = frozenset[str]().union(*(names(p) for p in s.target.index if isinstance(p, Affine)))
    for r in s.ranges:
        found = _one_in(s, r.index) if r.index not in kept else None
        if found:
            return _thinned(_counted(s, r, *found))
    return s


def _one_in(s: Step, index: str) -> tuple[int, int] | None:
    """(d, c) of a condition that says index mod d = c, if there is one."""
    tests = said_by(s.where)
    for t in tests:
        q = _remainder(t, index)
        if q is None:
            continue
        d, shift = q.args[1].const, q.args[0].const
        mine = [x for x in tests if _remainder(x, index) == q]
        left = [c for c in range(d) if all(evaluate(substitute(x, {index: affine(c - shift)}), {}) >= 0 for x in mine)]
        if len(left) == 1:
            return d, (left[0] - shift) % d
    return None


def _remainder(t: Affine, index: str) -> Quasi | None:
    """The remainder of the index, or of what lies a constant from it, by a constant, if `t` says something of that alone."""
    match t.terms:
        case ((Quasi(op="mod", args=(x, d)) as q, _),) if x - x.const == affine(index) and d.is_constant:
            return q
    return None


def _counted(s: Step, r: Range, d: int, c: int) -> Step:
    """`s` with the index d r + c in the place of r. Conditions on its remainder hold then; its bounds are the range's."""
    env = {r.index: affine(r.index) * d + c}
    lower, upper = (quasi("div", x + (d - 1 - c), affine(d)) for x in (r.lower, r.upper))
    where: list[Expr] = []
    for w in (substitute_expr(w, env) for w in s.where):
        if not isinstance(w, Test):
            where.append(w)
            continue
        tests = tuple(t for t in w.tests if not (t.is_constant and t.const >= 0))
        least = [_first(t, r.index) for t in tests if _bounds_below(t, r.index)]
        lower = quasi("max", lower, *least) if least else lower
        tests = tuple(t for t in tests if not _bounds_below(t, r.index))
        where += [Test(tests)] if tests else []
    ranges = tuple(Range(r.index, lower, upper) if x is r else Range(x.index, substitute(x.lower, env), substitute(x.upper, env))
                   for x in s.ranges)
    return replace(s, expr=substitute_expr(s.expr, env), ranges=ranges, where=tuple(where))


def _bounds_below(t: Affine, index: str) -> bool:
    """Whether `t` says of the index alone that it is at least a number."""
    return names(t) == {index} and t.factor(index) > 0 and len(t.terms) == 1


def _first(t: Affine, index: str) -> Affine:
    """The least index for which `t` >= 0."""
    f = t.factor(index)
    return affine(-(t.const // f))
