"""How the operands of a contraction are cut and copied in a call, by its sizes alone: answers of `regimes.py`."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from polyop.ir.expr import Affine, evaluate, expr_names, loads, volume
from polyop.ir.options import ALL_TERMS, CHUNK
from polyop.ir.registers import register_tile
from polyop.ir.target import LINE, PAGE, Target
from polyop.rewrite.copies.contracted import added_up, find_contractions
from polyop.rewrite.regimes.questions import Questions
from polyop.rewrite.regimes.tile_regimes import Tiles

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
MANY = 1 << 14  # results, from which loops around a tile are worth a kernel without them: of 12544 it takes 0.9 of the time
PIXELS, IMAGE_ROWS = 128, 8  # pixels at most, and rows of them, that read filters of windows there: 10 x 10 gain 2 to 4 percent
LITTLE = 2  # times L1 that is copied in so little time that calls of new sizes had better share the kernel for all


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


def is_one_tile(q: Questions, sizes: Mapping[str, int], target: Target, height: int) -> bool:
    """Whether a tile has all columns of many results, so that blocks of more are but loops around it."""
    if q.tile is None or q.sides is None or len(q.sides.columns) > 1:
        return False
    columns, lanes = evaluate(q.tile[1], sizes), target.lanes(q.tile[2])
    many = volume(q.sides.rows, sizes) * columns >= MANY
    return many and columns <= lanes * register_tile(target, lanes, height=height)[1]


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


class InOrder(NamedTuple):
    """The one contraction, if what has its columns lies along them, and may be read there: its extents, and bytes of an element.

    late   whether that is so after it is put in that operand's order (`late.py`)
    slides whether windows go along the rows, as those of pixels that have their channels side by side
    """

    rows: tuple[Affine, ...]
    columns: tuple[Affine, ...]
    summed: tuple[Affine, ...]
    bytes_: int
    late: bool = False
    slides: bool = False


def find_in_order(q: Questions) -> tuple[InOrder, ...]:
    """What may be read so: as the text has it, or late.

    Of several operands with the columns none is copied anyway; narrow ones are taken by instructions of their own, or widened in
    a copy.
    """
    if q.sides is None:
        return ()
    s, last = find_contractions(q.op)[0]
    if any(x.dtype.bytes_ < s.target.dtype.bytes_ for x in loads(s.expr)):
        return ()
    slides, (shape, lies) = any(x.windows for x in q.downs[0]), q.packed
    summed = added_up(q.op, s) if slides else q.brief[0]
    is_one = sum(last in expr_names(x) for x in dict.fromkeys(loads(s.expr))) == 1
    found = InOrder(q.sides.rows, q.sides.columns, summed, s.target.dtype.bytes_, slides=slides)
    plain = (found,) if shape and lies and summed and is_one else ()
    late = (InOrder(x.rows, x.columns, x.summed, x.bytes_, True) for x in q.late if x.rows and len(q.late) == 1)
    return (*plain, *late)


def steps_in_place(found: tuple[InOrder, ...], tiles: Tiles, sizes: Mapping[str, int], target: Target,
                   threads: int) -> int:
    """How many terms at a time are read where they lie, since so few rows use them; 0: they are copied.

    A few of all columns: 9 to 32 rows then share the way of what comes from memory, and do not wait for a block that is copied.
    All of a tile's columns, or so many of them that L2 holds them: the tiles of rows ask for those of the next tile of columns
    meanwhile, where that was measured to pay (`Hints.panels`). Elsewhere if L2 has them all, and leaves a quarter for all else:
    where a tile's columns are a piece of each row, they share sets of the cache, and these hold no more than that.
    """
    x = next((x for x in found if x.late == tiles.late), None)
    if x is None:
        return 0
    rows, terms, asked = volume(x.rows, sizes), volume(x.summed, sizes), target.hints.panels
    held, is_one = volume(x.columns, sizes) * terms * x.bytes_, len(x.columns) == 1
    if x.slides:
        turns = rows // max(1, evaluate(x.rows[-1 - tiles.down], sizes))
        few = rows <= PIXELS * threads and turns <= IMAGE_ROWS * threads  # each thread would make a copy of its own
        return DEPTH if is_one and few and _stays(x, held, sizes, target) else 0
    if is_one and rows <= (AT_ONCE if asked else AWAY) and held > target.l3:  # columns of several indices were not measured
        return CHUNK
    folds = _folds(x, sizes)
    little = held < LITTLE * target.l1 and (rows > AT_HAND or not is_one)
    if asked:
        most = 0 if little else AT_HAND if folds and held <= target.l3 else asked
        steps = ALL_TERMS if terms <= ALL_TERMS else DEPTH if len(x.summed) == 1 else 0
        return steps if rows <= most else 0
    return ALL_TERMS if is_one and not x.late and rows <= (AT_ONCE if folds else AT_HAND) and held <= 3 * target.l2 // 4 else 0


def _folds(x: InOrder, sizes: Mapping[str, int]) -> bool:
    """Whether lines of a column fall on each other in L1."""
    return not evaluate(x.columns[-1], sizes) * x.bytes_ % FOLDED


def _stays(x: InOrder, held: int, sizes: Mapping[str, int], target: Target) -> bool:
    """Whether the filters of windows, `held` bytes, stay where each row of pixels finds them soon enough as they lie.

    Each row of an image reads them all again. They are not so little that their copy takes no time to speak of.
    """
    folds = _folds(x, sizes)
    if target.hints.panels:
        most = target.l3 // 4 if folds else target.l3
    else:
        most = 0 if folds else 3 * target.l2 // 4
    return LITTLE * target.l1 <= held <= most
