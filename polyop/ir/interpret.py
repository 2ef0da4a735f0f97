"""The interpreter of a LoopNest: the definition of what a nest means, and what the tests hold every rewrite and emitter to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import lt
from typing import Any

import numpy as np

from polyop.ir import scalars
from polyop.ir.errors import InternalError, assert_never
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Number, Position, Quasi, Scalar, Test, evaluate
from polyop.ir.loops import Barrier, Buffer, For, If, IfData, LoopNest, Node, Prefetch, Space, Store


class PositionError(Exception):
    """A computed position lies outside its tensor: the Load, and the position it would read."""

    def __init__(self, load: Load, at: tuple[int, ...]) -> None:
        super().__init__(f"{load} at {at}")
        self.load, self.at = load, at


def empty(b: Buffer, sizes: Mapping[str, int]) -> np.ndarray:
    """A buffer of work space as a call finds it."""
    shape = [-(-max(0, evaluate(e, sizes)) // u) for e, u in b.dims]
    if shape and b.pad > 1:
        shape[-1] = -(-shape[-1] // b.pad) * b.pad
    return np.full(shape, np.nan if b.dtype.is_float else b.dtype.highest, b.dtype.numpy)


def interpret(nest: LoopNest, sizes: Mapping[str, int], values: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Run `nest` one element at a time; outputs are written in place.

    Shapes  arrays: one for each tensor buffer, of its extents. Work and register buffers are made here, filled with
            NaN (or the highest integer), so a read before a write shows; those that last may be given, as `empty` makes them.
    Raises  PositionError for a computed position; InternalError for an affine one, which the proofs exclude.
    """
    memory: dict[str, Any] = dict(arrays)
    for b in nest.buffers:
        if b.space != Space.TENSOR and b.name not in memory:
            memory[b.name] = empty(b, sizes)
    units = {b.name: tuple(u for _, u in b.dims) for b in nest.buffers}
    run = _Reader(units, values, memory, dict(sizes)).body(nest.body)
    with np.errstate(all="ignore"):
        run()


Value = Callable[[], Any]
"""What an expression is worth now."""


