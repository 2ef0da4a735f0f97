"""Which tiles the contraction of a call gets, by its sizes alone: the answers of `regimes.py` of which one rules out another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from polyop.ir.dots import SUMS, TILE, matrix
from polyop.ir.expr import Affine, evaluate, names, volume
from polyop.ir.integers import filled
from polyop.ir.options import SHORT, STRIP, TURNED, Layout, Options
from polyop.ir.registers import (
    TALLEST,
    WINDOW,
    Turn,
    few_of,
    fitting_height,
    fitting_pair,
    height_beside,
    sliding_height,
    turning_pays,
)
from polyop.ir.target import LINE, NEAR, PAGE, Target
from polyop.rewrite.copies.bordered import CHANNELS
from polyop.rewrite.copies.contracted import Short
from polyop.rewrite.copies.downs import row_of_tiles
from polyop.rewrite.copies.inward import to_turn_inward
from polyop.rewrite.copies.late import TIMES
from polyop.rewrite.copies.upright import COLUMNS
from polyop.rewrite.regimes.questions import Questions
from polyop.rewrite.sums.factors import Inner, inner_rows
from polyop.rewrite.sums.factors import way as way_out

UPRIGHT = 256  # bytes of a row of a product's result, up to which lanes may run along its columns: four vectors
TERMS = 128  # of sums of a streamed operand that are a number
BRIEF = 128  # terms at most of sums that are never cut
FEW_USED = 0.7  # of lanes: ten columns of sixteen
MANY = 16  # terms from which a result is turned whose last dimension leaves vectors half empty
FOLDED = 16  # terms of dot products for each row that there is, from which a copy takes longer
AGAIN = 128  # rows that use what comes from memory, from which products take longer than its way
WHOLE = 8  # vectors that are whole rows of what comes from memory, whatever pieces tiles take of them
STEPS = 128  # of a sum in each turn of a window, from which taller tiles are worth their addresses: with 64 they are as fast
NARROW = 2  # vectors of all columns: a tile of 14 rows then has as many sums as others, and no fewer columns
LITTLE = 64  # rows, columns and steps of a product that loops are written for: of 48 of each a sixth, of 64 a twentieth
LITTLES = 16  # the same of several products, whose loops take longer to compile
SPARED = 12  # bytes that are not copied for each result that is turned instead
JOINED = 4  # times as long takes a result that meets another one: one of them is turned, stored, read and turned again
LEAST = 5  # rows of one vector that go together in a window
TURNS = (1, 4, 8, 16, 32)  # rows of a contraction inside a recurrence for which tiles of their own are made

Values = tuple[tuple[str, int], ...]
"""(size, value), or (size, at most how much), of some sizes."""


class Tiles(NamedTuple):
    """What tiles are made for: fields of `Options`, by their names. A tuple, since it is made for each call of new sizes."""

    ones: tuple[str, ...]
    rows: int
    few: Values
    strip: bool
    fixed: Values
    short: int
    height: int
    down: int
    pair: int
    factors: int
    late: bool
    inward: Values


def tiles(q: Questions, sizes: Mapping[str, int], options: Options, target: Target, threads: int) -> Tiles:
    """Of few rows; of a sum that has lost its factors; turned; of a result in another order; of two columns; or as usual."""
    relaxed = options.numerics != "strict"
    ones, rows, few, strip, short = _few_or_short(q, sizes, target, options.frozen, relaxed)
    factors = options.factors or (way_out(q.inner, sizes) if relaxed else 0)
    if factors and len(q.inner) == 1 and rows:  # tiles are the inner sum's, which is a product of matrices
        rows = few_of(inner_rows(q.inner[0][factors - 1], sizes), target.masks)
    plain = not (rows or few)
    turned = short == TURNED
    turns = turned and plain and relaxed and not factors
    inward = options.inward or (to_turn_inward(q.inward, sizes, target, threads) if turns else ())
    if turned and _windows_of_matrices(q, sizes, target, relaxed):
        inward = options.inward or tuple((x.source, x.depth) for x in q.narrow_inward)
    down = 0 if few or factors or short == SHORT else row_of_tiles(q.downs[turned], sizes, turned, bool(inward))
    fits = turned and any(_is_of_matrices(x, target) for x in q.standing)  # such a tile has as many rows as the unit
    height = tile_height(q, sizes, target, short, down) if plain and q.tile and not fits else 0
    if plain and short != SHORT and has_matrices(q, sizes, target, relaxed, turned and bool(inward)):
        units = whole_units(q, sizes, turned, bool(inward))
        height, down = (height, down) if units is None else (units, 0)
    fixed = tuple((n, sizes[n]) for n in q.slides if 1 < sizes[n] <= WINDOW) if q.slides else ()
    if fixed and short == SHORT and not q.tile and len(q.slid) == 1:
        height = least_waste(evaluate(q.slid[0], sizes))
    fixed += little_sizes(q, sizes, ones) if q.little else ()
    if plain and factors and len(q.inner) == 1:
        height, short = inner_height(q.inner[0][factors - 1], sizes, target), 0
    plain, pair = plain and not factors, 0
    height = height_inward(q, sizes, target, height, down) if inward and q.tile else height
    late = options.late or bool(q.late and not fixed and not q.turns and not factors and (
        (plain and lies_across(q, sizes, target))
        or ((short or rows) and leaves_empty(q, sizes, target, short == TURNED and not rows))))
    if late:  # tiles are those of another result
        height, down, short, fixed = 0, 0, 0, few_terms(q, sizes, ones)
    elif plain and not short and not fixed and q.brief[0]:
        fixed = brief_sizes(q, sizes, ones, target)
        paired, pair = tile_pair(q, sizes, target)
        if pair and q.sides:
            height, down, fixed = paired, 0, (*fixed, *((n, sizes[n]) for n in sorted(names(q.sides.columns[-1]))))
    return Tiles(ones, rows, few, strip, fixed, short, height, down, pair, factors, late, inward)


def _few_or_short(q: Questions, sizes: Mapping[str, int], target: Target, frozen: tuple[str, ...],
                  relaxed: bool) -> tuple[tuple[str, ...], int, Values, bool, int]:
    """(`ones`, `rows`, `few`, `strip`, `short`) of `Options`: where a contraction has few rows or columns, or short ones."""
    ones = tuple(n for n in q.windows if sizes[n] == 1) if q.windows else ()
    rows = few_rows(q, sizes, target.masks) if q.rows else 0
    in_place = multiplied_in_place(q, sizes, target, frozen, relaxed)
    if rows and (has_brief_dots(q, sizes) or windows_turn(q, sizes, target, frozen) or in_place):
        rows = 0
    if rows == 1:  # then it is known that nothing is read again, so that it may be fetched long before
        ones = tuple(dict.fromkeys((*ones, *q.single)))
    strip = bool(q.strips) and has_strip(q, sizes, bool(rows))
    short = shortness(q, sizes, target, frozen) if q.short else 0
    turned = not rows and (stands_upright(q, sizes) or in_place or reads_in_place(q, sizes, target, frozen))
    turned = turned or (not rows and _windows_of_matrices(q, sizes, target, relaxed))
    short = TURNED if turned and not short else short
    few = tuple((n, next(m for m in TURNS if sizes[n] <= m)) for n in q.turns if sizes[n] <= TURNS[-1]) if q.turns else ()
    few += tuple((n, COLUMNS) for n in q.heads if sizes[n] <= COLUMNS) if q.heads and not rows else ()
    few += _rows_of_tiles(q, sizes) if in_place else ()
    if strip and rows > 1:  # then a contraction is packed, to which its strip means nothing
        rows, strip = 0, has_strip(q, sizes, False)
    return ones, rows, few, strip, short


def few_rows(q: Questions, sizes: Mapping[str, int], masks: bool = True) -> int:
    """1, 4 or 8, if no contraction of a call has more rows than that, else 0.

    A matrix product with so few rows reads its right operand once and hardly uses it again: copies of it do not pay. Without
    `masks` it is the number itself: where rows are missing, what is read for the others would be masked, element by element.
    """
    return few_of(most_rows(q, sizes), masks)


def most_rows(q: Questions, sizes: Mapping[str, int]) -> int:
    """The most rows that a contraction of a call has; 0 if they are not known before the loops run."""
    most = 0
    for extents in q.rows:
        if extents is None:
            return 0
        most = max(most, volume(extents, sizes))
    return most


def has_brief_dots(q: Questions, sizes: Mapping[str, int]) -> bool:
    """Whether few rows would be dot products of so few terms that to add up lanes takes longer than to copy the right operand.

    Each dot product has a fold of its own, and the copy serves all rows. Of a few terms lanes run along columns anyway.
    """
    shape, lies_along_columns = q.packed
    terms = volume(q.brief[0], sizes)
    if any(sizes[n] <= COLUMNS for n in q.heads):
        return False
    return bool(shape) and not lies_along_columns and NEAR < terms < FOLDED * most_rows(q, sizes)


def has_strip(q: Questions, sizes: Mapping[str, int], also_contractions: bool) -> bool:
    """Whether a sum of rows is so short in a call that all of it stays in registers, however many rows there are."""
    return any(evaluate(extent, sizes) * bytes_ <= STRIP for extent, bytes_, contracts in q.strips
               if also_contractions or not contracts)


def shortness(q: Questions, sizes: Mapping[str, int], target: Target, frozen: tuple[str, ...] = ()) -> int:
    """How few lanes a call would have, where those of another loop would be many: 0, `SHORT` or `TURNED`."""
    for x in q.short:
        columns = evaluate(x.extent, sizes)
        if columns * x.bytes_ <= LINE // 4:
            return TURNED
        if _turns(x, columns, sizes, target, frozen):
            return TURNED
        if columns * x.bytes_ <= LINE:
            return SHORT
    return 0


def _turns(x: Short, columns: int, sizes: Mapping[str, int], target: Target, frozen: tuple[str, ...]) -> bool:
    """Whether lanes had better run along the rows of `x`, which is a sum of so many columns."""
    return bool(x.lanes and _is_known(x, target)
                and turning_pays(target, target.lanes(x.bytes_), _turn(x, columns, sizes, frozen)))


def windows_turn(q: Questions, sizes: Mapping[str, int], target: Target, frozen: tuple[str, ...]) -> bool:
    """Whether a window's sum of few rows and short ones takes longer as such than with lanes along these few rows."""
    return any(x.windows and _turns(x, evaluate(x.extent, sizes), sizes, target, frozen) for x in q.short)


