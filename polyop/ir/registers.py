"""Register tiles: how many rows and vectors of a contraction's result are kept in registers while it is added up."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from polyop.ir.dots import SUMS, TILE, Dot
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Apply, Const, Expr, Load, children, walk
from polyop.ir.op import Monoid
from polyop.ir.target import LINE, Target

FAR = 5  # loads from L1 in whose time a vector comes from L2 (measured: 10 to 14 rows x 2 vectors beat 6 x 4 and 9 x 3)
WORDS_FAR = 3  # the same for products of words, of which a block of as many bytes is used half as often (8 x 3 beats 12 x 2)
SHORTEST, TALLEST = 4, 8  # rows of a tile that is made to fit: fewer use each vector too little, more have too many addresses
TALLEST_NARROW = 14  # the same where all columns are two vectors: two sums for each address
SLIDING_FAR = 3  # `FAR` where a window slides along rows, of an L2 of `SLOW` bytes or more (14 x 2 beats 7 x 3)
SLOW = 2 << 20
WINDOW = 8  # steps of a window at most that are written out for rows which share what they read
WINDOWED = 4  # units of `time` to copy an element of a window, where one or two do for others
SPACED = 5  # the same where they are copied a vector at a time, of elements that lie apart (as 7 x 7 in steps of two shows)
LOOKUP = 1.75  # units of `time` for each lane of a vector of elements that lie apart, empty lanes as well
ACROSS = 3  # units of `time` to copy an element by squares, of an operand that is used once for each vector of rows
PAGE = 8  # units of `time` to store an element on a page of its own
APART = 0.2  # of the time of a tile of narrow vectors that it takes longer if its rows' elements lie half a line apart,
DEEP = 256  # and there are so many, which leave little of L1, or lanes are missing
PARTIAL = 0.25  # of a tile's time, that it takes longer where lanes are missing and elements lie apart: masks of copies, results
FULL = 0.85  # of the lanes of a last vector that are used, of few vectors
MANY = 4  # vectors, which are not few
DOUBT = 0.95  # of the time that lanes as they are take: what is not counted above
MISSING = 1.15  # of the time of a tile with one row less, as images and batches have one, that one takes which may have fewer
BESIDE = 2  # values of another column that a tile takes where a row of the result is no longer than a vector
TALLEST_BESIDE = 10  # rows of such a tile: with 12 it is half as fast
MOST_PAIRED = 7  # vectors of a tile whose lanes run over two columns, and the fewest rows with so many
FEWEST_PAIRED = 3
PAIRED = 0.9  # of it, below which lanes over two columns pay, whose results are stored in more pieces
WORTH = 0.98  # of the time that the target's own tile takes: below that, a kernel for another tile pays
WORTH_TALLER = 1.0  # the same of a taller one from an L2 of `SLOW`, out of which it reads what is packed less often

Tile = tuple[int, int]
"""(rows, vectors)"""


@lru_cache(maxsize=256)  # calls ask for the same few, without extents, each time that their sizes are new
def register_tile(t: Target, lanes: int, rows: int | None = None, columns: int | None = None, most: int = 4, second: int = 1,
                  d: Dot | None = None, height: int = 0, spare: int = 0) -> Tile:
    """The tile with the fewest loads per multiply-add, (r + v) / (r v), under r v + v + 1 <= registers, r v >= fma_chains.

    There are `second` times as many vectors in a tile, and up to `most` of them along the lanes; `height`: rows, if not 0.
    `rows` and `columns` are typical extents, never assumptions: shapes that cut them with less waste are preferred.
    Dot products use what they load several times as fast, and the right operand comes from L2: its vectors count as `FAR`. Where
    one of their operands is flipped, each column has one more sum, beside it the constant that this is a sum with; tiles of words
    that fill all registers but one lost to smaller ones. An instruction that does not add leaves a product in a register, and
    sums wait for nothing but an addition. `spare` registers hold what is computed on the way to a sum, in which time fewer sums
    than chains do.

    Raises  UnsupportedError, if there is none.
    """
    if d and not d.instruction.adds:
        kept, more, chains = 1, 2, 1
    else:
        kept, more = (2, 3) if d and d.owes else (1, 3) if d and (d.steps == 2 or d.flipped) else (1, 1)
        chains = t.fma_chains
    single = max(TALLEST, t.fma_chains) + 1  # of one vector, more rows than chains gain nothing beside their addresses
    tall = t.registers if second > 1 or d else single
    fitting = [(r, v) for v in range(1, most + 1)
               for r in (range(height, height + 1) if height else range(1, t.registers if v > 1 else tall))
               if (r + kept) * v * second + more + spare <= t.registers]
    legal = [(r, v) for r, v in fitting if r * v * second >= chains] or (fitting if spare else [])
    if not legal:
        raise UnsupportedError(f"no register tile fits {t.registers} vector registers")
    far = 1 if d is None else WORDS_FAR if d.steps == 2 else FAR
    return min(legal, key=lambda tile: time(tile, lanes, rows, columns, second, far, chains))


def on_the_way(e: Expr, m: Monoid) -> int:
    """Vectors that an update `sum m= e` keeps for a moment, beside sums and operands: none for a product that is added at once.

    What is computed of two values takes the place of one of them; numbers take one each. A minimum or maximum of floats keeps the
    value, the lesser one and where that is NaN.

    Source: Sethi and Ullman, "The generation of optimal code for arithmetic expressions", 1970.
    """
    if m.fn == "add" and isinstance(e, Apply) and e.fn == "mul" and e.dtype.is_float:
        found = _together(e.args)
    else:
        found = _kept(e)
    numbers = len({x for x in walk(e) if isinstance(x, Const)} | {"sign" for x in walk(e) if _has_sign(x)})
    return found + numbers + (2 if m.fn in ("min", "max") and e.dtype.is_float else 0)


def _has_sign(e: Expr) -> bool:
    return isinstance(e, Apply) and e.fn in ("abs", "neg") and e.dtype.is_float


def _kept(e: Expr) -> int:
    """Vectors for `e`, whose operands lie in registers; one that is converted is such an operand."""
    if not isinstance(e, Apply) or (e.fn == "cast" and isinstance(e.args[0], Load)):
        return 0
    return max(1, _together(children(e)))


def _together(values: tuple[Expr, ...]) -> int:
    """Vectors for all of `values`: what needs most comes first, what occurs twice is computed once."""
    needs = sorted(map(_kept, dict.fromkeys(values)), reverse=True)
    return max((n + i for i, n in enumerate(needs) if n), default=0)


def matrix_tile(columns: int = 0, rows: int = 0) -> Tile:
    """Two by two tiles of sums for matrix instructions, each of which then uses what is loaded twice.

    Of so few `columns` that one row of tiles has all of them the rows, which lie apart in memory, come in few streams. Of so
    few `rows` that a second row of tiles would be empty, one of them is loaded for two.
    """
    if 0 < columns <= SUMS * TILE:
        return TILE, -(-columns // TILE)
    return TILE if 0 < rows <= TILE else 2 * TILE, 2


def time(tile: Tile, lanes: int, rows: int | None, columns: int | None, second: int = 1, far: int = 1, chains: int = 0) -> float:
    """What a step of the depth takes for `rows` and `columns`, in cycles that start one load or half a multiply-add.

    A last tile that is not whole has as few vectors as hold what is left, and one row less, however many there are; fewer sums
    than `chains` wait for themselves, so that they take as long as so many. Without extents: for one element of a whole tile.
    """
    r, v = tile
    whole, rest = divmod(-(-columns // lanes), v) if columns else (1, 0)

    def row(height: int) -> float:
        last = _step(height, rest * second, far, chains) if rest else 0
        return (whole * _step(height, v * second, far, chains) + last) / (1 if columns else v * second)

    return rows // r * row(r) + (row(r - 1) * MISSING if rows % r else 0) if rows else row(r) / r


def _step(rows: int, vectors: int, far: int, chains: int) -> int:
    """What a step of the depth takes for a tile."""
    return 2 * max(rows * vectors, chains) + rows + vectors * far


@dataclass(frozen=True, slots=True)
class Turn:
    """A contraction whose result has rows of `columns` elements, and whose lanes could run along `rows` instead.

    across    how many rows of the result share an element of what has no columns, in the dimension before the columns
    beside    how many do in all
    depth     how many products are added up
    page      how much of a page of memory lies between elements that are neighbours along `rows`, at most 1
    windowed  whether windows of the operand with the columns are copied, element by element; `spaced`: by elements that lie apart
    window    bytes of such a window, which lie between elements of what has no columns
    kept      whether the copy of what has no columns is the same in all calls
    lies      whether what has the columns lies along them, so that it is turned, too, for lanes along `rows`
    stands    whether it lies along the depth, so that it is turned for lanes along the columns, and read in place for those
    """

    columns: int
    rows: int
    across: int
    beside: int
    depth: int
    page: float
    windowed: bool
    spaced: bool
    window: int
    kept: bool = False
    lies: bool = False
    stands: bool = False


def turning_pays(t: Target, lanes: int, x: Turn) -> bool:
    """Whether lanes should run along the rows of `x`, since its columns leave too many of them empty.

    What has no columns is turned then, for all that is beside to use, and so is the result.
    """
    if not (x.across and x.beside and x.depth):
        return False  # nothing is computed: a border alone makes up for an image without rows, and a window takes it all
    if x.windowed and x.rows < 2 * lanes:  # few sums wait for themselves either way
        return _turned(t, lanes, x, 0) < _few(t, lanes, x)
    if not (_fills(x.rows, lanes) if x.stands and not x.windowed else x.rows >= 2 * lanes):
        return False  # as many guards and addresses for a vector or less
    return _turned(t, lanes, x, t.fma_chains) < DOUBT * _straight(t, lanes, x)


def _straight(t: Target, lanes: int, x: Turn) -> float:
    """What a step of the depth takes with lanes along the columns, as `time` counts, and the copy for it."""
    own = register_tile(t, lanes)
    together = x.columns <= lanes  # a tile takes rows of the result together
    if together or t.masks:
        empty = -(-x.across // own[1]) * own[1] / x.across if together else 1.0
        found = -(-x.columns // lanes) * time(own, lanes, x.rows, own[1] * lanes, chains=t.fma_chains) / own[1] * empty
    else:  # several narrow vectors, of which a last tile has few
        fits = fitting_height(t, lanes, x.rows, x.columns)
        found = time(register_tile(t, lanes, height=fits) if fits else own, lanes, x.rows, x.columns, chains=t.fma_chains)
        partial = x.columns % lanes > 0
        if x.windowed and not x.spaced and (partial or x.depth >= DEEP):
            found *= 1 + APART * min(1, 2 * x.window / LINE)
        elif x.spaced and partial:
            found *= 1 + PARTIAL * min(1, 4 * own[1] * lanes / x.columns)  # of more than four tiles the last one is a part
    copied = (WINDOWED if together else SPACED if x.spaced else 1) if x.windowed else ACROSS if x.stands else 1
    return found + copied * x.columns


def _turned(t: Target, lanes: int, x: Turn, chains: int) -> float:
    """The same with lanes along the rows, and what the copies and the turn of the result take."""
    fits = fitting_height(t, lanes, x.columns, x.rows)
    tile = register_tile(t, lanes, height=fits) if fits else register_tile(t, lanes)
    found = time(tile, lanes, x.columns, x.rows, chains=chains)
    found += 0 if x.kept else (WINDOWED if x.windowed else 2) * x.rows / x.beside
    found += ACROSS * x.columns if x.lies and not x.windowed else 0
    return found + (1 + PAGE * x.page) * x.rows * x.columns / x.depth


def _few(t: Target, lanes: int, x: Turn) -> float:
    """What a step of the depth takes for a window's few rows with lanes along its columns, as `time` counts, and the copy for it.

    Sums that wait for themselves are left out. Where several vectors are no whole tile, what stands still is loaded for each.
    """
    vectors, own, few = -(-x.columns // lanes), register_tile(t, lanes), few_of(x.rows, t.masks)
    looked_up = LOOKUP * lanes if x.spaced or x.stands else 1
    if few or vectors < own[1]:
        return vectors * (3 * (few or x.rows) + looked_up)
    return time(own, lanes, x.rows, x.columns) + vectors * looked_up


def few_of(rows: int, masks: bool = True) -> int:
    """1, 4 or 8, if there are no more than so many rows, else 0; without `masks`, `rows` itself if these are at most 8."""
    return next((n for n in ((1, 4, 8) if masks else range(1, 9)) if 0 < rows <= n), 0)


def _fills(rows: int, lanes: int) -> bool:
    """Whether vectors that `rows` take are full, or almost so, or many."""
    return rows >= MANY * lanes or rows % lanes == 0 or rows % lanes > FULL * lanes


def fitting_pair(t: Target, lanes: int, rows: int, across: int, columns: int, lines: bool) -> tuple[int, int]:
    """(rows, values of another column) of a tile whose lanes run over both columns; (0, 0) if vectors are full enough without.

    `columns` lie side by side in each of `across` values of the other one; `lines`: the rows are to fill whole vectors together.
    """
    if columns % lanes == 0 or 4 * columns < lanes:
        return 0, 0
    own = register_tile(t, lanes)
    best, found = PAIRED * across * min(time((h, own[1]) if h else own, lanes, rows, columns, chains=t.fma_chains)
                                        for h in (0, fitting_height(t, lanes, rows, columns, tall=True))), (0, 0)
    for pair in range(2, min(across, MOST_PAIRED * lanes // columns) + 1):
        vectors = -(-pair * columns // lanes)
        for r in range(FEWEST_PAIRED, TALLEST_NARROW + 1):
            if (r + 1) * vectors + 1 <= t.registers and r * vectors >= t.fma_chains and not (lines and r * columns % lanes):
                taken = -(-across // pair) * time((r, vectors), lanes, rows, vectors * lanes, chains=t.fma_chains)
                if taken < best:
                    best, found = taken, (r, pair)
    return found


def usual_beside(t: Target) -> int:
    """The rows of a tile with `BESIDE` vectors, one for each value of another column."""
    return min(TALLEST, _room_beside(t))


def _room_beside(t: Target) -> int:
    """The most rows for which a target has registers, and some for what is read."""
    return t.registers // BESIDE - 2


def height_beside(t: Target, rows: int) -> int:
    """The rows of such a tile that `rows` leave less empty than the usual ones; 0 if none is worth it."""
    most, own = min(TALLEST_BESIDE, _room_beside(t)), usual_beside(t)

    def taken(height: int) -> float:
        return time((height, BESIDE), 1, rows, BESIDE, chains=t.fma_chains)

    best = min(range(SHORTEST, most + 1), key=taken)
    return best if taken(best) < WORTH * taken(own) else 0


def sliding_height(t: Target, lanes: int, rows: int, columns: int, height: int) -> int:
    """The rows of a tile along which a window slides: `TALLEST_NARROW` where L2 is slow and that takes less than `height` rows.

    Such rows lie in L1, side by side, and several turns of the window use them; of rows far apart so many leave it.
    """
    def taken(height: int) -> float:
        return time(register_tile(t, lanes, height=height), lanes, rows, columns, far=SLIDING_FAR, chains=t.fma_chains)

    return TALLEST_NARROW if t.l2 >= SLOW and taken(TALLEST_NARROW) < WORTH * taken(height) else height


def is_narrow(height: int) -> bool:
    """Whether tiles get so many rows for columns alone that two vectors hold: see `fitting_height`."""
    return height > TALLEST


def fitting_height(t: Target, lanes: int, rows: int, columns: int, known: bool = False, tall: bool = False,
                   streams: bool = True) -> int:
    """The rows of a tile that `rows` x `columns` leave less empty than the target's own one; 0 if none is worth it.

    `known`: with as many vectors as suit these extents, which the kernel knows; `tall`: of up to `TALLEST_NARROW`, where two
    vectors hold all columns; `streams`: the time is that of memory, from which what is packed comes; pieces of rows of four
    vectors come sooner than of three.

    Raises  UnsupportedError, if the target has no tile at all.
    """
    narrow = tall and lanes < columns <= 2 * lanes  # each vector is then used in few rows of the target's own tile
    down, along = (rows, columns) if known else (None, None)
    own, others = _tiles(t, lanes, down, along, TALLEST_NARROW if narrow else TALLEST, min(SHORTEST, rows))
    vectors = -(-columns // lanes)
    best, found = own.time(rows, vectors), 0
    for tile in others:
        is_taller = tile.rows > (found or own.rows)  # a lower one reads what is packed more often
        worth = WORTH_TALLER if is_taller and t.l2 >= SLOW and not streams else WORTH
        if (now := tile.time(rows, vectors)) < best * worth:
            best, found = now, tile.rows
    return found


@dataclass(frozen=True, slots=True)
class _Timed:
    """A tile of so many rows, and what a step takes for no vectors, one, ..., and all that it has; `shorter`: with a row less."""

    rows: int
    steps: tuple[int, ...]
    shorter: tuple[int, ...]

    def time(self, rows: int, vectors: int) -> float:
        """`time` for `rows` x `vectors`, of which each new size asks several tiles."""
        most = len(self.steps) - 1
        whole, rest = divmod(vectors, most)
        last = whole * self.shorter[most] + self.shorter[rest] if rows % self.rows else 0
        return rows // self.rows * (whole * self.steps[most] + self.steps[rest]) + last * MISSING


@lru_cache(maxsize=256)
def _tiles(t: Target, lanes: int, down: int | None, along: int | None, tallest: int,
           shortest: int) -> tuple[_Timed, list[_Timed]]:
    """The target's own tile, and those of each height for which there is one, the tallest first.

    Raises  UnsupportedError, if there is none at all.
    """
    def timed(tile: Tile) -> _Timed:
        r, most = tile
        steps, shorter = ((0, *(_step(height, v, 1, t.fma_chains) for v in range(1, most + 1))) for height in (r, r - 1))
        return _Timed(r, steps, shorter)

    found = []
    for height in range(tallest, shortest - 1, -1):
        with suppress(UnsupportedError):
            found.append(timed(register_tile(t, lanes, down, along, height=height)))
    return timed(register_tile(t, lanes, down, along)), found
