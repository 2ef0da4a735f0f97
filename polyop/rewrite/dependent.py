"""Which reductions need the result of another one over the same elements, and could be done in the same pass.

    first[k]    op= a(k, j)
    second[k, v] += f(a(k, j), first[k], ..)         over the same j

The text alone decides, by the monoid of the first and the function in which its result stands:

    max, a      g * exp(a - first), or exp2          a maximum is taken off before a sum of powers
    min, a      g * exp(first - a), or exp2
    add, a      (a - r) * (c - s)                    r is the sum of a, divided by a count; s that of c

`g` is anything without `first`, and may choose between such a term and 0. Where the text rounds a power to a narrower type, the
power of a block is rounded so: to as many digits, of a number that differs by a factor. `cascade.py` says what is made of them,
and why.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyop.ir.expr import (
    Affine,
    Apply,
    Const,
    Expr,
    Load,
    Number,
    Test,
    affine,
    expr_names,
    loads,
    map_loads,
    names,
    rebuild,
    substitute,
    substitute_expr,
)
from polyop.ir.op import Op, Range, Step
from polyop.rewrite.measure import is_deep


@dataclass(frozen=True, slots=True)
class Fold:
    """A reduction over one index: `step`, the only one that writes its target; `kept`: the target's indices, `over` the other."""

    step: Step
    kept: tuple[str, ...]
    over: str

    @property
    def result(self) -> str:
        return self.step.target.source

    @property
    def extent(self) -> Affine:
        return next(r.upper for r in self.step.ranges if r.index == self.over)

    @property
    def tests(self) -> tuple[Affine, ...]:
        return tests_of(self.step) or ()

    def range(self, index: str) -> Range:
        return next(r for r in self.step.ranges if r.index == index)


@dataclass(frozen=True, slots=True)
class Powers:
    """`fold` adds up `g * fn(a - first)`, with the sign -1 `g * fn(first - a)`, where `mask` holds.

    shift   the read of the first fold's result, in the indices of `fold`
    """

    fold: Fold
    fn: str
    sign: int
    shift: Load
    mask: Expr | None


@dataclass(frozen=True, slots=True)
class Products:
    """`fold` adds up `(a - r) * (c - s)`; `centres`: (a, its sum, r) and (c, its sum, s), in the indices of `fold`."""

    fold: Fold
    centres: tuple[tuple[Expr, str, Expr], ...]


Member = Powers | Products


@dataclass(frozen=True, slots=True)
class Chain:
    """`firsts`, and the `members` that need their results, all over the same elements along one index."""

    firsts: tuple[Fold, ...]
    members: tuple[Member, ...]

    @property
    def folds(self) -> tuple[Fold, ...]:
        return (*self.firsts, *(m.fold for m in self.members))


def find_chain(op: Op, done: frozenset[str] = frozenset()) -> Chain | None:
    """The first chain of `op`, in text order, of none of the results `done`; None, if there is none."""
    folds = [f for f in (_fold(op, s) for s in op.steps) if f and f.result not in done]
    for first in folds:
        monoid = first.step.reduce
        assert monoid is not None
        if monoid.fn in ("max", "min") and first.step.target.dtype.is_float:
            found = tuple(m for m in (_powers(op, first, f) for f in folds) if m)
            if found:
                return Chain((first,), found)
        if monoid.fn == "add" and first.step.target.dtype.is_float:
            sums = [f for f in folds if f.step.reduce == monoid and _renaming(first, f, first.kept)]
            products = tuple(m for m in (_products(op, sums, f) for f in folds) if m)
            used = {name for m in products for _, name, _ in m.centres}
            if products and first.result in used:
                return Chain(tuple(f for f in sums if f.result in used), products)
    return None


def chains_of(op: Op) -> tuple[Chain, ...]:
    """All chains of `op`; a reduction is in one of them only."""
    found: list[Chain] = []
    while not is_deep(op) and (chain := find_chain(op, frozenset(f.result for c in found for f in c.folds))):
        found.append(chain)
    return tuple(found)


