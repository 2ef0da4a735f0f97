"""Which calls deserve a kernel of their own, by their sizes alone: the answers to what `questions.py` asks of an operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from polyop.ir.expr import evaluate, volume
from polyop.ir.op import Op
from polyop.ir.options import FLAT, SHORT, STRIP, TURNED, Options, altered
from polyop.ir.registers import WINDOW
from polyop.ir.target import LINE, PAGE, Target
from polyop.rewrite.bordered import CHANNELS
from polyop.rewrite.inward import rows_of_images
from polyop.rewrite.outward import turning_pays
from polyop.rewrite.passes import one_pass_pays
from polyop.rewrite.positions import BOUND
from polyop.rewrite.questions import Questions, questions
from polyop.rewrite.raised import ROWS as MANY
from polyop.rewrite.raised import pays as raising_pays
from polyop.rewrite.shares import fed_shares, thread_shares
from polyop.rewrite.taps import find_taps
from polyop.rewrite.terms import to_make_early
from polyop.rewrite.tile_regimes import (
    BRIEF,
    RESULTS,
    ROWS,
    UPRIGHT,
    Tiles,
    Values,
    few_rows,
    has_many_rows,
    is_deep,
    most_of_little,
    rows_stay,
    tiles,
)
from polyop.rewrite.traffic import tile_rows
from polyop.rewrite.upright import COLUMNS
from polyop.rewrite.widened import to_widen

LONG = 32  # that part of L1
ABREAST = 8  # rows: with six they take as long together as one after the other
RUNS = (1024, 4096, 32768)  # bytes of rows of a recurrence that each of several threads takes at a time
ASIDE = 384  # bytes of a row of a triangular system for each thread: two blocks of columns
RUN = 512  # bytes of the shortest row that is; in strips of a few vectors it is as fast


class Answers(NamedTuple):
    """The fields of `Options` that sizes decide about. A tuple, since it is made and looked up for each call of new sizes."""

    near: bool
    ones: tuple[str, ...]
    fixed: Values
    short: int
    rows: int
    few: Values
    height: int
    pair: int
    strip: bool
    factors: int
    late: bool
    inward: Values
    overlap: int
    cascade: bool
    shares: Values
    abreast: bool
    along: int
    deep: bool
    raised: bool
    bordered: bool
    widened: tuple[tuple[str, str], ...]
    outward: bool
    early: tuple[str, ...]
    lent: bool
    broad: bool
    flat: bool
    slim: bool
    columns: bool
    paged: bool


def regime(q: Questions, sizes: Mapping[str, int], options: Options, target: Target, threads: int = 1) -> Options:
    """`options` for a call of these sizes, all of them at least 1, on so many threads of `target`."""
    return with_answers(options, answers(q, sizes, options, target, threads))


def with_answers(options: Options, found: tuple[Any, ...]) -> Options:
    """`options` with these answers; itself, if it has them all."""
    new = tuple((n, x) for n, x in zip(Answers._fields, found, strict=False) if getattr(options, n) != x)
    return altered(options, new) if new else options


def answers(q: Questions, sizes: Mapping[str, int], options: Options, target: Target, threads: int) -> tuple[Any, ...]:
    """What `options` has for such a call, as far as sizes decide about it: `Answers`, or the first of them.

    Notes   Each call of new sizes asks all of this, so what an operator has nothing of costs no call of a function.
    """
    near = bool(q.far) and all(sizes[n] <= BOUND for n in q.far)
    if not options.special:
        return (near,)
    ones = narrow_sizes(q, sizes) if q.narrow else ()
    if ones:
        return near, ones
    t = tiles(q, sizes, options, target, threads)
    relaxed = options.numerics != "strict"
    cascade = options.cascade or (bool(q.passes) and relaxed and one_pass_pays(q.passes, sizes, target, threads))
    overlap = options.overlap or (tile_rows(q.chains, sizes, target) if q.chains else 0)
    by_image = rows_of_images(q.inward, sizes, target, threads) if t.inward and not overlap else 0
    overlap = overlap or by_image
    flat = bool(q.brief[0]) and volume(q.brief[0], sizes) <= FLAT
    many = (flat or threads > 1) and _is_whole(t) and has_many_rows(q, sizes, threads, t.short == TURNED)
    shares = options.shares or (_shares(q, sizes, target, threads, t.factors) if q.sums and relaxed and not cascade else ())
    return Answers(
        near, t.ones, t.fixed, t.short, t.rows, t.few, t.height, t.pair, t.strip, t.factors, t.late, options.inward or t.inward,
        overlap, cascade, shares,
        abreast=options.abreast or (bool(q.abreast) and runs_abreast(q, sizes, target)),
        along=options.along or (run_of_rows(q, sizes, target, threads) if q.carried else 0),
        deep=options.deep or (bool(q.deep) and not t.rows and is_deep(q, sizes, target)),
        raised=options.raised or (bool(q.alike) and raising_pays(q.alike, sizes, target)),
        bordered=options.bordered or any(volume(e, sizes) >= CHANNELS for e in q.borders),
        widened=options.widened or (to_widen(q.wide, sizes, target, not relaxed) if q.wide else ()),
        outward=options.outward or (bool(q.outward) and turning_pays(q.outward, sizes)),
        early=options.early or (to_make_early(q.early, sizes, target.l2) if q.early and relaxed else ()),
        lent=options.lent or (bool(q.kept) and has_long_rows(q, sizes, target)),
        broad=options.broad or (threads > 1 and many),
        flat=options.flat or (flat and many),
        slim=options.slim or (threads == 1 and bool(by_image or (q.unpacked and not t.rows and t.short != SHORT
                                                                 and rows_stay(q, sizes, target, t.short == TURNED)))),
        columns=options.columns or (threads > 1 and has_columns(q, sizes, threads)),
        paged=options.paged or (threads > 1 and has_pages(q, sizes, bool(t.rows), threads)))


def _is_whole(t: Tiles) -> bool:
    return not (t.rows or t.few or t.short == SHORT or t.factors or t.late or t.inward)


def _shares(q: Questions, sizes: Mapping[str, int], target: Target, threads: int, factors: int) -> Values:
    """The sums that are cut into shares: those whose rows would be read twice, and with several threads what these share."""
    whole = {x.step.target.source for x, *_ in q.inner} if factors else set()
    found = tuple(x for x in q.sums if x.target not in whole)
    shares = fed_shares(found, sizes, target.l2)
    if threads > 1:
        rest = tuple(x for x in found if x.target not in dict(shares))
        shares += thread_shares(rest, sizes, few_rows(q, sizes))
    return shares


def narrow_sizes(q: Questions, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The sizes that are 1 in a call and would leave lanes with one element, where another loop could have them."""
    return tuple(n for n in q.narrow if sizes[n] == 1)


