"""Which calls deserve a kernel of their own on a CPU, by their sizes alone: `REGIMES` has an entry for each reason."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from polyop.ir.expr import volume
from polyop.ir.op import Op
from polyop.ir.options import FLAT, SHORT, TURNED, Layout, Options, altered
from polyop.ir.tables import BYTE
from polyop.ir.target import PAGE, Target
from polyop.rewrite.copies import laid, late, matrices, outward
from polyop.rewrite.copies.bordered import CHANNELS, find_borders
from polyop.rewrite.copies.early import find_early, to_make_early
from polyop.rewrite.copies.inward import rows_of_images
from polyop.rewrite.copies.strung import kinds_of
from polyop.rewrite.copies.widened import SHARED, find_wide, to_widen
from polyop.rewrite.regimes import copy_regimes, dotted, row_regimes, tables
from polyop.rewrite.regimes.copy_regimes import RESULTS
from polyop.rewrite.regimes.positions import BOUND
from polyop.rewrite.regimes.questions import Questions, questions
from polyop.rewrite.regimes.tile_regimes import Tiles, Values, few_rows, has_matrices, lie_so, tile_kinds, tiles
from polyop.rewrite.sums.counted import SHARED as PAIRED
from polyop.rewrite.sums.counted import counting_pays, find_pairs
from polyop.rewrite.sums.passes import one_pass_pays
from polyop.rewrite.sums.prefixes import as_recurrences
from polyop.rewrite.sums.raised import ROWS, find_alike
from polyop.rewrite.sums.raised import pays as raising_pays
from polyop.rewrite.sums.scans import find_abreast
from polyop.rewrite.sums.shares import Sum, fed_shares, thread_shares
from polyop.rewrite.windows.taps import find_taps
from polyop.rewrite.windows.traffic import tile_rows

F = TypeVar("F")


@dataclass(eq=False, slots=True)
class Call:
    """What decides about a call: its sizes, and on so many threads of what; and what is decided already.

    questions   what was found for several regimes
    tiles       of its contractions
    said        option -> what it is
    """

    questions: Questions
    sizes: Mapping[str, int]
    options: Options
    target: Target
    threads: int
    is_relaxed: bool
    tiles: Tiles
    said: dict[str, Any]


@dataclass(frozen=True, eq=False, slots=True)
class Regime(Generic[F]):
    """A reason for a kernel of its own.

    option   the field of `Options` that says so
    find     what of an operator it is about; nothing, if the operator has none of it
    answer   what that option is in a call, unless the user has said so
    words    which calls these are, in a user's words
    left     what is left of an answer, given how tensors lie in memory: some mean nothing where these do not as the text has it
    """

    option: str
    find: Callable[[Questions], F]
    answer: Callable[[F, Call], Any]
    words: str | Callable[[F], str]
    left: Callable[[F, Layout, Any], Any] = lambda found, units, said: said


_TABLE = (
    Regime("cascade", lambda q: q.passes,
           lambda found, c: c.is_relaxed and one_pass_pays(found, c.sizes, c.target, c.threads),
           "in which rows that reductions go over again and again exceed a cache"),
    Regime("overlap", lambda q: (*q.chains, *q.inward),
           lambda _, c: _rows_handed_over(c) or _rows_of_images(c),
           "in which what steps hand over, with rows to spare or image by image, exceeds L2"),
    Regime("shares", lambda q: q.sums,
           lambda found, c: _shares(found, c) if c.is_relaxed and not c.said["cascade"] else (),
           lambda found: f"in which several threads have few results of long sums{_or_read_twice(found)}"),
    Regime("abreast", lambda q: find_abreast(as_recurrences(q.op)),
           lambda found, c: row_regimes.runs_abreast(found, c.sizes, c.target),
           f"in which there are at least {row_regimes.ABREAST} rows of running sums or products, that are not too long"),
    Regime("along", lambda q: row_regimes.find_carried(q.op),
           lambda found, c: row_regimes.run_of_rows(found, c.sizes, c.target, c.threads),
           f"in which rows that are made of rows before have at least {row_regimes.RUN} bytes, or more for several threads"),
    Regime("lockstep", lambda q: row_regimes.find_shared(q.op),
           lambda found, c: row_regimes.in_lock_step(found, c.sizes, c.target) if c.tiles.rows <= 1 else 0,
           "in which rows that share a vector leave L2, or the vector a part of L1, if the processor's caches ask for that"),
    Regime("picked", lambda q: row_regimes.find_picked(q.op),
           lambda found, c: all(volume((e,), c.sizes) <= row_regimes.PICKED for e in found),
           f"in which at most {row_regimes.PICKED} places are looked up along rows"),
    Regime("tables", lambda q: tables.find_tables(q.op),
           lambda found, c: tables.to_hold(found, c.sizes, c.target),
           f"in which {tables.LOOKED_UP} places or more are looked up in a table of at most {BYTE} elements, and the target's "
           "registers hold these",
           left=lambda found, units, said: tables.lie_so(units, said)),
    Regime("deep", lambda q: q.deep,
           lambda _, c: not c.tiles.rows and copy_regimes.is_deep(c.questions, c.sizes, c.target),
           "in which a contraction is long in several indices"),
    Regime("raised", lambda q: find_alike(q.op),
           lambda found, c: raising_pays(found, c.sizes, c.target),
           f"in which {ROWS} rows or more are products of bytes of one sort, and the target has none for these"),
    Regime("counted", lambda q: find_pairs(q.op),
           lambda found, c: counting_pays(found, c.sizes, c.target),
           f"in which at least {PAIRED} rows and columns share what is asked about in pairs, and the target can count these"),
    Regime("bordered", lambda q: find_borders(q.op),
           lambda found, c: any(volume(e, c.sizes) >= CHANNELS for e in found),
           f"in which at least {CHANNELS} channels of narrow numbers with a border are added up"),
    Regime("widened", lambda q: find_wide(q.op),
           lambda found, c: to_widen(found, c.sizes, c.target, not c.is_relaxed),
           f"in which at least {SHARED} rows and columns share narrow numbers, and the target multiplies wider ones faster"),
    Regime("outward", lambda q: outward.find_outward(q.op),
           lambda found, c: outward.copies_pay(found, c.sizes),
           "in which what is copied of products over a batch that comes last is used often",
           left=lambda found, units, said: said and outward.lie_so(found, units)),
    Regime("laid", lambda q: laid.find_beside(q.op),
           lambda found, c: laid.to_lay(found, c.sizes),
           "in which several elements of a tensor use each of one that may lie across it",
           left=laid.across),
    Regime("late", lambda q: q.late,
           lambda _, c: c.tiles.late,
           "in which an operand that lies across the result of a contraction is large, or the result's rows fill no vectors",
           left=lambda found, units, said: said and late.lie_so(found, units)),
    Regime("piecewise", lambda q: late.find_pieces(q.late),
           lambda found, c: c.tiles.late and late.in_pieces(found, c.sizes, c.target, c.threads),
           f"in which an operand across the result of a contraction has rows of pieces of at least {late.LONG} bytes",
           left=lambda found, units, said: said and late.lie_so(found, units)),
    Regime("early", lambda q: find_early(q.op),
           lambda found, c: to_make_early(found, c.sizes, c.target.l2) if c.is_relaxed else (),
           "in which enough results share an operand of a contraction that takes little to compute"),
    Regime("lent", lambda q: row_regimes.find_kept(q.op),
           lambda found, c: row_regimes.has_long_rows(found, c.sizes, c.target),
           "in which rows that are kept before they become a result are long"),
    Regime("broad", lambda q: q.sides,
           lambda _, c: c.threads > 1 and _has_many_rows(c),
           f"in which several threads have {RESULTS} results of a contraction each, and {copy_regimes.ROWS} rows or more"),
    Regime("flat", lambda q: q.brief[0] if q.sides else (),
           lambda found, c: volume(found, c.sizes) <= FLAT and _has_many_rows(c),
           f"in which each of {RESULTS} results, or as many for each thread, has at most {FLAT} terms"),
    Regime("slabs", lambda q: q.brief[0] if q.sides else (),
           lambda _, c: c.threads == 1 and _has_plain_tiles(c) and copy_regimes.rows_leave(c.questions, c.sizes, c.target,
                                                                                           c.tiles.short == TURNED),
           "in which all rows of a contraction read more than a core's part of the last cache for each block of columns"),
    Regime("slim", lambda q: q.unpacked if q.sides and q.packed[0] else (),
           lambda _, c: c.threads == 1 and not has_matrices(c.questions, c.sizes, c.target, c.is_relaxed) and (
               bool(_rows_of_images(c)) or _rows_stay(c) or _is_one_tile(c)),
           "in which all rows of a contraction stay in L2, and what has its columns does not, or a tile has all of these"),
    Regime("direct", lambda q: q.unpacked if q.sides and q.sides.is_near and q.tile and not q.windows else (),
           lambda _, c: c.threads == 1 and _has_plain_tiles(c) and copy_regimes.lies_close(c.questions, c.sizes, c.target),
           f"in which at most {copy_regimes.USED} columns use an operand that lies along rows, in few lines close to each other"),
    Regime("bare", copy_regimes.find_in_order,
           lambda found, c: copy_regimes.steps_in_place(found, c.tiles, c.sizes, c.target, c.threads)
           if _in_place(c) else 0,
           "in which so few rows use an operand which lies along columns that it is read there"),
    Regime("short", lambda q: q.standing,
           lambda _, c: c.tiles.short,
           "in which so few rows of a product use an operand which lies along the sum that it is read there",
           left=lambda found, units, said: 0 if said == TURNED and not lie_so(found, units) else said),
    Regime("dots", dotted.find_dots,
           lambda found, c: dotted.rows_of_dots(found, c.sizes, c.target, c.options.frozen)
           if c.is_relaxed and not c.tiles.short else 0,
           "in which so few rows of a product lie along a long sum, as its other operand does, that they are dot products",
           left=lambda found, units, said: said if dotted.lie_so(found, units) else 0),
    Regime("multiples", dotted.find_dots,
           lambda found, c: dotted.whole_vectors(found, c.target) if c.said["dots"] else (),
           "in which few rows of narrow numbers lie along sums that fill vectors",
           left=lambda found, units, said: said if dotted.lie_so(found, units) else ()),
    Regime("tall", lambda q: row_regimes.find_turned(q.op),
           lambda found, c: c.target.across and row_regimes.is_tall(found, c.sizes, c.target),
           "in which rows that become columns are so many, or so far apart, that L2 does not hold a line of each"),
    Regime("columns", lambda q: row_regimes.find_aside(q.op),
           lambda found, c: c.threads > 1 and row_regimes.has_columns(found, c.sizes, c.threads),
           f"in which each of several threads has {row_regimes.ASIDE} bytes of each row of a triangular system"),
    Regime("paged", lambda q: q.strips,
           lambda found, c: c.threads > 1 and row_regimes.has_pages(found, c.sizes, bool(c.tiles.rows), c.threads),
           f"in which each row that is summed has {PAGE} bytes for each of several threads"),
)

REGIMES: tuple[Regime[Any], ...] = _TABLE
"""All of them, in an order in which each may ask what those before it have `said`."""


@dataclass(frozen=True, eq=False, slots=True)
class Regimes:
    """Those that an operator has, and what is found of it for each."""

    questions: Questions
    found: tuple[tuple[Regime[Any], Any], ...]


def regimes_of(op: Op, without: Collection[str] = ()) -> Regimes:
    """Those of `op`, but for some options: found once, in its text alone."""
    q = questions(op)
    found = ((r, r.find(q)) for r in REGIMES if r.option not in without)
    return Regimes(q, tuple((r, x) for r, x in found if x))


def regime(r: Regimes, sizes: Mapping[str, int], options: Options, target: Target, threads: int = 1) -> Options:
    """`options` for a call of these sizes, all of them at least 1, on so many threads of `target`."""
    return with_answers(options, answers(r, sizes, options, target, threads))


def with_answers(options: Options, found: Mapping[str, Any]) -> Options:
    """`options` with these answers; itself, if it has them all."""
    new = tuple((n, x) for n, x in found.items() if getattr(options, n) != x)
    return altered(options, new) if new else options


def answers(r: Regimes, sizes: Mapping[str, int], options: Options, target: Target, threads: int) -> dict[str, Any]:
    """Option -> what it is for such a call, as far as sizes decide about it; in the same order for all calls of an operator.

    Notes   Each call of new sizes asks all of this, so what an operator has nothing of costs nothing.
    """
    q = r.questions
    near = bool(q.far) and all(sizes[n] <= BOUND for n in q.far)
    if not options.special:
        return {"near": near, "threads": threads > 1}
    ones = narrow_sizes(q, sizes) if q.narrow else ()
    if ones:
        return {"near": near, "threads": threads > 1, "ones": ones}
    t = tiles(q, sizes, options, target, threads)
    said = dict(zip(Tiles._fields, t, strict=True))
    said |= {"near": near, "threads": threads > 1, "cascade": options.cascade}
    call = Call(q, sizes, options, target, threads, options.numerics != "strict", t, said)
    for x, found in r.found:
        said[x.option] = getattr(options, x.option) or x.answer(found, call)
    return said


def as_it_lies(r: Regimes, units: Layout, options: Options) -> Options:
    """`options` without what means something for what the text says of memory, but not for what a call's memory is like."""
    said = [(x, found, getattr(options, x.option)) for x, found in r.found]
    left = tuple((x.option, y) for x, found, y in ((x, f, x.left(f, units, y)) for x, f, y in said if y))
    return with_answers(options, dict(left))


