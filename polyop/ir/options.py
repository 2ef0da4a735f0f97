"""Options: what a user may choose about compiling. Frozen, so its text is part of every cache key."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from polyop.ir.errors import fail

RUNGS = ("tuned", "default", "distributed", "interpreter")
"""The ladder that compiling falls down, best first."""

NUMERICS = ("fast", "strict", "tf32", "winograd")


SHORT, TURNED = 1, 2
STRIP = 256  # bytes: four vectors
BRIEF = 24  # elements at most of rows that are turned, for each sum across them that this saves: two vectors take as long
CHUNK = 8  # of rows of the right operand that are read side by side where they lie: L1 has hardly more ways
ALL_TERMS = 1024  # of a sum, of which L2 holds a tile's columns, and those of the next one
FLAT = 8  # terms at most of sums whose results take longer to write than to compute


@dataclass(frozen=True, slots=True)
class Options:
    """How to compile.

    numerics   "fast": reductions may be reassociated, `a*b + c` contracted, products with the 0 of `else 0` left out of sums, and
               numbers below 2^-126 be 0 in sums of products of bf16; "tf32": on GPUs whose matrix units take f32 so, products are
               of numbers rounded to 11 bits, and sums of f32; elsewhere the same as "fast"; "winograd": on a CPU sums over small
               windows take fewer multiplications (`windows/winograd.py` of rewrite), else the same; "strict": source order
               and rounding
    hints      typical values of sizes: they choose tiles, and are never assumptions
    rung       the first rung of the ladder to try: "tuned", "default", "distributed", "interpreter"
    special    whether sizes that other tiles suit better (few rows, short rows, sizes of 1) get a kernel of their own when calls
               ask for it again. Without it one kernel serves all sizes of at least 1, and the same call has the same bits, always
    regime     the sizes the kernel is for: "positive" (all at least 1) or "any"
    ones       sizes that are 1 in the calls the kernel is for
    fixed      (size, value) of small windows along rows of the result, which are written out: 3 of a convolution of 3 x 3; on a
               GPU of all small windows, whose elements share one count of turns; and of all sizes of products so small that loops
               around them take longer than they do
    short      what becomes of lanes along what has unit stride in a contraction's result: they are many enough (0), so few that a
               tile takes more of another column (`SHORT`), or left empty too often, so that lanes run along what is a row
               otherwise (`TURNED`)
    rows       how many rows a contraction has at most in these calls, where that is 1, 4 or 8; 0: more
    few        (size, at most how many) of sizes that are the rows of a contraction inside a recurrence, where that is 1, 4, 8, 16
               or 32 in these calls, or the columns of dot products, where that is 4
    height     how many rows a register tile has where these calls would leave too much of the target's own one empty; and
               those of a thread of a GPU where a window slides along many; else 0
    down       how far before the last one, as the result is written, that of a contraction's rows stands along which a register
               tile has its own, since the last ones are few in these calls: 8 x 1 pixels; 0: along the last one, or as it lies
    pair       how many values of another column a register tile takes side by side with lanes whose number is known, since these
               alone would leave vectors half empty; 0: none
    strip      whether what has unit stride in a sum of rows is at most `STRIP` bytes long in these calls
    near       whether every position that is looked for, as `argmax=` does, fits into 32 bits in these calls
    overlap    rows of a tile in which steps run together that hand over more than a cache holds in these calls; 0: none
    paged      whether threads take a page of each row at a time where rows are added up, since in these calls all get some
    tall       whether so many rows become columns in these calls that L2 loses their lines before the rest of each is read
    broad      whether blocks of columns are as broad for several threads as for one, since each has many rows in these calls
    columns    whether threads have columns of a recurrence to themselves, since those that do not wait for each other are many in
               these calls
    flat       whether a contraction of many rows adds up at most `FLAT` terms in these calls, so that L2 holds more columns
    slabs      whether some rows of a contraction at a time go through all blocks of columns, since what all rows read of a
               block's depth is more in these calls than the last cache has for one core
    slim       whether one thread's blocks of columns are as broad as one tile, since all rows stay in L2 in these calls, and the
               operand with the columns does not, or images are copied one by one, or one tile has all columns
    direct     whether rows of a contraction are read where they lie, though along them, since there are few columns that use
               a copy in these calls, and a tile reads few lines, not far apart
    bare       how many terms at a time the tiles of a contraction read of columns where they lie, since so few rows use these in
               these calls that a copy hardly pays; `ALL_TERMS`: all, which are no more; 0: columns are copied
    dots       how many rows of a product are dot products together, where both operands lie along the sum and there are few rows
               in these calls; 0: `rows`, if these are not 0, or none
    multiples  (size, of what) of sizes that are multiples of a number in these calls, since lanes take so many at once
    abreast    whether rows of running sums or products are so many in these calls that a vector of them takes each step together
    picked     whether places that are looked up along the lanes are so few in these calls that a row has its elements one by one
    tables     (input, at most how many elements) of tables in which places known from data are looked up, and which registers
               hold in these calls
    lockstep   how many rows that are multiplied with the same vector run in lock step, where 4 are too many or too few for these
               calls; 0: 4
    along      bytes of each row that a recurrence down the rows takes at a time, since these are long in these calls; 0: a few
               vectors, down all rows
    factors    in which way factors that do without an index of a sum are taken out of the sum over it, which is long here;
               0: they are not
    raised     whether of two bytes of one sort that are multiplied one is raised by 128, since the target multiplies unsigned by
               signed ones, and enough rows share the sums of columns that are taken off in these calls
    counted    whether pairs of truths that a product over (or, and) asks about are counted, as products of bytes, since enough
               results share each in these calls
    bordered   whether images of narrow numbers are copied with their border, since instructions add up their many channels then
    widened    (operand, type) of narrow operands that are widened before the product which uses them often enough for that in
               these calls
    inward     (input, dimension) of inputs that lie along the rows of tiles in these calls, or on a GPU in no pieces of 16 bytes,
               and are copied to lie along that dimension, which is added up
    late       whether contractions whose large operand lies across their result are computed in its order, and turned afterwards
    piecewise  whether that is done for one piece of their rows after the other, since these are long in these calls
    outward    whether products for each of a batch that comes last are computed matrix by matrix, on copies in which it comes
               first, since what is copied is used often enough in these calls
    laid       tensors that lie across a larger one, which has all indices of a step, and are copied to lie along it, since each
               of their elements is used often enough in these calls
    early      what operands of contractions that take little to compute, and are computed before in these calls, read first:
               enough results share them
    lent       whether rows of temporaries are so long in these calls that they lie in those of a result that takes them
    cascade    whether reductions that need another one's result go over their elements once, in blocks: see `sums/cascade.py`
    threads    whether several threads run the kernel: loops are then cut so that all have work, and else none is shared out
    tile       rows and columns of a contraction's result for a block of a GPU's threads, where as many as usual would leave
               too few blocks for these calls; () elsewhere
    lines      of how many values of each row, and of each column, in the order in which it is written, the tile of such a block
               has its rows and columns: 16 rows are 2 x 8 pixels. () where it has them of one alone
    alone      whether a contraction has so few of these tiles in these calls that each has a GPU's multiprocessor to itself, and
               with it all of the memory that a block's threads share
    shares     (tensor, iterations of a share) of reductions that are cut into shares, since these calls have too few results
               for a GPU's blocks of threads, or for several threads, or read rows twice
    deep       whether a contraction adds up so much in these calls that contracted indices other than the one which is cut stand
               around its blocks, which would leave L2 else
    huge       whether indices in kernels for a GPU have 64 bits; else they have 32, and each launch says for which sizes and
               strides that will do
    split      elements of a share of a row, where reductions that need another one's result go over shares of it side by side,
               since these calls have too few rows for a GPU's blocks of threads; 0: a row is one block's
    apart      whether scans of a GPU go over rows so few and long in these calls that several blocks share one
    held       (size, at most how much) of sizes of which a block of a GPU's threads keeps as many results of a row, or adds up as
               many products, in these calls
    frozen     inputs that hold the same in all calls: what is made of them alone is made in the first one, and kept
    check      whether the proofs run (on by default; their result is kept with the kernel)

    Raises UserError E902, if a word is none of those.
    """

    numerics: str = "fast"
    hints: tuple[tuple[str, int], ...] = ()
    rung: str = "tuned"
    special: bool = True
    regime: str = "positive"
    ones: tuple[str, ...] = ()
    fixed: tuple[tuple[str, int], ...] = ()
    short: int = 0
    rows: int = 0
    few: tuple[tuple[str, int], ...] = ()
    height: int = 0
    down: int = 0
    pair: int = 0
    strip: bool = False
    near: bool = False
    overlap: int = 0
    paged: bool = False
    tall: bool = False
    broad: bool = False
    flat: bool = False
    slabs: bool = False
    slim: bool = False
    direct: bool = False
    bare: int = 0
    dots: int = 0
    multiples: tuple[tuple[str, int], ...] = ()
    columns: bool = False
    abreast: bool = False
    picked: bool = False
    tables: tuple[tuple[str, int], ...] = ()
    lockstep: int = 0
    along: int = 0
    factors: int = 0
    raised: bool = False
    counted: bool = False
    bordered: bool = False
    widened: tuple[tuple[str, str], ...] = ()
    inward: tuple[tuple[str, int], ...] = ()
    late: bool = False
    piecewise: bool = False
    outward: bool = False
    laid: tuple[str, ...] = ()
    early: tuple[str, ...] = ()
    lent: bool = False
    cascade: bool = False
    threads: bool = False
    tile: tuple[int, ...] = ()
    lines: tuple[tuple[int, ...], ...] = ()
    alone: bool = False
    split: int = 0
    apart: bool = False
    shares: tuple[tuple[str, int], ...] = ()
    deep: bool = False
    huge: bool = False
    held: tuple[tuple[str, int], ...] = ()
    frozen: tuple[str, ...] = ()
    check: bool = True

    def __post_init__(self) -> None:
        for name, words in (("numerics", NUMERICS), ("rung", RUNGS), ("regime", ("positive", "any"))):
            value = getattr(self, name)
            if value not in words:
                raise fail("E902", f"the option `{name}` is {value!r}; expected {', '.join(map(repr, words))}")

    def __hash__(self) -> int:
        """By what the kernels of one operator mostly differ in: thirty fields would take longer than most look-ups."""
        return hash((self.regime, self.ones, self.fixed, self.short, self.rows, self.few, self.height, self.near, self.threads))

    @property
    def known(self) -> dict[str, int]:
        """The sizes that are numbers in the calls the kernel is for."""
        return dict(self.fixed) | dict.fromkeys(self.ones, 1)


@lru_cache(maxsize=1024)
def altered(options: Options, fields: tuple[tuple[str, Any], ...]) -> Options:
    """`options` with these values: the same object each time, since calls of new sizes ask for few of them again and again."""
    return replace(options, **dict(fields))


def options_of(given: Options | None) -> Options:
    """What a user gave as options; the ordinary ones, if that is None.

    Raises UserError E902, if it is no Options.
    """
    if not isinstance(given, Options | None):
        raise fail("E902", f"`options` is a {type(given).__name__}; expected polyop.Options")
    return Options() if given is None else given


@dataclass(frozen=True, slots=True)
class Layout:
    """How the caller's tensors lie in memory: for each, the dimension whose stride is 1, or None.

    Part of the compile key; all other strides are run-time values, so one kernel serves every contiguous tensor and
    every view with the same unit dimension.
    """

    units: tuple[tuple[str, int | None], ...]

    def unit(self, tensor: str) -> int | None:
        return dict(self.units)[tensor]

    def end(self, tensor: str, rank: int) -> int | None:
        """The same, of a temporary, too: these lie as they are written."""
        return dict(self.units).get(tensor, rank - 1)
