"""How the operands of a contraction are cut and copied in a call, by its sizes alone: answers of `regimes.py`."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from polyop.ir.expr import Affine, evaluate, expr_names, loads, volume
from polyop.ir.target import LINE, PAGE, Target
from polyop.rewrite.contracted import find_contractions
from polyop.rewrite.questions import Questions

ROWS = 256  # of a product, from which threads may copy all columns that a cache holds, each for itself
RESULTS = 1 << 18  # of each thread, from which they do: its share goes in four chunks, which have as many columns as rows
FEW = 56  # rows that use what is packed in so little time that its way from the last cache takes as long
USED = 256  # columns at most that rows along an operand's lines are read in place for: 80 x 500 x 200 took 1.03 times as long so
APART = PAGE // 4  # bytes from line to line of such an operand, from which lines fall on each other in L1
PIECE = 256  # bytes of a row of results that they take at a time else
LONGER = 64  # steps of each index that is added up along, from which partial sums may be stored and fetched again in between
AT_HAND = 32  # rows for which a copy of what L2 holds costs more than it saves; with 48 it pays about as often as not
AWAY = 32  # rows for which memory is what a product waits for: with 48 it takes as long as with a copy
DEPTH = 512  # steps of a block of columns
SHARE = 5  # times L2 that all rows may read of it: 1000 to 1280 rows on Zen 3 are as fast together as in two parts, or faster
FOLDED = PAGE // 2  # bytes from row to row of it, whose multiples make lines of a column fall on each other in L1, so that
AT_ONCE = 16  # rows at most, two tiles, read it there: 20 to 32 take up to 1.2 times as long as with a copy


def has_many_rows(q: Questions, sizes: Mapping[str, int], threads: int, turned: bool) -> bool:
    """Whether each thread has so many rows of a contraction that it copies more columns, to read the rows less often."""
    if q.sides is None or q.tile is None or (q.sides.is_near and not turned):
        return False
    down, along = (q.sides.columns, q.sides.rows) if turned else (q.sides.rows, q.sides.columns)
    rows, columns = volume(down, sizes), volume(along, sizes)
    return rows >= ROWS and rows * columns >= threads * RESULTS and evaluate(along[-1], sizes) * q.tile[2] > PIECE


def rows_leave(q: Questions, sizes: Mapping[str, int], target: Target, turned: bool) -> bool:
    """Whether what a contraction's rows read of a block's depth leaves the last cache before the next block of columns reads it.

    All cores share that cache: one that has more than a few times its L2 there has what the others leave.
    """
    if q.sides is None or q.tile is None or not q.brief[0]:
        return False
    down, along = (q.sides.columns, q.sides.rows) if turned else (q.sides.rows, q.sides.columns)
    read = min(volume(q.brief[0], sizes), DEPTH) * q.brief[2]
    return evaluate(down[-1], sizes) * read > SHARE * target.l2 and volume(along, sizes) * read > target.l2


def rows_stay(q: Questions, sizes: Mapping[str, int], target: Target, turned: bool) -> bool:
    """Whether all that has the rows of a contraction stays in L2, and what has the columns does not, so that it comes from far.

    And whether a tile's columns make enough of each row: by a window, or since there are so few rows that the copy of what has
    the columns, which lies along them, takes as long as all the rest.
    """
    if q.tile is None or q.sides is None or not (q.unpacked and q.packed[0]):
        return False
    shape, lies = q.packed
    rows, stays, comes = (q.sides.columns, shape, q.unpacked) if turned else (q.sides.rows, q.unpacked, shape)
    is_matrix = not turned and len(q.sides.columns) == 1
    often = prod(sizes[n] for n in q.windows) > 1 or (lies and is_matrix and volume(rows, sizes) <= FEW)
    return often and volume(stays, sizes) * q.tile[2] <= target.l2 // 2 and volume(comes, sizes) * q.tile[2] > target.l2


def lies_close(q: Questions, sizes: Mapping[str, int], target: Target) -> bool:
    """Whether few columns use an operand that lies along the rows, of which a tile reads few lines, close to each other."""
    if q.tile is None or evaluate(q.tile[1], sizes) > USED:
        return False
    *depth, along = q.unpacked
    return 2 * LINE * volume(depth, sizes) <= target.l1 and evaluate(along, sizes) * q.tile[2] < APART


def is_deep(q: Questions, sizes: Mapping[str, int], target: Target) -> bool:
    """Whether what one tile of columns reads along all that is added up, several long indices, leaves half of L2."""
    extents = [evaluate(e, sizes) for e in q.deep]
    panel = prod(extents) * target.fma_chains // 2 * target.vector_bytes  # as many vectors as the widest tile has
    return q.tile is not None and len(extents) > 1 and min(extents) >= LONGER and panel > target.l2 // 2


def find_in_order(q: Questions) -> tuple[Affine, ...]:
    """What the one contraction adds up along, if one operand, as wide as the sum, has its one column and lies along it; else ().

    Of several, none is copied anyway; narrow ones are taken by instructions of their own, or widened in a copy. Columns of
    several dimensions, as of images that do not lie in one piece, were not measured.
    """
    summed, (shape, lies) = q.brief[0], q.packed
    if q.sides is None or len(q.sides.columns) > 1 or not (shape and lies and summed):
        return ()
    s, last = find_contractions(q.op)[0]
    reads = dict.fromkeys(loads(s.expr))
    is_one = sum(last in expr_names(x) for x in reads) == 1
    return summed if is_one and all(x.dtype.bytes_ >= s.target.dtype.bytes_ for x in reads) else ()


def is_at_hand(summed: tuple[Affine, ...], q: Questions, sizes: Mapping[str, int], target: Target) -> bool:
    """Whether few rows use what lies along the columns of a contraction, and L2 holds it: tiles then read it where it lies.

    A quarter of L2 is left for all else: where a tile's columns are a piece of each row, they share sets of the cache, and these
    hold no more than that.
    """
    assert q.sides is not None
    along = q.packed[0][-1]
    most = AT_HAND if evaluate(along, sizes) * q.brief[2] % FOLDED else AT_ONCE
    return volume(q.sides.rows, sizes) <= most and _held(summed, q, sizes) <= 3 * target.l2 // 4


def is_far(summed: tuple[Affine, ...], q: Questions, sizes: Mapping[str, int], target: Target) -> bool:
    """Whether few rows use what lies along the columns of a contraction, and it comes from memory: they then share its way.

    A block of columns that is copied for them is waited for. Batches each count by themselves: many small operands that exceed
    the last cache together were not measured.
    """
    assert q.sides is not None
    return volume(q.sides.rows, sizes) <= AWAY and _held(summed, q, sizes) > target.l3


def _held(summed: tuple[Affine, ...], q: Questions, sizes: Mapping[str, int]) -> int:
    """Bytes of what has a contraction's columns."""
    assert q.sides is not None
    return volume(q.sides.columns, sizes) * volume(summed, sizes) * q.brief[2]
