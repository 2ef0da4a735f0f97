"""The interpreter of a LoopNest: the definition of what a nest means, and what the tests hold every rewrite and emitter to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polyop.ir import scalars
from polyop.ir.errors import InternalError, assert_never
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Number, Scalar, Test, evaluate
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
    units = {b.name: tuple(u for _, u in b.dims) for b in nest.buffers}
    for b in nest.buffers:
        if b.space != Space.TENSOR and b.name not in memory:
            memory[b.name] = empty(b, sizes)

    def locate(load: Load, env: dict[str, int]) -> tuple[int, ...]:
        shape, inside, at = memory[load.source].shape, True, []
        for p, unit, extent in zip(load.index, units[load.source], shape, strict=True):
            i = (evaluate(p, env) if isinstance(p, Affine) else int(value(p, env))) // unit
            inside = inside and 0 <= i < extent
            at.append(i)
        if inside:
            return tuple(at)
        if any(not isinstance(p, Affine) for p in load.index):
            raise PositionError(load, tuple(at))
        raise InternalError(f"interpreter: {load} at {tuple(at)} leaves its buffer of shape {shape}")

    def value(e: Expr, env: dict[str, int]) -> Any:
        match e:
            case Const(value=v, dtype=t):
                return t.numpy.type(v)
            case Number(value=v, dtype=t):
                return scalars.convert(scalars.counted(evaluate(v, env)), t)
            case Scalar(name=n, dtype=t):
                return t.numpy.type(values[n])
            case Test(tests=tests):
                return np.bool_(all(evaluate(t, env) >= 0 for t in tests))
            case Load(guard=guard):
                if guard and any(evaluate(g, env) < 0 for g in guard):
                    return e.dtype.numpy.type(0)
                return memory[e.source][locate(e, env)]
            case Apply(fn="select", args=(c, a, b), dtype=t):
                return scalars.convert(value(a if value(c, env) else b, env), t)
            case Apply(fn="and", args=(a, b)):
                return np.bool_(value(a, env) and value(b, env))
            case Apply(fn="or", args=(a, b)):
                return np.bool_(value(a, env) or value(b, env))
            case Apply(fn=fn, args=args, dtype=t):
                return scalars.apply(fn, tuple(value(a, env) for a in args), t)
        assert_never(e)

    def run(body: tuple[Node, ...], env: dict[str, int]) -> None:
        for n in body:
            match n:
                case For():
                    inside = dict(env)
                    for i in range(evaluate(n.lower, env), evaluate(n.upper, env), n.step):
                        inside[n.index] = i
                        run(n.body, inside)
                case If():
                    run(n.then if all(evaluate(t, env) >= 0 for t in n.tests) else n.other, env)
                case IfData():
                    run(n.then if value(n.test, env) else n.other, env)
                case Store():
                    at, new = locate(n.target, env), value(n.expr, env)
                    array = memory[n.target.source]
                    array[at] = scalars.combine(n.reduce.body, array[at], new) if n.reduce else new
                case Prefetch() | Barrier():
                    pass
                case _:
                    assert_never(n)

    run(nest.body, dict(sizes))
