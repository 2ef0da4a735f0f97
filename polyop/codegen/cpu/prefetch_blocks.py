"""Prefetching the next block of what lasts from call to call, while the tiles of rows use this one.

    for n_c by 48 { for m_r by 4 { for n_r by 24 { for v (lanes 24) { for k { acc += A[m_r, k] * W[n_c + n_r, k, v] } } } } }

becomes, where k has 512 steps, with a fourth of the block asked for by each of the first four tiles of rows, evenly,

    .. for k { prefetch W[n_c + n_r + 48, 128 min(m_r / 4, 3), 6 k]; acc += A[m_r, k] * W[n_c + n_r, k, v] } ..

Weights that no cache holds would come from memory while the first tile of rows waits for them, and all others would leave the
memory idle. So 16 rows of a layer of 64 MB take 0.6 of the time, and 32 rows 0.8. Of a window's rows, those of an image, the
first four ask, and no others, of which there may be many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from polyop.ir.expr import Affine, Load, affine, bounds, is_computed, loads, names, quasi
from polyop.ir.loops import LOCKSTEP, For, If, Kind, LoopNest, Node, Prefetch, has_loop, rebuild, stores
from polyop.ir.target import LINE

TURNS = 4
"""Tiles of rows, or rows of an image, that ask for the next block together: all of 16 rows; where there are more, what has come
is asked for again, which costs less than to find out."""


def prefetch_blocks(nest: LoopNest) -> LoopNest:
    """`nest` with hints for the next block of each buffer that lasts; itself, if there is none."""
    return replace(nest, body=_go(nest, nest.body, ())) if any(b.lasting for b in nest.buffers) else nest


def _go(nest: LoopNest, body: tuple[Node, ...], around: tuple[For, ...]) -> tuple[Node, ...]:
    return tuple(_one(nest, n, around) for n in body)


def _one(nest: LoopNest, n: Node, around: tuple[For, ...]) -> Node:
    if not isinstance(n, For):
        return rebuild(n, lambda inner: _go(nest, inner, around))
    if n.kind not in LOCKSTEP and not has_loop(n.body):
        return replace(n, body=(*_hints(nest, n, around), *n.body))
    return replace(n, body=_go(nest, n.body, (*around, n)))


def _hints(nest: LoopNest, n: For, around: tuple[For, ...]) -> Iterator[Node]:
    """What the steps `n` of a tile ask for, which stand in the loops `around`."""
    at = next((k for k, f in enumerate(around) if f.kind == Kind.LANES and f.is_full), None)
    if at is None:
        return
    lanes, window = around[at], any(f.kind not in LOCKSTEP for f in around[at + 1:])
    for x in dict.fromkeys(x for s in stores(n.body) for x in loads(s.expr) if nest.buffer(x.source).lasting):
        block = _block(nest, x, n, lanes, around[:at])
        if block is None:
            continue
        tests, turn = _of_image(block[1]) if window else ((), _of_tiles(block[1]))
        hints = tuple(_next_block(nest, x, n, lanes, block[0], turn)) if turn is not None else ()
        yield from (If(tests, hints),) if tests and hints else hints


def _block(nest: LoopNest, x: Load, n: For, lanes: For, around: tuple[For, ...]) -> tuple[For, tuple[For, ...]] | None:
    """(the loop over blocks of `x`, the loops inside it that read the same of it) around the steps `n` of a tile.

    None, if no part of the next block is to be found by a step: a block has a panel as broad as the tile in one dimension, and a
    known number of steps in another.
    """
    b = nest.buffer(x.source)
    if any(map(is_computed, x.index)) or [u for _, u in b.dims].count(lanes.extent or 0) != 1 or (lanes.extent or 0) % TURNS:
        return None
    index = [p for p in x.index if isinstance(p, Affine)]
    panel, deep, wide = _dimensions(nest, x, n, lanes)
    if len(deep) != 1 or len(wide) != 1 or index[deep[0]].factor(n.index) != 1 or _steps(n) % (TURNS * b.dims[deep[0]][1]):
        return None
    used = frozenset[str]().union(*map(names, index))
    last = next((k for k in reversed(range(len(around))) if around[k].index not in used), 0)
    at = next((k for k in reversed(range(last)) if around[k].index in names(index[panel])), None)
    return None if at is None else (around[at], tuple(f for f in around[at + 1:] if f.index not in used))


def _dimensions(nest: LoopNest, x: Load, n: For, lanes: For) -> tuple[int, list[int], list[int]]:
    """Those of `x` that count panels, steps `n`, and lanes."""
    index = [names(p) for p in x.index if isinstance(p, Affine)]
    panel = [u for _, u in nest.buffer(x.source).dims].index(lanes.extent or 0)
    return panel, [d for d, p in enumerate(index) if n.index in p], [d for d, p in enumerate(index) if lanes.index in p]


def _steps(n: For) -> int:
    """How many there are at most, if that is known; or 0, that is: none for which there is a part."""
    return min((b.const for b in bounds(n.upper - n.lower) if b.is_constant), default=1)


def _of_tiles(again: tuple[For, ...]) -> Affine | None:
    """Which part of a block a tile of rows asks for; None if no loop goes over such tiles."""
    rows = next((f for f in reversed(again) if f.step > 1 and f.lower == Affine()), None)
    return quasi("min", quasi("div", affine(rows.index), affine(rows.step)), affine(TURNS - 1)) if rows else None


def _of_image(again: tuple[For, ...]) -> tuple[tuple[Affine, ...], Affine | None]:
    """(where a row of an image asks, for which part), or of its tiles, if it has one row."""
    rows = next((f for f in reversed(again) if f.step == 1), next(reversed(again), None))
    if rows is None:
        return (), None
    turn = quasi("div", affine(rows.index) - rows.lower, affine(rows.step))
    others = (f for f in again if f is not rows and f.step == 1)
    return (affine(TURNS - 1) - turn, *(f.lower - affine(f.index) for f in others)), turn


def _next_block(nest: LoopNest, x: Load, n: For, lanes: For, block: For, turn: Affine) -> Iterator[Node]:
    """Hints for a line or more of that part of the next block of `x`, by one step `n` of a tile."""
    panel, (deep,), (wide,) = _dimensions(nest, x, n, lanes)
    dims, columns = nest.buffer(x.source).dims, lanes.extent or 0
    unit, new = dims[deep][1], [p for p in x.index if isinstance(p, Affine)]
    # beyond the last panel there may be no memory, and to find that out takes long each time
    new[panel] = quasi("min", new[panel] + block.step, dims[panel][0] - 1)
    new[deep] += n.lower + turn * (_steps(n) // TURNS) - affine(n.index)
    new[wide + 1:] = [Affine()] * len(new[wide + 1:])  # steps that one lane takes at once lie side by side
    along = quasi("div", affine(n.index) - n.lower, affine(unit)) * (columns // TURNS)  # rows lie one behind the other
    for line in range(ceil(columns // TURNS * unit * x.dtype.bytes_ / LINE)):
        new[wide] = along + line * (LINE // (x.dtype.bytes_ * unit))
        yield Prefetch(replace(x, index=tuple(new), guard=()), cache=2)
