"""Whether overlapped tiles pay in a call, and how many rows they have: memory traffic against what is computed twice."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from polyop.ir.expr import evaluate, volume
from polyop.ir.target import Target
from polyop.rewrite.windows.chains import Chain

LEAST, MOST = 8, 128
"""Rows of a tile: fewer compute too much of a halo twice, more gain nothing."""

MOVED = 40
"""Multiply-adds of f32 in whose time an element is fetched, written and read again beyond L2."""


def tile_rows(chains: tuple[Chain, ...], sizes: Mapping[str, int], target: Target) -> int:
    """How many rows a tile has in a call of these sizes: as many as stay in L2. 0 if everything does, or if tiles do not pay.

    Beyond L2 what is handed over is fetched, written and read again; tiles compute their spare rows once more. None on GPUs:
    each thread has a point there.
    """
    if target.warp or max((_bytes(c, sizes, None) for c in chains), default=0) <= target.l2:
        return 0
    rows = MOST
    while rows >= LEAST and max(_bytes(c, sizes, rows) for c in chains) > target.l2:
        rows //= 2
    return rows if rows >= LEAST and sum(_gain(c, sizes, rows) for c in chains) > 0 else 0


def _bytes(c: Chain, sizes: Mapping[str, int], tile: int | None) -> int:
    """What is kept of what is handed over in `c`, in bytes: with tiles of so many rows, or as it would be without."""
    total = 0
    for t in c.stored:
        r = c.rows[t.name]
        extents = [evaluate(e, sizes) for e in t.shape]
        if tile is not None:
            extents[r.dim] = min(extents[r.dim], evaluate(r.count(tile), sizes))
        total += prod(extents[c.batches if tile is not None or c.shared else 0 :]) * t.dtype.bytes_
    return total


def _gain(c: Chain, sizes: Mapping[str, int], tile: int) -> float:
    """The time that tiles save in `c`, in multiply-adds."""
    total = 0.0
    for t, terms in zip(c.handed, c.terms, strict=True):
        r = c.rows[t.name]
        spare = evaluate(r.count(tile), sizes) / (r.stride * tile) - 1
        moved = MOVED if t in c.stored else 0
        total += volume(t.shape, sizes) * (moved - spare * volume(terms, sizes))
    return total
