"""Which calls deserve a kernel of their own, by their sizes alone: the answers to what `questions.py` asks of an operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from polyop.ir.expr import evaluate, names
from polyop.ir.op import Op
from polyop.ir.options import SHORT, STRIP, TURNED, Options, altered
from polyop.ir.registers import TALLEST, WINDOW, Turn, fitting_height, fitting_pair, sliding_height, turning_pays
from polyop.ir.target import Target
from polyop.rewrite.contracted import Short
from polyop.rewrite.factors import Inner
from polyop.rewrite.factors import pays as factors_out
from polyop.rewrite.inward import rows_of_images, to_turn_inward
from polyop.rewrite.late import TIMES
from polyop.rewrite.passes import one_pass_pays
from polyop.rewrite.positions import BOUND
from polyop.rewrite.questions import Questions, questions
from polyop.rewrite.raised import ROWS as MANY
from polyop.rewrite.raised import pays as raising_pays
from polyop.rewrite.shares import fed_shares, thread_shares
from polyop.rewrite.traffic import tile_rows
from polyop.rewrite.upright import COLUMNS
from polyop.rewrite.widened import to_widen

_LINE = 64  # bytes of the widest vector
_PAGE = 4096
UPRIGHT = 256  # bytes of a row of a product's result, up to which lanes may run along its columns: four vectors
LONG = 32  # that part of L1
TERMS = 128  # of sums of a streamed operand that are a number
BRIEF = 64  # terms at most of sums that are never cut
LONGER = 64  # steps of each index that is added up along, from which partial sums may be stored and fetched again in between
AGAIN = 128  # rows that use what comes from memory, from which products take longer than its way
STEPS = 128  # of a sum in each turn of a window, from which taller tiles are worth their addresses: with 64 they are as fast
LITTLE = 64  # rows, columns and steps of a product that loops are written for: of 48 of each a sixth, of 64 a twentieth
LITTLES = 16  # the same of several products, whose loops take longer to compile
LEAST = 5  # rows of one vector that go together in a window
ABREAST = 8  # rows: with six they take as long together as one after the other
ROWS = 256  # of a product, from which threads may copy all columns that a cache holds, each for itself
RESULTS = 1 << 18  # of each thread, from which they do: its share goes in four chunks, which have as many columns as rows
PIECE = 256  # bytes of a row of results that they take at a time else
RUNS = (1024, 4096, 32768)  # bytes of rows of a recurrence that each of several threads takes at a time
RUN = 512  # bytes of the shortest row that is; in strips of a few vectors it is as fast
TURNS = (1, 4, 8, 16, 32)  # rows of a contraction inside a recurrence for which tiles of their own are made

Values = tuple[tuple[str, int], ...]
"""(size, value), or (size, at most how much), of some sizes."""


def regime(q: Questions, sizes: Mapping[str, int], options: Options, target: Target, threads: int = 1) -> Options:
    """`options` for a call of these sizes, all of them at least 1, on so many threads of `target`."""
    near = bool(q.far) and all(sizes[n] <= BOUND for n in q.far)
    options = _with(options, near=near)
    if not options.special:
        return options
    ones = narrow_sizes(q, sizes)
    if ones:
        return _with(options, ones=ones)
    ones, rows, few, strip, short = _few_or_short(q, sizes, target)
    windows = tuple((n, sizes[n]) for n in q.slides if 1 < sizes[n] <= WINDOW)
    height = 0 if rows or few else tile_height(q, sizes, target, short)
    if windows and short == SHORT and not q.tile and len(q.slid) == 1:
        height = least_waste(evaluate(q.slid[0], sizes))
    relaxed = options.numerics != "strict"
    cascade = options.cascade or (relaxed and one_pass_pays(q.passes, sizes, target, threads))
    factors = options.factors or (relaxed and factors_out(q.inner, sizes))
    if factors and len(q.inner) == 1 and not rows and not few:  # tiles are the inner sum's, which is a product of matrices
        height, short = inner_height(q.inner[0], sizes, target), 0
    is_turned = short == TURNED and not (rows or few or factors) and relaxed
    inward = to_turn_inward(q.inward, sizes, target, threads) if is_turned else ()
    overlap = options.overlap or tile_rows(q.chains, sizes, target)
    overlap = overlap or (rows_of_images(q.inward, sizes, target, threads) if inward else 0)
    fixed, pair = windows + little_sizes(q, sizes, ones), 0
    late = options.late or (not (rows or few or factors or fixed) and lies_across(q, sizes, target))
    if late:  # tiles are those of another result
        height, short, fixed = 0, 0, few_terms(q, sizes, ones)
    elif not (rows or few or short or factors or fixed):
        fixed = brief_sizes(q, sizes, ones, target)
        paired, pair = tile_pair(q, sizes, target)
        if pair and q.sides:
            height, fixed = paired, (*fixed, *((n, sizes[n]) for n in names(q.sides.columns[-1])))
    shares = options.shares or (_shares(q, sizes, target, threads, factors) if relaxed and not cascade else ())
    return _with(options, ones=ones, fixed=fixed, short=short, rows=rows, few=few, height=height, pair=pair, strip=strip,
                 overlap=overlap, cascade=cascade, abreast=options.abreast or runs_abreast(q, sizes, target),
                 along=options.along or run_of_rows(q, sizes, target, threads), shares=shares, factors=factors,
                 deep=options.deep or (not rows and is_deep(q, sizes, target)),
                 raised=options.raised or raising_pays(q.alike, sizes, target),
                 widened=options.widened or to_widen(q.wide, sizes, target, not relaxed),
                 inward=options.inward or inward, late=late, lent=options.lent or has_long_rows(q, sizes, target),
                 broad=options.broad or (threads > 1 and not (rows or few or short == SHORT or factors or late or inward)
                                         and has_many_rows(q, sizes, threads, short == TURNED)),
                 paged=options.paged or (threads > 1 and has_pages(q, sizes, bool(rows), threads)))


def _few_or_short(q: Questions, sizes: Mapping[str, int], target: Target) -> tuple[tuple[str, ...], int, Values, bool, int]:
    """(`ones`, `rows`, `few`, `strip`, `short`) of `Options`: where a contraction has few rows or columns, or short ones."""
    ones, rows = tuple(n for n in q.windows if sizes[n] == 1), few_rows(q, sizes)
    if rows == 1:  # then it is known that nothing is read again, so that it may be fetched long before
        ones = tuple(dict.fromkeys((*ones, *q.single)))
    strip, short = has_strip(q, sizes, bool(rows)), shortness(q, sizes, target)
    short = short or (TURNED if not rows and stands_upright(q, sizes) else 0)
    few = tuple((n, next(m for m in TURNS if sizes[n] <= m)) for n in q.turns if sizes[n] <= TURNS[-1])
    few += () if rows else tuple((n, COLUMNS) for n in q.heads if sizes[n] <= COLUMNS)
    if strip and rows > 1:  # then a contraction is packed, to which its strip means nothing
        rows, strip = 0, has_strip(q, sizes, False)
    return ones, rows, few, strip, short


def _shares(q: Questions, sizes: Mapping[str, int], target: Target, threads: int, factors: bool) -> Values:
    """The sums that are cut into shares: those whose rows would be read twice, and with several threads what these share."""
    whole = {x.step.target.source for x in q.inner} if factors else set()
    found = tuple(x for x in q.sums if x.target not in whole)
    shares = fed_shares(found, sizes, target.l2)
    if threads > 1:
        rest = tuple(x for x in found if x.target not in dict(shares))
        shares += thread_shares(rest, sizes, few_rows(q, sizes))
    return shares


def _with(options: Options, **fields: Any) -> Options:
    """`options` with these values; itself, if it has them all, as most calls find: a copy costs more than asking."""
    new = {n: x for n, x in fields.items() if getattr(options, n) != x}
    return altered(options, tuple(new.items())) if new else options


def narrow_sizes(q: Questions, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The sizes that are 1 in a call and would leave lanes with one element, where another loop could have them."""
    return tuple(n for n in q.narrow if sizes[n] == 1)


