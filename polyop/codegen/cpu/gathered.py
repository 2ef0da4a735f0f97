"""Prefetching rows whose places come from data: no hardware sees them coming, but where the next ones lie is known early.

    for b { for l { for v in [0, 64) (lanes 64) { acc[v] += E[ids[b, l], v] } } }      becomes
    for b { for l { for v in [0, 64) (lanes 64) { prefetch E[ids[min(b + 1, B - 1), l], v]; acc[v] += E[ids[b, l], v] } } }

Where a row is found by one loop alone, that one is a few steps ahead; not of rows that are known to be so short that the
processor, which does not wait for a row before it asks for the next ones, is further ahead by itself. Of a row that is copied
as a whole the beginning is fetched: the hardware sees the rest. Positions are read, not guessed, so that they must exist: only
loops whose bounds and tests inside depend on no other are moved on, and never further than to their last iteration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from polyop.codegen.cpu.runs import is_run, run_of
from polyop.ir.expr import (
    Affine,
    Apply,
    Load,
    Test,
    affine,
    expr_names,
    is_computed,
    loads,
    names,
    place,
    quasi,
    substitute,
    walk,
)
from polyop.ir.loops import LOCKSTEP, For, If, Kind, LoopNest, Node, Prefetch, Space, Store, rebuild

STEPS = 8
"""Iterations ahead, where the next ones read the next rows."""

SHORT = 32
"""Bytes of rows of which a processor has more than `STEPS` under way: one by one, found in a cache, they took 1.1 to 1.3 times as
long with prefetches, and found in memory 1.0 to 1.03. From 64 bytes on prefetches gain as often as they lose.
"""

Body = tuple[Node, ...]


def fetch_gathered(nest: LoopNest) -> LoopNest:
    """`nest` with prefetches before stores that read whole vectors of gathered rows."""
    spaces = {b.name: b.space for b in nest.buffers}

    def go(body: Body, around: tuple[For | If, ...]) -> Body:
        return tuple(x for n in body for x in one(n, around))

    def one(n: Node, around: tuple[For | If, ...]) -> Body:
        if isinstance(n, For) and is_run(nest, n):
            lanes, store = run_of(n)
            first = {n.index: n.lower}
            hints = tuple(Prefetch(place(x, first)) for x in later(store, (*around, n, lanes)))
            return (replace(lanes, upper=substitute(lanes.upper, first), body=hints), n) if hints else (n,)  # no row, no position
        if isinstance(n, Store):
            return (*map(Prefetch, later(n, around)), n)
        return (rebuild(n, lambda body: go(body, (*around, n) if isinstance(n, For | If) else around)),)

    def later(n: Store, around: tuple[For | If, ...]) -> list[Load]:
        lanes = next((f for f in around if isinstance(f, For) and f.kind == Kind.LANES), None)
        if lanes is None or any(isinstance(x, Test) or (isinstance(x, Apply) and x.fn == "select") for x in walk(n.expr)):
            return []
        found = dict.fromkeys(x for x in loads(n.expr) if _is_row(x, lanes.index, nest) and
                              all(spaces[y.source] == Space.TENSOR for y in loads(x)))
        return [y for x in found for y in _later(x, around, lanes)]

    return replace(nest, body=go(nest.body, ()))


def _is_row(x: Load, lanes: str, nest: LoopNest) -> bool:
    """Whether lanes read `x` side by side, at a place that data says, and none of that data is found by other data."""
    unit = nest.buffer(x.source).unit
    found = [p for p in x.index if is_computed(p)]
    if not found or x.guard or unit is None or any(lanes in expr_names(p) for p in found if not isinstance(p, Affine)):
        return False
    inside = [y for p in found if not isinstance(p, Affine) for y in loads(p)]
    last = x.index[unit]
    if any(y.guard or any(map(is_computed, y.index)) for y in inside):
        return False
    return isinstance(last, Affine) and last.factor(lanes) == 1


def _later(x: Load, around: tuple[For | If, ...], lanes: For) -> Iterable[Load]:
    """`x`, which `lanes` read, in a later iteration, if there is a loop around that may be moved on, and that is sooner."""
    used = frozenset[str]().union(*(expr_names(p) for p in x.index if not isinstance(p, Affine)))
    serial = [f for f in around if isinstance(f, For) and f.kind not in LOCKSTEP and f.index in used]
    if not serial or any(isinstance(f, For) and f.kind == Kind.ROWS and f.index in used for f in around):
        return
    if len(serial) == 1 and lanes.extent and lanes.extent * x.dtype.bytes_ <= SHORT:
        return
    moved, steps = (serial[-1], STEPS) if len(serial) == 1 else (serial[-2], 1)
    inside = around[around.index(moved) + 1:]
    tests = [t for f in inside if isinstance(f, If) for t in f.tests]
    limits = [b for f in inside if isinstance(f, For) for b in (f.lower, f.upper)]
    if moved.step != 1 or any(moved.index in names(t) for t in (*tests, *limits)):
        return
    env = {moved.index: quasi("min", affine(moved.index) + steps, moved.upper - 1)}
    yield place(x, env)
