"""Elements that are 0 outside of their tensor, as reads that say so themselves.

    (p + r >= 1 ? f32(X[p + r - 1] if p + r >= 1) : f32(0))     becomes     f32(X[p + r - 1] if p + r >= 1)

A read whose guard fails is 0, so the test says the same once more. Without it an operand of a product is one: a copy of it has
the zeros, and a matrix unit takes it.
"""

from __future__ import annotations

from dataclasses import replace
from math import copysign

from polyop.ir.expr import Apply, Const, Expr, Load, Test, rebuild
from polyop.ir.op import Op


def read_beyond(op: Op) -> Op:
    """`op` without tests that guard what is 0 where they fail."""
    steps = tuple(replace(s, expr=e) if (e := _plain(s.expr)) is not s.expr else s for s in op.steps)
    return replace(op, steps=steps) if any(a is not b for a, b in zip(steps, op.steps, strict=True)) else op


def _plain(e: Expr) -> Expr:
    """`e` without such tests. Down first arguments it goes by a loop: a sum of many terms is as deep as it is long there."""
    around: list[Apply] = []
    while isinstance(e, Apply) and e.args:
        around.append(e)
        e = e.args[0]
    new = rebuild(e, _plain)
    for x in reversed(around):
        args = (new, *map(_plain, x.args[1:]))
        new = _without_test(x if all(a is b for a, b in zip(args, x.args, strict=True)) else replace(x, args=args))
    return new


def _without_test(e: Apply) -> Expr:
    match e:
        case Apply(fn="select", args=(Test(tests=tests), read, zero)) if _guarded(read) == frozenset(tests) and _is_zero(zero):
            return read
    return e


def _guarded(e: Expr) -> frozenset[object]:
    """The guard of a read that is converted or as it is; nothing for all else."""
    match e:
        case Load(guard=guard):
            return frozenset(guard)
        case Apply(fn="cast", args=(x,)):
            return _guarded(x)
    return frozenset()


def _is_zero(e: Expr) -> bool:
    """Whether `e` is what a read is where its guard fails, and not -0."""
    match e:
        case Const(value=v):
            return v == 0 and copysign(1, v) == 1
        case Apply(fn="cast", args=(x,)):
            return _is_zero(x)
    return False