def little_sizes(q: Questions, sizes: Mapping[str, int], known: Iterable[str]) -> Values:
    """(size, value) of products so small that loops around them, whose ends are not known, take longer than they do."""
    if any(evaluate(e, sizes) > _most_of_little(q) for e in q.little):
        return ()
    return tuple((e.name, sizes[e.name]) for e in q.little if e.name and e.name not in known)


def _most_of_little(q: Questions) -> int:
    return LITTLE if q.tile else LITTLES


def brief_sizes(q: Questions, sizes: Mapping[str, int], known: Iterable[str], target: Target) -> Values:
    """(size, value) of what a contraction adds up so briefly that its large result is written once, and never read."""
    summed, _, _ = q.brief
    if not summed or prod(evaluate(e, sizes) for e in summed) > BRIEF:
        return ()
    if not passes_by(q, sizes, target):
        return ()
    return tuple((e.name, sizes[e.name]) for e in summed if e.name and e.name not in known)


def passes_by(q: Questions, sizes: Mapping[str, int], target: Target) -> bool:
    """Whether the result of a contraction is so large that it bypasses the caches if it is only written."""
    _, result, bytes_ = q.brief
    return prod(evaluate(e, sizes) for e in result) * bytes_ >= target.stream_bytes


def shortness(q: Questions, sizes: Mapping[str, int], target: Target) -> int:
    """How few lanes a call would have, where those of another loop would be many: 0, `SHORT` or `TURNED`."""
    for x in q.short:
        columns = evaluate(x.extent, sizes)
        if columns * x.bytes_ <= _LINE // 4:
            return TURNED
        if x.lanes and turning_pays(target, target.lanes(x.bytes_), _turn(x, columns, sizes)):
            return TURNED
        if columns * x.bytes_ <= _LINE:
            return SHORT
    return 0


