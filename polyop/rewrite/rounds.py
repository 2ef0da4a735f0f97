"""Cutting a step that goes round a size several times into its rounds.

    Y[i] = X[i % N]  with i in 0:3*N      becomes      Y[i] = X[i];  Y[N + i] = X[i];  Y[2*N + i] = X[i]  with i in 0:N

A remainder by a size is no affine position, so each element would be looked for by a division of its own. In one round it is a
row that is copied: tile of 1024 x 1000 took twenty times as long. Where a position only goes beyond an end, as neighbours on a
ring do, a test says so, and steps are cut where it does:

    Y[i] = X[(i + N - 1) % N]  with i in 0:N     becomes      Y[i] = i >= 1 ? X[i - 1] : X[i + N - 1]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyop.ir.expr import (
    Affine,
    Apply,
    Expr,
    Load,
    Number,
    Position,
    Test,
    affine,
    is_computed,
    map_loads,
    names,
    rebuild,
    substitute_expr,
    walk,
)
from polyop.ir.op import Op, Range, Step, map_step
from polyop.rewrite.names import all_names, fresh

MOST = 16
"""Rounds of one step, along all its indices together; an index that would give more is left whole."""


def cut_into_rounds(op: Op) -> Op:
    """`op` with every `=` step cut whose reads divide an index by a size that its range is a few times as long as."""
    taken = all_names(op)
    return replace(op, steps=tuple(piece for s in op.steps for piece in _rounds(_on_rings(op, s), fresh("at", set(taken)))))


def _on_rings(op: Op, s: Step) -> Step:
    """`s` with affine positions in the place of those that go round the end of a range by a few elements."""
    sizes = {r.index: r.upper for r in s.ranges if r.lower == Affine()}

    def apart(x: Load) -> Expr:
        for d, p in enumerate(x.index):
            if ring := _ring(op, p, sizes):
                index, size, ahead = ring
                inside = affine(size) - affine(index) - ahead - 1 if ahead > 0 else affine(index) + ahead
                there, beyond = affine(index) + ahead, affine(index) + ahead + affine(size) * (-1 if ahead > 0 else 1)
                near, far = (apart(replace(x, index=(*x.index[:d], q, *x.index[d + 1:]))) for q in (there, beyond))
                return Apply("select", (Test((inside,)), near, far), x.dtype) if ahead else near
        return x

    return replace(s, expr=map_loads(s.expr, apart))


def _ring(op: Op, p: Position, sizes: Mapping[str, Affine]) -> tuple[str, str, int] | None:
    """(index, size, how far ahead) where `p` is so far ahead of an index on the ring of a size, which is at least that."""
    match p:
        case Apply(fn="mod", args=(Number(value=a), Number(value=b))) if p.dtype.is_integer and b.name in op.sizes:
            index = next((i for i, n in sizes.items() if n == b and a.factor(i) == 1), None)
            if index is None or b.name is None:
                return None
            ahead = a - affine(index) - affine(b.name) * a.factor(b.name)
            least = max((-t.const for f in op.facts if isinstance(f, Test) for t in f.tests if t - t.const == b), default=0)
            if ahead.is_constant and abs(ahead.const) <= max(1, least):  # the range is empty where the size is 0
                return index, b.name, ahead.const
    return None


def _rounds(s: Step, inside: str, most: int = MOST) -> tuple[Step, ...]:
    """`inside` is a new name, for the index within a round; `most`: how many rounds there may be."""
    if s.reduce is not None or any(map(is_computed, s.target.index)):
        return (s,)
    for r in s.ranges:
        size = r.upper.terms[0][0] if len(r.upper.terms) == 1 else None
        if r.lower != Affine() or r.upper.const or not isinstance(size, str) or not 2 <= r.upper.factor(size) <= most:
            continue
        alone = not any(r.index in names(b) for x in s.ranges for b in (x.lower, x.upper))
        if alone and any(_is_by(x, r.index, size) for x in walk(s.expr)):
            count = r.upper.factor(size)
            return tuple(y for k in range(count) for y in _rounds(_round(s, r, size, k, inside), inside, most // count))
    return (s,)


def _is_by(e: Expr, index: str, size: str) -> bool:
    """Whether `e` is the index divided by the size, or the remainder of that."""
    match e:
        case Apply(fn="div" | "mod", args=(Number(value=a), Number(value=b))):
            return a == affine(index) and b == affine(size) and e.dtype.is_integer
    return False


def _round(s: Step, r: Range, size: str, k: int, inside: str) -> Step:
    """Round `k`: index = k size + inside, with inside in 0:size."""
    def divided(e: Expr) -> Expr:
        if isinstance(e, Apply) and _is_by(e, r.index, size):
            return Number(affine(inside) if e.fn == "mod" else affine(k), e.dtype)
        new = rebuild(e, divided)
        if not isinstance(new, Load):
            return new
        return replace(new, index=tuple(p.value if isinstance(p, Number) else p for p in new.index))

    there = {r.index: affine(inside) + affine(size) * k}
    back = {inside: affine(r.index)}

    def moved(e: Expr) -> Expr:
        return substitute_expr(substitute_expr(divided(e), there), back)

    ranges = tuple(replace(x, upper=affine(size)) if x is r else x for x in s.ranges)
    return replace(map_step(s, moved), ranges=ranges)
