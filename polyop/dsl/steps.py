"""Drafts with ranges -> Steps and temporaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from polyop.dsl.conditions import both, test
from polyop.dsl.draft import Draft
from polyop.dsl.existence import Existence
from polyop.dsl.guards import Around, guarded, simplify
from polyop.dsl.intervals import Box, Interval, greatest, least, rename
from polyop.dsl.names import fresh
from polyop.ir.dtypes import I64
from polyop.ir.errors import fail
from polyop.ir.expr import (
    Affine,
    Apply,
    Const,
    Expr,
    Load,
    Position,
    Test,
    affine,
    expr_names,
    map_affine,
    names,
    substitute_expr,
)
from polyop.ir.op import Range, Step, Tensor, map_step
from polyop.ir.span import Span


@dataclass(frozen=True, slots=True)
class Setting:
    """What holds throughout the operator. `taken` grows as temporaries are named.

    exists   where temporaries of inferred shape are written, if that is less than their shape
    """

    shapes: Mapping[str, tuple[Affine, ...]]
    inputs: frozenset[str]
    sizes: frozenset[str]
    facts: tuple[Affine, ...]
    taken: set[str]
    exists: Mapping[str, Existence] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Built:
    """Steps in order, and the temporaries that they need."""

    steps: tuple[Step, ...] = ()
    tensors: tuple[Tensor, ...] = ()

    def __add__(self, other: Built) -> Built:
        return Built(self.steps + other.steps, self.tensors + other.tensors)


def box_shape(at: Sequence[Position], box: Box, span: Span | None, name: str) -> tuple[Affine, ...]:
    """The extents that hold every element of `at`.

    Raises  UserError E306, if a position is computed.
    """
    out: list[Affine] = []
    for p in at:
        if not isinstance(p, Affine):
            raise fail("E306", f"`{name}` is written at computed places, so its shape must be declared", span,
                       hint=f"say it on a line of its own: `{name}: f32[...]`")
        out.append(greatest(p, box) + 1)
    return tuple(out)


def steps_of(draft: Draft, box: Box, target: Tensor, s: Setting, conditions: tuple[Expr, ...] | None = None) -> Built:
    """The steps of `draft`, its inner reductions before it."""
    conditions = draft.conditions if conditions is None else conditions
    out = Built()
    for inner in draft.hidden:
        out = out + _hidden(inner, box, s, conditions)
    return out + Built((_step(draft, box, Load(target.name, draft.at, target.dtype, (), draft.left), s, conditions),))


def _hidden(inner: Draft, box: Box, s: Setting, conditions: tuple[Expr, ...]) -> Built:
    """An inner reduction: its own indices are called by their letters again."""
    local = {n.split("@")[0]: n for n in inner.bound if "@" in n}
    mine = tuple(substitute_expr(c, {k: affine(n) for k, n in local.items()}) for c in conditions)
    tensor = Tensor(inner.target, inner.expr.dtype, box_shape(inner.at, box, inner.left, inner.target), "temp", "", inner.span)
    assert isinstance(s.shapes, dict)
    s.shapes[inner.target] = tensor.shape
    return Built((), (tensor,)) + steps_of(inner, box, tensor, s, mine)


def _step(draft: Draft, box: Box, target: Load, s: Setting, conditions: tuple[Expr, ...]) -> Step:
    expr, at = draft.expr, target.index
    if draft.filters:
        assert draft.reduce is not None
        chosen = draft.filters[0]
        for f in draft.filters[1:]:
            chosen = both(chosen, f)
        expr = Apply("select", (chosen, expr, Const(draft.reduce.identity, expr.dtype)), expr.dtype)
        # a term left out has no position: it combines the identity with element 0, so there must be one
        at = tuple(p if isinstance(p, Affine) else Apply("select", (chosen, p, Const(0, I64)), I64) for p in at)
        spare = zip(at, s.shapes[target.source], strict=True)
        conditions = (*conditions, *(test(n - 1) for p, n in spare if not isinstance(p, Affine)))
    left = [n for n in draft.left_names if n in box]
    used = expr_names(expr) | frozenset(draft.bound)
    whole = draft.bound == ()
    mine = {*left, *(n for n in box if n in used)}
    if whole:
        inner = {n for h in draft.hidden for n in _all_bound(h)}
        mine |= {n for n in box if n not in inner}
    where = [c for c in conditions if (expr_names(c) - s.sizes) <= mine]
    rest = [n for n in box if n in mine and n not in left]
    ranges, extra = arrange(left, rest, box)
    local = {r.index: Interval(r.lower, r.upper) for r in ranges}
    a = Around(local, s.facts, (), s.shapes, s.inputs, s.exists)
    tests = test(*(t for c in (*where, *extra) if isinstance(c, Test) for t in c.tests if not a.always(t)))
    others = [simplify(c, a) for c in where if not isinstance(c, Test)]
    kept = tuple(c for c in (tests, *others) if not (isinstance(c, Const) and c.value))
    a = replace(a, known=tests.tests if isinstance(tests, Test) else (), span=draft.span)
    plain = guarded(expr, a)
    target = replace(target, index=tuple(p if isinstance(p, Affine) else guarded(p, a) for p in at))
    back = _letters(mine)
    step = Step(target, draft.reduce, plain, ranges, kept, draft.span)
    return renamed(step, back) if back else step


def _all_bound(h: Draft) -> set[str]:
    return {*h.bound, *(n for x in h.hidden for n in _all_bound(x))}


def _letters(mine: set[str]) -> dict[str, str]:
    """`k@1` -> `k`, or another letter where that is taken."""
    taken = {n for n in mine if "@" not in n}
    return {n: fresh(n.split("@")[0], taken) for n in sorted(mine) if "@" in n}


def renamed(step: Step, names_: Mapping[str, str]) -> Step:
    """`step` with iterators renamed."""
    def f(x: Affine) -> Affine:
        return rename(x, names_)

    ranges = tuple(Range(names_.get(r.index, r.index), f(r.lower), f(r.upper)) for r in step.ranges)
    return replace(map_step(step, lambda e: map_affine(e, f)), ranges=ranges)


def arrange(left: Sequence[str], rest: Sequence[str], box: Box) -> tuple[tuple[Range, ...], list[Expr]]:
    """Ranges in an order in which each uses only those before it; what cannot be kept so becomes conditions."""
    out: list[Range] = []
    extra: list[Expr] = []
    available: set[str] = set()
    every = {*left, *rest}
    for group in (left, rest):
        waiting = list(group)
        while waiting:
            ready = next((n for n in waiting if _uses(n, box) <= available), None)
            n = ready or waiting[0]
            interval = box[n]
            if ready is None:
                lower, upper = least(interval.lower, box), greatest(interval.upper - 1, box) + 1
                if _uses(n, box) <= every:
                    extra += [
                        c for c in (test(affine(n) - interval.lower), test(interval.upper - 1 - affine(n))) if isinstance(c, Test)
                    ]
                interval = Interval(lower, upper)
            out.append(Range(n, interval.lower, interval.upper))
            available.add(n)
            waiting.remove(n)
    return tuple(out), extra


def _uses(n: str, box: Box) -> set[str]:
    return set((names(box[n].lower) | names(box[n].upper)) & box.keys())