# --- folds -----------------------------------------------------------------------------------------------------------


def tests_of(s: Step) -> tuple[Affine, ...] | None:
    """The conditions of `s`, all of which are >= 0; None, if they are more than that."""
    if not all(isinstance(w, Test) for w in s.where):
        return None
    return tuple(t for w in s.where if isinstance(w, Test) for t in w.tests)


def plain_indices(x: Load) -> tuple[str, ...] | None:
    """The names that are the positions of `x`, all different; None, if they are more than that."""
    found = [p.name if isinstance(p, Affine) else None for p in x.index]
    known = tuple(n for n in found if n is not None)
    return known if len(known) == len(found) == len(set(known)) and not x.guard else None


def _fold(op: Op, s: Step) -> Fold | None:
    """`s` as a fold over one index from 0 on, whose other conditions bound that index alone or not at all."""
    kept = plain_indices(s.target)
    if s.reduce is None or kept is None or not set(kept) <= set(s.indices) or len(op.steps_of(s.target.source)) != 1:
        return None
    tests, over = tests_of(s), [r for r in s.ranges if r.index not in kept]
    if tests is None or len(over) != 1 or over[0].lower != Affine() or not names(over[0].upper) <= set(op.sizes):
        return None
    j = over[0].index
    if over[0].upper.is_constant or any(j in names(r.lower) | names(r.upper) for r in s.ranges):
        return None
    if any(j in names(t - affine(j) * t.factor(j)) or abs(t.factor(j)) > 1 for t in tests):
        return None
    if op.tensor(s.target.source).role == "in" or any(s.target.source == out for _, out in op.updates):
        return None
    return Fold(s, kept, j)


def _renaming(first: Fold, f: Fold, at: tuple[str, ...]) -> dict[str, Affine] | None:
    """first's indices in those of `f`, whose place `at` is what `f` reads of it; None, if they run over other elements."""
    if len(at) != len(first.kept):
        return None
    env = {**{i: affine(k) for i, k in zip(first.kept, at, strict=True)}, first.over: affine(f.over)}
    if not set(at) <= set(f.kept) or f.over in at:
        return None
    for i, name in env.items():
        mine, other = f.range(str(name.name)), first.range(i)
        if (substitute(other.lower, env), substitute(other.upper, env)) != (mine.lower, mine.upper):
            return None
    return env if {substitute(t, env) for t in first.tests} == set(f.tests) else None


# --- what is added up --------------------------------------------------------------------------------------------------


def resolved(op: Op, e: Expr, keep: frozenset[str] = frozenset()) -> Expr:
    """`e` with the expressions of temporaries that are computed point by point; those in `keep` stay."""
    def read(x: Load) -> Expr:
        if x.source in keep or x.guard:
            return x
        s = pointwise(op, x.source)
        at = plain_indices(s.target) if s else None
        if s is None or at is None or not all(isinstance(p, Affine) for p in x.index):
            return x
        env = {i: p for i, p in zip(at, x.index, strict=True) if isinstance(p, Affine)}
        return resolved(op, substitute_expr(s.expr, env), keep | {x.source})

    return map_loads(e, read)


def pointwise(op: Op, tensor: str) -> Step | None:
    """The one step that computes each element of the temporary `tensor` from others at the same indices."""
    steps = op.steps_of(tensor)
    if len(steps) != 1 or op.tensor(tensor).role != "temp" or steps[0].reduce or steps[0].expr.dtype != steps[0].target.dtype:
        return None
    at = plain_indices(steps[0].target)
    return steps[0] if at is not None and set(at) == set(steps[0].indices) else None


def reads(e: Expr, tensor: str) -> bool:
    return any(x.source == tensor for x in loads(e))