def runs_abreast(q: Questions, sizes: Mapping[str, int], target: Target) -> bool:
    """Whether some rows of running sums are many enough for a vector of them at a time, whose results stay in L2."""
    return any(volume(rows, sizes) >= ABREAST and evaluate(extent, sizes) * LINE <= target.l2 // 2
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
    return any(volume(row, sizes) * bytes_ > target.l1 // LONG for row, bytes_ in q.kept)


def has_pages(q: Questions, sizes: Mapping[str, int], also_contractions: bool, threads: int) -> bool:
    """Whether all rows that are summed have a page for each thread: runs of less leave every other page to somebody else."""
    found = [evaluate(extent, sizes) * bytes_ for extent, bytes_, contracts in q.strips if also_contractions or not contracts]
    return bool(found) and min(found) >= threads * PAGE


def has_columns(q: Questions, sizes: Mapping[str, int], threads: int) -> bool:
    """Whether each thread has columns enough of a recurrence to go through all its turns without the others."""
    return bool(q.aside) and all(evaluate(extent, sizes) * bytes_ >= threads * ASIDE for extent, bytes_ in q.aside)


def kinds(op: Op) -> tuple[str, ...]:
    """The sorts of calls that get a kernel of their own on a CPU, in words: see `regime`."""
    q = questions(op)
    out = ["with an empty size"] if op.sizes else []
    out += [f"where {n} is 1" for n in (*q.narrow, *q.windows)]
    out += [f"where {n} is one of 2 to {WINDOW}" for n in q.slides]
    out += [f"where {t.extent} is less than {t.other}, whose sums then go along a window" for t in find_taps(op)]
    if any(rows is None or rows for rows in q.rows):
        out.append("in which a contraction has one row, at most 4, or at most 8")
    if q.upright:
        out.append(f"in which a row of a product's result has at most {UPRIGHT} bytes, and there are more rows")
    out += [f"where {n} is at most {COLUMNS}" for n in q.heads]
    if q.turns:
        out.append(f"where {' or '.join(q.turns)} is 1, at most 4, 8, 16, or 32")
    if q.short:
        out.append(f"in which a row of a contraction's result has at most {LINE} bytes, or leaves too many lanes empty")
    if q.tile:
        out.append("in which register tiles of another height are less empty")
    if q.sides and not q.sides.is_near:
        out.append(f"in which several threads have {RESULTS} results of a contraction each, and {ROWS} rows or more")
    if q.sides and q.brief[0]:
        out.append(f"in which each of {RESULTS} results, or as many for each thread, has at most {FLAT} terms")
    if q.sides and q.unpacked and q.packed[0]:
        out.append("in which all rows of a contraction stay in L2, and the operand with its columns does not")
    if q.deep:
        out.append("in which a contraction is long in several indices")
    if q.late:
        out.append("in which an operand that lies across the result of a contraction is large")
    if q.early:
        out.append("in which enough results share an operand of a contraction that takes little to compute")
    if q.outward:
        out.append("in which what is copied of products over a batch that comes last is used often")
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
        out += [f"where {those} are all at most {most_of_little(q)}, one for each"] if those else []
    if q.borders:
        out.append(f"in which at least {CHANNELS} channels of narrow numbers with a border are added up")
    if q.alike:
        out.append(f"in which {MANY} rows or more are products of bytes of one sort, and the target has none for these")
    if q.chains:
        out.append("in which what steps hand over with rows to spare exceeds L2")
    if q.abreast:
        out.append(f"in which there are at least {ABREAST} rows of running sums or products, that are not too long")
    if q.carried:
        out.append(f"in which rows that are made of rows before have at least {RUN} bytes, or more for several threads")
    if q.aside:
        out.append(f"in which each of several threads has {ASIDE} bytes of each row of a triangular system")
    if q.strips:
        out.append(f"in which the result of summing rows has at most {STRIP} bytes, or {PAGE} for each of several threads")
    return tuple(out)
