"""Cutting a step that goes round a size several times into its rounds.

    Y[i] = X[i % N]  with i in 0:3*N      becomes      Y[i] = X[i];  Y[N + i] = X[i];  Y[2*N + i] = X[i]  with i in 0:N

A remainder by a size is no affine position, so each element would be looked for by a division of its own. In one round it is a
row that is copied: tile of 1024 x 1000 took twenty times as long.
"""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.expr import Affine, Apply, Expr, Load, Number, affine, is_computed, names, rebuild, substitute_expr, walk
from polyop.ir.op import Op, Range, Step, map_step
from polyop.rewrite.names import all_names, fresh

MOST = 16
"""Rounds of one step, along all its indices together; an index that would give more is left whole."""


def cut_into_rounds(op: Op) -> Op:
    """`op` with every `=` step cut whose reads divide an index by a size that its range is a few times as long as."""
    taken = all_names(op)
    return replace(op, steps=tuple(piece for s in op.steps for piece in _rounds(s, fresh("at", set(taken)))))


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
