"""Loops that only write one row of a result, each element from what lies at fixed places beside it: they may be cut anywhere.

    for t in [0, U) by W { for v in [0, min(W, U - t)) (lanes W) { Y[.., t + v + c] = f(t + v) } }

Such a loop is a run if, in any place of the loops around,

    its vectors make up a row    { t + v : 0 <= v < W, t + v < U }, with W the step of t, and the row ends at U
    an element depends on t + v  alone: f, and the place in Y, have t and v as a sum only, and of v no test or guard
    it does not read Y           nor what may be the same memory

So an element may be computed in any vector that has it, in any order with others, and twice. Where vectors begin may then follow
the address: `llvm/runs.py`. A nest cannot say that, so this is asked of the nest that is emitted, when it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from polyop.ir.expr import Affine, Apply, Expr, Load, Number, Test, affine, bounds, is_computed, names, walk
from polyop.ir.loops import For, Kind, LoopNest, Space, Store

LONG = 8
"""Parts of an expression; what computes more would lose by computing some elements twice."""


def is_run(nest: LoopNest, n: For) -> bool:
    """Whether the loop `n` is a run."""
    return n.kind in (Kind.SERIAL, Kind.PARALLEL) and _run(nest, n) is not None


def run_of(n: For) -> tuple[For, Store]:
    """The lanes and the store of a run."""
    lanes = n.body[0]
    assert isinstance(lanes, For) and isinstance(lanes.body[0], Store)
    return lanes, lanes.body[0]


def repeated(nest: LoopNest, n: For) -> For | None:
    """The run that `n` repeats, in the same way each time: they are one if each begins in memory where the last one ended.

        for i in [l, u) { for t in [a, b) { Y[i, t] = f(X[i, t]) } }       where a and b do not depend on i

    Only strides tell whether they do. A number made of an index starts again in each run, so there must be none.
    """
    match n:
        case For(step=1, body=(For() as inner,)) if is_run(nest, inner):
            _, what = run_of(inner)
            moves = all(_moves_with(what, i) for i in (n.index, inner.index))
            return inner if moves and n.index not in names(inner.lower) | names(inner.upper) else None
    return None


def _moves_with(s: Store, index: str) -> bool:
    """Whether what `s` writes depends on `index` by linear places alone."""
    places = (*s.target.index, *(p for x in walk(s.expr) if isinstance(x, Load) for p in x.index))
    numbers = frozenset[str]().union(*(names(x.value) for x in walk(s.expr) if isinstance(x, Number)))
    if any(not isinstance(p, Affine) for p in places) or index in numbers:
        return False
    inside = [a for p in places if isinstance(p, Affine) for a, _ in p.terms if not isinstance(a, str)]
    return not any(index in names(affine(a)) for a in inside)


def _run(nest: LoopNest, n: For) -> Store | None:
    match n.body:
        case (For(kind=Kind.LANES, body=(Store(stream=True, reduce=None) as s,)) as lanes,) if n.step == lanes.extent:
            pass
        case _:
            return None
    left = {b - affine(n.index) for b in bounds(n.upper)}
    if set(bounds(lanes.upper)) != {affine(n.step), *left} or n.index in names(n.upper):
        return None
    unit = nest.buffer(s.target.source).unit
    along = [d for d, p in enumerate(s.target.index) if isinstance(p, Affine) and lanes.index in names(p)]
    if along != [unit] or any(map(is_computed, s.target.index)):
        return None
    here = s.target.index[along[0]]
    parts = tuple(walk(s.expr))
    if not isinstance(here, Affine) or here.factor(lanes.index) != 1 or len(parts) > LONG:
        return None
    if any(isinstance(x, Test) or (isinstance(x, Apply) and x.fn == "select") for x in parts):
        return None
    if any(isinstance(x, Load) and (x.guard or nest.buffer(x.source).space == Space.REG) for x in parts):
        return None
    same = {s.target.source, *(a for a, b in nest.in_place if b == s.target.source)}
    if nest.buffer(s.target.source).space != Space.TENSOR or any(isinstance(x, Load) and x.source in same for x in parts):
        return None  # written twice, it would be made of its new value
    places = (*(p for p in s.target.index if isinstance(p, Affine)), *_affines(s.expr))
    return s if all(_together(p, n.index, lanes.index) for p in places) else None


def _affines(e: Expr) -> Iterator[Affine]:
    for x in walk(e):
        if isinstance(x, Load):
            yield from (p for p in x.index if isinstance(p, Affine))
        elif isinstance(x, Number):
            yield x.value


def _together(x: Affine, t: str, v: str) -> bool:
    """Whether `x` depends on t and v by their sum alone."""
    inside = frozenset[str]().union(*(names(affine(a)) for a, _ in x.terms if not isinstance(a, str)))
    return x.factor(t) == x.factor(v) and not inside & {t, v}