@dataclass(frozen=True, eq=False)
class _Reader:
    """Reads each node of a nest once, into a function that carries it out.

    env     the sizes, and the loops' indices as they are now
    """

    units: Mapping[str, tuple[int, ...]]
    values: Mapping[str, Any]
    memory: Mapping[str, Any]
    env: dict[str, int]

    # --- nodes -------------------------------------------------------------------------------------------------------

    def body(self, nodes: tuple[Node, ...]) -> Callable[[], None]:
        each = [self.node(n) for n in nodes]
        if len(each) == 1:
            return each[0]

        def run() -> None:
            for one in each:
                one()
        return run

    def node(self, n: Node) -> Callable[[], None]:
        match n:
            case For():
                return self.loop(n)
            case If():
                tests = self.tests(n.tests)
                return self.branch(tests, n.then, n.other)
            case IfData():
                return self.branch(self.value(n.test), n.then, n.other)
            case Store():
                return self.store(n)
            case Prefetch() | Barrier():
                return lambda: None
        assert_never(n)

    def loop(self, n: For) -> Callable[[], None]:
        env, index, step = self.env, n.index, n.step
        lower, upper, inside = self.index(n.lower), self.index(n.upper), self.body(n.body)

        def run() -> None:
            around = env.get(index)
            for env[index] in range(lower(), upper(), step):
                inside()
            if around is not None:
                env[index] = around
            else:
                env.pop(index, None)
        return run

    def branch(self, test: Value, then: tuple[Node, ...], other: tuple[Node, ...]) -> Callable[[], None]:
        yes, no = self.body(then), self.body(other)
        return lambda: yes() if test() else no()

    def store(self, n: Store) -> Callable[[], None]:
        at, new, array = self.place(n.target), self.value(n.expr), self.memory[n.target.source]
        if n.reduce is None:
            def assign() -> None:
                place = at()
                array[place] = new()
            return assign
        both = scalars.combining(n.reduce.body)

        def add() -> None:
            place, term = at(), new()
            array[place] = both(array[place], term)
        return add

    # --- expressions -------------------------------------------------------------------------------------------------

    def value(self, e: Expr) -> Value:
        match e:
            case Const(value=v, dtype=t):
                constant = t.numpy.type(v)
                return lambda: constant
            case Number(value=v, dtype=t):
                index = self.index(v)
                return lambda: scalars.convert(scalars.counted(index()), t)
            case Scalar(name=name, dtype=t):
                given = t.numpy.type(self.values[name])
                return lambda: given
            case Test(tests=conditions):
                tests = self.tests(conditions)
                return lambda: np.bool_(tests())
            case Load():
                return self.load(e)
            case Apply(fn="select", args=(c, a, b), dtype=t):
                test, yes, no = self.value(c), self.value(a), self.value(b)
                return lambda: scalars.convert(yes() if test() else no(), t)
            case Apply(fn="and", args=(a, b)):
                one, two = self.value(a), self.value(b)
                return lambda: np.bool_(one() and two())
            case Apply(fn="or", args=(a, b)):
                one, two = self.value(a), self.value(b)
                return lambda: np.bool_(one() or two())
            case Apply(fn=fn, args=args, dtype=t):
                f, each = scalars.function(fn, t), tuple(self.value(a) for a in args)
                if len(each) == 2:
                    one, two = each
                    return lambda: f(one(), two())
                return lambda: f(*(a() for a in each))
        assert_never(e)

    def load(self, e: Load) -> Value:
        at, array, zero = self.place(e), self.memory[e.source], e.dtype.numpy.type(0)
        if not e.guard:
            return lambda: array[at()]
        guard = self.tests(e.guard)
        return lambda: array[at()] if guard() else zero

    def place(self, load: Load) -> Callable[[], tuple[int, ...]]:
        """Where `load` is in its array."""
        shape = self.memory[load.source].shape
        each = [self.position(p, unit) for p, unit in zip(load.index, self.units[load.source], strict=True)]

        def outside(at: tuple[int, ...]) -> tuple[int, ...]:
            if any(not isinstance(p, Affine) for p in load.index):
                raise PositionError(load, at)
            raise InternalError(f"interpreter: {load} at {at} leaves its buffer of shape {shape}")

        if len(each) == 2:
            (one, two), (rows, columns) = each, shape

            def in_matrix() -> tuple[int, ...]:
                i, j = one(), two()
                return (i, j) if 0 <= i < rows and 0 <= j < columns else outside((i, j))
            return in_matrix

        def at() -> tuple[int, ...]:
            found = tuple([i() for i in each])
            return found if all(map(lt, found, shape)) and min(found, default=0) >= 0 else outside(found)
        return at

    def position(self, p: Position, unit: int) -> Callable[[], int]:
        if not isinstance(p, Affine):
            looked_up = self.value(p)
            return lambda: int(looked_up()) // unit
        index = self.index(p)
        return index if unit == 1 else lambda: index() // unit

    def tests(self, tests: tuple[Affine, ...]) -> Callable[[], bool]:
        """Whether all of `tests` are at least 0."""
        each = [self.index(t) for t in tests]
        return lambda: all(t() >= 0 for t in each)

    def index(self, x: Affine) -> Callable[[], int]:
        env, const = self.env, x.const
        match x.terms:
            case ():
                return lambda: const
            case ((str() as name, factor),):
                return (lambda: env[name]) if factor == 1 and not const else lambda: env[name] * factor + const
            case ((str() as name, factor), (str() as other, times)):
                return lambda: env[name] * factor + env[other] * times + const
        each = [(self.atom(a), factor) for a, factor in x.terms]
        return lambda: sum([a() * factor for a, factor in each], const)

    def atom(self, x: str | Quasi) -> Callable[[], int]:
        env = self.env
        if isinstance(x, str):
            return lambda: env[x]
        each = [self.index(a) for a in x.args]
        one, two = each[0], each[-1]
        match x.op:
            case "div":
                return lambda: one() // two()
            case "mod":
                return lambda: one() % two()
            case "min":
                return lambda: min([a() for a in each])
            case _:
                return lambda: max([a() for a in each])
