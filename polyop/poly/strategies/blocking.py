"""How large the register tile of a contraction is, and what of its operands a cache holds.

Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008, for what is blocked for which
cache; here the right operand's block stays in L2 and the rows of the left one in L1.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from math import log2

from polyop.ir.dots import TILE, Dot, matrix
from polyop.ir.errors import UnsupportedError
from polyop.ir.options import FLAT, SHORT
from polyop.ir.registers import BESIDE, matrix_tile, on_the_way, register_tile, usual_beside
from polyop.ir.target import LINE, PAGE, Target
from polyop.poly.build import Plan
from polyop.poly.scop import Stmt
from polyop.poly.strategies.reads import Reads, is_close
from polyop.poly.strategies.roles import COLUMN, CONTRACTED, dotted, is_shared, is_window, written_order

DEEP = 4096  # bytes of a row that matrix tiles go through before the next: L2 feeds them, and sums in memory are far from it
WIDE = 192  # columns of a block of the right operand, for which rows of the left one come from L2 or further once
SLAB = 3  # times L2 takes what rows of the left operand read of a block's depth: the last cache has that much, whoever uses it
TOGETHER = 4800  # rows that meet all blocks of columns before the next ones come, unless `slabs` says fewer
LEAST_ROWS = 384  # that use a copy of columns: to make it takes as long as about 24
PIECE = 4  # vectors of columns in a block that threads share: more, smaller pieces of work


@dataclass(frozen=True, eq=False)
class RegisterTile:
    """A register tile; fields as in `PackedStrategy`.

    bytes_     of an element as it is packed; dot: its instruction
    is_matrix  whether matrix tiles do what that does, of sixteen steps at once
    """

    rows: int
    columns: int
    bytes_: int
    beside: str | None
    across: str | None
    second: int
    dot: Dot | None
    is_matrix: bool = False


def register_tile_of(x: Reads) -> RegisterTile:
    """The register tile of `x`, before any instruction for dot products has its say."""
    c, t, options = x.what, x.plan.target, x.plan.options
    beside = x.unit(x.right, tuple(i for i in c.having(COLUMN) if i != c.lane)) if len(c.rights) == 1 else None
    others = tuple(i for i in written_order(c.update) if i in c.having(COLUMN) and i != c.lane)
    across = others[-1] if others and not beside and options.short == SHORT else None
    height = options.height
    lanes = c.update.extent(c.lane)
    if options.pair and others and height and lanes.is_constant and len(c.rights) == 1 and not dotted(x.plan, c, x.depth):
        return RegisterTile(height, lanes.const, x.plan.lane_bytes, None, others[-1], options.pair, None)
    second, height = (BESIDE, height or usual_beside(t)) if across else (1, height)
    rows, vectors = _fitting(x, 1 if across else 4, second, height)
    found = None if beside or across else dotted(x.plan, c, x.depth)
    return RegisterTile(rows, vectors * x.vector, x.plan.lane_bytes, beside, across, second, found)


def _fitting(x: Reads, most: int, second: int, height: int) -> tuple[int, int]:
    """Rows and vectors beside which registers are left for what the update computes; of `height` rows where that can be."""
    t, free = x.plan.target, spare(x.plan, x.what.update)
    down, along = x.plan.options.rows or x.typical[x.row], x.typical[x.what.lane]
    for rows in dict.fromkeys((height, 0)):
        with suppress(UnsupportedError):
            return register_tile(t, x.vector, down, along, most, second, height=rows, spare=free)
    return register_tile(t, x.vector, down, along, most, second, height=height)


def spare(plan: Plan, u: Stmt) -> int:
    """Registers for what `u` computes on its way to a sum, and those that are to be left free beside."""
    return plan.spare + (on_the_way(u.expr, u.reduce) if u.reduce else 0)


def of_dots(x: Reads, tile: RegisterTile, d: Dot) -> RegisterTile:
    """`tile` as the instruction `d` likes it."""
    options = x.plan.options
    known = options.rows or 2 * options.height or x.typical[x.row]  # of dot products, two tiles' rows fit into one
    t, found = x.plan.target, matrix(x.plan.target, x.what.update.target.dtype, x.left.dtype, x.right.dtype)
    tiles = found is not None
    few = x.few(x.what.lane, 0) if tiles else 0
    if few or (tiles and (not known or options.height == TILE)):
        rows, vectors = matrix_tile(few, options.height)
    else:
        rows, vectors = register_tile(t, x.vector, known, x.typical[x.what.lane], d=d, spare=x.plan.spare)
    return replace(tile, rows=rows, columns=vectors * x.vector, bytes_=x.left.dtype.bytes_, is_matrix=tiles)


def depth_block(x: Reads, tile: RegisterTile, pack_left: bool) -> int:
    """How many steps of the depth leave room in L1 for the rows of a tile; twice as many where L2 has a wide block of them, too.

    Then sums come from memory half as often, and rows of the left operand in runs of whole pages, which is what is fetched ahead.
    """
    by_lines = not pack_left and x.unit(x.left, (x.depth,)) is None and is_close(x)
    rows = max(tile.rows, LINE // tile.bytes_) if by_lines else tile.rows  # a step of depth takes a line at least
    # rows side by side share what a window along them reads, so that it takes no room of its own in L1
    shared = [i for i in x.what.having(CONTRACTED) if is_window(x.what.update, i) and is_shared(i, x.row, x.left)]
    room = depth_in_l1(x.plan.target, rows, tile.bytes_)
    room = DEEP // tile.bytes_ if tile.is_matrix else room
    kc = max(16, 1 << round(log2(max(1, room / x.inside(shared)))))
    if tile.beside:
        return min(kc, 128)
    fits = 3 * rows * 2 * kc * x.inside(shared) * tile.bytes_ <= 2 * x.plan.target.l1
    return 2 * kc if fits and not tile.across and not tile.is_matrix and _most_columns(x, tile, 2 * kc) >= WIDE else kc


def block_of_columns(x: Reads, tile: RegisterTile, kc: int) -> int:
    """How many columns of the right operand are packed at a time; for threads more pieces, of which many have the same size.

    Not where each has many rows, which then come from memory as often as they do for one thread, nor where many columns do. Of
    short sums half of L2 holds whole rows, or long parts of them: results then go to memory in the order in which they lie there.
    """
    if tile.across or x.plan.options.slim:
        return tile.columns
    if x.plan.options.flat:
        return columns_in_l2(x.plan.target, FLAT, tile.columns, tile.bytes_)
    nc = _most_columns(x, tile, kc)
    cut = x.plan.splits(x.what.update) and not (x.plan.options.broad or x.plan.options.late)
    return min(nc, max(1, PIECE * x.vector // tile.columns) * tile.columns) if cut else nc


def block_of_rows(x: Reads, tile: RegisterTile, kc: int) -> int:
    """How many rows of the left operand meet all blocks of columns before the next ones come; of rows that are few, all.

    Each block of columns reads them again, from the last cache if it has kept them; but a core's part of that is what others
    leave. So of many they take a few times L2, and for every so many rows the blocks of columns are copied once more.
    """
    if not x.plan.options.slabs:
        return TOGETHER
    return max(LEAST_ROWS, SLAB * x.plan.target.l2 // (kc * x.inside() * tile.bytes_))


def _most_columns(x: Reads, tile: RegisterTile, kc: int) -> int:
    """How many columns of the right operand a thread has room for."""
    return columns_in_l2(x.plan.target, kc * x.inside() * (x.vector if tile.beside else 1), tile.columns, tile.bytes_)


def depth_in_l1(t: Target, rows: int, bytes_: int) -> int:
    """A row panel of the left operand takes a quarter of L1."""
    return max(64, t.l1 // (4 * rows * bytes_) // 64 * 64)


def columns_in_l2(t: Target, depth: int, columns: int, bytes_: int) -> int:
    """A block of the right operand takes half of L2."""
    return max(columns, t.l2 // 2 // (depth * bytes_) // columns * columns)


def run_length(plan: Plan, u: Stmt, columns: int, room: int) -> int:
    """How many results of a row of `u` take `room` bytes.

    If threads share what is beside, a sixth of it and a 24th of L1; or at most a page of each row, where that leaves one to all.
    """
    if plan.splits(u):
        room = min(room, PAGE) if plan.options.paged else min(room // 6, plan.target.l1 // 24)
    return max(1, room // plan.lane_bytes // columns) * columns
