"""Strategy "packed", chosen: an update with row-like, column-like and contracted iterators; `packed.py` builds it.

Nothing here knows an operator: roles come from which access uses which iterator, sizes of tiles from the target's row.

Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008, for what is blocked for which
cache; here the right operand's block stays in L2 and the rows of the left one in L1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm, log2, prod

from polyop.ir.dots import Dot, dot, product
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Load, names
from polyop.ir.expr import Test as Tests
from polyop.ir.options import SHORT, TURNED
from polyop.ir.registers import register_tile
from polyop.ir.target import NEAR, Target
from polyop.poly.ahead import is_settled
from polyop.poly.build import Axes, Plan
from polyop.poly.nodes import Cluster
from polyop.poly.scop import UPDATE, Stmt
from polyop.poly.strides import spacing, stride

CHUNK = 8  # of rows of the right operand that are read side by side, where they are used once: L1 has hardly more ways
FEW_STEPS = 8  # of a dot-product instruction, over all rows, that take less than bringing its right operand into order
DOTS_MOST = 4  # rows that are dot products in place: 8 long ones come from L2 again for each column
ROWS_MOST = 8  # rows that use a right operand in so few multiply-adds that it is streamed rather than kept in a cache
LINE = 64  # bytes that a cache takes at once
WINDOW = 3  # what the extent of an index that is added to another is taken for, where nothing is known
BATCH, ROW, COLUMN, CONTRACTED = "batch", "row", "column", "contracted"
ALL, TILES = "of all loops", "of all tiles"


@dataclass(frozen=True, eq=False)
class Contraction:
    """The update `C op= f(lefts, rights)` of a cluster; `roles` says what each iterator is, for those that are not fixed.

    The reads with the output's unit-stride iterator stand on the right, the others on the left. Output and both sides:
    batch. Output and left: row. Output and right: column. Not in the output: contracted.
    """

    update: Stmt
    lefts: tuple[Load, ...]
    rights: tuple[Load, ...]
    roles: dict[str, str]
    lane: str

    def having(self, role: str) -> tuple[str, ...]:
        return tuple(i for i in self.update.dims if self.roles.get(i) == role)


@dataclass(frozen=True, eq=False)
class PackedStrategy:
    """Numbers and names only.

    row           None: there is nothing for rows to reuse (`columns.py`)
    kc            None: accumulators stay in registers for the whole contraction
    rows_outside  the other rows go outside the blocks, as batches do: more for several threads to share
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


# --- choosing ------------------------------------------------------------------------------------------------------
def classify(plan: Plan, cluster: Cluster, outer: Axes) -> Contraction:
    """The roles in the cluster's one update; its column operand, which has the lanes, is put on the right."""
    update = next(s for s in cluster.stmts if s.kind == UPDATE)
    operands = tuple(dict.fromkeys(update.reads))
    own = plan.classes[update.name]
    free = [i for i in update.dims if own[i] not in outer]
    unit = next((i for i in free if stride(plan, update, update.target, own[i]) == 1), None)
    if unit is None:
        raise UnsupportedError(f"nothing has unit stride in the target of {update.name}")
    lane: str | None = unit
    if plan.options.short == TURNED:  # lanes along what is a row otherwise: its loops are long, and its stores are scattered
        rows = [i for i in written_order(update) if i in free
                and all((i in iterators_of(x)) != (unit in iterators_of(x)) for x in operands)]
        lane = rows[-1] if rows else None
    if lane is None:
        raise UnsupportedError(f"{update.name} has no row to run lanes along")
    lefts = tuple(x for x in operands if lane not in iterators_of(x))
    rights = tuple(x for x in operands if lane in iterators_of(x))
    if not lefts or not rights:
        raise UnsupportedError(f"{lane}, which has unit stride in the target, is in every operand or in none")
    left_has, right_has = (frozenset[str]().union(*map(iterators_of, side)) for side in (lefts, rights))
    roles = {}
    for i in free:
        key = (i in iterators_of(update.target), i in left_has, i in right_has)
        match key:
            case (True, True, True):
                roles[i] = BATCH
            case (True, True, False):
                roles[i] = ROW
            case (True, False, True):
                roles[i] = COLUMN
            case (False, _, _):
                roles[i] = CONTRACTED
            case _:
                raise UnsupportedError(f"{i} is in the target of {update.name} and in no operand")
    what = Contraction(update, lefts, rights, roles, lane)
    if not what.having(ROW) or not what.having(CONTRACTED):
        raise UnsupportedError(f"{update.name} has no row or nothing to contract")
    return what


def iterators_of(load: Load) -> frozenset[str]:
    return frozenset[str]().union(*(names(p) for p in load.index if isinstance(p, Affine)))


