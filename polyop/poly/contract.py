"""Strategy "packed": an update with row-like, column-like and contracted iterators, in register tiles.

    batch.. m_c k_c ( pack_left  n_c ( pack_right  row.. m_r n_r n_v ( init fill  contracted.. k_p(update)  spill finish ) ) )

with every compute statement in its own m_p loop; a fused pack_right stands just before the update, where m_r is 0.

Rows m_p and lanes n_v run in lock step outside the contraction, so the outer product in registers is a consequence of
where the loops stand. Accumulators are a register buffer that `fill` and `spill` move from and to memory between chunks of
depth: so even the register promotion is in the proof. Nothing here knows an operator: roles come from which access uses
which iterator, sizes of tiles from the target's row.

Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008, for what is blocked for which
cache; here the right operand's block stays in L2 and the rows of the left one in L1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2, prod

import islpy as isl

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Load, affine, map_loads, names, place, quasi, substitute_expr
from polyop.ir.loops import Buffer, Kind, Space
from polyop.ir.target import Target
from polyop.poly.build import Axes, Builder, Part, Plan, find_homes, is_local, lower_bound, register, stride
from polyop.poly.schedule import Cluster
from polyop.poly.scop import INIT, MAP, UPDATE, Stmt
from polyop.poly.tiles import Axis, Band, Coord, TileStmt, band, bands, instances

BATCH, ROW, COLUMN, CONTRACTED = "batch", "row", "column", "contracted"


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

    kc            None: accumulators stay in registers for the whole contraction
    rows_outside  the other rows go outside the blocks, as batches do: more for several threads to share
    beside        another column, along which the right operand has its unit stride: blocks hold `vector` values of it, so
                  that a copy reads whole lines
    """

    what: Contraction
    row: str
    column: str
    depth: str
    rows: int
    columns: int
    mc: int
    kc: int | None
    nc: int
    vector: int
    pack_left: bool
    pack_right: bool
    fuse_pack: bool
    rows_outside: bool
    beside: str | None = None

    def __str__(self) -> str:
        packs = ["left"] * self.pack_left + [("right, fused" if self.fuse_pack else "right")] * self.pack_right
        return (f"packed: rows {self.row} x {self.rows}, lanes {self.column} x {self.columns}, depth {self.depth}, "
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
    if plan.options.short:  # lanes along what is a row otherwise: its loops are long, and its stores are scattered
        rows = [i for i in written_order(update) if i in free
                and all((i in _iterators(x)) != (unit in _iterators(x)) for x in operands)]
        lane = rows[-1] if rows else None
    if lane is None:
        raise UnsupportedError(f"{update.name} has no row to run lanes along")
    lefts = tuple(x for x in operands if lane not in _iterators(x))
    rights = tuple(x for x in operands if lane in _iterators(x))
    if not lefts or not rights:
        raise UnsupportedError(f"{lane}, which has unit stride in the target, is in every operand or in none")
    left_has, right_has = (frozenset[str]().union(*map(_iterators, side)) for side in (lefts, rights))
    roles = {}
    for i in free:
        key = (i in _iterators(update.target), i in left_has, i in right_has)
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


def _iterators(load: Load) -> frozenset[str]:
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
    row = unit(left, c.having(ROW)) or next(i for i in reversed(written_order(u)) if i in c.having(ROW))
    contracted = c.having(CONTRACTED)
    long = tuple(i for i in contracted if not _extent(u, i).is_constant) or contracted  # a 3 is not worth cutting
    depth = unit(left, long) or unit(right, long) or long[-1]
    if plan.options.numerics == "strict" and len(contracted) > 1:
        return ()  # blocks would sum in another order
    hints = dict(plan.options.hints)
    typical = {r.index: _typical(r.upper - r.lower, hints) for r in u.ranges}
    bytes_ = plan.lane_bytes
    vector = t.lanes(bytes_)
    rows, vectors = register_tile(t, vector, typical[row], typical[column])
    columns = vectors * vector
    inside = prod(typical[i] or 1 for i in contracted if i != depth)
    kc = max(16, 2 ** round(log2(max(1, contraction_depth(t, rows, bytes_) / inside))))
    beside = unit(right, tuple(i for i in c.having(COLUMN) if i != column)) if len(c.rights) == 1 else None
    if beside:
        kc = min(kc, 128)
    nc = column_block(t, kc * inside * (vector if beside else 1), columns, bytes_)
    mc = (192 if plan.options.threads else 4800) // rows * rows
    fuse = unit(right, (column,)) is not None
    outside = plan.options.threads
    if len(c.rights) > 1 or not set(contracted) <= _iterators(right):  # nothing to pack, or more than one thing
        if any(unit(x, (column,)) is None for x in c.rights):
            return ()
        return (PackedStrategy(c, row, column, depth, rows, columns, mc, None, nc, vector, False, False, False, outside),)
    pack_left = len(c.lefts) == 1 and depth in _iterators(left) and unit(left, (depth,)) is None
    return (PackedStrategy(c, row, column, depth, rows, columns, mc, kc, nc, vector, pack_left, True, fuse, outside, beside),)


def written_order(s: Stmt) -> tuple[str, ...]:
    """The iterators of the target of `s`, in the order of its positions."""
    return tuple(p.name for p in s.target.index if isinstance(p, Affine) and p.name is not None)


def _extent(s: Stmt, iterator: str) -> Affine:
    return next(r.upper - r.lower for r in s.ranges if r.index == iterator)


def _typical(extent: Affine, hints: dict[str, int]) -> int | None:
    if extent.is_constant:
        return extent.const
    return hints.get(extent.name) if extent.name else None


def register_tile(t: Target, lanes: int, rows_hint: int | None, columns_hint: int | None) -> tuple[int, int]:
    """(rows, vectors): fewest loads per multiply-add, (r + v) / (r v), under r v + v + 1 <= registers, r v >= fma_chains.

    A hint is a typical extent, never an assumption: shapes that cut it with less waste are preferred.
    """
    def waste(extent: int | None, step: int) -> float:
        return -(-extent // step) * step / extent if extent else 1.0

    def cost(tile: tuple[int, int]) -> float:
        r, v = tile
        return ((r + v) / (r * v) + 2.0) * waste(rows_hint, r) * waste(columns_hint, v * lanes)

    legal = [(r, v) for v in (1, 2, 3, 4) for r in range(1, t.registers)
             if r * v + v + 1 <= t.registers and r * v >= t.fma_chains]
    if not legal:
        raise UnsupportedError(f"no register tile fits {t.registers} vector registers")
    return min(legal, key=cost)


def contraction_depth(t: Target, rows: int, bytes_: int) -> int:
    """A row panel of the left operand takes a quarter of L1."""
    return max(64, t.l1 // (4 * rows * bytes_) // 64 * 64)


def column_block(t: Target, depth: int, columns: int, bytes_: int) -> int:
    """A block of the right operand takes half of L2."""
    return max(columns, t.l2 // 2 // (depth * bytes_) // columns * columns)


# --- building ------------------------------------------------------------------------------------------------------
def build(plan: Plan, cluster: Cluster, outer: Axes, s: PackedStrategy) -> Part:
    """The part of the tile program that `s` stands for, inside the loops `outer`."""
    return _Packed(plan, cluster, outer, s).build()


class _Packed:
    def __init__(self, plan: Plan, cluster: Cluster, outer: Axes, s: PackedStrategy) -> None:
        self.plan, self.cluster, self.outer, self.s = plan, cluster, outer, s
        self.c, self.u = s.what, s.what.update
        self.own = plan.classes[self.u.name]
        self.range = {r.index: r for r in self.u.ranges}
        self.axes: dict[str, Axis] = dict(outer)
        q = self.own
        chains: dict[str, tuple[Coord, ...]] = {
            s.row: (Coord(f"{q[s.row]}_c", s.mc), Coord(f"{q[s.row]}_r", s.rows, s.mc), Coord(f"{q[s.row]}_p", 1, s.rows)),
            s.column: (Coord(f"{q[s.column]}_c", s.nc), Coord(f"{q[s.column]}_r", s.columns, s.nc),
                       Coord(f"{q[s.column]}_v", 1, s.columns)),
        }
        if s.beside:
            chains[s.beside] = (Coord(f"{q[s.beside]}_c", s.vector), Coord(f"{q[s.beside]}_p", 1, s.vector))
        if s.kc:
            chains[s.depth] = (Coord(f"{q[s.depth]}_c", s.kc), Coord(f"{q[s.depth]}_p", 1, s.kc))
        for i in self.u.dims:
            if q[i] in outer:
                continue
            start = lower_bound(plan, self.u, q[i], outer)
            self.axes[q[i]] = Axis(chains.get(i, (Coord(q[i]),)), start)
        other_m = self.others(ROW, s.row)
        self.batch = self.others(BATCH) + (other_m if s.rows_outside else ())
        self.other_m = () if s.rows_outside else other_m
        self.m_p, self.n_v = f"{q[s.row]}_p", f"{q[s.column]}_v"
        self.chunk = f"{q[s.depth]}_c" if s.kc else None
        locked = ((self.m_p, s.rows), (self.n_v, s.columns))
        self.homes = find_homes(plan, cluster, tuple(outer), locked, s.columns)
        self.b = Builder(plan, cluster, self.homes)
        self.b.kinds |= {self.m_p: (Kind.ROWS, s.rows), self.n_v: (Kind.LANES, s.columns)}
        for h in self.homes.values():
            self.b.buffer(h.buffer)

    # --- small words
    def others(self, role: str, *used: str) -> tuple[str, ...]:
        return tuple(i for i in self.c.having(role) if i not in used)

    def coords(self, i: str) -> tuple[Coord, ...]:
        return self.axes[self.own[i]].coords

    def loops(self, items: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(c.name for i in items for c in self.coords(i))

    def extent(self, i: str) -> Affine:
        """The number of values of iterator `i`, in sizes alone."""
        r = self.range[i]
        out = r.upper - r.lower
        if not names(out) <= set(self.plan.scop.op.sizes):
            raise UnsupportedError(f"the extent of {i}, {out}, depends on other loops")
        return out

    def offset(self, i: str) -> Affine:
        """Iterator `i` counted from its start."""
        axis = self.axes[self.own[i]]
        return axis.value - axis.start

    def on_rows(self, *items: str) -> tuple[Band, ...]:
        return tuple(Band(self.m_p, (x,)) for x in items)

    # --- the parts
    def build(self) -> Part:
        s, u = self.s, self.u
        batch, other_m = self.batch, self.other_m
        beside = self.loops((s.beside,)) if s.beside else ()  # (block, within the block)
        other_n, other_k = self.others(COLUMN, s.column, *((s.beside,) if s.beside else ())), self.others(CONTRACTED, s.depth)
        before, after = self.accumulator()
        packed: dict[Load, Load] = {}
        tree_left: tuple[Band | str, ...] = ()
        tree_right: tuple[Band | str, ...] = ()
        fused: tuple[str, ...] = ()
        values = self.plan.values(u, self.axes)
        if s.pack_right:
            tree_right, fused = self.pack_right(other_m, other_k)
            packed[place(self.c.rights[0], values)] = self.right_place(other_k)
        if s.pack_left:
            tree_left = self.pack_left(other_m, other_k)
            packed[place(self.c.lefts[0], values)] = self.left_place(other_m, other_k)
        expr = map_loads(substitute_expr(u.expr, values), lambda x: packed.get(x, x))
        every = [self.own[i] for i in u.dims]
        every = [*self.outer, *(q for q in every if q not in self.outer)]
        self.b.compute(u, self.axes, every, target=self.acc, expr=expr)
        depth = [c.name for c in self.coords(s.depth) if c.name != self.chunk]
        inner = (*before, band((*self.loops(other_k), *depth), *fused, *self.on_rows(u.name)), *after)
        m_c, m_r = (c.name for c in self.coords(s.row)[:2])
        n_c, n_r = (c.name for c in self.coords(s.column)[:2])
        micro = band((*beside[1:], *self.loops(other_m), m_r, n_r, self.n_v), *inner)
        blocks = band((*self.loops(other_n), *beside[:1], n_c), *tree_right, micro)
        outside = (*self.loops(batch), m_c, *((self.chunk,) if self.chunk else ()))
        shared = self.loops(batch)[-1] if batch else m_c  # a leading batch is often 1
        self.b.kinds[shared] = (Kind.PARALLEL, None)
        return self.b.part(bands(outside, *tree_left, blocks))

    def accumulator(self) -> tuple[tuple[Band, ...], tuple[Band, ...]]:
        """What stands before and after the contraction: init or fill; spill, or finish and the statements that follow."""
        u, s, plan = self.u, self.s, self.plan
        locked = ((self.m_p, s.rows), (self.n_v, s.columns))
        init = next((q for q in self.cluster.stmts if q.kind == INIT and q.target.source == u.target.source), None)
        follow = [q for q in self.cluster.stmts if q.kind == MAP]
        local = is_local(plan, self.cluster, u.target.source)
        buffer, self.acc = register(f"{u.target.source}_{u.name}_acc", u.target.dtype, locked)
        self.b.buffers.pop(f"{u.target.source}_reg", None)
        self.b.buffer(buffer)
        if local and self.chunk:
            home = self.partial_home(follow)
        else:
            home = place(u.target, plan.values(u, self.axes))
        loops = [*self.outer, *(self.own[i] for i in u.dims if i in _iterators(u.target) and self.own[i] not in self.outer)]
        extra = [c for c in self.coords(s.depth) if c.name == self.chunk]
        k, kc = self.chunk, s.kc or 0
        extent = self.extent(s.depth) if k else Affine()
        starts = [f"0 <= {k} < {extent}"] if k else []
        first, later = ([f"{k} = 0"], [*starts, f"{k} > 0"]) if k else ([], [])
        last, early = ([*starts, f"{k} >= {extent - kc}"], [*starts, f"{k} < {extent - kc}"]) if k else ([], [])
        before: list[str] = []
        after: list[str] = []
        if init:
            before.append(self.b.move(init.name, u, self.axes, loops, self.acc, init.expr, extra=extra, only=first, origin=init))
            if k:
                before.append(self.b.move(f"{u.name}_fill", u, self.axes, loops, self.acc, home, extra=extra, only=later))
        else:
            before.append(self.b.move(f"{u.name}_fill", u, self.axes, loops, self.acc, home, extra=extra, only=starts))
        if local:
            if k:
                after.append(self.b.move(f"{u.name}_spill", u, self.axes, loops, home, self.acc, extra=extra, only=early))
        else:
            after.append(self.b.move(f"{u.name}_finish", u, self.axes, loops, home, self.acc, extra=extra, only=starts))
        for q in follow:
            after.append(self.epilogue(q, extra, last))
        return self.on_rows(*before), self.on_rows(*after)

    def partial_home(self, follow: list[Stmt]) -> Load:
        """Memory for partial sums of a temporary: the last result computed from it, if that has its shape and dtype."""
        u, plan = self.u, self.plan
        for q in reversed(follow):
            plain = sorted(p.name or "" for p in q.target.index if isinstance(p, Affine)) == sorted(q.dims)
            memory = {q.target.source, *(i for i, o in plan.scop.op.updates if o == q.target.source)}
            read = any(x.source in memory for p in follow for x in p.reads)
            if q.target.dtype == u.target.dtype and plain and not read and not is_local(plan, self.cluster, q.target.source):
                return place(q.target, plan.values(q, self.axes))
        t = plan.scop.op.tensor(u.target.source)
        self.b.buffer(Buffer(f"{t.name}_sum", t.dtype, tuple((e, 1) for e in t.shape), Space.WORK))
        return replace(place(u.target, plan.values(u, self.axes)), source=f"{t.name}_sum")

    def epilogue(self, q: Stmt, extra: list[Coord], only: list[str]) -> str:
        """A statement that follows the update at the same point; it reads the accumulator."""
        values = self.plan.values(q, self.axes)
        loops = [*self.outer, *(c for i in q.dims if (c := self.plan.classes[q.name][i]) not in self.outer)]
        expr = map_loads(q.expr, lambda x: self.acc if x.source == self.u.target.source else x)
        located = self.b.located(q, expr, self.axes)
        lift = tuple(values[i] for i in q.dims)
        coords = tuple(c for x in loops for c in self.axes[x].coords) + tuple(extra)
        domain = instances(self.plan.head, q.name, coords, lift, q.domain.intersect_params(self.plan.context), only)
        target = self.b.place(q, q.target, self.axes)
        self.b.stmts.append(TileStmt(q.name, coords, domain, q.name, lift, target, None, located))
        return q.name

    def right_place(self, other_k: tuple[str, ...]) -> Load:
        s = self.s
        n_c, n_r = (affine(c.name) for c in self.coords(s.column)[:2])
        k = self.offset(s.depth) - affine(self.chunk) if self.chunk else self.offset(s.depth)
        near = (self.offset(s.beside) - affine(self.coords(s.beside)[0].name),) if s.beside else ()
        index = (n_r, *near, *(self.offset(i) for i in other_k), k, self.offset(s.column) - n_c - n_r)
        return Load(self.packed_name("right"), index, self.c.rights[0].dtype)

    def left_place(self, other_m: tuple[str, ...], other_k: tuple[str, ...]) -> Load:
        s = self.s
        k = self.offset(s.depth) - affine(self.chunk) if self.chunk else self.offset(s.depth)
        m = self.offset(s.row) - affine(self.coords(s.row)[0].name)
        index = (*(self.offset(i) for i in other_m), m, *(self.offset(i) for i in other_k), k)
        return Load(self.packed_name("left"), index, self.c.lefts[0].dtype)

    def packed_name(self, side: str) -> str:
        return f"{self.u.target.source}_{self.u.name}_{side}"

    def deep(self, other_k: tuple[str, ...]) -> tuple[tuple[Affine, int], ...]:
        s = self.s
        return (*((self.extent(i), 1) for i in other_k), (affine(s.kc) if s.kc else self.extent(s.depth), 1))

    def pack_right(self, other_m: tuple[str, ...], other_k: tuple[str, ...]) -> tuple[tuple[Band | str, ...], tuple[str, ...]]:
        """(what stands before the tiles, what stands before the update) to copy a block of the right operand."""
        s = self.s
        near = ((affine(s.vector), 1),) if s.beside else ()
        dims = ((affine(s.nc), s.columns), *near, *self.deep(other_k), (affine(s.columns), 1))
        self.b.buffer(Buffer(self.packed_name("right"), self.c.rights[0].dtype, dims, Space.WORK, pad=s.columns, private=True))
        m_c, m_r = self.coords(s.row)[:2]
        only = [f"0 <= {m_c.name} < {self.extent(s.row)}"]
        if s.fuse_pack:
            also = (m_c, *(c for i in other_m for c in self.coords(i)), m_r)
            only += [f"{c.name} = 0" for c in also if c is not m_c]
            copy = _Copy(self, self.c.rights[0], self.c.having(COLUMN) + self.c.having(CONTRACTED), s.column, None, ())
            return (), (copy.write(f"{self.u.name}_right", lambda _: self.right_place(other_k), also, only),)
        source = self.unit_of(self.c.rights[0], self.c.having(COLUMN) + self.c.having(CONTRACTED))
        n_r = self.coords(s.column)[1].name
        copy = _Copy(self, self.c.rights[0], self.c.having(COLUMN) + self.c.having(CONTRACTED), s.column,
                     source if source != s.column else None, (n_r,))
        name = copy.write(f"{self.u.name}_right", lambda axes: self.moved(axes, lambda: self.right_place(other_k)), (m_c,), only)
        around = self.others(COLUMN, s.column, *((s.beside,) if s.beside else ()))
        return bands(copy.loops(exclude=around), name), ()

    def pack_left(self, other_m: tuple[str, ...], other_k: tuple[str, ...]) -> tuple[Band | str, ...]:
        """What copies a block of the left operand, before the blocks of columns."""
        s = self.s
        dims = (*((self.extent(i), 1) for i in other_m), (quasi("min", affine(s.mc), self.extent(s.row)), 1), *self.deep(other_k))
        self.b.buffer(Buffer(self.packed_name("left"), self.c.lefts[0].dtype, dims, Space.WORK, private=True))
        pool = (s.row, *other_m, *self.c.having(CONTRACTED))
        source = self.unit_of(self.c.lefts[0], pool)
        copy = _Copy(self, self.c.lefts[0], pool, s.depth, source if source != s.depth else None, ())
        name = copy.write(f"{self.u.name}_left", lambda axes: self.moved(axes, lambda: self.left_place(other_m, other_k)), (), [])
        return bands(copy.loops(exclude=()), name)

    def unit_of(self, load: Load, pool: tuple[str, ...]) -> str | None:
        return next((i for i in pool if stride(self.plan, self.u, load, self.own[i]) == 1), None)

    def moved(self, axes: dict[str, Axis], f: object) -> Load:
        """`f()` with other axes in force: a copy walks its iterators by coordinates of its own."""
        keep, self.axes = self.axes, {**self.axes, **axes}
        try:
            return f()  # type: ignore[operator, no-any-return]
        finally:
            self.axes = keep


class _Copy:
    """A copy of one operand, over the iterators `pool` that it uses, with lanes along `lane`.

    source   the iterator along which the operand has unit stride, if that is another: the copy then goes by square
             blocks, rows along `source` and lanes along `lane`, and the emitter transposes them in registers
    keep     coordinates of `lane` that stay tile coordinates of the copy
    """

    def __init__(self, p: _Packed, load: Load, pool: tuple[str, ...], lane: str, source: str | None,
                 keep: tuple[str, ...]) -> None:
        self.p, self.load, self.lane, self.source = p, load, lane, source
        used = _iterators(load)
        self.used = tuple(i for i in p.u.dims if i in used)
        self.pool = tuple(i for i in self.used if i in pool)
        self.axes = {p.own[i]: p.axes[p.own[i]] for i in self.used}
        vector = p.s.vector
        if source is not None:
            for i, last in ((lane, "l"), (source, "s")):
                q = p.own[i]
                axis = p.axes[q]
                stay = tuple(c for c in axis.coords if c.step > 1 and (c.name.endswith("_c") or c.name in keep))
                cap = stay[-1].step if stay else None
                self.axes[q] = Axis((*stay, Coord(f"{q}_x", vector, cap), Coord(f"{q}_{last}", 1, vector)), axis.start)
            p.b.kinds |= {f"{p.own[lane]}_l": (Kind.LANES, vector), f"{p.own[source]}_s": (Kind.ROWS, vector)}

    def write(self, name: str, target: object, also: tuple[Coord, ...], only: list[str]) -> str:
        """The statement of the copy: `also` are tile coordinates in which it is repeated, under the conditions `only`."""
        p = self.p
        plan = p.plan
        place_of = target(self.axes)  # type: ignore[operator]
        repeated = tuple(i for i in p.u.dims if i not in self.used and (p.own[i] in p.outer or i in p.batch))
        axes = {**{p.own[i]: p.axes[p.own[i]] for i in repeated}, **self.axes}
        over = tuple(i for i in p.u.dims if i in self.used or i in repeated)
        values = {i: axes[p.own[i]].value for i in over}
        within = p.u.domain.intersect_params(plan.context)
        for i in reversed(range(len(p.u.dims))):
            if p.u.dims[i] not in over:
                within = within.project_out(isl.dim_type.set, i, 1)
        coords = tuple(c for i in over for c in axes[p.own[i]].coords)
        coords += tuple(c for c in also if c not in coords)
        domain = instances(plan.head, name, coords, tuple(values[i] for i in over), within.set_tuple_name("point"), only)
        expr = place(self.load, values)
        p.b.stmts.append(TileStmt(name, coords, domain, None, (), place_of, None, expr))
        return name

    def loops(self, exclude: tuple[str, ...]) -> tuple[str, ...]:
        """The copy's own loops, outermost first: those that the tiles around do not already have."""
        p = self.p
        inner = {i: [c.name for c in self.axes[p.own[i]].coords if not c.name.endswith("_c")]
                 for i in self.pool if i not in exclude}
        if self.source is not None and self.source in inner:
            inside = [inner[self.source].pop(), inner[self.lane].pop()]
            around = [c for i in self.pool if i != self.lane and i in inner for c in inner[i]]
            return (*inner[self.lane], *around, *inside)
        inside = [inner[self.lane].pop()]
        around = [c for i in self.pool if i != self.lane and i in inner for c in inner[i]]
        return (*around, *inner[self.lane], *inside)


