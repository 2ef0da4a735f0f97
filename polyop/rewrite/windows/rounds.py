"""Cutting a step that goes round a size several times into its rounds.

    Y[i] = X[i % N]  with i in 0:3*N      becomes      Y[i] = X[i];  Y[N + i] = X[i];  Y[2*N + i] = X[i]  with i in 0:N

A remainder by a size is no affine position, so each element would be looked for by a division of its own. In one round it is a
row that is copied: tile of 1024 x 1000 took twenty times as long. Where a position only goes beyond an end, as neighbours on a
ring do, tests say so, and a copy of rows is cut where it goes beyond both:

    Y[i] = X[(i + N - 1) % N]  with i in 0:N       becomes      Y[i] = i >= 1 ? X[i - 1] : X[i + N - 1]
    Y[i] = X[(i - 1) % N]  with i in 0:N+2       becomes      Y[i] = X[i - 1] where 1 <= i <= N;  Y[0] = X[N - 1];  ..
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

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
from polyop.rewrite.bounds import least_sizes, never_negative
from polyop.rewrite.names import all_names, fresh

MOST = 16
"""Rounds of one step, along all its indices together; an index that would give more is left whole."""

Rounds = tuple[tuple[tuple[Affine, ...], Position], ...]
"""Of each round what must be >= 0 in it, and the position there."""

SEVERAL = 3
"""Rounds of rows from which on a copy is cut into them: masks take less time for two, also where a row is a vector or four."""

CASES = 25
"""Rounds of one read, along all its dimensions together."""

BEYOND = 2
"""How many rounds a position may get to before the first one of a ring, or behind it."""


def cut_into_rounds(op: Op) -> Op:
    """`op` with every `=` step cut whose reads divide an index by a size that its range is a few times as long as."""
    taken = all_names(op)
    pieces = (piece for s in op.steps for piece in _rounds(s, fresh("at", set(taken))))
    return replace(op, steps=tuple(row for s in pieces for row in _on_rings(op, s)))


def _on_rings(op: Op, s: Step) -> tuple[Step, ...]:
    """`s` with affine positions in the place of those that go round the ends of a size a few times."""
    least = least_sizes(op) | {r.upper.name: 1 for r in s.ranges if r.lower == Affine() and r.upper.name in op.sizes}

    def apart(x: Load, most: int = CASES) -> Expr:
        for d, p in enumerate(x.index):
            if 0 < len(rounds := _ring(p, s.ranges, least)) <= most:
                *cases, (_, last) = [(t, apart(_at(x, d, q), most // len(rounds))) for t, q in rounds]
                return reduce(lambda rest, case: Apply("select", (Test(case[0]), case[1], rest), x.dtype), reversed(cases), last)
        return x

    return tuple(replace(x, expr=map_loads(x.expr, apart)) for x in _rows(s, least))


def _rows(s: Step, least: Mapping[str, int]) -> tuple[Step, ...]:
    """A copy of rows that go round a size as one of each round: first of whole rows, and then of what is beyond their ends."""
    x, along = s.expr, s.target.index[-1] if s.target.index else None
    if s.reduce is not None or not isinstance(x, Load) or not isinstance(along, Affine):
        return (s,)
    for d, p in enumerate(x.index):
        rounds = _ring(p, s.ranges, least) or _near(p, s.indices, least)
        if len(rounds) >= SEVERAL and all(names(q) & {*s.indices} == names(along) for _, q in rounds if isinstance(q, Affine)):
            return tuple(replace(s, expr=_at(x, d, q), where=(*s.where, *(Test((y,)) for y in t))) for t, q in rounds)
    return (s,)


def _near(p: Position, indices: Sequence[str], least: Mapping[str, int]) -> Rounds:
    """The rounds of a ring next to the first one, where `p` is shifted by any number, and `p` itself beyond these."""
    match p:
        case Apply(fn="mod", args=(Number(value=a), Number(value=b))) if (
                p.dtype.is_integer and b.name in least and names(a) - {*indices, b.name}):
            near = tuple(((a - b * k, b * (k + 1) - a - 1), a - b * k) for k in (0, -1, 1))
            return (*near, ((a - b * 2,), p), ((b * -1 - a - 1,), p))
    return ()


def _at(x: Load, d: int, p: Position) -> Load:
    return replace(x, index=(*x.index[:d], p, *x.index[d + 1:]))


def _ring(p: Position, ranges: tuple[Range, ...], least: Mapping[str, int]) -> Rounds:
    """What `p`, a remainder by a size, is in each round that it gets to, and what must be >= 0 for that: nearest rounds first.

    least   what the sizes are at least
    """
    match p:
        case Apply(fn="mod", args=(Number(value=a), Number(value=b))) if p.dtype.is_integer and b.name in least:
            first = next((-k for k in range(BEYOND + 1) if never_negative(a + b * k, least, ranges)), None)
            last = next((k for k in range(BEYOND + 1) if never_negative(b * (k + 1) - a - 1, least, ranges)), None)
            if first is None or last is None:
                return ()
            tests = {k: (*((a - b * k,) if k > first else ()), *((b * (k + 1) - a - 1,) if k < last else ()))
                     for k in range(first, last + 1)}
            return tuple((tests[k], a - b * k) for k in sorted(tests, key=abs))
    return ()


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