def reads_in_place(q: Questions, sizes: Mapping[str, int], target: Target, frozen: tuple[str, ...]) -> bool:
    """Whether right operands that lie along the sums had better be read there by lanes along the rows, not copied."""
    return bool(q.standing) and all(
        x.lanes and not (x.narrow or _is_kept(x, frozen))
        and turning_pays(target, target.lanes(x.bytes_), _turn(x, evaluate(x.extent, sizes), sizes, frozen)) for x in q.standing)


def multiplied_in_place(q: Questions, sizes: Mapping[str, int], target: Target, frozen: tuple[str, ...], relaxed: bool) -> bool:
    """The same of narrow ones, of which matrix instructions take rows as they lie, if these stand on the left."""
    return bool(q.standing) and all(x.lanes and not _is_kept(x, frozen) and _spares_copy(x, sizes, target, relaxed)
                                    for x in q.standing)


def _spares_copy(x: Short, sizes: Mapping[str, int], target: Target, relaxed: bool) -> bool:
    """Whether the copy of what has the columns, not of the rows, takes longer than to turn the result of two rows or more."""
    if x.narrow is None or not _is_of_matrices(x, target) or not (relaxed or x.narrow[0].is_integer):
        return False
    rows, columns, depth = evaluate(x.lanes[-1], sizes), evaluate(x.extent, sizes), volume(x.depth, sizes)
    spared, turned = (columns - rows) * depth * x.narrow[1].bytes_, rows * columns * (JOINED if x.joined else 1)
    return rows > 1 and columns >= TILE and spared >= SPARED * turned