def _powers(op: Op, first: Fold, f: Fold) -> Powers | None:
    monoid = first.step.reduce
    if f.step.reduce is None or f.step.reduce.fn != "add" or not f.step.target.dtype.is_float or f is first or monoid is None:
        return None
    expr = resolved(op, f.step.expr)
    found = _shifted(expr, first.result)
    if found is None:
        return None
    fn, x, y, mask = found
    sign, a, shift = (1, x, y) if isinstance(y, Load) and y.source == first.result else (-1, y, x)
    if not isinstance(shift, Load) or shift.source != first.result or sign != (1 if monoid.fn == "max" else -1):
        return None
    at = plain_indices(shift)
    env = _renaming(first, f, at) if at is not None else None
    if env is None:
        return None
    of_first = substitute_expr(resolved(op, first.step.expr), env)
    match of_first:  # what the first fold leaves out must be left out here too
        case Apply(fn="select", args=(c, part, Const(value=v))) if v == monoid.identity and c == mask:
            of_first = part
    return Powers(f, fn, sign, shift, mask) if a == of_first else None


def _shifted(e: Expr, tensor: str) -> tuple[str, Expr, Expr, Expr | None] | None:
    """(fn, x, y, mask) of the only factor `fn(x - y)` of `e` that reads `tensor`."""
    match e:
        case Apply(fn="exp" | "exp2" as fn, args=(Apply(fn="sub", args=(x, y)),)) if reads(x, tensor) != reads(y, tensor):
            return fn, x, y, None
        case Apply(fn="mul", args=(x, y)) if reads(x, tensor) != reads(y, tensor):
            return _shifted(x if reads(x, tensor) else y, tensor)
        case Apply(fn="div", args=(x, y)) if not reads(y, tensor):
            return _shifted(x, tensor)
        case Apply(fn="cast", args=(x,), dtype=t) if t.is_float and x.dtype.is_float:
            return _shifted(x, tensor)
        case Apply(fn="select", args=(c, x, Const(value=0))) if not reads(c, tensor):
            found = _shifted(x, tensor)
            if found and (found[3] is None or found[3] == c):
                return (*found[:3], c)
    return None


def _products(op: Op, sums: list[Fold], f: Fold) -> Products | None:
    if f.step.reduce is None or f.step.reduce.fn != "add" or not f.step.target.dtype.is_float:
        return None
    keep = frozenset(s.result for s in sums)
    match resolved(op, f.step.expr):
        case Apply(fn="mul", args=(Apply(fn="sub", args=(a, b)), Apply(fn="sub", args=(c, d)))):
            found = tuple(_centre(op, sums, f, x, y, keep) for x, y in ((a, b), (c, d)))
            known = tuple(x for x in found if x)
            return Products(f, known) if len(known) == 2 else None
    return None


def _centre(op: Op, sums: list[Fold], f: Fold, x: Expr, y: Expr, keep: frozenset[str]) -> tuple[Expr, str, Expr] | None:
    """(a, the fold that sums `a` up, r) of `a - r` or `r - a`."""
    a, r = (x, y) if f.over in expr_names(x) else (y, x)
    match r:
        case Apply(fn="div", args=(Load(source=name) as total, count)) if _is_count(count):
            at = plain_indices(total)
            s = next((s for s in sums if s.result == name), None)
            env = _renaming(s, f, at) if s is not None and at is not None and set(at) == set(f.kept) else None
            if s is not None and env is not None and substitute_expr(resolved(op, s.step.expr), env) == a:
                return a, name, r
    return None


def _is_count(e: Expr) -> bool:
    """Whether `e` follows from sizes and is nowhere negative: then an infinite sum divided by it is the same infinity."""
    match e:
        case Number(value=v):
            return v.const >= 0 and all(isinstance(a, str) and k > 0 for a, k in v.terms)
        case Const(value=v):
            return v > 0
        case Apply(fn="mul" | "cast" | "add", args=args):
            return all(map(_is_count, args))
    return False


def replaced(e: Expr, old: Expr, new: Expr) -> Expr:
    """`e` with `new` wherever `old` stands in it."""
    return new if e == old else rebuild(e, lambda x: replaced(x, old, new))
