"""Strategy "packed", chosen: an update with row-like, column-like and contracted iterators; `packed.py` builds it.

Sizes of tiles come from the target's row and, where they are known, from extents.

Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008, for what is blocked for which
cache; here the right operand's block stays in L2 and the rows of the left one in L1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import lcm, log2, prod

from polyop.ir.dots import Dot, matrix
from polyop.ir.expr import Affine, Load
from polyop.ir.options import SHORT
from polyop.ir.registers import matrix_tile, register_tile
from polyop.ir.target import NEAR, Target
from polyop.poly.ahead import is_settled
from polyop.poly.build import Axes, Plan
from polyop.poly.nodes import Cluster
from polyop.poly.roles import (
    BATCH,
    COLUMN,
    CONTRACTED,
    ROW,
    Contraction,
    begins_late,
    classify,
    dotted,
    ends_early,
    is_shared,
    is_window,
    iterators_of,
    stands_alone,
    written_order,
)
from polyop.poly.scop import Stmt
from polyop.poly.strides import spacing, stride

CHUNK = 8  # of rows of the right operand that are read side by side, where they are used once: L1 has hardly more ways
FEW_STEPS = 8  # of a dot-product instruction, over all rows, that take less than bringing its right operand into order
DOTS_MOST = 4  # rows that are dot products in place: 8 long ones come from L2 again for each column
ROWS_MOST = 8  # rows that use a right operand in so few multiply-adds that it is streamed rather than kept in a cache
LINE = 64  # bytes that a cache takes at once
PAGE = 4096  # bytes that memory is fetched ahead in
WINDOW = 3  # what the extent of an index that is added to another is taken for, where nothing is known
PIECE = 4  # vectors of columns in a block that threads share: more, smaller pieces of work
ALL, TILES = "of all loops", "of all tiles"


@dataclass(frozen=True, eq=False)
class PackedStrategy:
    """Numbers and names only.

    row           None: there is nothing for rows to reuse (`columns.py`)
    kc            None: accumulators stay in registers for the whole contraction
    rows_outside  the other rows go outside the blocks, as batches do: more for several threads to share
    rows_behind   threads take some rows each, behind a block of columns that each of them packs for itself
    beside        another column, along which the right operand has its unit stride: blocks hold `vector` values of it, so
                  that a copy reads whole lines
    across        another column, of which a register tile takes `second` values and a block `block`: where the lanes are few
    fine          steps of `depth` that one lane takes at once: those of a dot-product instruction, or 1
    ahead         the right operand is packed in full: `ALL`, before the loops around (`ahead.py`); `TILES`, inside them, but
                  before the one that gives the tiles of rows
    """

    what: Contraction
    row: str | None
    column: str
    depth: str
    columns: int
    nc: int
    vector: int
    kc: int | None
    rows: int = 1
    mc: int = 0
    pack_left: bool = False
    pack_right: bool = False
    fuse_pack: bool = False
    rows_outside: bool = False
    rows_behind: bool = False
    beside: str | None = None
    across: str | None = None
    second: int = 1
    block: int = 1
    fine: int = 1
    ahead: str = ""

    def __str__(self) -> str:
        right = "right, fused" if self.fuse_pack else f"right, ahead {self.ahead}" if self.ahead else "right"
        packs = ["left"] * self.pack_left + [right] * self.pack_right
        rows = f"rows {self.row} x {self.rows}" if self.row else "no rows"
        across = f", {self.across} x {self.second}" if self.across else ""
        fine = f" x {self.fine}" if self.fine > 1 else ""
        return (f"packed: {rows}{across}, lanes {self.column} x {self.columns}, depth {self.depth}{fine}, "
                f"mc {self.mc}, kc {self.kc}, nc {self.nc}, packs {' and '.join(packs) or 'nothing'}")


@dataclass(frozen=True, eq=False)
class _Reads:
    """A contraction whose `row` and `depth` are cut into tiles, and what is known of it.

    long      contracted iterators that are worth cutting; `apart`: whether these stand alone in some position of both operands
    typical   extents where they are constants, or where an option says what they mostly are
    """

    plan: Plan
    what: Contraction
    row: str
    depth: str
    long: tuple[str, ...]
    apart: bool
    typical: dict[str, int | None]

    @property
    def left(self) -> Load:
        return self.what.lefts[0]

    @property
    def right(self) -> Load:
        return self.what.rights[0]

    @property
    def vector(self) -> int:
        return self.plan.target.lanes(self.plan.lane_bytes)

    @property
    def heads(self) -> int:
        """How many rows there are at most, or columns of dot products; 0: more."""
        return self.plan.options.rows or self.few(self.what.lane, 0)

    @property
    def is_one(self) -> bool:
        """Whether all that stands on the right is one operand that has everything contracted, and so may be copied."""
        return len(self.what.rights) == 1 and set(self.what.having(CONTRACTED)) <= iterators_of(self.right)

    def few(self, iterator: str, more: int) -> int:
        """How often `iterator` runs at most in each turn of a recurrence, as an option says; else `more`."""
        return dict(self.plan.options.few).get(self.what.update.extent(iterator).name or "", more)

    def unit(self, load: Load, pool: tuple[str, ...]) -> str | None:
        """That of the iterators `pool` along which `load` has unit stride."""
        return _unit(self.plan, self.what, load, pool)

    def spacing(self, load: Load, iterator: str) -> int | None:
        u = self.what.update
        return spacing(self.plan, u, load, self.plan.classes[u.name][iterator])

    def inside(self, without: Iterable[str] = ()) -> int:
        """How many steps there mostly are of all that is contracted beside the depth."""
        u, beside = self.what.update, set(self.what.having(CONTRACTED)) - {self.depth, *without}
        return prod(self.typical[i] or (WINDOW if is_window(u, i) else 1) for i in beside)


@dataclass(frozen=True, eq=False)
class _Tile:
    """A register tile; fields as in `PackedStrategy`. `bytes_`: of an element as it is packed; `dot`: its instruction."""

    rows: int
    columns: int
    bytes_: int
    beside: str | None
    across: str | None
    second: int
    dot: Dot | None


def choose(plan: Plan, cluster: Cluster, outer: Axes) -> tuple[PackedStrategy, ...]:
    """Sizes from the cache formulas; roles from strides: a pack pays for a wrong stride and for cache reuse.

    Raises  UnsupportedError, if the update has no roles for a register tile, or the target no registers for one.
    """
    c = classify(plan, cluster, outer)
    if plan.options.numerics == "strict" and len(c.having(CONTRACTED)) > 1:
        return ()  # blocks would sum in another order
    x = _read(plan, c)
    tile = _tile(x)
    by_dots = tile.dot is not None and tile.dot.steps * x.heads > FEW_STEPS
    ahead = x.is_one and not tile.beside and not tile.across and is_settled(plan, c.update, x.right, outer)
    if not by_dots and not ahead and _is_dots_in_place(x):
        return ()
    if not by_dots and _is_streamed(x):
        return (few_rows(x),)
    if ahead and all(x.few(i, ROWS_MOST + 1) <= ROWS_MOST for i in c.having(ROW)):
        return (few_again(plan, c, x.row, x.depth, x.few(x.row, 0)),)
    return blocked(x, _of_dots(x, tile, tile.dot) if tile.dot else tile, ahead, outer)


def _read(plan: Plan, c: Contraction) -> _Reads:
    """Which row and which contracted iterator of `c` are cut."""
    u, few = c.update, dict(plan.options.few)
    many = tuple(i for i in c.having(ROW) if u.extent(i).name not in few) or c.having(ROW)
    row = _unit(plan, c, c.lefts[0], many) or next(i for i in reversed(written_order(u)) if i in many)
    contracted = c.having(CONTRACTED)
    long = tuple(i for i in contracted if not u.extent(i).is_constant) or contracted  # a 3 is not worth cutting
    alone = tuple(i for i in long if all(stands_alone(u, i, x) for x in (c.lefts[0], c.rights[0])))
    long = alone or long  # what is added to another index is a window, mostly short
    depth = _unit(plan, c, c.lefts[0], long) or _unit(plan, c, c.rights[0], long) or long[-1]
    hints = dict(plan.options.hints) | few
    return _Reads(plan, c, row, depth, long, bool(alone), {r.index: _typical(r.upper - r.lower, hints) for r in u.ranges})


def _tile(x: _Reads) -> _Tile:
    """The register tile of `x`, before any instruction for dot products has its say."""
    c, t, options = x.what, x.plan.target, x.plan.options
    beside = x.unit(x.right, tuple(i for i in c.having(COLUMN) if i != c.lane)) if len(c.rights) == 1 else None
    others = tuple(i for i in written_order(c.update) if i in c.having(COLUMN) and i != c.lane)
    across = others[-1] if others and not beside and options.short == SHORT else None
    height = options.height
    second = max((n for n in range(1, 5) if (height + 1) * n + 1 <= t.registers), default=1) if across else 1
    rows, vectors = register_tile(t, x.vector, options.rows or x.typical[x.row], x.typical[c.lane], 1 if across else 4, second,
                                  height=height)
    found = None if beside or across else dotted(x.plan, c, x.depth)
    return _Tile(rows, vectors * x.vector, x.plan.lane_bytes, beside, across, second, found)


def _of_dots(x: _Reads, tile: _Tile, d: Dot) -> _Tile:
    """`tile` as the instruction `d` likes it."""
    options = x.plan.options
    known = options.rows or 2 * options.height or x.typical[x.row]  # of dot products, two tiles' rows fit into one
    t, tiles = x.plan.target, matrix(x.plan.target, x.what.update.target.dtype, x.left.dtype, x.right.dtype)
    rows, vectors = matrix_tile(t, d) if tiles and not known else register_tile(t, x.vector, known, x.typical[x.what.lane], d=d)
    return replace(tile, rows=rows, columns=vectors * x.vector, bytes_=x.left.dtype.bytes_)


def _is_dots_in_place(x: _Reads) -> bool:
    """Whether there are so few rows that little is used twice, and lanes along the contraction read it in place."""
    end = x.unit(x.right, x.long)
    return 0 < x.heads <= DOTS_MOST and end is not None and x.unit(x.left, x.long) == end


def _is_streamed(x: _Reads) -> bool:
    """Whether a few rows use what lies in the order of the columns, so that nothing need be copied."""
    return bool(x.plan.options.rows) and x.apart and all(x.unit(r, (x.what.lane,)) for r in x.what.rights)


def few_rows(x: _Reads) -> PackedStrategy:
    """A few rows over a right operand that is read once, in place: some of its rows side by side."""
    plan, c, rows = x.plan, x.what, x.plan.options.rows
    columns = max(1, min(4, (plan.target.registers - 1) // rows - 1)) * x.vector
    run = run_length(plan, c.update, columns, rows)
    chunk = None if plan.options.strip or begins_late(c.update, x.depth) else CHUNK
    outside = plan.splits(c.update)
    return PackedStrategy(c, x.row, c.lane, x.depth, columns, run, x.vector, chunk, rows, rows, rows_outside=outside)


def run_length(plan: Plan, u: Stmt, columns: int, rows: int = 1, part: int = 4) -> int:
    """How many results of each of `rows` rows of `u` stay in that part of L1.

    If threads share what is beside, in a 24th of it; or at most a page of each row that is read, where that leaves one to all.
    """
    part = 24 if plan.splits(u) and not plan.options.paged else part
    elems = plan.target.l1 // (part * rows * plan.lane_bytes)
    if plan.splits(u) and plan.options.paged:
        elems = min(elems, PAGE // plan.lane_bytes)
    return max(1, elems // columns) * columns


def few_again(plan: Plan, c: Contraction, row: str, depth: str, rows: int) -> PackedStrategy:
    """A few rows over a right operand that is packed ahead: it is streamed once in each turn, so there is nothing to block."""
    t, vector = plan.target, plan.target.lanes(plan.lane_bytes)
    vectors = max(v for v in (1, 2, 3, 4, 8) if (rows + 1) * v < t.registers and (v <= 4 or rows * 4 < t.fma_chains))
    columns = vectors * vector
    return PackedStrategy(c, row, c.lane, depth, columns, columns, vector, None, rows, rows, pack_right=True,
                          rows_outside=plan.splits(c.update), ahead=ALL)


def blocked(x: _Reads, tile: _Tile, ahead: bool, outer: Axes) -> tuple[PackedStrategy, ...]:
    """Tiles in blocks for the caches; `ahead`: the right operand is packed before all loops."""
    plan, c, t, threads = x.plan, x.what, x.plan.target, x.plan.splits(x.what.update)
    rows, columns = tile.rows, tile.columns
    pack_left = _packs_left(x, tile)
    kc = _depth_block(x, tile, pack_left)
    nc = _column_block(x, tile, kc)
    block = column_block(t, kc * x.inside() * columns, tile.second, tile.bytes_) if tile.across else 1
    whole = lcm(rows, x.vector)  # a copy of the left operand goes by squares of vectors
    behind = threads and not pack_left and not tile.across and _is_cut(x, tile, nc)
    # tiles across columns are narrow, and their copies large beside what few rows compute with them: each thread makes its own
    height = (96 if tile.across else 384) if threads else 4800
    mc = 2 * rows if behind else max(1, height // whole) * whole
    plain = PackedStrategy(c, x.row, c.lane, x.depth, columns, nc, x.vector, None, rows, mc, rows_outside=threads,
                           across=tile.across, second=tile.second, block=block)
    if not x.is_one:  # nothing to pack, or more than one thing
        return () if any(x.unit(r, (c.lane,)) is None for r in c.rights) else (plain,)
    own = plan.classes[c.update.name]
    around = frozenset(i for i in c.update.dims if own[i] in outer)
    chunk = None if begins_late(c.update, x.depth) or ends_early(c.update, x.depth, around) else kc
    # picking lanes that lie further apart takes constants, for which the tile's loop has no registers: it was 1.25 times as long.
    # Where threads take some rows each, none of these is the first for all of them
    fuse = x.spacing(x.right, c.lane) == 1 and not ahead and not behind
    return (replace(plain, kc=chunk, pack_left=pack_left, pack_right=True, fuse_pack=fuse, rows_behind=behind, beside=tile.beside,
                    fine=tile.dot.steps if tile.dot else 1, ahead=ALL if ahead else ""),)


def _is_cut(x: _Reads, tile: _Tile, nc: int) -> bool:
    """Whether there is a loop over blocks of columns or batches, which threads may share."""
    steps = {x.what.lane: nc, tile.beside: x.vector}
    extents = ((i, x.what.update.extent(i)) for i in (*x.what.having(COLUMN), *x.what.having(BATCH)))
    return any(not e.is_constant or e.const > steps.get(i, 1) for i, e in extents)


def _is_close(x: _Reads) -> bool:
    """Whether the rows of a tile lie side by side in the left operand, so that a line of it holds several."""
    return x.spacing(x.left, x.row) in range(1, NEAR + 1)


def _packs_left(x: _Reads, tile: _Tile) -> bool:
    """Whether the left operand is copied, since a chunk of its rows is not dense.

    It is where anything contracted has unit stride in it, or nearly, as a window in steps of two along rows that are neighbours:
    then it stays in L1 whatever its order. Of an image whose rows are shared by threads it is read in place, where each line has
    something for all rows of a tile: each would have to copy its part for each block of columns.
    """
    c = x.what
    far = NEAR + 1 if _is_close(x) and not tile.dot else 2
    dense = any(x.spacing(x.left, i) in range(1, far) for i in ((x.depth,) if tile.dot else c.having(CONTRACTED)))
    in_place = x.plan.splits(c.update) and len(c.having(ROW)) > 1 and _is_close(x)
    return len(c.lefts) == 1 and x.depth in iterators_of(x.left) and not dense and not in_place


def _depth_block(x: _Reads, tile: _Tile, pack_left: bool) -> int:
    """How many steps of the depth leave room in L1 for the rows of a tile."""
    by_lines = not pack_left and x.unit(x.left, (x.depth,)) is None and _is_close(x)
    rows = max(tile.rows, LINE // tile.bytes_) if by_lines else tile.rows  # a step of depth takes a line at least
    # rows side by side share what a window along them reads, so that it takes no room of its own in L1
    shared = [i for i in x.what.having(CONTRACTED) if is_window(x.what.update, i) and is_shared(i, x.row, x.left)]
    room = contraction_depth(x.plan.target, rows, tile.bytes_)
    kc = max(16, 1 << round(log2(max(1, room / x.inside(shared)))))
    return min(kc, 128) if tile.beside else kc


def _column_block(x: _Reads, tile: _Tile, kc: int) -> int:
    """How many columns of the right operand are packed at a time; for threads more pieces, of which many have the same size."""
    if tile.across:
        return tile.columns
    nc = column_block(x.plan.target, kc * x.inside() * (x.vector if tile.beside else 1), tile.columns, tile.bytes_)
    return min(nc, max(1, PIECE * x.vector // tile.columns) * tile.columns) if x.plan.splits(x.what.update) else nc


def in_tiles(plan: Plan, s: PackedStrategy, rows: int) -> PackedStrategy:
    """`s`, where a loop around gives the tiles of `rows` rows; what all of them read on the right is packed before it."""
    c = s.what
    can = s.pack_right and not s.beside and not s.across and c.having(COLUMN) == (s.column,) and not c.having(BATCH)
    ahead = s.ahead or ((ALL if plan.options.threads else TILES) if can else "")
    return s if s.row is None else replace(s, mc=rows, ahead=ahead, fuse_pack=s.fuse_pack and not ahead, rows_outside=False,
                                              rows_behind=False)


def _unit(plan: Plan, c: Contraction, load: Load, pool: tuple[str, ...]) -> str | None:
    """That of the iterators `pool` along which `load` has unit stride."""
    own = plan.classes[c.update.name]
    return next((i for i in pool if stride(plan, c.update, load, own[i]) == 1), None)


def _typical(extent: Affine, hints: dict[str, int]) -> int | None:
    if extent.is_constant:
        return extent.const
    return hints.get(extent.name) if extent.name else None


def contraction_depth(t: Target, rows: int, bytes_: int) -> int:
    """A row panel of the left operand takes a quarter of L1."""
    return max(64, t.l1 // (4 * rows * bytes_) // 64 * 64)


def column_block(t: Target, depth: int, columns: int, bytes_: int) -> int:
    """A block of the right operand takes half of L2."""
    return max(columns, t.l2 // 2 // (depth * bytes_) // columns * columns)
