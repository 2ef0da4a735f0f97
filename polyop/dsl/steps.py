"""Drafts with ranges -> Steps and temporaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polyop.dsl.draft import Draft, Holder
from polyop.dsl.guards import Around, guarded, simplify
from polyop.dsl.intervals import Box, Interval, at_least_zero, greatest, least, rename
from polyop.dsl.names import fresh
from polyop.dsl.values import both, cast, either, negated, test
from polyop.ir.dtypes import BOOL, DType
from polyop.ir.errors import fail
from polyop.ir.expr import (
    Affine,
    Apply,
    Const,
    Expr,
    Load,
    Position,
    Scalar,
    Test,
    affine,
    expr_names,
    map_affine,
    names,
    rebuild,
    substitute_expr,
)
from polyop.ir.op import Monoid, Range, Step, Tensor
from polyop.ir.span import Span


@dataclass(frozen=True, slots=True)
class Setting:
    """What holds throughout the operator. `taken` grows as temporaries are named."""

    shapes: Mapping[str, tuple[Affine, ...]]
    inputs: frozenset[str]
    sizes: frozenset[str]
    facts: tuple[Affine, ...]
    taken: set[str]


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
    expr = draft.expr
    if draft.filters:
        assert draft.reduce is not None
        chosen = draft.filters[0]
        for f in draft.filters[1:]:
            chosen = both(chosen, f)
        expr = Apply("select", (chosen, expr, Const(draft.reduce.identity, expr.dtype)), expr.dtype)
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
    a = Around(local, s.facts, (), s.shapes, s.inputs)
    tests = test(*(t for c in (*where, *extra) if isinstance(c, Test) for t in c.tests if not a.always(t)))
    others = [simplify(c, a) for c in where if not isinstance(c, Test)]
    kept = tuple(c for c in (tests, *others) if not (isinstance(c, Const) and c.value))
    a = replace(a, known=tests.tests if isinstance(tests, Test) else ())
    plain = guarded(expr, a)
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
    target = map_affine(step.target, f)
    assert isinstance(target, Load)
    ranges = tuple(Range(names_.get(r.index, r.index), f(r.lower), f(r.upper)) for r in step.ranges)
    return replace(
        step, target=target, expr=map_affine(step.expr, f), ranges=ranges, where=tuple(map_affine(c, f) for c in step.where)
    )


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


# --- accumulators and updates ----------------------------------------------------------------------------------------


def over(shape: Sequence[Affine], taken: frozenset[str]) -> tuple[tuple[Range, ...], tuple[Affine, ...]]:
    """Ranges over a whole shape, with letters that are not `taken`, and the positions they make."""
    used = set(taken)
    letters = [fresh(letter, used) for letter in (f"{'ijklmnpq'[d % 8]}" for d in range(len(shape)))]
    return tuple(Range(n, affine(0), e) for n, e in zip(letters, shape, strict=True)), tuple(affine(n) for n in letters)


def covers(steps: Sequence[Step], shape: Sequence[Affine]) -> bool:
    """Whether one of `steps` plainly writes every element."""
    for step in steps:
        box = {r.index: r for r in step.ranges}
        positions = [p.name if isinstance(p, Affine) else None for p in step.target.index]
        if not step.where and len(set(positions)) == len(positions) and all(
                n is not None and n in box and box[n].lower == Affine() and box[n].upper == e
                for n, e in zip(positions, shape, strict=True)):
            return True
    return False


def filled(steps: tuple[Step, ...], tensor: Tensor, sizes: frozenset[str]) -> tuple[Step, ...]:
    """Updates of a tensor with a declared shape: where they may leave elements out, a term that is the identity."""
    if covers(steps, tensor.shape):
        return steps
    monoid = steps[0].reduce
    assert monoid is not None
    ranges, at = over(tensor.shape, sizes)
    filler = Step(Load(tensor.name, at, tensor.dtype), monoid, Const(monoid.identity, tensor.dtype), ranges, (), steps[0].span)
    return (filler, *steps)


def finished(steps: tuple[Step, ...], tensor: Tensor, before: Holder | None, is_argument: bool, s: Setting) -> Built:
    """Updates of `tensor` in an accumulator of their own, then cast; with `before`, onto the caller's values.

    Of argmax and argmin the position that stands for none becomes -1.
    """
    monoid, dtype = steps[0].reduce, steps[0].expr.dtype
    assert monoid is not None
    total = Tensor(
        fresh(f"{tensor.name}_{'at' if is_argument else 'sum'}", s.taken), dtype, tensor.shape, "temp", "", tensor.span
    )
    moved = tuple(replace(x, target=replace(x.target, source=total.name, dtype=dtype)) for x in steps)
    ranges, at = over(tensor.shape, s.sizes)
    value: Expr = Load(total.name, at, dtype)
    if is_argument:
        none = Apply("eq", (value, Const(monoid.identity, dtype)), BOOL)
        value = Apply("select", (none, Const(-1, dtype), value), dtype)
    elif before is not None:
        assert before.dtype is not None
        value = _combine(monoid, cast(Load(before.name, at, before.dtype), dtype), value)
    last = Step(Load(tensor.name, at, tensor.dtype), None, cast(value, tensor.dtype), ranges, (), steps[-1].span)
    return Built((*filled(moved, total, s.sizes), last), (total,))


def _combine(monoid: Monoid, a: Expr, b: Expr) -> Expr:
    def put(e: Expr) -> Expr:
        if isinstance(e, Scalar):
            return {"a": a, "b": b}[e.name]
        return rebuild(e, put)
    return put(monoid.body)


def untouched(steps: Sequence[Step], tensor: Tensor, before: Holder, dtype: DType, s: Setting) -> Step | None:
    """The copy of the elements of an `inout` that no step writes, or None where that cannot be said, or there are none."""
    ranges, at = over(tensor.shape, s.sizes | {r.index for x in steps for r in x.ranges})
    a = Around({r.index: Interval(r.lower, r.upper) for r in ranges}, s.facts, (), s.shapes, s.inputs)
    outside: Expr = test()
    for step in steps:
        inside = _written(step, at)
        if inside is None:
            return None
        outside = both(outside, _simplified(negated(inside), a))
    if isinstance(outside, Const) and not outside.value:
        return None
    where = () if isinstance(outside, Const) else (outside,)
    return Step(Load(tensor.name, at, dtype), None, Load(before.name, at, dtype), ranges, where, steps[0].span)


def _simplified(c: Expr, a: Around) -> Expr:
    if isinstance(c, Apply) and c.fn in ("or", "and"):
        x, y = (_simplified(part, a) for part in c.args)
        return either(x, y) if c.fn == "or" else both(x, y)
    return simplify(c, a)


def _written(step: Step, at: Sequence[Affine]) -> Expr | None:
    """The condition on the element `at` under which `step` writes it."""
    env: dict[str, Affine] = {}
    equal: list[Affine] = []
    box = {r.index: r for r in step.ranges}
    for p, y in zip(step.target.index, at, strict=True):
        if not isinstance(p, Affine):
            return None
        mine = [n for n in names(p) if n in box]
        if not mine:
            equal += [y - p, p - y]
        elif len(mine) == 1 and p.factor(mine[0]) == 1 and mine[0] not in env and mine[0] not in names(p - affine(mine[0])):
            env[mine[0]] = y - (p - affine(mine[0]))
        else:
            return None
    if set(env) != set(box):
        return None
    tests = [t for r in step.ranges for t in (affine(r.index) - r.lower, r.upper - 1 - affine(r.index))]
    out = test(*equal)
    for c in (test(*tests), *step.where):
        out = both(out, substitute_expr(c, env))
    return out


def may_be_negative(x: Affine, facts: Sequence[Affine]) -> bool:
    return not at_least_zero(x, facts)