def narrow_sizes(q: Questions, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The sizes that are 1 in a call and would leave lanes with one element, where another loop could have them."""
    return tuple(n for n in q.narrow if sizes[n] == 1)


def kinds(op: Op) -> tuple[str, ...]:
    """The sorts of calls that get a kernel of their own on a CPU, in words."""
    r = regimes_of(op)
    q = r.questions
    out = ["with an empty size"] if op.sizes else []
    out += [f"where {n} is 1" for n in q.narrow]
    out += [*kinds_of(op), *matrices.kinds_of(op)]
    out += [f"where {t.extent} is less than {t.other}, whose sums then go along a window" for t in find_taps(op)]
    out += [f"where {' or '.join(q.far)} is more than {BOUND}"] if q.far else []
    return (*out, *tile_kinds(q), *(x.words if isinstance(x.words, str) else x.words(found) for x, found in r.found))


def _rows_handed_over(c: Call) -> int:
    """Rows of a tile in which steps run together that hand over too much."""
    return tile_rows(c.questions.chains, c.sizes, c.target) if c.questions.chains else 0


def _rows_of_images(c: Call) -> int:
    """The same where what they hand over is an operand that is copied image by image, and nothing else is cut."""
    if not c.tiles.inward or c.options.overlap or _rows_handed_over(c):
        return 0
    return rows_of_images(c.questions.inward, c.sizes, c.target, c.threads)


def _or_read_twice(found: tuple[Sum, ...]) -> str:
    """What else is said of sums, if some of them are over rows that something else reads, too."""
    return ", or rows that are read twice, for themselves and for a sum over them, exceed L2" if any(x.row for x in found) else ""


def _shares(found: tuple[Sum, ...], c: Call) -> Values:
    """The sums that are cut into shares: those whose rows would be read twice, and with several threads what these share."""
    whole = {x.step.target.source for x, *_ in c.questions.inner} if c.tiles.factors else set()
    found = tuple(x for x in found if x.target not in whole)
    shares = fed_shares(found, c.sizes, c.target.l2)
    if c.threads > 1:
        rest = tuple(x for x in found if x.target not in dict(shares))
        shares += thread_shares(rest, c.sizes, few_rows(c.questions, c.sizes))
    return shares


def _has_many_rows(c: Call) -> bool:
    """Whether a contraction's plain tiles have so many rows that more columns are copied for them."""
    return _has_plain_tiles(c) and copy_regimes.has_many_rows(c.questions, c.sizes, c.threads, c.tiles.short == TURNED)


def _has_plain_tiles(c: Call) -> bool:
    """Whether a contraction's tiles have its own rows and columns, or these turned."""
    t = c.tiles
    return not (t.rows or t.few or t.short == SHORT or t.factors or t.late or t.inward)


def _in_place(c: Call) -> bool:
    """Whether tiles with a contraction's own rows and columns may read these where they lie; not where rows are copied."""
    t, sides = c.tiles, c.questions.sides
    if t.late:
        return not (t.rows or t.few or t.factors or t.inward)
    is_read = sides is not None and (not sides.is_near or bool(c.said.get("direct", False)))
    return is_read and _has_plain_tiles(c) and t.short != TURNED


def _is_one_tile(c: Call) -> bool:
    """Whether one of a contraction's tiles has all of its columns."""
    t = c.tiles
    return _has_plain_tiles(c) and not t.short and copy_regimes.is_one_tile(c.questions, c.sizes, c.target, t.height)


def _rows_stay(c: Call) -> bool:
    """Whether those of a contraction's tiles stay in L2, and what has the columns does not."""
    t = c.tiles
    return not t.rows and t.short != SHORT and copy_regimes.rows_stay(c.questions, c.sizes, c.target, t.short == TURNED)
