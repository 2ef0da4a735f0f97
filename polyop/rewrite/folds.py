"""Reductions over one index, and what is read of them: the vocabulary of `dependent.py` and `cascade.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyop.ir.expr import Affine, Expr, Load, Test, affine, loads, map_loads, names, rebuild, substitute, substitute_expr
from polyop.ir.op import Op, Range, Step


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


def tests_of(s: Step) -> tuple[Affine, ...] | None:
    """The conditions of `s`, all of which are >= 0; None, if they are more than that."""
    return said_by(s.where) if all(isinstance(w, Test) for w in s.where) else None


def said_by(where: Sequence[Expr]) -> tuple[Affine, ...]:
    """What is >= 0 where these conditions hold, as far as they are affine."""
    return tuple(t for w in where if isinstance(w, Test) for t in w.tests)


def plain_indices(x: Load, among: Sequence[str] | None = None) -> tuple[str, ...] | None:
    """The names that are the positions of `x`, all different, and of those `among`; None, if they are more than that."""
    found = [p.name if isinstance(p, Affine) else None for p in x.index]
    known = tuple(n for n in found if n is not None)
    plain = len(known) == len(found) == len(set(known)) and not x.guard
    return known if plain and (among is None or {*known} <= {*among}) else None


def is_box(op: Op, s: Step) -> bool:
    """Whether all ranges of `s` go from 0 up to what sizes say."""
    return all(r.lower == Affine() and names(r.upper) <= set(op.sizes) for r in s.ranges)


def is_once(op: Op, s: Step) -> bool:
    """Whether `s` goes to each element of its target, and to each of them once."""
    kept, every = plain_indices(s.target), {r.index: r.upper for r in s.ranges}
    if kept is None or s.where or {*kept} != {*every} or not is_box(op, s):
        return False
    return tuple(every[i] for i in kept) == op.tensor(s.target.source).shape


def operands_of(op: Op, s: Step) -> tuple[Load, Load] | None:
    """What `s` reads, if that is two elements for each point of a box, and it alone adds up its tensor, at plain places."""
    reads = tuple(dict.fromkeys(loads(s.expr)))
    if s.reduce is None or not plain_indices(s.target) or s.where or len(reads) != 2 or op.updates:
        return None
    return (reads[0], reads[1]) if len(op.steps_of(s.target.source)) == 1 and is_box(op, s) else None


def fold_of(op: Op, s: Step) -> Fold | None:
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


def renaming(first: Fold, f: Fold, at: tuple[str, ...]) -> dict[str, Affine] | None:
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


def known_behind(op: Op, name: str) -> int:
    """The number of the step behind which all of the temporary `name` is known; 0 if there is none, as in a recurrence."""
    at = [k for k, s in enumerate(op.steps) if s.target.source == name]
    before = op.steps[:at[0] + 1] if at else ()
    inside = {t.name for t in op.inputs} | {s.target.source for s in before}
    known = len(at) == 1 and all(x.source in inside for s in before for x in loads(s.expr))
    return at[0] + 1 if known and op.tensor(name).role == "temp" else 0


def pointwise(op: Op, tensor: str) -> Step | None:
    """The one step that computes each element of the temporary `tensor` from others at the same indices."""
    steps = op.steps_of(tensor)
    if len(steps) != 1 or op.tensor(tensor).role != "temp" or steps[0].reduce or steps[0].expr.dtype != steps[0].target.dtype:
        return None
    at = plain_indices(steps[0].target)
    return steps[0] if at is not None and set(at) == set(steps[0].indices) else None


def reads(e: Expr, tensor: str) -> bool:
    return any(x.source == tensor for x in loads(e))


def replaced(e: Expr, old: Expr, new: Expr) -> Expr:
    """`e` with `new` wherever `old` stands in it."""
    return new if e == old else rebuild(e, lambda x: replaced(x, old, new))
