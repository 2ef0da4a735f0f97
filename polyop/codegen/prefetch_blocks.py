"""Prefetching the next block of what lasts from call to call, while the tiles of rows use this one.

    for n_c by 48 { for m_r by 4 { for n_r by 24 { for v (lanes 24) { for k { acc += A[m_r, k] * W[n_c + n_r, k, v] } } } } }

becomes, where k has 512 steps, with a fourth of the block asked for by each of the first four tiles of rows, evenly,

    .. for k { prefetch W[n_c + n_r + 48, 128 min(m_r / 4, 3), 6 k]; acc += A[m_r, k] * W[n_c + n_r, k, v] } ..

Weights that no cache holds would come from memory while the first tile of rows waits for them, and all others would leave the
memory idle. So 16 rows of a layer of 64 MB take 0.6 of the time, and 32 rows 0.8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from polyop.ir.expr import Affine, Load, affine, bounds, is_computed, loads, names, quasi
from polyop.ir.loops import LOCKSTEP, For, Kind, LoopNest, Node, Prefetch, has_loop, rebuild, stores
from polyop.ir.target import LINE

TURNS = 4
"""Tiles of rows that ask for the next block together: all of 16 rows; of more rows the others ask for what has come."""

WINDOW = 2
"""The same where a window stands around the steps: rows of a tile are those of an image, and short."""


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


def _hints(nest: LoopNest, n: For, around: tuple[For, ...]) -> Iterator[Prefetch]:
    """What the steps `n` of a tile ask for, which stand in the loops `around`."""
    at = next((k for k, f in enumerate(around) if f.kind == Kind.LANES and f.is_full), None)
    if at is None:
        return
    lanes, window = around[at], any(f.kind not in LOCKSTEP for f in around[at + 1:])
    found = dict.fromkeys(x for s in stores(n.body) for x in loads(s.expr) if nest.buffer(x.source).lasting)
    for x in found:
        yield from _next_block(nest, x, n, lanes, around[:at], WINDOW if window else TURNS)


def _next_block(nest: LoopNest, x: Load, n: For, lanes: For, around: tuple[For, ...], turns: int) -> Iterator[Prefetch]:
    """Hints for a part of the next block of `x`, by one step `n` of a tile."""
    columns = lanes.extent or 1
    index = [p for p in x.index if isinstance(p, Affine)]
    units = [unit for _, unit in nest.buffer(x.source).dims]
    if any(map(is_computed, x.index)) or units.count(columns) != 1:
        return
    panel = units.index(columns)
    deep = [d for d, p in enumerate(index) if n.index in names(p)]
    wide = [d for d, p in enumerate(index) if lanes.index in names(p)]
    depth = min((b.const for b in bounds(n.upper - n.lower) if b.is_constant), default=0)
    used = frozenset[str]().union(*map(names, index))
    rows = next((k for k in reversed(range(len(around))) if around[k].index not in used and around[k].step > 1), None)
    if rows is None or len(deep) != 1 or len(wide) != 1 or depth % (turns * units[deep[0]]) or around[rows].lower != Affine():
        return
    block = next((f for f in reversed(around[:rows]) if f.index in names(index[panel])), None)
    if block is None or index[deep[0]].factor(n.index) != 1 or columns % turns:
        return
    unit, new = units[deep[0]], list(index)
    turn = quasi("min", quasi("div", affine(around[rows].index), affine(around[rows].step)), affine(turns - 1))
    new[panel] += block.step
    new[deep[0]] += n.lower + turn * (depth // turns) - affine(n.index)
    new[wide[0] + 1:] = [Affine()] * len(new[wide[0] + 1:])  # steps that one lane takes at once lie side by side
    along = quasi("div", affine(n.index) - n.lower, affine(unit)) * (columns // turns)  # rows lie one behind the other
    bytes_ = columns // turns * unit * x.dtype.bytes_
    for line in range(ceil(bytes_ / LINE)):
        new[wide[0]] = along + line * (LINE // (x.dtype.bytes_ * unit))
        yield Prefetch(replace(x, index=tuple(new), guard=()), cache=2)
