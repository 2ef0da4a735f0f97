"""Positions in 32 bits, for calls in which they fit: twice as many go into a vector.

    at[r] min= X[r, n] == top[r] ? i64(n) : i64(2^63 - 1)        Y[r] = f(at[r])         becomes, where N < 2^31,
    at[r] min= X[r, n] == top[r] ? i32(n) : i32(2^31 - 1)        Y[r] = f(at[r] == i32(2^31 - 1) ? i64(2^63 - 1) : i64(at[r]))

That is what `argmax=` and `argmin=` are made of; any temporary is meant that gets the least of such positions, or none.
"""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.dtypes import BOOL, I32, I64
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Number, Test, affine, loads, map_loads
from polyop.ir.op import Op, Range, Step, Tensor, builtin_monoid

BOUND = 2**31 - 1
"""Sizes up to this number have positions below it."""

_NONE, _NONE_NARROW = Const(I64.highest, I64), Const(I32.highest, I32)


def bounding(op: Op) -> tuple[str, ...]:
    """The sizes that bound the positions which `narrowed` would narrow, in order."""
    found = {n for t in op.temporaries for n in _bounds(op, t) or ()}
    return tuple(n for n in op.sizes if n in found)


def narrowed(op: Op) -> Op:
    """`op` for calls in which no size of `bounding(op)` exceeds `BOUND`; the facts say so."""
    sizes = bounding(op)
    names = {t.name for t in op.temporaries if _bounds(op, t) is not None}
    if not names:
        return op

    def widened(x: Load) -> Expr:
        if x.source not in names:
            return x
        narrow = replace(x, dtype=I32)
        none = Apply("eq", (narrow, _NONE_NARROW), BOOL)
        return Apply("select", (none, _NONE, Apply("cast", (narrow,), I64)), I64)

    def one(s: Step) -> Step:
        expr = map_loads(s.expr, widened)
        if s.target.source in names:
            return replace(s, target=replace(s.target, dtype=I32), reduce=builtin_monoid("min", I32), expr=_narrow(expr))
        return replace(s, expr=expr)

    tensors = tuple(replace(t, dtype=I32) if t.name in names else t for t in op.tensors)
    facts = tuple(Test((affine(BOUND) - affine(n),)) for n in sizes)
    return replace(op, tensors=tensors, steps=tuple(map(one, op.steps)), facts=(*op.facts, *facts))


def _bounds(op: Op, t: Tensor) -> frozenset[str] | None:
    """The sizes that bound what the temporary `t` holds, if that is the least of positions, or no position; else None.

    Each is the extent of an argument: how many bits that has tells whether it exceeds `BOUND`.
    """
    found: frozenset[str] | None = None
    extents = {e.name for x in op.tensors if x.role != "temp" for e in x.shape}
    for s in op.steps:
        leading = (p for x in (s.target, *loads(s.expr)) for p in x.index if not isinstance(p, Affine))
        if any(x.source == t.name for p in leading for x in loads(p)):
            return None
        if t.dtype == I64 and s.target.source == t.name:
            bounds = _bound(s.expr, s.ranges) if s.reduce == builtin_monoid("min", I64) else None
            if bounds is None or not bounds <= extents:
                return None
            found = bounds | (found or frozenset())
    return found


def _bound(e: Expr, ranges: tuple[Range, ...]) -> frozenset[str] | None:
    """The sizes that bound the positions which `e` is for some points; None if it may be something else."""
    match e:
        case Const(value=v) if v == I64.highest:
            return frozenset()
        case Number(value=Affine(name=str(i))):
            upper = next((r.upper for r in ranges if r.index == i and r.lower == Affine()), None)
            is_near = upper is not None and upper.is_constant and upper.const <= BOUND
            return frozenset() if is_near else frozenset((upper.name,)) if upper is not None and upper.name else None
        case Apply(fn="select", args=(_, a, b)):
            first, second = _bound(a, ranges), _bound(b, ranges)
            return None if first is None or second is None else first | second
    return None


def _narrow(e: Expr) -> Expr:
    match e:
        case Number(value=place):
            return Number(place, I32)
        case Apply(args=(test, a, b)):
            return Apply("select", (test, _narrow(a), _narrow(b)), I32)
    return _NONE_NARROW
