"""Tensors whose dimensions are in the order in which they lie in a call's memory.

    Y[m, n] += X[k, m] * W[k, n], X of strides 1, K     Y[m, n] += X[m, k] * W[k, n], X of strides K, 1

A caller who has turned an array gives the same memory by another name, and the text of an operator does not say how its arrays
lie. What is asked of an operator afterwards (which dimensions are one, which index lanes run along, what is copied first) is
asked of its text, so the text is made to say it: of extents that are not 1 the largest stride comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from polyop.ir.expr import Affine, Load, map_loads, names
from polyop.ir.op import Op, Range, Step, Tensor, map_step
from polyop.rewrite.folds import plain_indices

Order = tuple[int, ...]
"""The dimensions of a tensor, outermost first."""

Orders = tuple[tuple[str, Order], ...]
"""(tensor, order) of those that are in another one than their text has."""


def orders(op: Op, shapes: Mapping[str, Sequence[int]], strides: Mapping[str, Sequence[int]]) -> Orders:
    """How the arrays of a call lie that do not lie as the text says; both ends of an `inout` as its result."""
    ends = dict(op.updates)
    found = ((t.name, order(*(x[ends.get(t.name, t.name)] for x in (shapes, strides)))) for t in (*op.inputs, *op.outputs))
    return tuple((n, x) for n, x in found if x != tuple(range(len(x))))


def order(shape: Sequence[int], strides: Sequence[int]) -> Order:
    """The dimensions of an array by their strides; those of one element, or of stride 0, stay where they are."""
    rank = len(shape)
    long = [d for d in range(rank) if shape[d] > 1 and strides[d]]
    if 0 in shape or all(abs(strides[a]) >= abs(strides[b]) for a, b in pairwise(long)):
        return tuple(range(rank))
    at = dict(zip(long, sorted(long, key=lambda d: -abs(strides[d])), strict=True))
    return tuple(at.get(d, d) for d in range(rank))


def in_order(op: Op, found: Orders, strict: bool) -> Op:
    """`op` with the dimensions of its tensors in such orders; loops go in that of what a step writes, and then reads.

    strict   whether terms are added up in the order of the text
    """
    own = dict(found)

    def step(s: Step) -> Step:
        is_other = any(x.source in own for x in (s.target, *s.reads))
        is_carried = any(x.source == s.target.source for x in s.reads)
        return replace(s, ranges=_in_turn(s, strict)) if is_other and not is_carried else s

    made = permuted(op, own)
    return replace(made, steps=tuple(map(step, made.steps)))


def permuted(op: Op, orders: Mapping[str, Order]) -> Op:
    """`op` with the dimensions of some tensors in other orders; loops stay."""
    def tensor(t: Tensor) -> Tensor:
        return replace(t, shape=tuple(t.shape[d] for d in orders[t.name])) if t.name in orders else t

    def place(x: Load) -> Load:
        return replace(x, index=tuple(x.index[d] for d in orders[x.source])) if x.source in orders else x

    steps = (map_step(s, lambda e: map_loads(e, place)) for s in op.steps)
    return replace(op, tensors=tuple(map(tensor, op.tensors)), steps=tuple(steps))


def _in_turn(s: Step, strict: bool) -> tuple[Range, ...]:
    """The ranges of `s` in the order of dimensions: of what it writes, and for what it adds up of what has all of that.

    As they are, if one depends on another.
    """
    kept, ranges = plain_indices(s.target, s.indices), {r.index: r for r in s.ranges}
    bounds = frozenset[str]().union(*(names(e) for r in s.ranges for e in (r.lower, r.upper)))
    if kept is None or bounds & ranges.keys():
        return s.ranges
    added = [i for i in ranges if i not in kept]
    lying = ([p.name for p in x.index if isinstance(p, Affine) and p.name in added] for x in s.reads)
    order = added if strict else next((x for x in lying if sorted(map(str, x)) == sorted(added)), added)
    return tuple(ranges[str(i)] for i in (*kept, *order))
