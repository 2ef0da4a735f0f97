"""The naive evaluator of an Op, element by element: the oracle that shares nothing with the middle of the compiler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polyop.ir import scalars
from polyop.ir.dtypes import F64, DType
from polyop.ir.errors import PolyopError, assert_never
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Number, Position, Scalar, Test, is_computed
from polyop.ir.expr import evaluate as value_of
from polyop.ir.op import Op, Step


class CycleError(PolyopError):
    """An element needs itself."""


class UnwrittenError(PolyopError):
    """An element is read, or must be returned, that no step writes."""


class TwiceError(PolyopError):
    """An element is written twice with `=`."""


class OutsideError(PolyopError):
    """An index lies outside its tensor."""

    def __init__(self, outside: Outside) -> None:
        super().__init__(str(outside))
        self.outside = outside


@dataclass(frozen=True, slots=True)
class Outside:
    """`load` at `at` leaves `tensor` in `dimension`, which has `extent` elements; `computed` if data said where.

    cause   the Load or scalar whose value the position is, and where it was read; None if the position is more than that
    written whether it is the target of a step
    """

    load: Load
    at: tuple[int, ...]
    dimension: int
    extent: int
    computed: bool
    shape: str
    cause: tuple[str, tuple[int, ...]] | None = None
    written: bool = False

    def __str__(self) -> str:
        n = self.at[self.dimension]
        name = self.load.source
        what = f"position {n}"
        if self.cause:
            source, at = self.cause
            what = f"{source}[{', '.join(map(str, at))}] = {n}" if at else f"{source} = {n}"
        unit = "rows" if self.dimension == 0 else "elements"
        extent = f"{self.shape} = {self.extent}" if self.shape != str(self.extent) else self.shape
        place = "" if self.dimension == 0 else f" in dimension {self.dimension}"
        verb = "writes" if self.written else "reads"
        return f"{what} {verb} outside `{name}`, which has {extent} {unit}{place}"


Point = dict[str, int]
Key = tuple[str, tuple[int, ...]]


def points(step: Step, sizes: Mapping[str, int]) -> Iterator[Point]:
    """The points of a step's ranges where all of `where` hold, the last index fastest."""
    def over(k: int, env: Point) -> Iterator[Point]:
        if k == len(step.ranges):
            if all(holds(c, env) for c in step.where):
                yield dict(env)
            return
        r = step.ranges[k]
        for i in range(value_of(r.lower, env), value_of(r.upper, env)):
            yield from over(k + 1, env | {r.index: i})
    yield from over(0, dict(sizes))


def holds(c: Expr, env: Mapping[str, int]) -> bool:
    match c:
        case Test(tests=tests):
            return all(value_of(t, env) >= 0 for t in tests)
        case Const(value=v):
            return bool(v)
        case Apply(fn="and", args=(a, b)):
            return holds(a, env) and holds(b, env)
        case Apply(fn="or", args=(a, b)):
            return holds(a, env) or holds(b, env)
        case Apply(fn="not", args=(a,)):
            return not holds(a, env)
    raise PolyopError(f"{c} is no affine condition")


class Later(Exception):
    """An element that must be worked out first."""

    def __init__(self, key: Key) -> None:
        self.key = key


