"""Which calls deserve a kernel of their own on a GPU, by their sizes alone: as `regimes.py` says it of a CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod

from polyop.ir.expr import evaluate, names, volume
from polyop.ir.integers import power_of_two
from polyop.ir.op import Op
from polyop.ir.options import Options
from polyop.ir.registers import WINDOW
from polyop.ir.target import Target
from polyop.rewrite.copies.strewn import to_copy
from polyop.rewrite.ones import fix_sizes
from polyop.rewrite.regimes.blocktiles import BLOCKS, block_shares, block_tiles
from polyop.rewrite.regimes.questions import Questions, questions
from polyop.rewrite.regimes.regimes import narrow_sizes
from polyop.rewrite.regimes.tile_regimes import few_rows
from polyop.rewrite.sums.passes import Pass, Split, find_both
from polyop.rewrite.sums.shares import Sum, lines, sums

SIDE = 16  # rows side by side that a block scans
PARTS = 8  # of a row that make it worth it to read it twice
LINES = (32, 512)  # the shortest row that is told from shorter ones, and the longest of which a block has several
ROWS = 64  # of attention, which a block has
SHARE_BYTES = 32 << 10  # of what is read for a share of a row, at least
SHARES, SHORTEST = 16, 64  # of rows, for each multiprocessor, so that few wait for the last ones; elements of one at least
TALL = 8  # results of a thread below each other where windows slide along them
FULL = 1 << 21  # results that are threads for all multiprocessors even so
LONG_ROW = 256 << 10  # bytes of a row that are not kept near a multiprocessor until they are read again
HELD = (32, 64, 128, 256)  # results of a row that registers hold


def in_blocks(op: Op, q: Questions, sizes: Mapping[str, int], options: Options, target: Target) -> Options:
    """`options` for a call of these sizes on a GPU: what a block of threads has, so that all multiprocessors have blocks.

    A product of which one side is 1 is the sum of rows or columns that it is then, and no block has a tile of it. Where it feeds
    another reduction it stays a product, since it would share loops with that one; but attention of a single query does.
    """
    is_only = sum(s.reduce is not None for s in op.steps) == 1
    ones = (narrow_sizes(q, sizes) or (q.single if few_rows(q, sizes) == 1 else ())) if q.tile and is_only else ()
    alone = [n for p in q.passes if p.rolled and all(sizes[n] == 1 for n in p.rolled.alone) for n in p.rolled.alone]
    ones = tuple(dict.fromkeys((*ones, *(n for n in q.windows if sizes[n] == 1), *alone)))
    known = fix_sizes(op, dict.fromkeys(ones, 1)) if ones else op
    added, rows = (sums(known), lines(known)) if ones else (q.sums, q.lines)
    passes, splits = find_both(known) if ones else (q.passes, q.splits)
    copied = options.inward or to_copy(q.strewn, sizes, target, options.numerics)
    tiles = block_tiles(q, sizes, target, any(x.columns and (x.source, x.depth) in copied for x in q.strewn))
    rows = tuple(dict.fromkeys((*rows, *(n for x in splits for n in x.beside))))
    split = row_shares(splits, sizes) if options.numerics != "strict" else 0
    whole = {n for x in splits if split for n in x.results}
    whole |= {n for p in passes if p.rolled and fills_device(p, sizes) for n in p.rolled.results}
    added = tuple(x for x in added if x.target not in whole)
    shares = block_shares(added, sizes, tiles)
    hints = (*options.hints, *short_lines(rows, sizes, dict(options.hints)))
    if tiles.sides:  # without them hints would say what they are
        hints += copied_lines(q, copied, sizes, {*dict(hints), *dict(windows(q, sizes))})
    height = TALL if {*q.slides} & dict(windows(q, sizes)).keys() and is_tall(op, q, sizes) else 0
    return replace(options, ones=ones, fixed=options.fixed or windows(q, sizes), height=height, tile=tiles.sides,
                   lines=tiles.lines, alone=tiles.alone and not shares, inward=copied, shares=shares, split=split,
                   hints=(*hints, *cut_lines(tuple(x for x in added if x.target in dict(shares)), sizes, dict(hints))),
                   apart=rows_apart(q, sizes), held=held_sizes(passes, sizes))


def is_tall(op: Op, q: Questions, sizes: Mapping[str, int]) -> bool:
    """Whether windows slide along so many rows that `TALL` of a thread are mostly there, and all multiprocessors have threads."""
    rows = [evaluate(e, sizes) for e in q.slid]
    results = max(volume(t.shape, sizes) for t in op.outputs)
    return results >= FULL and all(n % TALL == 0 or n > 4 * TALL for n in rows)


def windows(q: Questions, sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """(size, value) of small windows: of the one contraction, whose turns of copies are counted over all their elements then, and
    of those whose results share what they read.
    """
    found = dict.fromkeys((*_windows(q), *q.slides))
    return tuple((n, sizes[n]) for n in found if 1 < sizes[n] <= WINDOW)


def _windows(q: Questions) -> tuple[str, ...]:
    return q.windows if q.tile else ()


def fills_device(p: Pass, sizes: Mapping[str, int]) -> bool:
    """Whether a chain has tiles of rows for half of the multiprocessors: one kernel then, whose sums stay whole."""
    rows = [evaluate(e, sizes) for e in p.rows]
    return bool(rows) and prod(rows[:-1]) * -(-rows[-1] // ROWS) >= BLOCKS // 2


def row_shares(splits: tuple[Split, ...], sizes: Mapping[str, int]) -> int:
    """Elements of a share of the rows over which chains of reductions go, where there are too few rows; 0 if there are not.

    A share is worth a block of threads, and so short that it is near when it is read again, as whole rows are not if they are
    long, whatever their number. Shorter ones than `SHORTEST` would be loops of a block that has the row.
    """
    for x in splits:
        rows, extent = max(1, volume(x.rows, sizes)), evaluate(x.extent, sizes)
        bytes_ = x.bytes_ * max(1, sum(sizes[n] for n in x.beside))
        is_cut = rows < BLOCKS or extent * bytes_ >= LONG_ROW
        shares = min(extent * bytes_ // SHARE_BYTES, SHARES * BLOCKS // rows, extent // SHORTEST) if is_cut else 0
        if shares > 1:
            return power_of_two(-(-extent // shares))
    return 0


def held_sizes(passes: tuple[Pass, ...], sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """The sizes that are as many results of a row, or products, as a block of threads has room for, and how many at most."""
    found = dict.fromkeys(n for p in passes if p.rolled for n in p.rolled.kept if sizes[n] <= HELD[-1])
    return tuple((n, next(m for m in HELD if sizes[n] <= m)) for n in found)


def rows_apart(q: Questions, sizes: Mapping[str, int]) -> bool:
    """Whether a scan of a call goes along rows so few that a block for each would leave multiprocessors without work.

    Blocks that share a row read it twice, so it must have several parts for each.
    """
    for r in q.scans:
        rows = [evaluate(e, sizes) for e in r.rows]
        if r.across:  # half the lanes of a warp have a row each
            rows[-1] = -(-rows[-1] // SIDE)
        if prod(rows) < BLOCKS and evaluate(r.extent, sizes) >= PARTS * r.part:
            return True
    return False


def short_lines(found: tuple[str, ...], sizes: Mapping[str, int], known: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Hints, for sizes that are not `known`, of rows so short that a block of threads has several: at most twice as long."""
    return tuple((n, max(LINES[0], power_of_two(sizes[n]))) for n in found if sizes[n] <= LINES[1] and n not in known)


