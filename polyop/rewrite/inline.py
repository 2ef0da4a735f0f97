"""Pointwise temporaries put into the expressions that read them.

    T[i + 1, j] = e(i, j)             Y[a, b] = .. e(b - 1, a) ..
    Y[a, b]     = .. T[b, a] ..

The read at T[g(a, b)] needs the one instance of the producer that wrote there: { Producer[i, j] : f(i, j) = g(a, b) }. Here
every iterator of the producer stands alone in a position, with factor 1 or -1, so the instance is found by subtraction.
That it lies in the producer's domain needs no check: an Op reads a temporary only where it is written.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from polyop.ir.deep import with_room
from polyop.ir.dtypes import DType
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Position, Test, affine, loads, map_loads, names, substitute_expr
from polyop.ir.op import Op, Step
from polyop.rewrite.measure import cost, depth, is_deep

DEPTH = 100
"""Expressions do not grow deeper than this; the temporary stays instead."""


@dataclass(frozen=True, slots=True)
class _Solution:
    """`iterator = sign * (position - rest)`, where `position` is the number of a dimension."""

    iterator: str
    position: int
    sign: int
    rest: Affine


def inline(op: Op, keep: Collection[str] = (), again: int = 0) -> Op:
    """`op` with every temporary inlined for which that is right and worth it.

    keep    temporaries that stay
    again   the cost (`measure.cost`) up to which an element may be computed more than once; 0: only what is moved
    """
    for t in op.temporaries:
        if t.name not in keep and not refusal(op, t.name, again):
            op = inline_one(op, t.name, again)
    return op


def computed_again(op: Op, again: int) -> Op:
    """`op` with every temporary inlined that is then computed once for each read at most, and costs no more than `again`.

    For machines whose memory is far away: a row that is read twice is computed twice, and never stored.
    """
    for t in op.temporaries:
        if not refusal(op, t.name, again) and not (cost(op.steps_of(t.name)[0].expr) and _is_spread_out(op, t.name)):
            op = inline_one(op, t.name, again)
    return op


def _is_spread_out(op: Op, name: str) -> bool:
    """Whether some step reads one element of `name` at several of its points."""
    reads = [(s, x) for s in op.steps for x in loads(s.expr) if x.source == name]
    return any(set(s.indices) - frozenset[str]().union(*(names(p) for p in x.index if isinstance(p, Affine))) for s, x in reads)


def inline_one(op: Op, name: str, again: int = 0) -> Op:
    """`op` without the temporary `name`: its expression stands where it was read.

    Raises  UnsupportedError, with the reason, if it is not pointwise, or would be computed again at a cost above `again`.
    """
    reason = refusal(op, name, again)
    if reason:
        raise UnsupportedError(f"`{name}` of `{op.name}` is not inlined: {reason}")
    return with_room(lambda: _inlined(op, name)) if is_deep(op) else _inlined(op, name)


def refusal(op: Op, name: str, again: int = 0) -> str:
    """Why the temporary `name` cannot or should not be inlined; empty if it can."""
    if op.tensor(name).role != "temp":
        return "it is no temporary"
    writers = op.steps_of(name)
    if len(writers) != 1:
        return f"{len(writers)} steps write it"
    producer = writers[0]
    if producer.reduce:
        return "it is a reduction"
    reads = [(s, x) for s in op.steps for x in loads(s.expr) if x.source == name]
    if not reads:
        return "nothing reads it"
    if any(x.source == name for x in loads(producer.expr)):
        return "it reads itself"
    if any(x.source == name for s in op.steps for p in s.target.index if not isinstance(p, Affine) for x in loads(p)):
        return "it says where an element is written"
    solutions = solve(producer)
    if isinstance(solutions, str):
        return solutions
    for s, x in reads:
        computed = [str(k) for k in {a.position for a in solutions} if not isinstance(x.index[k], Affine)]
        if computed:
            return f"it is read at a position computed from data, in dimension {', '.join(sorted(computed))}"
        if depth(producer.expr) + depth(s.expr) > DEPTH:
            return f"the expression would be more than {DEPTH} levels deep"
    least = cost(producer.expr)
    if least > again:
        if len(reads) > 1:
            return f"it is read {len(reads)} times"
        s, x = reads[0]
        found = frozenset().union(*(names(p) for p in x.index if isinstance(p, Affine)))
        missing = [i for i in s.indices if i not in found]
        if missing:
            return f"it would be computed again for every {', '.join(missing)}"
    return ""


def solve(step: Step) -> tuple[_Solution, ...] | str:
    """How each iterator of an `=` step follows from the place that it writes; or why one does not."""
    found: list[_Solution] = []
    for i in step.indices:
        position = next((k for k, p in enumerate(step.target.index) if _determines(p, i, step)), None)
        if position is None:
            return f"`{i}` does not follow from the place {step.target}"
        p = step.target.index[position]
        assert isinstance(p, Affine)
        sign = p.factor(i)
        found.append(_Solution(i, position, sign, p - affine(i) * sign))
    return tuple(found)


def _determines(p: Position, iterator: str, step: Step) -> bool:
    if not isinstance(p, Affine) or p.factor(iterator) not in (1, -1):
        return False
    others = names(p - affine(iterator) * p.factor(iterator))
    return not others & set(step.indices)


def _inlined(op: Op, name: str) -> Op:
    producer, dtype = op.steps_of(name)[0], op.tensor(name).dtype
    solutions = solve(producer)
    assert not isinstance(solutions, str)

    def put(x: Load) -> Expr:
        if x.source != name:
            return x
        env: dict[str, Affine] = {}
        for a in solutions:
            p = x.index[a.position]
            assert isinstance(p, Affine)
            env[a.iterator] = (p - a.rest) * a.sign
        return guarded(converted(substitute_expr(producer.expr, env), dtype), x.guard)

    steps = tuple(replace(s, expr=map_loads(s.expr, put)) if any(x.source == name for x in loads(s.expr)) else s
                  for s in op.steps if s is not producer)
    return replace(op, tensors=tuple(t for t in op.tensors if t.name != name), steps=steps)


def converted(e: Expr, dtype: DType) -> Expr:
    """`e` as a store into memory of `dtype` would leave it."""
    return e if e.dtype == dtype else Apply("cast", (e,), dtype)


def guarded(e: Expr, guard: tuple[Affine, ...]) -> Expr:
    """`e` where all of `guard` are >= 0, and 0 (false) elsewhere, where nothing is read.

    Notes   Every Load in it gets the guard too: what is read must be visible at the read itself.
    """
    if not guard:
        return e
    inner = map_loads(e, lambda x: replace(x, guard=(*x.guard, *(g for g in guard if g not in x.guard))))
    if isinstance(inner, Load):
        return inner
    return Apply("select", (Test(guard), inner, zero(e.dtype)), e.dtype)


def zero(dtype: DType) -> Const:
    """0, or false."""
    return Const(0.0 if dtype.is_float else 0 if dtype.is_integer else False, dtype)
