"""Prefetching around tiles: what a tile will write, when it is opened; what its innermost loop streams, some steps early.

    for n_r { for v (lanes) { for k { acc[v] += B[k, n_r + v] } } }                      becomes
    for n_r { for v (lanes) { for k { prefetch B[k + 16, n_r + v]; acc[v] += B[k, n_r + v] } } }
    for n_r { for v (lanes) { for k in [0, min(8, ..)) { prefetch B[k, n_r + v + 128]; acc[v] += B[k, n_r + v] } } }
    for s (rows) { for l (lanes) { W[s, l] = B[n + l, k + s] } }                         becomes
    for l (rows) { prefetch B[n + l, k + 96] } for s (rows) { for l (lanes) { W[s, l] = B[n + l, k + s] } }

Where the loop has no more steps than that, what comes next is further on in the same rows; so it is where a square of an operand
is copied turned, of which it is known that few steps of the depth, here 96, are added up. On some processors it is the rows of
the next turn of a loop around, where those of this turn were read before and lie in a cache: meanwhile memory would wait.

    for t { for i { .. A[8*t + i, j] .. } for v (lanes) { for i in [0, 8) { prefetch A[8*t + i + 8, v]; .. A[8*t + i, v] .. } } }
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from math import prod

from polyop.ir.expr import Affine, Load, affine, bounds, is_computed, loads, names, place, quasi
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
from polyop.ir.target import LINE

Body = tuple[Node, ...]

BRIEF = 256
"""Columns times steps of a tile, if these are known, in whose time nothing comes from another cache."""

FURTHER = 2
"""Times as many steps early comes what may lie in memory: eight steps of a tile take about a third of its latency."""

STREAMED = 2048
"""Bytes between what is read and what is prefetched of weights that lie in the order in which a few rows read them, once."""

NARROW = 2
"""Vectors of a tile's columns that leave so little to do with what is read of a row that it must come early."""

MOST_STEPS = 512
"""Of a tile whose rows are pieces too short for hardware to see a stream in them."""

TILES = 2  # early that rows come: of 20 MB in rows of 400 bytes 1.22 ms, one early 1.27, all at once 1.75, none 1.65

FEW_STEPS = 128
"""Steps, if these are known, of a loop that copies rows of an operand: 16 steps early, an eighth and more would be none of it."""

NEXT = 384
"""Bytes between what such a loop reads and what it prefetches: mostly the same rows of the next tile."""

ALONG = 512
"""Bytes between what is read and what is prefetched further on in the same row."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of `loop`, and what of tensors it has `seen` so far."""

    loop: For
    seen: frozenset[Load] = frozenset()