def choose(plan: Plan, cluster: Cluster, outer: Axes) -> tuple[PackedStrategy, ...]:
    """Sizes from the cache formulas; roles from strides: a pack pays for a wrong stride and for cache reuse.

    Raises  UnsupportedError, if the update has no roles for a register tile, or the target no registers for one.
    """
    c = classify(plan, cluster, outer)
    u, t = c.update, plan.target
    own = plan.classes[u.name]

    def unit(load: Load, pool: tuple[str, ...]) -> str | None:
        return next((i for i in pool if stride(plan, u, load, own[i]) == 1), None)

    column = c.lane
    left, right = c.lefts[0], c.rights[0]
    few = dict(plan.options.few)
    many = tuple(i for i in c.having(ROW) if u.extent(i).name not in few) or c.having(ROW)
    row = unit(left, many) or next(i for i in reversed(written_order(u)) if i in many)
    contracted = c.having(CONTRACTED)
    long = tuple(i for i in contracted if not u.extent(i).is_constant) or contracted  # a 3 is not worth cutting
    alone = tuple(i for i in long if all(stands_alone(i, x) for x in (left, right)))
    long = alone or long  # what is added to another index is a window, mostly short
    depth = unit(left, long) or unit(right, long) or long[-1]
    if plan.options.numerics == "strict" and len(contracted) > 1:
        return ()  # blocks would sum in another order
    outside = plan.options.threads
    hints = dict(plan.options.hints) | few
    typical = {r.index: _typical(r.upper - r.lower, hints) for r in u.ranges}
    bytes_ = plan.lane_bytes
    vector = t.lanes(bytes_)
    beside = unit(right, tuple(i for i in c.having(COLUMN) if i != column)) if len(c.rights) == 1 else None
    others = tuple(i for i in written_order(u) if i in c.having(COLUMN) and i != column)
    across = others[-1] if others and not beside and plan.options.short == SHORT else None
    height = plan.options.height
    second = max((n for n in range(1, 5) if (height + 1) * n + 1 <= t.registers), default=1) if across else 1
    known = plan.options.rows or typical[row]
    rows, vectors = register_tile(t, vector, known, typical[column], 1 if across else 4, second, height=height)
    columns = vectors * vector
    is_one = len(c.rights) == 1 and set(contracted) <= iterators_of(right)
    ahead = is_one and not beside and not across and is_settled(plan, u, right, outer)
    lanewise = None if beside or across else dotted(plan, c, depth)
    heads = plan.options.rows or few.get(u.extent(column).name or "", 0)
    by_dots = lanewise is not None and lanewise.steps * heads > FEW_STEPS
    if heads and not ahead and unit(right, long) and unit(left, long) == unit(right, long):
        if not by_dots and heads <= DOTS_MOST:
            return ()  # dot products: little is used twice, and lanes along the contraction read it in place
    begins = begins_late(u, depth)
    if plan.options.rows and not by_dots and alone and all(unit(x, (column,)) for x in c.rights):
        rows = plan.options.rows
        columns = max(1, min(4, (t.registers - 1) // rows - 1)) * vector
        run = run_length(plan, columns, rows)
        chunk = None if plan.options.strip or begins else CHUNK
        return (PackedStrategy(c, row, column, depth, columns, run, vector, chunk, rows, rows, rows_outside=outside),)
    if ahead and all(few.get(u.extent(i).name or "", ROWS_MOST + 1) <= ROWS_MOST for i in c.having(ROW)):
        return (few_again(plan, c, row, depth, few[u.extent(row).name or ""]),)
    if lanewise:
        known = plan.options.rows or 2 * height or typical[row]  # of dot products, two tiles' rows fit into one
        rows, vectors = register_tile(t, vector, known, typical[column], d=lanewise)
        columns, bytes_ = vectors * vector, left.dtype.bytes_
    windows = {i for i in contracted if is_window(u, i)}
    inside = prod(typical[i] or (WINDOW if i in windows else 1) for i in contracted if i != depth)
    # rows side by side share what a window along them reads, so that it takes no room of its own in L1
    shared = {i for i in windows if is_shared(i, row, left)}
    apart = prod(typical[i] or (WINDOW if i in windows else 1) for i in contracted if i != depth and i not in shared)
    # where anything contracted has unit stride, a chunk of a row is dense, and stays in L1 whatever its order
    dense = unit(left, (depth,) if lanewise else contracted)
    beside_each_other = spacing(plan, u, left, own[row]) in range(1, NEAR + 1)
    pack_left = (len(c.lefts) == 1 and depth in iterators_of(left) and dense is None
                 and not (outside and len(c.having(ROW)) > 1 and beside_each_other))
    by_lines = not pack_left and unit(left, (depth,)) is None and beside_each_other
    room = contraction_depth(t, max(rows, LINE // bytes_) if by_lines else rows, bytes_)  # a step of depth takes a line at least
    kc = max(16, 2 ** round(log2(max(1, room / apart))))
    if beside:
        kc = min(kc, 128)
    nc = columns if across else column_block(t, kc * inside * (vector if beside else 1), columns, bytes_)
    nc = min(nc, max(1, 4 * vector // columns) * columns) if outside else nc  # more pieces, of which many have the same size
    block = column_block(t, kc * inside * columns, second, bytes_) if across else 1
    whole = lcm(rows, vector)  # a copy of the left operand goes by squares of vectors
    mc = 2 * rows if outside and not pack_left else max(1, (384 if outside else 4800) // whole) * whole
    step = spacing(plan, u, right, own[column])
    # picking lanes that lie further apart takes constants, for which the tile's loop has no registers: it was 1.25 times as long
    fuse = step == 1 and (pack_left or not outside)
    if not is_one:  # nothing to pack, or more than one thing
        if any(unit(x, (column,)) is None for x in c.rights):
            return ()
        return (PackedStrategy(c, row, column, depth, columns, nc, vector, None, rows, mc, rows_outside=outside, across=across,
                               second=second, block=block),)
    chunk = None if begins or ends_early(u, depth, frozenset(i for i in u.dims if own[i] in outer)) else kc
    return (PackedStrategy(c, row, column, depth, columns, nc, vector, chunk, rows, mc, pack_left, True, fuse and not ahead,
                           outside, beside, across, second, block, lanewise.steps if lanewise else 1, ALL if ahead else ""),)


def run_length(plan: Plan, columns: int, rows: int = 1, part: int = 4) -> int:
    """How many results of each of `rows` rows stay in that part of L1; in a 24th of it, if threads share what is beside."""
    part = 24 if plan.options.threads else part
    return max(1, plan.target.l1 // (part * rows * plan.lane_bytes) // columns) * columns


def few_again(plan: Plan, c: Contraction, row: str, depth: str, rows: int) -> PackedStrategy:
    """A few rows over a right operand that is packed ahead: it is streamed once in each turn, so there is nothing to block."""
    t, vector = plan.target, plan.target.lanes(plan.lane_bytes)
    vectors = max(v for v in (1, 2, 3, 4, 8) if (rows + 1) * v < t.registers and (v <= 4 or rows * 4 < t.fma_chains))
    columns = vectors * vector
    return PackedStrategy(c, row, c.lane, depth, columns, columns, vector, None, rows, rows, pack_right=True,
                          rows_outside=plan.options.threads, ahead=ALL)


def in_tiles(plan: Plan, s: PackedStrategy, rows: int) -> PackedStrategy:
    """`s`, where a loop around gives the tiles of `rows` rows; what all of them read on the right is packed before it."""
    c = s.what
    can = s.pack_right and not s.beside and not s.across and c.having(COLUMN) == (s.column,) and not c.having(BATCH)
    ahead = s.ahead or ((ALL if plan.options.threads else TILES) if can else "")
    return s if s.row is None else replace(s, mc=rows, ahead=ahead, fuse_pack=s.fuse_pack and not ahead, rows_outside=False)


def begins_late(u: Stmt, depth: str) -> bool:
    """Whether rows or columns begin to add up at places of their own: { k >= i }.

    Whole chunks of depth come before them then, in which partial sums are only moved on: too many copies for a proof.
    """
    return any(isinstance(w, Tests) and any(x.factor(depth) > 0 and names(x) & set(written_order(u)) for x in w.tests)
               for w in u.where)


def ends_early(u: Stmt, depth: str, around: frozenset[str]) -> bool:
    """Whether each turn of a loop around adds up a number of terms of its own: { k < 32 b }."""
    return any(isinstance(w, Tests) and any(x.factor(depth) < 0 and names(x) & around for x in w.tests) for w in u.where)


def dotted(plan: Plan, c: Contraction, depth: str) -> Dot | None:
    """The instruction that adds up several steps of `depth` in each lane, if the update is a plain sum of products.

    Every step must exist for every row and column, or for none: conditions and guards could take some of a lane's alone.
    """
    u = c.update
    factors = product(u.expr)
    if factors is None or u.reduce is None or u.reduce.name != "add" or len(c.lefts) + len(c.rights) != 2 or u.where:
        return None
    if set(factors) != {c.lefts[0], c.rights[0]} or any(x.guard for x in factors) or plan.lane_bytes != 4:
        return None
    extent = u.extent(depth)
    if depth not in iterators_of(c.lefts[0]) or not set(c.having(CONTRACTED)) <= iterators_of(c.rights[0]):
        return None
    if not names(extent) <= set(plan.scop.op.sizes):
        return None
    found = dot(plan.target, plan.target.vector_bytes, u.target.dtype, c.lefts[0].dtype, c.rights[0].dtype,
                plan.options.numerics == "strict")
    return None if found is None or (extent.is_constant and extent.const < found.steps) else found


def written_order(s: Stmt) -> tuple[str, ...]:
    """The iterators of the target of `s`, in the order of its positions."""
    return tuple(p.name for p in s.target.index if isinstance(p, Affine) and p.name is not None)


def stands_alone(iterator: str, load: Load) -> bool:
    """Whether some position of `load` is just `iterator`."""
    return any(isinstance(p, Affine) and p.name == iterator for p in load.index)


def is_window(u: Stmt, iterator: str) -> bool:
    """Whether `iterator` is added to another one in some read of `u`, and so mostly short."""
    return not all(stands_alone(iterator, x) for x in u.reads if iterator in iterators_of(x))


def is_shared(window: str, row: str, load: Load) -> bool:
    """Whether `window` is added to `row` in some position of `load`."""
    return any(isinstance(p, Affine) and {window, row} <= names(p) for p in load.index)


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