def copied_lines(q: Questions, copied: Iterable[tuple[str, int]], sizes: Mapping[str, int],
                 known: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Hints, for sizes that are not `known`, of rows so short that squares which are turned have half as much of them."""
    rows = dict.fromkeys(x.shape[-1].name for x in q.strewn if (x.source, x.depth) in copied and x.shape[-1].name)
    return tuple((n, LINES[0]) for n in rows if n and sizes[n] <= LINES[0] and n not in known)


def cut_lines(cut: tuple[Sum, ...], sizes: Mapping[str, int], known: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Hints, for sizes that are not `known`, of how long the sums are that are `cut`: they say how many shares are joined."""
    found = dict.fromkeys(n for x in cut for n in names(x.deep) if n in sizes and n not in known)
    return tuple((n, power_of_two(sizes[n])) for n in found)


def kinds_on_gpus(op: Op) -> tuple[str, ...]:
    """The sorts of calls that get a kernel of their own on a GPU, in words: see `in_blocks`."""
    q = questions(op)
    out = ["with an empty size"] if op.sizes else []
    out += [f"where {n} is 1" for n in dict.fromkeys((*q.narrow, *q.windows))]
    small = (*_windows(q), *q.slides)
    if small:
        out.append(f"where {' or '.join(dict.fromkeys(small))} is one of 2 to {WINDOW}")
    if q.slides:
        out.append(f"in which windows slide along {TALL} rows, or many")
    if q.tile:
        out.append("in which a product has too few results for all multiprocessors, or other tiles are less empty")
    if q.strewn:
        out.append("in which an operand of a product is not in pieces of 16 bytes, and used often enough to be copied first")
    if q.sums:
        out.append("in which sums are long and their results few")
    kept = dict.fromkeys(n for p in q.passes if p.rolled for n in p.rolled.kept)
    if kept:
        out.append(f"where {' or '.join(kept)} is at most {', '.join(map(str, HELD))}")
    if q.splits or q.scans:
        out.append("in which rows are few and long")
    if q.lines:
        out.append(f"where {' or '.join(q.lines)} is at most {LINES[1]}")
    return (*out, "in which a place in memory takes more than 32 bits")
