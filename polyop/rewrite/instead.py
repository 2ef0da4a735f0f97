"""Other steps in the place of some."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

from polyop.ir.dtypes import DType
from polyop.ir.expr import Affine, Expr, Load, affine, expr_names, loads, names
from polyop.ir.op import Op, Range, Step, Tensor
from polyop.rewrite.folds import plain_indices, replaced
from polyop.rewrite.names import fresh


class Made(NamedTuple):
    """A temporary, the step that makes it, and its element."""

    tensor: Tensor
    step: Step
    element: Load


def made_of(s: Step, e: Expr, name: str, shape: tuple[Affine, ...] | None = None) -> Made:
    """`e` on its own, for all values of those indices of `s` that it has, in the order in which it reads.

    These go from 0 on, up to the extents, unless its `shape` is given. It is computed under those conditions of `s` that it has
    an index of.
    """
    at = expr_names(e) & {*s.indices}
    read = [i for x in loads(e) for p in x.index if isinstance(p, Affine) for i in names(p) if i in at]
    ranges = tuple(next(r for r in s.ranges if r.index == i) for i in dict.fromkeys((*read, *sorted(at))))
    t = Tensor(name, e.dtype, tuple(r.upper for r in ranges) if shape is None else shape, "temp")
    element = Load(name, tuple(affine(r.index) for r in ranges), e.dtype)
    return Made(t, Step(element, None, e, ranges, tuple(w for w in s.where if expr_names(w) & at), s.span), element)


def made_of_each(t: Tensor, suffix: str, dtype: DType, value: Callable[[Load], Expr], taken: set[str]) -> tuple[Tensor, Step]:
    """A temporary with the `value` of each element of `t`, and the step that makes it."""
    copy = Tensor(fresh(f"{t.name}_{suffix}", taken), dtype, t.shape, "temp")
    at = tuple(fresh(f"{t.name}_{d}", taken) for d in range(len(t.shape)))
    place = tuple(map(affine, at))
    ranges = tuple(Range(i, Affine(), e) for i, e in zip(at, t.shape, strict=True))
    return copy, Step(Load(copy.name, place, dtype), None, value(Load(t.name, place, t.dtype)), ranges)


Instead = tuple[Sequence[Tensor], Sequence[Step]]
"""New temporaries, and the steps in the place of one."""


def through_copies(s: Step, order: Mapping[Load, Sequence[str]], suffix: str, taken: set[str]) -> Instead:
    """`s` on copies of what it reads, made before, and of its target, which it becomes afterwards.

    order    of the indices of each copy, by what it is a copy of; these are plain, and go from 0 on
    suffix   of the names of copies; taken: names that are not new
    """
    ranges = {r.index: r for r in s.ranges}
    copies, before, after, made = list[Tensor](), list[Step](), list[Step](), s
    for x, at in order.items():
        copy = Load(fresh(f"{x.source}_{suffix}", taken), tuple(map(affine, at)), x.dtype)
        copies.append(Tensor(copy.source, x.dtype, tuple(ranges[i].upper for i in at), "temp"))
        if x is s.target:
            added = (r for r in s.ranges if r.index not in at)
            made = replace(made, target=copy, ranges=(*(ranges[i] for i in at), *added))
            after.append(Step(x, None, copy, tuple(ranges[i] for i in plain_indices(x) or ()), (), s.span))
        else:
            made = replace(made, expr=replaced(made.expr, x, copy))
            before.append(Step(copy, None, x, tuple(ranges[i] for i in at), (), s.span))
    return tuple(copies), (*before, made, *after)


class Found(Protocol):
    """What was found of a step."""

    @property
    def step(self) -> Step: ...


F = TypeVar("F", bound=Found)


def each_instead(op: Op, found: Iterable[F], instead: Callable[[F], Instead]) -> Op:
    """`op` with what `instead` makes of each that was found in the place of its step."""
    of = {id(x.step): x for x in found}
    return with_steps(op, lambda s: instead(of[id(s)]) if id(s) in of else None)


def with_steps(op: Op, instead: Callable[[Step], Instead | None]) -> Op:
    """`op` with what `instead` says of a step in its place, new temporaries and steps; itself, if it says so of none."""
    found = [(s, instead(s)) for s in op.steps]
    if not any(x for _, x in found):
        return op
    return replace(op, tensors=(*op.tensors, *(t for _, x in found if x for t in x[0])),
                   steps=tuple(y for s, x in found for y in (x[1] if x else (s,))))