def _turn(x: Short, columns: int, sizes: Mapping[str, int]) -> Turn:
    """What decides whether lanes run along another dimension than the last one."""
    rows, beside, depth, windows, inside = (prod(evaluate(e, sizes) for e in part)
                                            for part in (x.lanes, x.beside, x.depth, x.windows, x.inside))
    across = evaluate(x.beside[-1], sizes) if x.beside else 1
    return Turn(columns, rows, across, beside, depth, min(1.0, inside * x.bytes_ / _PAGE), windows > 1, x.spaced)


def stands_upright(q: Questions, sizes: Mapping[str, int]) -> bool:
    """Whether a product has few columns, fewer than rows, and its left operand lies along the rows."""
    found = [(evaluate(columns, sizes), evaluate(rows, sizes), bytes_) for columns, rows, bytes_ in q.upright]
    return any(columns < rows and columns * bytes_ <= UPRIGHT for columns, rows, bytes_ in found)


def few_rows(q: Questions, sizes: Mapping[str, int]) -> int:
    """1, 4 or 8, if no contraction of a call has more rows than that, else 0.

    A matrix product with so few rows reads its right operand once and hardly uses it again: copies of it do not pay.
    """
    most = 0
    for extents in q.rows:
        if extents is None:
            return 0
        most = max(most, prod(evaluate(e, sizes) for e in extents))
    return next((n for n in (1, 4, 8) if 0 < most <= n), 0)


def tile_height(q: Questions, sizes: Mapping[str, int], target: Target, short: int) -> int:
    """How many rows the register tiles of a call have where the target's own would be too empty, 0 elsewhere."""
    if q.tile is None:
        return 0
    rows, columns, bytes_ = q.tile
    down, along = evaluate(rows, sizes), evaluate(columns, sizes)
    if short == SHORT:  # a vector of each of some rows of the result
        return fitting_height(target, 1, down, evaluate(q.short[0].beside[-1], sizes), 4) if q.short[0].beside else 0
    known = rows.is_constant and columns.is_constant
    if short == TURNED:
        down, along = along, down
    # where rows are one index, few rows of a tile are neighbours too: 100000 x 32 with 32 terms took 1.1 times as long with 14
    several = any(len(extents or ()) > 1 for extents in q.rows)
    lanes = target.lanes(bytes_)
    shape, lies = q.packed
    streams = prod(evaluate(e, sizes) for e in shape) * bytes_ > 2 * target.l2 and (lies or down < AGAIN)
    height = fitting_height(target, lanes, down, along, known=known, tall=several and not (short or q.windows), streams=streams)
    windows, steps = (prod(evaluate(e, sizes) for e in part) for part in q.sliding)
    slides = not short and windows > 1 and steps >= STEPS
    return sliding_height(target, lanes, down, along, height) if slides else height