def has_matrices(q: Questions, sizes: Mapping[str, int], target: Target, relaxed: bool, turned: bool = False) -> bool:
    """Whether the one contraction is carried out by matrix instructions, with lanes along its columns, or `turned`."""
    if q.types is None or any(volume(channels, sizes) < CHANNELS for channels in q.borders):
        return False
    total, right, left = q.types
    own = (right, left) if turned else (left, right)
    return (relaxed or total.is_integer) and matrix(target, total, *own) is not None


def whole_units(q: Questions, sizes: Mapping[str, int], turned: bool, inward: bool) -> int | None:
    """How many rows tiles of matrix instructions have: of one unit, or as usual (0), of two; None where half of one is empty.

    Rows of a copy have room behind them: there an even number of units leaves none empty.
    """
    if q.tile is None:
        return None
    along = evaluate(q.tile[1] if turned else q.tile[0], sizes)
    if along <= TILE // 2:
        return None
    units, is_copy = -(-along // TILE), bool(q.borders) or inward
    return 0 if units > SUMS or (is_copy and units % 2 == 0) else TILE


def _windows_of_matrices(q: Questions, sizes: Mapping[str, int], target: Target, relaxed: bool) -> bool:
    """Whether windows go along the columns of a sum for matrix instructions, which want what they read to lie along the sum.

    Then that is copied so, and lanes run along what is a row otherwise, of which there are several.
    """
    if not q.narrow_inward or len(q.short) != 1 or not has_matrices(q, sizes, target, relaxed, turned=True):
        return False
    (x,), (image,) = q.short, q.narrow_inward
    several = bool(x.lanes) and evaluate(x.lanes[-1], sizes) >= TILE and evaluate(image.shape[image.depth], sizes) >= CHANNELS
    return several and volume(x.windows, sizes) > 1 and not x.spaced


def _is_of_matrices(x: Short, target: Target) -> bool:
    """Whether the target has an instruction for tiles of such products, what has the columns on the left."""
    return x.narrow is not None and matrix(target, *x.narrow) is not None


def _rows_of_tiles(q: Questions, sizes: Mapping[str, int]) -> Values:
    """(size, at most how much) of so few rows that matrix tiles have all of them."""
    found = {x.lanes[-1].name: -(-evaluate(x.lanes[-1], sizes) // TILE) * TILE for x in q.standing}
    return tuple((n, most) for n, most in found.items() if n and most <= SUMS * TILE)


def _is_kept(x: Short, frozen: tuple[str, ...]) -> bool:
    """Whether what has the columns is copied once for all calls."""
    return {name for name, _ in x.columns} <= {*frozen}


def lie_so(found: tuple[Short, ...], units: Layout) -> bool:
    """Whether in memory, too, each such operand has its unit stride along its last dimension."""
    return all(units.end(name, rank) == rank - 1 for x in found for name, rank in x.columns)


def _is_known(x: Short, target: Target) -> bool:
    """Whether it was measured how such a result is best cut: classes of residues were not where vectors are wide."""
    return not (x.strewn and target.masks)


def _turn(x: Short, columns: int, sizes: Mapping[str, int], frozen: tuple[str, ...]) -> Turn:
    """What decides whether lanes run along another dimension than the last one."""
    rows, beside, depth, windows, inside = (volume(part, sizes)
                                            for part in (x.lanes, x.beside, x.depth, x.windows, x.inside))
    across = evaluate(x.beside[-1], sizes) if x.beside else 1
    page = min(1.0, inside * x.bytes_ / PAGE)
    return Turn(columns, rows, across, beside, depth, page, windows > 1, x.spaced, windows * x.bytes_, x.along <= {*frozen},
                x.lies, x.stands and not _is_kept(x, frozen))


def stands_upright(q: Questions, sizes: Mapping[str, int]) -> bool:
    """Whether a product has few columns, fewer than rows, and its left operand lies along the rows."""
    found = [(evaluate(columns, sizes), evaluate(rows, sizes), bytes_) for columns, rows, bytes_ in q.upright]
    return any(columns < rows and columns * bytes_ <= UPRIGHT for columns, rows, bytes_ in found)


def tile_height(q: Questions, sizes: Mapping[str, int], target: Target, short: int, below: int = 0) -> int:
    """How many rows the register tiles of a call have where the target's own would be too empty, 0 elsewhere.

    `below`: `Options.down`.
    """
    if q.tile is None:
        return 0
    rows, columns, bytes_ = q.tile
    down, along = evaluate(rows, sizes), evaluate(columns, sizes)
    if short == SHORT:  # a vector of each of some rows of the result
        return height_beside(target, down) if q.short[0].beside and _is_known(q.short[0], target) else 0
    known = rows.is_constant and columns.is_constant
    if short == TURNED:
        down, along = along, down
    own = q.downs[short == TURNED]
    if below:
        down, known = evaluate(own[-1 - below].extent, sizes), False
    # where rows are one index, few rows of a tile are neighbours too: 100000 x 32 with 32 terms took 1.1 times as long with 14
    several = any(len(extents or ()) > 1 for extents in q.rows)
    lanes = target.lanes(bytes_)
    shape, lies = q.packed
    streams = volume(shape, sizes) * bytes_ > 2 * target.l2 and (lies or down < AGAIN) and along > lanes * WHOLE
    height = fitting_height(target, lanes, down, along, known=known, tall=several and not (short or q.windows), streams=streams)
    windows, steps = volume(own[-1 - below].windows if own and q.steps else (), sizes), volume(q.steps, sizes)
    slides = not short and windows > 1 and (steps >= STEPS or along == lanes * NARROW)
    return sliding_height(target, lanes, down, along, height) if slides else height


def height_inward(q: Questions, sizes: Mapping[str, int], target: Target, height: int, below: int = 0) -> int:
    """The same, not `height`, where a window slides along what is copied to lie as rows do elsewhere."""
    assert q.tile is not None
    down = evaluate(q.downs[True][-1 - below].extent if below else q.tile[1], sizes)
    along, bytes_ = evaluate(q.tile[0], sizes), q.tile[2]
    lanes = target.lanes(bytes_)
    slides = along == lanes * NARROW and any(volume(x.windows, sizes) > 1 for x in q.short)
    return sliding_height(target, lanes, down, along, height) if slides else height


def inner_height(x: Inner, sizes: Mapping[str, int], target: Target) -> int:
    """How many rows the register tiles of a sum have whose factors were taken out, as of any product."""
    down, along = (evaluate(x.extent(i), sizes) for i in x.kept[-2:])
    return fitting_height(target, target.lanes(x.step.target.dtype.bytes_), down, along)


def least_waste(rows: int) -> int:
    """How many rows of one vector go together in a window, so that the fewest are missing: 7 of 7, 14 and 28."""
    return min(range(LEAST, TALLEST + 1), key=lambda h: (-(-rows // h) * h, -h))


def little_sizes(q: Questions, sizes: Mapping[str, int], known: Iterable[str]) -> Values:
    """(size, value) of products so small that loops around them, whose ends are not known, take longer than they do."""
    if any(evaluate(e, sizes) > most_of_little(q) for e in q.little):
        return ()
    return tuple((e.name, sizes[e.name]) for e in q.little if e.name and e.name not in known)


def most_of_little(q: Questions) -> int:
    return LITTLE if q.tile else LITTLES


def few_terms(q: Questions, sizes: Mapping[str, int], known: Iterable[str]) -> Values:
    """(size, value) of what a contraction adds up along, if that is so little that its loops end before their prefetches come."""
    summed, _, _ = q.brief
    few = volume(summed, sizes) <= TERMS
    return tuple((e.name, sizes[e.name]) for e in summed if few and e.name and e.name not in known)


def brief_sizes(q: Questions, sizes: Mapping[str, int], known: Iterable[str], target: Target) -> Values:
    """(size, value) of what a contraction adds up so briefly that its large result is written once, and never read."""
    summed, _, _ = q.brief
    if not summed or volume(summed, sizes) > BRIEF:
        return ()
    if not is_large(q, sizes, target):
        return ()
    return tuple((e.name, sizes[e.name]) for e in summed if e.name and e.name not in known)


def is_large(q: Questions, sizes: Mapping[str, int], target: Target) -> bool:
    """Whether the result of a contraction is larger than what is kept in caches if it is only written."""
    _, result, bytes_ = q.brief
    return volume(result, sizes) * bytes_ >= target.stream_bytes


def passes_by(q: Questions, sizes: Mapping[str, int], target: Target) -> bool:
    """Whether the result of a contraction is so large that it bypasses the caches if it is only written."""
    _, result, bytes_ = q.brief
    meet = target.pages_meet and bool(result) and evaluate(result[-1], sizes) * bytes_ % PAGE == 0
    return is_large(q, sizes, target) and not meet


def lies_across(q: Questions, sizes: Mapping[str, int], target: Target) -> bool:
    """Whether a large operand of a contraction, larger than the result, lies across it."""
    found = [(volume(x.operand, sizes), volume(x.result, sizes), x.bytes_) for x in q.late]
    return any(elems * bytes_ >= target.stream_bytes and elems >= TIMES * result for elems, result, bytes_ in found)


def leaves_empty(q: Questions, sizes: Mapping[str, int], target: Target, turned: bool) -> bool:
    """Whether the last dimension of a result is so short that it uses at most `FEW_USED` of the lanes of vectors, and an operand
    lies across it, whose last one uses half of them, and a fifth more: if some terms are added up, turning the result takes less.

    turned   whether lanes would run along rows: these are as short then
    """
    def used(extent: Affine, bytes_: int) -> float:
        return filled(evaluate(extent, sizes), target.lanes(bytes_))

    if turned and any(used(e, x.bytes_) > FEW_USED for x in q.short for e in x.lanes[-1:]):
        return False
    both = [(used(x.result[-1], x.bytes_), used(x.operand[-1], x.bytes_)) for x in q.late]
    return volume(q.brief[0], sizes) >= MANY and all(own <= FEW_USED and other >= max(0.5, 1.2 * own) for own, other in both)


def tile_pair(q: Questions, sizes: Mapping[str, int], target: Target) -> tuple[int, int]:
    """(height, values of the other column) of register tiles whose lanes run over the last two columns of a call, or (0, 0)."""
    if q.sides is None or not q.brief[0] or len(q.sides.columns) < 2 or not names(q.sides.columns[-1]):
        return 0, 0
    across, columns = (evaluate(e, sizes) for e in q.sides.columns[-2:])
    rows, lines = evaluate(q.sides.rows[-1], sizes), q.sides.between and passes_by(q, sizes, target)
    return fitting_pair(target, target.lanes(q.brief[2]), rows, across, columns, lines)


def tile_kinds(q: Questions) -> tuple[str, ...]:
    """The sorts of calls whose tiles are others, in words."""
    out = [f"where {n} is 1" for n in q.windows]
    out += [f"where {n} is one of 2 to {WINDOW}" for n in q.slides]
    out += [f"where {n} is at most {COLUMNS}" for n in q.heads]
    out += [f"where {' or '.join(q.turns)} is 1, at most 4, 8, 16, or 32"] if q.turns else []
    those = " and ".join(e.name for e in q.little if e.name)
    out += [f"where {those} are all at most {most_of_little(q)}, one for each"] if those else []
    found = (
        (any(rows is None or rows for rows in q.rows), "a contraction has one row, at most 4, or at most 8"),
        (q.upright, f"a row of a product's result has at most {UPRIGHT} bytes, and there are more rows"),
        (q.short, f"a row of a contraction's result has at most {LINE} bytes, or leaves too many lanes empty"),
        (q.tile, "register tiles of another height are less empty"),
        (any(x.narrow for x in q.standing), "a few tiles of matrix instructions have all rows of a product"),
        (any(len(x) > 1 for x in q.downs), "register tiles have their rows along another index than the last one"),
        (q.inner, "a sum from which factors may be taken out is long"),
        (q.inward, "each element of an operand that lies along the rows of a contraction is used often"),
        (q.brief[0], f"each of many results has at most {BRIEF} terms, one for each number of these"),
        (q.strips, f"the result of summing rows has at most {STRIP} bytes"))
    return (*out, *(f"in which {words}" for has, words in found if has))
