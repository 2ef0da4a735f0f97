"""Reductions over all that comes before, or behind, a position: each goes on from its neighbour's.

    Y[a, b] += X[a, k] * X[a, k]  where k <= b      becomes      Y[a, b] = (b > 0 ? Y[a, b - 1] : 0) + X[a, b] * X[a, b]
    Y[b] max= X[k]  where k > b                                  Y[b] = b < N - 1 ? max(Y[b + 1], X[b + 1]) : -inf
    Y[b] += X[k, r]  where k <= b                                t[b] += X[b, r];  Y[b] = (b > 0 ? Y[b - 1] : 0) + t[b]

    Y[a, b] += X[j, k]  where j <= a, k <= b                     t[a, b] += X[a, k] where k <= b
                                                                 Y[a, b] = (a > 0 ? Y[a - 1, b] : 0) + t[a, b]

Terms must do without the position: N of them are combined instead of N^2 / 2, in the order of the text where it goes forwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Test, affine, expr_names, names, substitute_expr
from polyop.ir.op import Monoid, Op, Step, Tensor
from polyop.rewrite.folds import is_box, plain_indices, tests_of
from polyop.rewrite.instead import Instead, with_steps
from polyop.rewrite.names import all_names, fresh


@dataclass(frozen=True, slots=True)
class _Prefix:
    """A reduction over `over` up to (`back`: from) the position `at`, both of which go through `extent`.

    beside   whether the term at the position itself is left out
    rest     what else is asked of the terms, of which none of this has a part
    """

    at: str
    over: str
    extent: Affine
    back: bool
    beside: bool
    rest: tuple[Affine, ...] = ()


def as_recurrences(op: Op) -> Op:
    """`op` with such reductions as recurrences; of several conditions, one after the other."""
    taken = all_names(op)
    found = {id(s): p for s in op.steps if (p := _prefix(op, s))}
    written = {s.target.source for s in op.steps if id(s) in found}
    made = with_steps(op, lambda s: _instead(op, s, found.get(id(s)), taken) if id(s) in found else
                      ((), ()) if s.target.source in written else None)
    return as_recurrences(made) if any(p.rest for p in found.values()) else made


def _instead(op: Op, s: Step, p: _Prefix | None, taken: set[str]) -> Instead | None:
    if p is None or s.reduce is None:
        return None
    kept = tuple(r for r in s.ranges if r.index in (plain_indices(s.target) or ()))
    term = substitute_expr(s.expr, {p.over: affine(p.at)})
    tensors, steps = tuple[Tensor, ...](), tuple[Step, ...]()
    if len(kept) + 1 < len(s.ranges):  # the rest is reduced first
        t = replace(op.tensor(s.target.source), name=fresh(f"{s.target.source}_each", taken), role="temp", span=None)
        place = replace(s.target, source=t.name)
        rest = replace(s, target=place, expr=term, ranges=tuple(r for r in s.ranges if r.index != p.over),
                       where=tuple(Test((x,)) for x in p.rest))
        empty = replace(s, target=place, expr=Const(s.reduce.identity, t.dtype), ranges=kept, where=())
        tensors, steps, term = (t,), (empty, rest) if p.rest else (rest,), place
    return tensors, (*steps, replace(s, reduce=None, expr=_next(s, p, s.reduce, term), ranges=kept, where=()))


def _next(s: Step, p: _Prefix, m: Monoid, term: Expr) -> Expr:
    """What stands at a position, of its neighbour's and one term: the neighbour's, where that of the position is left out."""
    step = 1 if p.back else -1
    near = affine(p.at) + step
    inside = p.extent - near - 1 if p.back else near
    dtype = s.target.dtype
    before = Load(s.target.source, tuple(near if x == affine(p.at) else x for x in s.target.index), dtype, (inside,))
    nothing = Const(m.identity, dtype)
    assert m.fn is not None
    if p.beside:
        both = Apply(m.fn, (before, substitute_expr(term, {p.at: near})), dtype)
        return Apply("select", (Test((inside,)), both, nothing), dtype)
    first: Expr = before if m.identity == 0 else Apply("select", (Test((inside,)), before, nothing), dtype)
    return Apply(m.fn, (first, term), dtype)


def _prefix(op: Op, s: Step) -> _Prefix | None:
    """What `s` is, if its only condition ties a position of its result to what it reduces, and both go through the same range."""
    kept = plain_indices(s.target, s.indices) or ()  # a position may be a size, too
    tests = tests_of(s) or ()
    ranges = {r.index: r for r in s.ranges}
    if s.reduce is None or s.reduce.fn is None or not is_box(op, s) or not _is_alone(op, s, tuple(ranges[i].upper for i in kept)):
        return None
    for test in sorted(tests, key=lambda t: [i in names(t) for i in kept], reverse=True):  # rows are the last to be added up
        found = [i for i in ranges if i in names(test)]
        rest = tuple(t for t in tests if t != test)
        at, over = ([i for i in found if (i in kept) == x] for x in (True, False))
        if len(at) != 1 or len(over) != 1 or ranges[at[0]].upper != ranges[over[0]].upper or at[0] in expr_names(s.expr):
            continue
        if any(names(t) & {*found} or names(t) <= {*kept, *op.sizes} for t in rest):
            continue
        forwards = affine(at[0]) - affine(over[0])
        for back, ahead in ((False, forwards), (True, Affine() - forwards)):
            if test in (ahead, ahead - 1):
                return _Prefix(at[0], over[0], ranges[at[0]].upper, back, test != ahead, rest)
    return None


def _is_alone(op: Op, s: Step, extents: tuple[Affine, ...]) -> bool:
    """Whether nothing but `s` has a say in its result: other steps say what an empty reduction is, where all of it is written."""
    m, others = s.reduce, [x for x in op.steps_of(s.target.source) if x is not s]
    return not others or (op.tensor(s.target.source).shape == extents and m is not None
                          and all(x.reduce == m and isinstance(x.expr, Const) and x.expr.value == m.identity for x in others))
