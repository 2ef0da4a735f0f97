"""Strategy "packed", chosen: an update with row-like, column-like and contracted iterators; `packed.py` builds it.

`reads.py` says what is known, `blocking.py` how large tiles and blocks are: by the target's row and, where known, by extents.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm, prod

from polyop.ir.errors import UnsupportedError
from polyop.ir.options import ALL_TERMS, CHUNK
from polyop.ir.target import NEAR, Target
from polyop.poly.build import Axes, Plan
from polyop.poly.schedule.nodes import Cluster
from polyop.poly.strategies.ahead import is_frozen, is_settled
from polyop.poly.strategies.blocking import (
    RegisterTile,
    block_of_columns,
    block_of_rows,
    columns_in_l2,
    depth_block,
    of_dots,
    register_tile_of,
    run_length,
    spare,
)
from polyop.poly.strategies.reads import Reads, is_close, reads_of
from polyop.poly.strategies.roles import (
    BATCH,
    COLUMN,
    CONTRACTED,
    ROW,
    Contraction,
    begins_late,
    classify,
    ends_early,
    is_movable,
    is_triangular,
    iterators_of,
)
from polyop.poly.strides import is_near

FEW_STEPS = 8  # of a dot-product instruction, over all rows, that take less than bringing its right operand into order
DOTS_MOST = 8  # rows that are dot products in place, of several columns at once: as many come from L2 again for these
ROWS_MOST = 8  # rows that use a right operand in so few multiply-adds that it is streamed rather than kept in a cache
FEW = 4  # rows from which one reads a frozen right operand sooner in the order of its lanes than where it lies
LITTLE = 8  # that part of L1 may be a right operand that is read where it lies
TOGETHER = 12  # values of another column that go through all turns of a sum: 8 are as fast, with 4 and 1 more is read again
UNCUT = 2048  # terms that a block of columns has room for, if the sum is not cut since their number differs from turn to turn
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
    apart         contracted iterators whose loops stand around the blocks, since blocks for all their values leave the cache
    beyond        other columns whose loops stand around these, or around the blocks of `depth` if there are no rows; of the last
                  one `together` values at a time, so that their partial sums stay in a cache from one turn to the next
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
    apart: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    together: int = TOGETHER

    def __str__(self) -> str:
        right = "right, fused" if self.fuse_pack else f"right, ahead {self.ahead}" if self.ahead else "right"
        packs = ["left"] * self.pack_left + [right] * self.pack_right
        rows = f"rows {self.row} x {self.rows}" if self.row else "no rows"
        across = f", {self.across} x {self.second}" if self.across else ""
        fine = f" x {self.fine}" if self.fine > 1 else ""
        fine += f" in turns of {' and '.join(self.apart)}" if self.apart else ""
        fine += f", {self.together} of {self.beyond[-1]} at a time" if self.beyond else ""
        return (f"packed: {rows}{across}, lanes {self.column} x {self.columns}, depth {self.depth}{fine}, "
                f"mc {self.mc}, kc {self.kc}, nc {self.nc}, packs {' and '.join(packs) or 'nothing'}")


def choose(plan: Plan, cluster: Cluster, outer: Axes) -> tuple[PackedStrategy, ...]:
    """Sizes from the cache formulas; roles from strides: a pack pays for a wrong stride and for cache reuse.

    Raises  UnsupportedError, if the update has no roles for a register tile, or the target no registers for one.
    """
    c = classify(plan, cluster, outer)
    if plan.options.numerics == "strict" and len(c.having(CONTRACTED)) > 1:
        return ()  # blocks would sum in another order
    if _is_strung(plan, c):
        return ()
    x = reads_of(plan, c)
    tile = register_tile_of(x)
    by_dots = tile.dot is not None and tile.dot.steps * x.heads > FEW_STEPS
    whole = x.is_one and not tile.beside and not tile.across
    settled = whole and is_settled(plan, c.update, x.right, outer)
    ahead = settled or (whole and is_frozen(plan, c.update, x.right))
    if ahead and not settled and not by_dots and _streams(x):
        return (few_again(plan, c, x.row, x.depth, plan.options.rows),)
    if not by_dots and not settled and _is_dots_in_place(x):
        return ()
    if not by_dots and _has_few_rows(x):
        return (few_rows(x),)
    if settled and all(x.few(i, ROWS_MOST + 1) <= ROWS_MOST for i in c.having(ROW)):
        return (few_again(plan, c, x.row, x.depth, x.few(x.row, 0)),)
    return blocked(x, of_dots(x, tile, tile.dot) if tile.dot else tile, ahead, outer)


def _is_strung(plan: Plan, c: Contraction) -> bool:
    """Whether a few columns, and a few terms of each, lie between rows: d and c of { Y[3n + d] += X[3n + c] * W[c, d] }.

    Lanes run along the rows then, and nothing is left to block.
    """
    u, own = c.update, plan.classes[c.update.name]
    extents = [u.extent(i) for i in (c.lane, *c.having(CONTRACTED))]
    few = all(e.is_constant and e.const <= NEAR for e in extents)
    return few and any(is_near(plan, u, x, own[i]) for x in u.reads for i in c.having(ROW))


def _is_dots_in_place(x: Reads) -> bool:
    """Whether there are so few rows that little is used twice, and lanes along the contraction read it in place."""
    end = x.straight(x.right, x.long)
    return 0 < x.heads <= DOTS_MOST and end is not None and x.straight(x.left, x.long) == end


def _has_few_rows(x: Reads) -> bool:
    """Whether a few rows use what lies in the order of the columns, so that nothing need be copied."""
    return bool(x.plan.options.rows) and x.apart and all(x.unit(r, (x.what.lane,)) for r in x.what.rights)


def _streams(x: Reads) -> bool:
    """Whether a few rows, which are one index, read a frozen operand in the order of lanes, with nothing converted on the way."""
    plain = x.left.dtype == x.right.dtype == x.what.update.target.dtype
    return plain and x.plan.options.rows >= FEW and len(x.what.having(ROW)) == 1


def few_rows(x: Reads) -> PackedStrategy:
    """A few rows over a right operand that is read once, in place: some of its rows side by side."""
    plan, c, t, free = x.plan, x.what, x.plan.target, spare(x.plan, x.what.update)
    rows = most = plan.options.rows
    if not t.masks and _few_vectors(t, rows, free) == 1 and rows % 2 == 0:
        rows = most // 2
    columns = _few_vectors(t, rows, free) * x.vector
    run = run_length(plan, c.update, columns, t.l1 // (4 * rows))
    chunk = None if plan.options.strip or begins_late(c.update, x.depth) else CHUNK
    outside = plan.splits(c.update)
    return PackedStrategy(c, x.row, c.lane, x.depth, columns, run, x.vector, chunk, rows, most, rows_outside=outside)


def _few_vectors(t: Target, rows: int, free: int) -> int:
    """Vectors of a tile of a few rows that leaves some registers free; where there are few, all of it and what is read have one.

    Of 16 registers, 3 x 4 took 3 times as long as 3 x 3, 4 x 3 half as long again as 4 x 2, and 6 x 1 as 6 x 2.
    """
    return max(1, min(4, (t.registers - 1 - free) // rows - 1 if t.masks else (t.registers - 1 - max(1, free)) // (rows + 1)))


def few_again(plan: Plan, c: Contraction, row: str, depth: str, rows: int) -> PackedStrategy:
    """A few rows over a right operand that is packed ahead: it is streamed once in each turn, so there is nothing to block."""
    t, vector, free = plan.target, plan.target.lanes(plan.lane_bytes), spare(plan, c.update)
    choices = (2, 3, 4, 8) if rows * 4 < t.fma_chains else (2, 3, 4)
    vectors = max((v for v in choices if (rows + 1) * v + free < t.registers), default=1)
    columns = vectors * vector
    return PackedStrategy(c, row, c.lane, depth, columns, columns, vector, None, rows, rows, pack_right=True,
                          rows_outside=plan.splits(c.update), ahead=ALL)


def blocked(x: Reads, tile: RegisterTile, ahead: bool, outer: Axes) -> tuple[PackedStrategy, ...]:
    """Tiles in blocks for the caches; `ahead`: the right operand is packed before all loops."""
    plan, c, t, threads = x.plan, x.what, x.plan.target, x.plan.splits(x.what.update)
    rows, columns = tile.rows, tile.columns
    pack_left = _packs_left(x, tile)
    own = plan.classes[c.update.name]
    early = ends_early(c.update, x.depth, frozenset(i for i in c.update.dims if own[i] in outer))
    kc = depth_block(x, tile, pack_left)
    depth = min(kc, known_terms(x) or kc)
    nc = block_of_columns(x, tile, UNCUT if early else depth)
    if ahead and is_frozen(plan, c.update, x.right):  # the next block comes to L2 meanwhile
        nc = max(1, nc // (2 * columns)) * columns
    block = columns_in_l2(t, kc * x.inside() * columns, tile.second, tile.bytes_) if tile.across else 1
    whole = lcm(rows, x.vector)  # a copy of the left operand goes by squares of vectors
    # picking lanes that lie further apart takes constants, for which the tile's loop has no registers: it was 1.25 times as long
    fusible = x.spacing(x.right, c.lane) == 1 and not ahead and not tile.is_matrix
    common = threads and pack_left and not outer and not c.having(BATCH)  # one copy of the left operand serves all threads
    # tiles across columns are narrow, and their copies large beside what few rows compute with them: each thread makes its own;
    # and what comes from memory for few rows is hardly waited for where these compute meanwhile
    as_it_goes = (tile.across or plan.options.late) and fusible and len(c.having(ROW)) == 1
    behind = threads and not pack_left and not as_it_goes and _is_cut(x, tile, nc, block)
    height = (96 if tile.across else 384) if threads else block_of_rows(x, tile, depth)
    mc = 2 * rows if behind else max(1, height // whole) * whole
    plain = PackedStrategy(c, x.row, c.lane, x.depth, columns, nc, x.vector, None, rows, mc, rows_outside=threads,
                           across=tile.across, second=tile.second, block=block)
    if not x.is_one:  # nothing to pack, or more than one thing
        return () if any(x.unit(r, (c.lane,)) is None for r in c.rights) else (plain,)
    if _is_little(x, tile) and not ahead and not pack_left:
        return (replace(plain, columns=min(columns, c.update.extent(c.lane).const)),)
    is_usual = not (ahead or tile.beside or tile.across or tile.dot)
    in_place = is_usual and not pack_left and x.unit(x.right, (c.lane,)) is not None
    if plan.options.bare and in_place:
        return (_in_place(plan, plain),)
    chunk = None if early or begins_late(c.update, x.depth) or is_brief(x, kc) else kc
    deep = plan.options.deep and chunk and is_usual and not outer and set(c.having(CONTRACTED)) == set(x.long)
    apart = tuple(i for i in x.long if i != x.depth) if deep else ()
    # where threads take some rows each, none of these is the first for all of them; nor where a diagonal leaves out whole tiles
    fuse = fusible and not behind and not (common and not as_it_goes) and not is_triangular(c)
    found = replace(plain, kc=chunk, pack_left=pack_left, pack_right=True, fuse_pack=fuse, rows_outside=threads and not common,
                    rows_behind=behind, beside=tile.beside, fine=tile.dot.steps if tile.dot else 1, ahead=ALL if ahead else "")
    beyond = () if threads else tuple(i for i in c.having(COLUMN) if i != c.lane)
    return (replace(found, apart=apart, beyond=beyond), found) if apart else (found,)


def _in_place(plan: Plan, plain: PackedStrategy) -> PackedStrategy:
    """`plain` tiles that read the right operand where it lies: all terms of a tile's columns, many of them, or a few of many."""
    steps = plan.options.bare
    if steps <= CHUNK:
        return replace(plain, kc=steps, nc=run_length(plan, plain.what.update, plain.columns, plan.target.l1 // steps))
    return replace(plain, kc=steps if steps < ALL_TERMS else None, nc=plain.columns)


def is_brief(x: Reads, kc: int) -> bool:
    """Whether it is known that a chunk of depth has all terms of a sum: none is then kept in memory to be added to."""
    terms = known_terms(x)
    return terms is not None and terms <= kc


def known_terms(x: Reads) -> int | None:
    """How many terms each sum has, where that is a number."""
    extents = [x.what.update.extent(i) for i in x.what.having(CONTRACTED)]
    return prod(e.const for e in extents) if all(e.is_constant for e in extents) else None


def _is_little(x: Reads, tile: RegisterTile) -> bool:
    """Whether four tiles at most use what a batch reads on the right, known to be so little that L1 holds it as it lies."""
    u, c = x.what.update, x.what
    rows, read = u.extent(x.row), [u.extent(i) for i in (*c.having(COLUMN), *c.having(CONTRACTED))]
    if tile.dot or len(c.having(ROW)) > 1 or x.unit(x.right, (c.lane,)) is None or not all(e.is_constant for e in (rows, *read)):
        return False
    return rows.const <= 4 * tile.rows and prod(e.const for e in read) * x.right.dtype.bytes_ <= x.plan.target.l1 // LITTLE


def _is_cut(x: Reads, tile: RegisterTile, nc: int, block: int) -> bool:
    """Whether there is a loop over blocks of columns or batches, which threads may share."""
    steps = {x.what.lane: nc, tile.beside: x.vector, tile.across: block}
    extents = ((i, x.what.update.extent(i)) for i in (*x.what.having(COLUMN), *x.what.having(BATCH)))
    return any(not e.is_constant or e.const > steps.get(i, 1) for i, e in extents)


def _packs_left(x: Reads, tile: RegisterTile) -> bool:
    """Whether the left operand is copied, since a chunk of its rows is not dense.

    It is where anything contracted has unit stride in it, or nearly, as a window in steps of two, either way, along neighbours:
    then it stays in L1 whatever its order. Of an image whose rows are shared by threads it is read in place, where each line has
    something for all rows of a tile: each would have to copy its part for each block of columns.
    """
    c = x.what
    far = NEAR + 1 if is_close(x) and not tile.dot else 2
    dense = x.spacing(x.left, x.depth) in range(1, far) if tile.dot else any(
        abs(x.spacing(x.left, i) or 0) in range(1, far) for i in c.having(CONTRACTED))
    in_place = x.plan.splits(c.update) and len(c.having(ROW)) > 1 and is_close(x)
    in_place |= x.plan.options.direct and not tile.dot and not tile.is_matrix
    movable = len(c.lefts) == 1 and is_movable(c.update, x.left)
    return movable and x.depth in iterators_of(x.left) and not dense and not in_place


def in_tiles(plan: Plan, s: PackedStrategy, step: int) -> PackedStrategy:
    """`s`, where a loop around gives tiles of `step` rows, or of so many columns, at a time."""
    return _in_columns(s, step) if plan.classes[s.what.update.name][s.column] in plan.tiled else _in_rows(plan, s, step)


def _in_columns(s: PackedStrategy, columns: int) -> PackedStrategy:
    """`s` for so many columns at a time.

    Raises UnsupportedError, if its register tiles have others.
    """
    if columns % s.columns:
        raise UnsupportedError(f"{columns} columns at a time are no whole number of tiles")
    c = s.what
    grows = ends_early(c.update, s.depth, frozenset(c.update.dims) - c.roles.keys())  # each turn copies what is new
    return replace(s, nc=columns, fuse_pack=s.fuse_pack and not grows)


def _in_rows(plan: Plan, s: PackedStrategy, rows: int) -> PackedStrategy:
    """`s` for so many rows at a time; what all of them read on the right is packed before them."""
    c = s.what
    can = s.pack_right and not s.beside and not s.across and c.having(COLUMN) == (s.column,) and not c.having(BATCH)
    ahead = s.ahead or ((ALL if plan.options.threads else TILES) if can else "")
    return s if s.row is None else replace(s, mc=rows, ahead=ahead, fuse_pack=s.fuse_pack and not ahead, rows_outside=False,
                                              rows_behind=False)