def prefetch_tiles(nest: LoopNest, width: int, ahead: int = 8, again: int = 0) -> LoopNest:
    """`nest` with prefetches inside lanes loops around a serial loop, `ahead` of its steps early, or `FURTHER` times as many.

    width   lanes of a vector
    again   cache to which rows come that are read for the first time in the next turn of a loop around; 0: none do
    """
    space = {b.name: b.space for b in nest.buffers}

    def go(body: Body, around: tuple[Turn, ...] = ()) -> Body:
        out: list[Node] = []
        for n in body:
            out += one(n, around)
            seen = _tensors(nest, n) if again and around else frozenset()
            around = tuple(replace(t, seen=t.seen | seen) for t in around)
        return tuple(out)

    def one(n: Node, around: tuple[Turn, ...]) -> Body:
        if isinstance(n, For) and _is_full_tile(n) and not _is_brief(n):
            return (opened(n, around),)
        if isinstance(n, For) and n.kind == Kind.ROWS:
            return (*next_square(nest, n), n)
        inside = (*around, Turn(n)) if isinstance(n, For) and n.kind not in LOCKSTEP else around
        return (rebuild(n, lambda body: go(body, inside)),)

    def opened(n: For, around: tuple[Turn, ...]) -> For:
        outside = {f.index for f in (n, *walk(n.body)) if isinstance(f, For) and f.kind not in LOCKSTEP}
        first: list[Node] = []
        for target, rows in dict.fromkeys(_row_stores(n.body, n.is_full)):
            used = _names(target).union(*(names(r.upper) for r in rows))
            if space[target.source] == Space.TENSOR and not any(map(is_computed, target.index)) and not used & outside:
                hint: Node = Prefetch(target)
                for r in reversed(rows):
                    hint = replace(r, body=(hint,))
                first.append(hint)
        return replace(n, body=(*dict.fromkeys(first), *(early(b, n, around) for b in n.body)))

    def early(n: Node, tile: For, around: tuple[Turn, ...]) -> Node:
        lanes = tile.index
        if not isinstance(n, For) or n.kind in LOCKSTEP or has_loop(n.body) or _is_window(n, lanes):
            return rebuild(n, lambda body: tuple(early(b, tile, around) for b in body))
        is_short = any((b - n.lower).is_constant and (b - n.lower).const <= ahead * n.step for b in bounds(n.upper))
        copied = {x.target for x in stores(n.body)}
        few = all(b.is_constant and b.const <= FEW_STEPS * n.step for b in (b - n.lower for b in bounds(n.upper)))
        few = few and any(space[x.source] == Space.WORK for x in copied)
        streams = {x for s in stores(n.body) for x in loads(s.expr)
                   if x not in copied and space[x.source] != Space.REG and not any(map(is_computed, x.index))
                   and n.index in _names(x) and lanes in _names(x) and _names(x) <= _scope(n, lanes, _names(x))}
        found = sorted({replace(x, guard=()) for x in streams}, key=str)
        tiled = any(isinstance(c, For) and c.kind == Kind.ROWS for c in n.body)
        hints = ((is_short and next_turn(x, around)) or Prefetch(later(x, n, lanes, is_short, few), once=tiled) for x in found)
        return with_next_rows(nest, replace(n, body=(*hints, *n.body)), tile, width)

    def next_turn(x: Load, around: tuple[Turn, ...]) -> Prefetch | None:
        turns = (t.loop for t in reversed(around) if any(_same_rows(nest, x, y, t.loop.index) for y in t.seen))
        loop = next(turns, None) if again else None
        return Prefetch(place(x, {loop.index: affine(loop.index) + loop.step}), cache=again) if loop else None

    def later(x: Load, n: For, lanes: str, is_short: bool, few: bool) -> Load:
        b = nest.buffer(x.source)
        if few and not is_short and b.space == Space.TENSOR and _goes_on(x, b, lanes):
            return place(x, {lanes: affine(lanes) + NEXT // b.dtype.bytes_})
        if is_short and _goes_on(x, b, lanes):
            return place(x, {lanes: affine(lanes) + ALONG // b.dtype.bytes_})
        steps = FURTHER * ahead if b.space == Space.TENSOR else ahead
        if b.lasting and not any((e - n.lower).is_constant for e in bounds(n.upper)):  # one panel, from its beginning to its end
            steps = max(steps, STREAMED // (b.dims[-1][0].const * b.dtype.bytes_))
        return place(x, {n.index: affine(n.index) + steps * n.step})

    return replace(nest, body=go(nest.body))


def next_square(nest: LoopNest, n: For) -> Iterator[Node]:
    """Hints for what the same square of the next block reads, where `n` copies a whole one: rows of an operand become columns.

    These rows are as long as the sum, and each lies on a page of its own; mostly the next block's follow them.
    """
    lanes = n.body[0]
    if not isinstance(lanes, For) or lanes.kind != Kind.LANES or not lanes.is_full or not n.is_full or len(lanes.body) > 1:
        return
    s = lanes.body[0]
    if not isinstance(s, Store) or not isinstance(s.expr, Load) or any(map(is_computed, (*s.target.index, *s.expr.index))):
        return
    to, b = nest.buffer(s.target.source), nest.buffer(s.expr.source)
    if to.space != Space.WORK or b.space != Space.TENSOR or b.unit is None:
        return
    along = s.expr.index[b.unit]
    position = zip(s.target.index, to.dims, strict=True)
    steps = [extent for p, (extent, _) in position if isinstance(p, Affine) and n.index in names(p)]
    is_upright = isinstance(along, Affine) and along.factor(n.index) == 1 and lanes.index not in names(along)
    if is_upright and len(steps) == 1 and steps[0].is_constant and steps[0].const <= FEW_STEPS:
        later = place(s.expr, {n.index: steps[0]})
        yield replace(lanes, kind=Kind.ROWS, body=(Prefetch(replace(later, guard=())),))


def with_next_rows(nest: LoopNest, n: For, tile: For, width: int) -> Node:
    """`n` with hints for what the tile after next reads of rows of its own, where `tile` has few columns and `n` few steps.

        for k { acc[p, v] += A[m + p, k] * B[k, v] }                                                   becomes
        if 512 - K >= 0 { for k { if k mod 16 = 0 { for p { prefetch A[m + p + 12, k] } } acc[p, v] += .. } } else { .. }

    Rows are then read once, in pieces too short for hardware to see them coming. A loop that also copies is one of many. Rows
    that a window moves along are read again by its other steps: with hints in each, 3 x 3 of 3 to 24 channels took 1.05 to
    1.25 times as long.
    """
    steps = [b - n.lower for b in bounds(n.upper)]
    brief = tuple(affine(MOST_STEPS) - b for b in steps if not b.is_constant)
    hints = tuple(_next_rows(nest, n, tile)) if tile.extent is not None and tile.extent <= NARROW * width else ()
    is_long = not brief and min(b.const for b in steps) > MOST_STEPS
    if not hints or is_long or any(nest.buffer(s.target.source).space != Space.REG for s in stores(n.body)):
        return n
    hinted = replace(n, body=(*hints, *n.body))
    return If(brief, (hinted,), (n,)) if brief else hinted


def _next_rows(nest: LoopNest, n: For, tile: For) -> Iterator[Node]:
    steps = {f.index for f in walk(tile.body) if isinstance(f, For) and f.kind not in LOCKSTEP}
    for rows in (x for x in n.body if isinstance(x, For) and x.kind == Kind.ROWS and x.extent):
        updates = [s for s in rows.body if isinstance(s, Store) and s.reduce]
        reads = dict.fromkeys(x for s in updates for x in loads(s.expr))
        for x in (x for x in reads if _has_row(nest.buffer(x.source), x, rows.index, n.index, steps)):
            again = affine(n.index) - n.lower
            first = quasi("mod", again, affine(LINE // x.dtype.bytes_)) * -1
            later = place(x, {rows.index: affine(rows.index) + TILES * (rows.extent or 1)})
            yield If((first,), (replace(rows, body=(Prefetch(replace(later, guard=())),)),))


def _has_row(b: Buffer, x: Load, row: str, step: str, steps: Set[str]) -> bool:
    """Whether `row` alone is a row of the tensor `b` to `x`, and `step` of all `steps` goes along it element by element."""
    used = [names(p) if isinstance(p, Affine) else frozenset() for p in x.index]
    along = x.index[b.unit] if b.space == Space.TENSOR and b.unit is not None else None
    is_along = isinstance(along, Affine) and along.factor(step) == 1 and row not in names(along)
    own = [u for u in used if row in u]
    return is_along and len(own) == 1 and not own[0] & steps and sum(step in u for u in used) == 1


def _tensors(nest: LoopNest, n: Node) -> frozenset[Load]:
    """What `n` reads of tensors, at positions that are not computed."""
    found = (x for s in stores((n,)) for x in loads(s.expr) if nest.buffer(x.source).space == Space.TENSOR)
    return frozenset(x for x in found if not any(map(is_computed, x.index)))


def _same_rows(nest: LoopNest, x: Load, y: Load, loop: str) -> bool:
    """Whether both reads are of rows of one tensor that each turn of `loop` has for itself."""
    if x.source != y.source:
        return False
    pairs = zip(x.index, y.index, strict=True)
    moves = [(p.factor(loop), q.factor(loop)) for p, q in pairs if isinstance(p, Affine) and isinstance(q, Affine)]
    unit = nest.buffer(x.source).unit
    along = unit is not None and not moves[unit][0]
    return along and any(a for a, _ in moves) and all(a == b for a, b in moves)


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


def _row_stores(body: Body, past: bool, around: tuple[For, ...] = ()) -> Iterator[tuple[Load, tuple[For, ...]]]:
    """What is stored inside rows, and the rows loops around it (without their bodies).

    past   whether stores may bypass the caches: a line that is there, or on its way, would have to leave them first
    """
    for n in body:
        if isinstance(n, Store) and around and not (n.stream and past):
            yield n.target, around
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