class Run:
    """One evaluation. Elements are worked out when first needed, on a stack of our own, so that recurrences may be long.

    writers   who writes each element; all are found first, unless they are given
    """

    def __init__(self, op: Op, sizes: Mapping[str, int], values: Mapping[str, Any], arrays: Mapping[str, Any], wide: bool,
                 writers: dict[Key, list[tuple[Step, Point]]] | None = None) -> None:
        self.op, self.sizes, self.values, self.wide = op, sizes, values, wide
        self.shapes = {t.name: tuple(value_of(e, sizes) for e in t.shape) for t in op.tensors}
        self.inputs = {t.name: np.asarray(arrays[t.name]) for t in op.inputs}
        self.done: dict[Key, Any] = {}
        self.writers: dict[Key, list[tuple[Step, Point]]] = {} if writers is None else writers
        self.reduced = {s.target.source: s.reduce for s in op.steps if s.reduce}
        if writers is not None:
            return
        scattered = [step for step in op.steps if any(is_computed(p) for p in step.target.index)]
        for step in (*(x for x in op.steps if x not in scattered), *scattered):
            for env in points(step, sizes):
                at = self.target(step, env)
                self.writers.setdefault((step.target.source, at), []).append((step, env))
        place = {id(step): k for k, step in enumerate(op.steps)}
        for both in self.writers.values() if scattered else ():
            both.sort(key=lambda w: place[id(w[0])])  # terms are added up in the order of the text

    def kind(self, t: DType) -> DType:
        return F64 if self.wide and t.is_float else t

    def target(self, step: Step, env: Point) -> tuple[int, ...]:
        """The element that is written; a temporary that says where is worked out first."""
        while True:
            try:
                return self.place(step.target, env)
            except Later as later:
                self.element(later.key)
            except OutsideError as error:
                is_target = error.outside.load is step.target
                raise OutsideError(replace(error.outside, written=is_target)) from None

    def place(self, load: Load, env: Point) -> tuple[int, ...]:
        at = tuple(value_of(p, env) if isinstance(p, Affine) else int(self.value(p, env)) for p in load.index)
        for d, (i, n) in enumerate(zip(at, self.shapes[load.source], strict=True)):
            if not 0 <= i < n:
                raise OutsideError(self.outside(load, at, d, n, env))
        return at

    def outside(self, load: Load, at: tuple[int, ...], d: int, n: int, env: Point) -> Outside:
        p: Position = load.index[d]
        while isinstance(p, Apply) and p.fn in ("cast", "select"):
            p = p.args[0] if p.fn == "cast" else p.args[1] if self.value(p.args[0], env) else p.args[2]
        cause = (p.source, self.place(p, env)) if isinstance(p, Load) else (p.name, ()) if isinstance(p, Scalar) else None
        return Outside(load, at, d, n, not isinstance(load.index[d], Affine), str(self.op.tensor(load.source).shape[d]), cause)

    def element(self, key: Key) -> Any:
        """One element of a tensor that is written; what it needs first goes on the stack before it."""
        stack, waiting = [key], {key}
        while stack:
            top = stack[-1]
            try:
                self.done[top] = self.compute(top)
            except Later as later:
                if later.key in waiting:
                    raise CycleError(f"{self.op.name}: {later.key[0]}{list(later.key[1])} needs itself") from None
                stack.append(later.key)
                waiting.add(later.key)
                continue
            stack.pop()
            waiting.discard(top)
        return self.done[key]

    def compute(self, key: Key) -> Any:
        name, _ = key
        writers = self.writers.get(key, [])
        t = self.kind(self.op.tensor(name).dtype)
        monoid = self.reduced.get(name)
        if monoid is None:
            if not writers:
                raise UnwrittenError(f"{self.op.name}: {name}{list(key[1])} is read and never written")
            if len(writers) > 1:
                raise TwiceError(f"{self.op.name}: {name}{list(key[1])} is written {len(writers)} times")
            step, env = writers[0]
            return scalars.convert(self.value(step.expr, env), t)
        total = t.numpy.type(monoid.identity)
        for step, env in writers:
            term = scalars.convert(self.value(step.expr, env), t)
            total = scalars.convert(scalars.combine(monoid.body, total, term, self.kind), t)
        return total

    def value(self, e: Expr, env: Point) -> Any:
        match e:
            case Const(value=v, dtype=t):
                return self.kind(t).numpy.type(v)
            case Number(value=v, dtype=t):
                return scalars.convert(scalars.counted(value_of(v, env)), self.kind(t))
            case Scalar(name=n, dtype=t):
                return scalars.convert(t.numpy.type(self.values[n]), self.kind(t))
            case Test(tests=tests):
                return np.bool_(all(value_of(t, env) >= 0 for t in tests))
            case Load(guard=guard, dtype=t):
                if any(value_of(g, env) < 0 for g in guard):
                    return self.kind(t).numpy.type(0)
                at = self.place(e, env)
                if e.source in self.inputs:
                    return scalars.convert(self.inputs[e.source][at], self.kind(t))
                key = (e.source, at)
                if key not in self.done:
                    raise Later(key)
                return self.done[key]
            case Apply(fn="select", args=(c, a, b), dtype=t):
                return scalars.convert(self.value(a if self.value(c, env) else b, env), self.kind(t))
            case Apply(fn="and", args=(a, b)):
                return np.bool_(self.value(a, env) and self.value(b, env))
            case Apply(fn="or", args=(a, b)):
                return np.bool_(self.value(a, env) or self.value(b, env))
            case Apply(fn=fn, args=args, dtype=t):
                return scalars.apply(fn, tuple(self.value(a, env) for a in args), self.kind(t))
        assert_never(e)


def evaluate(op: Op, sizes: Mapping[str, int], values: Mapping[str, Any], arrays: Mapping[str, Any], *,
             wide: bool = False) -> dict[str, np.ndarray[Any, Any]]:
    """The outputs of `op`, by name.

    sizes    every size; values: every run-time scalar; arrays: every input
    wide     compute and return floats in float64: the exact result up to float64's own rounding

    Raises  CycleError, TwiceError, UnwrittenError, OutsideError.
    Notes   An element of an updated output that no step writes keeps the caller's value.
    """
    run = Run(op, sizes, values, arrays, wide)
    for key in run.writers:  # in text order, so that little is found missing halfway
        if key not in run.done:
            run.element(key)
    before = {out: name for name, out in op.updates}
    results: dict[str, np.ndarray[Any, Any]] = {}
    for t in op.outputs:
        out = np.empty(run.shapes[t.name], run.kind(t.dtype).numpy)
        for at in np.ndindex(*run.shapes[t.name]):
            key = (t.name, at)
            if t.name in before and key not in run.writers:
                out[at] = run.inputs[before[t.name]][at]
            else:
                out[at] = run.done[key] if key in run.done else run.element(key)
        results[t.name] = out
    return results


def first_outside(op: Op, sizes: Mapping[str, int], values: Mapping[str, Any], arrays: Mapping[str, Any]) -> Outside | None:
    """The first position, in text order, that lies outside its tensor; None if all are inside."""
    try:
        evaluate(op, sizes, values, arrays)
    except OutsideError as error:
        return error.outside
    return None
