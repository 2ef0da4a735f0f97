"""Some elements of an Op's results, evaluated as `reference.py` evaluates all: for calls too large for that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from polyop.ir import scalars
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, is_computed
from polyop.ir.expr import evaluate as value_of
from polyop.ir.op import Op, Step
from polyop.ir.reference import Key, Later, Point, Run, holds

Place = tuple[int, ...]


class _Writers(dict[Key, list[tuple[Step, Point]]]):
    """Who writes an element, found out when it is asked: what a step's target has for an iterator is that iterator's value.

    left   points that may still be looked at
    """

    def __init__(self, op: Op, sizes: Mapping[str, int], most: int) -> None:
        super().__init__()
        self.op, self.sizes, self.left = op, sizes, most

    def get(self, key: Key, default: Any = None) -> list[tuple[Step, Point]]:
        name, at = key
        if key not in self:
            self[key] = [(s, env) for s in self.op.steps if s.target.source == name for env in self._points(s, at)]
        return self[key]

    def _points(self, step: Step, at: Place) -> Iterator[Point]:
        """{ [i...] : target(i...) = at } of a step."""
        index = [p for p in step.target.index if isinstance(p, Affine)]
        fixed = {p.name: n for p, n in zip(index, at, strict=True) if p.name is not None}

        def over(k: int, env: Point) -> Iterator[Point]:
            self.left -= 1
            if self.left < 0:
                raise UnsupportedError(f"elements of `{self.op.name}` need too much")
            if k == len(step.ranges):
                if all(value_of(p, env) == n for p, n in zip(index, at, strict=True)) and all(holds(c, env) for c in step.where):
                    yield dict(env)
                return
            r = step.ranges[k]
            low, high = value_of(r.lower, env), value_of(r.upper, env)
            every = range(low, high)
            for i in every if r.index not in fixed else [fixed[r.index]] if fixed[r.index] in every else []:
                yield from over(k + 1, env | {r.index: i})
        yield from over(0, dict(self.sizes))


class _Some(Run):
    """An evaluation of some elements. `begun`: sums that wait for an element, how far they are and what they have so far."""

    def __init__(self, op: Op, sizes: Mapping[str, int], values: Mapping[str, Any], arrays: Mapping[str, Any], wide: bool,
                 most: int) -> None:
        super().__init__(op, sizes, values, arrays, wide, _Writers(op, sizes, most))
        self.begun: dict[Key, tuple[int, Any]] = {}

    def compute(self, key: Key) -> Any:
        monoid = self.reduced.get(key[0])
        if monoid is None:
            return super().compute(key)
        t, writers = self.kind(self.op.tensor(key[0]).dtype), self.writers.get(key, [])
        first, total = self.begun.pop(key, (0, t.numpy.type(monoid.identity)))
        for k in range(first, len(writers)):
            step, env = writers[k]
            try:
                term = scalars.convert(self.value(step.expr, env), t)
            except Later:
                self.begun[key] = k, total
                raise
            total = scalars.convert(scalars.combine(monoid.body, total, term, self.kind), t)
        return total


def evaluate(op: Op, sizes: Mapping[str, int], values: Mapping[str, Any], arrays: Mapping[str, Any],
             wanted: Sequence[tuple[str, Place]], most: int, *, wide: bool = False) -> list[Any]:
    """The elements `wanted` of results, in order, as many as need no more than `most` points of the steps together.

    Raises  UnsupportedError, if data says where a step writes, so that only all of it tells who writes an element.
    """
    if any(is_computed(p) for s in op.steps for p in s.target.index):
        raise UnsupportedError(f"`{op.name}` writes where data says")
    run = _Some(op, sizes, values, arrays, wide, most)
    before, found = {out: name for name, out in op.updates}, list[Any]()
    try:
        for name, at in wanted:
            if name in before and not run.writers.get((name, at)):
                found.append(run.inputs[before[name]][at])
            else:
                found.append(run.done[name, at] if (name, at) in run.done else run.element((name, at)))
    except UnsupportedError:
        pass  # what was found is found
    return found


def places(rng: np.random.Generator, shape: Sequence[int], count: int) -> list[Place]:
    """Where to look in a result of this shape: at its corners, and at random in between; `count` of them, or fewer."""
    if 0 in shape:
        return []
    corners = product(*((0, n - 1) for n in reversed(shape)))
    first = [at[::-1] for at, _ in zip(corners, range(count // 2), strict=False)]
    rest = [tuple(int(rng.integers(n)) for n in shape) for _ in range(count - len(first))]
    return [*dict.fromkeys(first + rest)]