def few_terms(q: Questions, sizes: Mapping[str, int], known: Iterable[str]) -> Values:
    """(size, value) of what a contraction adds up along, if that is so little that its loops end before their prefetches come."""
    summed, _, _ = q.brief
    few = prod(evaluate(e, sizes) for e in summed) <= TERMS
    return tuple((e.name, sizes[e.name]) for e in summed if few and e.name and e.name not in known)


def lies_across(q: Questions, sizes: Mapping[str, int], target: Target) -> bool:
    """Whether a large operand of a contraction, larger than the result, lies across it."""
    found = [(prod(evaluate(e, sizes) for e in x.operand), prod(evaluate(e, sizes) for e in x.result), x.bytes_) for x in q.late]
    return any(elems * bytes_ >= target.stream_bytes and elems >= TIMES * result for elems, result, bytes_ in found)


def tile_pair(q: Questions, sizes: Mapping[str, int], target: Target) -> tuple[int, int]:
    """(height, values of the other column) of register tiles whose lanes run over the last two columns of a call, or (0, 0)."""
    if q.sides is None or not q.brief[0] or len(q.sides.columns) < 2 or not names(q.sides.columns[-1]):
        return 0, 0
    across, columns = (evaluate(e, sizes) for e in q.sides.columns[-2:])
    rows, lines = evaluate(q.sides.rows[-1], sizes), q.sides.between and passes_by(q, sizes, target)
    return fitting_pair(target, target.lanes(q.brief[2]), rows, across, columns, lines)


def is_deep(q: Questions, sizes: Mapping[str, int], target: Target) -> bool:
    """Whether what one tile of columns reads along all that is added up, several long indices, leaves half of L2."""
    extents = [evaluate(e, sizes) for e in q.deep]
    panel = prod(extents) * target.fma_chains // 2 * target.vector_bytes  # as many vectors as the widest tile has
    return q.tile is not None and len(extents) > 1 and min(extents) >= LONGER and panel > target.l2 // 2


def inner_height(x: Inner, sizes: Mapping[str, int], target: Target) -> int:
    """How many rows the register tiles of a sum have whose factors were taken out, as of any product."""
    down, along = (evaluate(x.extent(i), sizes) for i in x.kept[-2:])
    return fitting_height(target, target.lanes(x.step.target.dtype.bytes_), down, along)


