"""Prefetching around tiles: what a tile will write, when it is opened; what its innermost loop streams, some steps early.

    for n_r { for v (lanes) { for k { acc[v] += B[k, n_r + v] } } }                      becomes
    for n_r { for v (lanes) { for k { prefetch B[k + 16, n_r + v]; acc[v] += B[k, n_r + v] } } }
    for n_r { for v (lanes) { for k in [0, min(8, ..)) { prefetch B[k, n_r + v + 128]; acc[v] += B[k, n_r + v] } } }

Where the loop has no more steps than that, what comes next is further on in the same rows, or on some processors the rows of
turns to come (`Hints.turns`), and of the next turn of a loop around (`prefetch_turns.py`). On the way are squares of an operand
that is copied turned (`prefetch_squares.py`), and rows that each tile has for itself (`prefetch_rows.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from polyop.codegen.cpu.prefetch_rows import with_next_rows
from polyop.codegen.cpu.prefetch_squares import FEW_STEPS, next_square
from polyop.codegen.cpu.prefetch_turns import Outer, after, next_turn
from polyop.ir.expr import Affine, Load, affine, bounds, is_computed, loads, names, place
from polyop.ir.loops import (
    LOCKSTEP,
    Buffer,
    For,
    If,
    Kind,
    LoopNest,
    Node,
    Prefetch,
    Space,
    Store,
    has_loop,
    rebuild,
    stores,
    walk,
)
from polyop.ir.target import LINE, USUAL_HINTS, Hints

Body = tuple[Node, ...]

BRIEF = 256
"""Columns times steps of a tile, if these are known, in whose time nothing comes from another cache."""

FURTHER = 2
"""Times as many steps early comes what may lie in memory: eight steps of a tile take about a third of its latency."""

ADDED = 4096
"""Bytes early at least that rows come which are only added up: a step takes no longer than their lines."""

STREAMED = 2048
"""Bytes between what is read and what is prefetched of weights that lie in the order in which a few rows read them, once."""

NEXT = 384
"""Bytes between what a loop that copies rows in FEW_STEPS reads and what it prefetches: mostly the same rows of the next tile."""

ALONG = 512
"""Bytes between what is read and what is prefetched further on in the same row."""


def prefetch_tiles(nest: LoopNest, width: int, hints: Hints = USUAL_HINTS, ahead: int = 8, meet: bool = False,
                   strip: bool = False) -> LoopNest:
    """`nest` with prefetches inside lanes loops around a serial loop, `ahead` of its steps early, or `FURTHER` times as many.

    width   lanes of a vector
    hints   what the processor wants (`again`, `added`, `turns`, and the `cache` for rows that are read once)
    meet    whether rows that lie whole pages apart do not bypass the caches (`Target.pages_meet`); then they are asked for where
            something has been copied for the tile, since windows that are read in place take no longer than the hints
    strip   whether rows that are added up are known to be short (`Options.strip`), so that one follows the other in memory
    """
    space = {b.name: b.space for b in nest.buffers}

    def go(body: Body, around: tuple[Outer, ...] = ()) -> Body:
        out: list[Node] = []
        for n in body:
            out += one(n, around)
            around = after(nest, n, around) if hints.again else around
        return tuple(out)

    def one(n: Node, around: tuple[Outer, ...]) -> Body:
        if isinstance(n, For) and _is_full_tile(n) and not _is_brief(n):
            return (opened(n, around),)
        if isinstance(n, For) and n.kind == Kind.ROWS:
            return (*next_square(nest, n), n)
        inside = (*around, Outer(n)) if isinstance(n, For) and n.kind not in LOCKSTEP else around
        return (rebuild(n, lambda body: go(body, inside)),)

    def opened(n: For, around: tuple[Outer, ...]) -> For:
        outside = {f.index for f in (n, *walk(n.body)) if isinstance(f, For) and f.kind not in LOCKSTEP}
        first: list[Node] = []
        for target, rows, past in dict.fromkeys(_row_stores(n.body, n.is_full)):
            used = _names(target).union(*(names(r.upper) for r in rows))
            if past and not (meet and any(space[x.source] == Space.WORK for s in stores(n.body) for x in loads(s.expr))):
                continue  # a line that is there, or on its way, would have to leave the caches first
            if space[target.source] == Space.TENSOR and not any(map(is_computed, target.index)) and not used & outside:
                hint: Node = Prefetch(target, written=past)
                for r in reversed(rows):
                    hint = replace(r, body=(hint,))
                first.append(hint)
        return replace(n, body=(*dict.fromkeys(first), *(early(b, n, around) for b in n.body)))

    def early(n: Node, tile: For, around: tuple[Outer, ...]) -> Node:
        lanes = tile.index
        if not isinstance(n, For) or n.kind in LOCKSTEP or has_loop(n.body) or _is_window(n, lanes):
            return rebuild(n, lambda body: tuple(early(b, tile, around) for b in body))
        trips = [b - n.lower for b in bounds(n.upper)]
        steps = min((b.const for b in trips if b.is_constant), default=None)
        is_short = steps is not None and steps <= ahead * n.step
        copied = {x.target for x in stores(n.body)}
        few = all(b.is_constant and b.const <= FEW_STEPS * n.step for b in trips)
        few = few and any(space[x.source] == Space.WORK for x in copied)
        streams = {x for s in stores(n.body) for x in loads(s.expr)
                   if x not in copied and space[x.source] != Space.REG and not any(map(is_computed, x.index))
                   and n.index in _names(x) and lanes in _names(x) and _names(x) <= _scope(n, lanes, _names(x))}
        found = sorted({replace(x, guard=()) for x in streams}, key=str)
        tiled = any(isinstance(c, For) and c.kind == Kind.ROWS for c in n.body)
        is_kept = hints.again and steps is not None and steps <= hints.kept * n.step
        rows = {x: next_turn(nest, x, around, hints.again) for x in found if is_kept}
        asked = (rows.get(x) or soon(x, n, tile, is_short, few, tiled) for x in found)
        return with_next_rows(nest, replace(n, body=(*asked, *n.body)), tile, width, hints.cache)

    def soon(x: Load, n: For, tile: For, is_short: bool, few: bool, tiled: bool) -> Prefetch:
        lanes = tile.index
        if is_short and not few and hints.turns and _goes_on(x, nest.buffer(x.source), lanes):
            turn = min(b.const for e in bounds(n.upper) if (b := e - n.lower).is_constant)
            return Prefetch(place(x, {n.index: affine(n.index) + hints.turns * turn}), once=tiled, cache=hints.cache)
        is_added = strip and not tiled and all(space[w.target.source] == Space.REG for w in stores(n.body))
        least = hints.added if is_added and not is_short and space[x.source] == Space.TENSOR else 0
        return Prefetch(later(x, n, tile, is_short, few, tiled), once=tiled, least=least)

    def later(x: Load, n: For, tile: For, is_short: bool, few: bool, tiled: bool) -> Load:
        b, lanes = nest.buffer(x.source), tile.index
        if few and not is_short and b.space == Space.TENSOR and _goes_on(x, b, lanes):
            return place(x, {lanes: affine(lanes) + NEXT // b.dtype.bytes_})
        if is_short and _goes_on(x, b, lanes):
            return place(x, {lanes: affine(lanes) + ALONG // b.dtype.bytes_})
        steps = FURTHER * ahead if b.space == Space.TENSOR else ahead
        if b.space == Space.TENSOR and not tiled and tile.extent:
            steps = max(steps, ADDED // max(LINE, tile.extent * b.dtype.bytes_))
        if b.lasting and not any((e - n.lower).is_constant for e in bounds(n.upper)):  # one panel, from its beginning to its end
            steps = max(steps, STREAMED // (b.dims[-1][0].const * b.dtype.bytes_))
        return place(x, {n.index: affine(n.index) + steps * n.step})

    return replace(nest, body=go(nest.body))


def _is_window(n: For, lanes: str) -> bool:
    """Whether the index of `n` is added to one that results have, { X[q + s] * F[s] }: it is short, and F is read again."""
    kept = frozenset[str]().union(*(_names(s.target) for s in stores(n.body))) | {lanes}
    inside = kept & {f.index for f in walk(n.body) if isinstance(f, For)} | {lanes}
    positions = (p for s in stores(n.body) for x in loads(s.expr) for p in x.index if isinstance(p, Affine))
    return any(n.index in names(p) and names(p) & inside for p in positions)


def _goes_on(x: Load, b: Buffer, lanes: str) -> bool:
    """Whether the row of `b` that lanes read side by side goes on behind them: some loop moves them along it."""
    p = x.index[b.unit] if b.unit is not None else None
    return isinstance(p, Affine) and p.factor(lanes) == 1 and len(p.terms) > 1


def _row_stores(body: Body, past: bool, around: tuple[For, ...] = ()) -> Iterator[tuple[Load, tuple[For, ...], bool]]:
    """What is stored inside rows, the rows loops around it (without their bodies), and whether it may bypass the caches.

    past   whether anything may
    """
    for n in body:
        if isinstance(n, Store) and around:
            yield n.target, around, n.stream and past
        elif isinstance(n, For):
            yield from _row_stores(n.body, past, (*around, replace(n, body=())) if n.kind == Kind.ROWS else around)
        elif isinstance(n, If):
            yield from _row_stores((*n.then, *n.other), past, around)


def _is_full_tile(n: For) -> bool:
    return n.kind == Kind.LANES and has_loop(n.body)


def _is_brief(n: For) -> bool:
    """Whether `n` is known to have so few columns and steps that nothing comes in time."""
    inside = [f for f in walk((n,)) if isinstance(f, For) and f.kind != Kind.ROWS]
    trips = [f.upper - f.lower for f in inside]
    return all(t.is_constant for t in trips) and prod(max(1, t.const) for t in trips) <= BRIEF


def _scope(n: For, lanes: str, used: frozenset[str]) -> frozenset[str]:
    """The names of `used` that exist at the head of `n`: all but rows opened inside."""
    return used - {f.index for f in walk(n.body) if isinstance(f, For)}


def _names(x: Load) -> frozenset[str]:
    return frozenset().union(*(names(p) for p in x.index if isinstance(p, Affine)))
