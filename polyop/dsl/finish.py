"""What comes after the user's steps: accumulators cast, elements filled with the identity, untouched ones copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyop.dsl.conditions import both, either, negated, test
from polyop.dsl.draft import Holder
from polyop.dsl.guards import Around, simplify
from polyop.dsl.intervals import Interval
from polyop.dsl.names import fresh
from polyop.dsl.steps import Built, Setting
from polyop.dsl.values import cast
from polyop.ir.dtypes import BOOL, DType
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Scalar, affine, names, rebuild, substitute_expr
from polyop.ir.op import Monoid, Range, Step, Tensor


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