def least_waste(rows: int) -> int:
    """How many rows of one vector go together in a window, so that the fewest are missing: 7 of 7, 14 and 28."""
    return min(range(LEAST, TALLEST + 1), key=lambda h: (-(-rows // h) * h, -h))


def has_strip(q: Questions, sizes: Mapping[str, int], also_contractions: bool) -> bool:
    """Whether a sum of rows is so short in a call that all of it stays in registers, however many rows there are."""
    return any(evaluate(extent, sizes) * bytes_ <= STRIP for extent, bytes_, contracts in q.strips
               if also_contractions or not contracts)


def runs_abreast(q: Questions, sizes: Mapping[str, int], target: Target) -> bool:
    """Whether some rows of running sums are many enough for a vector of them at a time, whose results stay in L2."""
    return any(prod(evaluate(e, sizes) for e in rows) >= ABREAST and evaluate(extent, sizes) * _LINE <= target.l2 // 2
               for rows, extent in q.abreast)


def run_of_rows(q: Questions, sizes: Mapping[str, int], target: Target, threads: int) -> int:
    """Bytes of each row that a recurrence over rows takes at a time: whole ones, as far as they stay in a cache, or several for
    each thread; 0 where rows are hardly longer than the vectors whose results registers hand on.
    """
    found = [evaluate(extent, sizes) * bytes_ for extent, bytes_ in q.carried]
    if not found or min(found) < RUN:
        return 0
    return target.l2 // 8 if threads == 1 else max((n for n in RUNS if n * threads <= min(found)), default=0)


def has_long_rows(q: Questions, sizes: Mapping[str, int], target: Target) -> bool:
    """Whether rows of temporaries leave L1, where those of results would be written beside them."""
    return any(prod(evaluate(e, sizes) for e in row) * bytes_ > target.l1 // LONG for row, bytes_ in q.kept)


def has_pages(q: Questions, sizes: Mapping[str, int], also_contractions: bool, threads: int) -> bool:
    """Whether all rows that are summed have a page for each thread: runs of less leave every other page to somebody else."""
    found = [evaluate(extent, sizes) * bytes_ for extent, bytes_, contracts in q.strips if also_contractions or not contracts]
    return bool(found) and min(found) >= threads * _PAGE


def has_many_rows(q: Questions, sizes: Mapping[str, int], threads: int, turned: bool) -> bool:
    """Whether each thread has so many rows of a contraction that it copies more columns, to read the rows less often."""
    if q.sides is None or q.tile is None or (q.sides.is_near and not turned):
        return False
    down, along = (q.sides.columns, q.sides.rows) if turned else (q.sides.rows, q.sides.columns)
    rows, columns = (prod(evaluate(e, sizes) for e in side) for side in (down, along))
    return rows >= ROWS and rows * columns >= threads * RESULTS and evaluate(along[-1], sizes) * q.tile[2] > PIECE


def kinds(op: Op) -> tuple[str, ...]:
    """The sorts of calls that get a kernel of their own on a CPU, in words: see `regime`."""
    q = questions(op)
    out = ["with an empty size"] if op.sizes else []
    out += [f"where {n} is 1" for n in (*q.narrow, *q.windows)]
    out += [f"where {n} is one of 2 to {WINDOW}" for n in q.slides]
    if any(rows is None or rows for rows in q.rows):
        out.append("in which a contraction has one row, at most 4, or at most 8")
    if q.upright:
        out.append(f"in which a row of a product's result has at most {UPRIGHT} bytes, and there are more rows")
    out += [f"where {n} is at most {COLUMNS}" for n in q.heads]
    if q.turns:
        out.append(f"where {' or '.join(q.turns)} is 1, at most 4, 8, 16, or 32")
    if q.short:
        out.append(f"in which a row of a contraction's result has at most {_LINE} bytes, or leaves too many lanes empty")
    if q.tile:
        out.append("in which register tiles of another height are less empty")
    if q.sides and not q.sides.is_near:
        out.append(f"in which several threads have {RESULTS} results of a contraction each, and {ROWS} rows or more")
    if q.deep:
        out.append("in which a contraction is long in several indices")
    if q.late:
        out.append("in which an operand that lies across the result of a contraction is large")
    if q.brief[0]:
        out.append(f"in which each of many results has at most {BRIEF} terms, one for each number of these")
    if q.far:
        out.append(f"where {' or '.join(q.far)} is more than {BOUND}")
    if q.passes:
        out.append("in which rows that reductions go over again and again exceed a cache")
    if any(x.row for x in q.sums):
        out.append("in which rows that are read twice, for themselves and for a sum over them, exceed L2")
    if q.inner:
        out.append("in which a sum from which factors may be taken out is long")
    if q.kept:
        out.append("in which rows that are kept before they become a result are long")
    if q.little:
        those = " and ".join(e.name for e in q.little if e.name)
        out += [f"where {those} are all at most {_most_of_little(q)}, one for each"] if those else []
    if q.alike:
        out.append(f"in which {MANY} rows or more are products of bytes of one sort, and the target has none for these")
    if q.chains:
        out.append("in which what steps hand over with rows to spare exceeds L2")
    if q.abreast:
        out.append(f"in which there are at least {ABREAST} rows of running sums or products, that are not too long")
    if q.carried:
        out.append(f"in which rows that are made of rows before have at least {RUN} bytes, or more for several threads")
    if q.strips:
        out.append(f"in which the result of summing rows has at most {STRIP} bytes, or {_PAGE} for each of several threads")
    return tuple(out)
