"""Strategy "packed", built: the tile program of a contraction in register tiles.

    batch.. m_c k_c ( pack_left  n_c ( pack_right  row.. m_r n_r n_v ( init fill  contracted.. k_p(update)  spill finish ) ) )
    batch.. n_c k_c ( pack_right  row.. m_c ( m_r .. ) )        for several threads, if there are blocks n_c; else inside m_c
    batch.. n_c k_c ( n_r n_v ( init fill  contracted.. k_p(update)  spill finish ) )                         without rows

with every compute statement in its own m_p loop; a fused pack_right stands just before the update, where m_r is 0.

Rows m_p and lanes n_v run in lock step outside the contraction, so the outer product in registers is a consequence of
where the loops stand. Accumulators are a register buffer that `fill` and `spill` move from and to memory between chunks of
depth: so even the register promotion is in the proof.
"""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Load, affine, map_loads, names, place, quasi, substitute_expr
from polyop.ir.loops import Buffer, Kind, Space
from polyop.ir.target import NARROW, NEAR
from polyop.poly.build import Axes, Builder, Part, Plan, register, shared_out
from polyop.poly.contract import ALL, TILES, PackedStrategy
from polyop.poly.homes import find_homes, is_local
from polyop.poly.nodes import Cluster
from polyop.poly.roles import BATCH, COLUMN, CONTRACTED, ROW, is_window, iterators_of, written_order
from polyop.poly.scop import INIT, MAP, Stmt
from polyop.poly.strides import lower_bound, spacing, stride
from polyop.poly.tiles import Axis, Band, Coord, TileStmt, band, bands

Bands = tuple[Band | str, ...]


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
            s.column: (Coord(f"{q[s.column]}_c", s.nc), Coord(f"{q[s.column]}_r", s.columns, s.nc),
                       Coord(f"{q[s.column]}_v", 1, s.columns)),
        }
        if s.row:
            # contractions that take tiles of rows together may step through them by different numbers
            r = f"{q[s.row]}_{self.u.name}" if q[s.row] in plan.tiled else q[s.row]
            block = plan.tiled.get(q[s.row], Coord(f"{q[s.row]}_c", s.mc))
            chains[s.row] = (block, Coord(f"{r}_r", s.rows, s.mc), Coord(f"{r}_p", 1, s.rows))
        if s.across:
            chains[s.across] = (Coord(f"{q[s.across]}_c", s.block), Coord(f"{q[s.across]}_r", s.second, s.block),
                                Coord(f"{q[s.across]}_p", 1, s.second))
        if s.beside:
            chains[s.beside] = (Coord(f"{q[s.beside]}_c", s.vector), Coord(f"{q[s.beside]}_p", 1, s.vector))
        self.fine = ((f"{q[s.depth]}_f", s.fine),) if s.fine > 1 else ()
        if s.kc or s.fine > 1:
            chains[s.depth] = (*((Coord(f"{q[s.depth]}_c", s.kc),) if s.kc else ()), Coord(f"{q[s.depth]}_p", s.fine, s.kc),
                               *(Coord(c, 1, steps) for c, steps in self.fine))
        for i in self.u.dims:
            if q[i] in outer:
                continue
            if q[i] in plan.tiled and i != s.row:
                if i in chains:
                    raise UnsupportedError(f"{i} is taken tile by tile, and is no row of {self.u.name}")
                chains[i] = (plan.tiled[q[i]], Coord(q[i], 1, plan.tiled[q[i]].step))
            start = lower_bound(plan, self.u, q[i], outer)
            self.axes[q[i]] = Axis(chains.get(i, (Coord(q[i]),)), start)
        self.given = {c.name for c in plan.tiled.values()}
        other_m = self.others(ROW, s.row) if s.row else ()
        self.batch = self.others(BATCH) + (other_m if s.rows_outside else ())
        self.other_m = () if s.rows_outside else other_m
        self.n_v = f"{q[s.column]}_v"
        self.chunk = f"{q[s.depth]}_c" if s.kc else None
        self.row = ((chains[s.row][-1].name, s.rows),) if s.row else ()
        self.across = ((f"{q[s.across]}_p", s.second),) if s.across else ()
        self.locked = (*self.row, *self.across, (self.n_v, s.columns))
        self.homes = find_homes(plan, cluster, tuple(outer), self.locked, s.columns)
        self.b = Builder(plan, cluster, self.homes, frozenset(q[i] for i in self.u.dims if q[i] not in outer))
        self.b.kinds |= {c: (Kind.LANES if c == self.n_v else Kind.ROWS, extent) for c, extent in self.locked}
        self.b.kinds |= {c: (Kind.ROWS, steps) for c, steps in self.fine}
        for h in self.homes.values():
            self.b.buffer(h.buffer)

    # --- small words
    def others(self, role: str, *used: str) -> tuple[str, ...]:
        return tuple(i for i in self.c.having(role) if i not in used)

    def coords(self, i: str) -> tuple[Coord, ...]:
        return self.axes[self.own[i]].coords

    def loops(self, items: tuple[str, ...]) -> tuple[str, ...]:
        """The loops over `items`, without those that stand around all."""
        return tuple(c.name for i in items for c in self.coords(i) if c.name not in self.given)

    def is_around(self, coord: str) -> bool:
        """Whether `coord` counts blocks, so that it stands around what copies a block."""
        return coord.endswith("_c") or coord in self.given

    def extent(self, i: str) -> Affine:
        """The number of values of iterator `i`, in sizes alone."""
        r = self.range[i]
        out = r.upper - r.lower
        if not names(out) <= set(self.plan.scop.op.sizes):
            raise UnsupportedError(f"the extent of {i}, {out}, depends on other loops")
        return out

    def offset(self, i: str, axes: Axes) -> Affine:
        """Iterator `i` counted from its start, in the coordinates of `axes`."""
        axis = axes[self.own[i]]
        return axis.value - axis.start

    def on_rows(self, *items: str) -> Bands:
        return tuple(x for item in items for x in bands(tuple(c for c, _ in (*self.row, *self.across)), item))

    def on_second(self, item: str) -> Bands:
        return bands(tuple(c for c, _ in (*self.across, *self.fine)), item)

    # --- the parts
    def build(self) -> Part:
        s, u = self.s, self.u
        batch, other_m = self.batch, self.other_m
        near = [i for i in (s.beside, s.across) if i]
        other_n, other_k = self.others(COLUMN, s.column, *near), self.others(CONTRACTED, s.depth)
        before, after = self.accumulator()
        packed: dict[Load, Load] = {}
        tree_left: Bands = ()
        tree_right: Bands = ()
        fused: Bands = ()
        values = self.plan.values(u, self.axes)
        ahead: Bands = ()
        if s.ahead:
            ahead = self.pack_ahead(other_k)
        elif s.pack_right:
            tree_right, fused = self.pack_right(other_m, other_k)
        if s.pack_right:
            where = self.ahead_place if s.ahead else self.right_place
            packed[place(self.c.rights[0], values)] = where(self.axes, other_k)
        if s.pack_left:
            common_k = tuple(i for i in other_k if i in iterators_of(self.c.lefts[0]))  # the right one alone may be summed too
            tree_left = self.pack_left(other_m, common_k)
            packed[place(self.c.lefts[0], values)] = self.left_place(self.axes, other_m, common_k)
        expr = map_loads(substitute_expr(u.expr, values), lambda x: packed.get(x, x))
        every = [self.own[i] for i in u.dims]
        every = [*self.outer, *(q for q in every if q not in self.outer)]
        self.b.compute(u, self.axes, every, target=self.acc, expr=expr)
        depth = [c.name for c in self.coords(s.depth) if c.name != self.chunk and (c.name, s.fine) not in self.fine]
        update = bands(tuple(c for c, _ in (*self.row, *self.across, *self.fine)), u.name)
        inner = (*before, band((*self.loops(other_k), *depth), *fused, *update), *after)
        m_c, m_r = ((c.name,) for c in self.coords(s.row)[:2]) if s.row else ((), ())
        n_c, n_r = (c.name for c in self.coords(s.column)[:2])
        within = tuple(self.coords(i)[1].name for i in near)
        micro = band((*self.loops(other_m), *m_r, *within, n_r, self.n_v), *inner)
        block = (*self.loops(other_n), *(self.coords(i)[0].name for i in near), n_c)
        chunk = (self.chunk,) if self.chunk else ()
        around = (*self.loops(batch), *(c for c in m_c if c not in self.given))
        if s.row and (s.pack_left or not self.plan.splits(u)):  # a block of the left operand is for all columns
            tree = bands((*around, *chunk), *tree_left, band(block, *tree_right, micro))
            around = block if self.shares_left else around
        else:
            own = self.loops(self.others(BATCH))
            rows = around[len(own):]
            around = (*own, *block, *rows)
            if s.rows_behind:
                tree = bands((*own, *block, *chunk), *tree_right, *bands(rows, micro))
            else:
                tree = bands((*around, *chunk), *tree_right, micro)
        self.b.kinds |= shared_out(self.plan, around or block, len(self.loops(batch)) - 1)
        part = self.b.part(tree)
        return replace(part, once=ahead) if s.ahead == TILES else replace(part, ahead=ahead)

    def accumulator(self) -> tuple[Bands, Bands]:
        """What stands before and after the contraction: init or fill; spill, or finish and the statements that follow."""
        u, s, plan = self.u, self.s, self.plan
        init = next((q for q in self.cluster.stmts if q.kind == INIT and q.target.source == u.target.source), None)
        follow = [q for q in self.cluster.stmts if q.kind == MAP]
        local = is_local(plan, self.cluster, u.target.source)
        buffer, self.acc = register(self.name_beside("acc"), u.target.dtype, self.locked)
        self.b.buffers.pop(f"{self.stem}_reg", None)
        self.b.buffer(buffer)
        result = home = place(u.target, plan.values(u, self.axes))
        scattered = bool(self.chunk) and self.is_scattered()
        if scattered:
            home = self.sums_aside()
        elif local and self.chunk:
            home = self.partial_home(follow)
        loops = [*self.outer, *(self.own[i] for i in u.dims if i in iterators_of(u.target) and self.own[i] not in self.outer)]
        extra = [c for c in self.coords(s.depth) if c.name == self.chunk]
        k, kc = self.chunk, s.kc or 0
        extent = self.extent(s.depth) if k else Affine()
        starts = [f"0 <= {k} < {extent}"] if k else []
        first, later = ([f"{k} = 0"], [*starts, f"{k} > 0"]) if k else ([], [])
        last, early = ([*starts, f"{k} >= {extent - kc}"], [*starts, f"{k} < {extent - kc}"]) if k else ([], [])
        # a tile is started, and ends, also where nothing is added up; a dimension of one has no loop here
        has_loops = init is not None and all(plan.classes[init.name][i] in self.axes for i in init.dims)
        every = init if init is not None and has_loops else u
        before: list[str] = []
        after: list[str] = []
        if init:
            before.append(self.b.move(init.name, every, self.axes, loops, self.acc, init.expr, extra=extra, only=first,
                                      origin=init))
        elif scattered:
            before.append(self.b.move(f"{u.name}_start", every, self.axes, loops, self.acc, result, extra=extra, only=first))
        if k or not init:
            only = later if init or scattered else starts
            before.append(self.b.move(f"{u.name}_fill", every, self.axes, loops, self.acc, home, extra=extra, only=only))
        if k and (local or scattered):
            after.append(self.b.move(f"{u.name}_spill", every, self.axes, loops, home, self.acc, extra=extra, only=early))
        if not local:
            only = last if scattered else starts
            after.append(self.b.move(f"{u.name}_finish", every, self.axes, loops, result, self.acc, extra=extra, only=only))
        for q in follow:
            after.append(self.epilogue(q, extra, last))
        return self.on_rows(*before), self.on_rows(*after)

    def is_scattered(self) -> bool:
        """Whether lanes lie apart in the target, which is written by its iterators alone."""
        plain = len(written_order(self.u)) == len(self.u.target.index)
        return plain and stride(self.plan, self.u, self.u.target, self.own[self.s.column]) != 1

    def sums_aside(self) -> Load:
        """Memory for partial sums with lanes side by side: a target in which they are not is written once, with whole sums."""
        t, order = self.plan.scop.op.tensor(self.u.target.source), written_order(self.u)
        values = self.plan.values(self.u, self.axes)
        extents = dict(zip(order, t.shape, strict=True))
        kept = (*(i for i in order if i != self.s.column), self.s.column)
        name = self.name_beside("sum")
        self.b.buffer(Buffer(name, t.dtype, tuple((extents[i], 1) for i in kept), Space.WORK))
        return Load(name, tuple(values[i] for i in kept), t.dtype)

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
        self.b.buffer(Buffer(f"{self.stem}_sum", t.dtype, tuple((e, 1) for e in t.shape), Space.WORK))
        return replace(place(u.target, plan.values(u, self.axes)), source=f"{self.stem}_sum")

    def epilogue(self, q: Stmt, extra: list[Coord], only: list[str]) -> str:
        """A statement that follows the update at the same point; it reads the accumulator."""
        loops = [*self.outer, *(c for i in q.dims if (c := self.plan.classes[q.name][i]) not in self.outer)]
        expr = map_loads(q.expr, lambda x: self.acc if x.source == self.u.target.source else x)
        return self.b.compute(q, self.axes, loops, expr=self.b.located(q, expr, self.axes), extra=extra, only=only)

    def right_place(self, axes: Axes, other_k: tuple[str, ...]) -> Load:
        """Where a packed right operand stands, in the coordinates of `axes`: the tiles', or those of its copy."""
        s = self.s
        n_c, n_r = (affine(c.name) for c in axes[self.own[s.column]].coords[:2])
        fine = self.lane_step(axes)
        inside = [*(self.offset(i, axes) for i in other_k), self.depth(axes) - sum(fine, Affine())]
        panel = [n_r]
        if s.beside:
            panel.append(self.offset(s.beside, axes) - affine(axes[self.own[s.beside]].coords[0].name))
        if s.across:
            block, step = (affine(c.name) for c in axes[self.own[s.across]].coords[:2])
            panel.append(step)
            inside.append(self.offset(s.across, axes) - block - step)
        return Load(self.name_beside("right"), (*panel, *inside, self.offset(s.column, axes) - n_c - n_r, *fine),
                    self.c.rights[0].dtype)

    def lane_step(self, axes: Axes) -> tuple[Affine, ...]:
        """Which of the steps that one lane takes at once this is, if it takes several: the last position in a packed operand."""
        if not self.fine:
            return ()
        last = axes[self.own[self.s.depth]].coords[-1]
        step = affine(last.name)
        return (step if last.cap == self.s.fine else quasi("mod", step, affine(self.s.fine)),)

    def left_place(self, axes: Axes, other_m: tuple[str, ...], other_k: tuple[str, ...]) -> Load:
        """The same for a packed left operand."""
        assert self.s.row is not None
        m = self.offset(self.s.row, axes) - affine(axes[self.own[self.s.row]].coords[0].name)
        index = (*(self.offset(i, axes) for i in other_m), m, *(self.offset(i, axes) for i in other_k), self.depth(axes))
        return Load(self.name_beside("left"), index, self.c.lefts[0].dtype)

    def depth(self, axes: Axes) -> Affine:
        """The iterator `depth`, counted from the start of its chunk."""
        whole = self.offset(self.s.depth, axes)
        return whole - affine(self.chunk) if self.chunk else whole

    @property
    def stem(self) -> str:
        """How the names of buffers beside the result begin."""
        return self.plan.stems[self.u.target.source]

    def name_beside(self, what: str) -> str:
        """The name of the buffer that the contraction needs as `what`."""
        return f"{self.stem}_{self.u.name}_{what}"

    def deep(self, other_k: tuple[str, ...], unit: int = 1) -> tuple[tuple[Affine, int], ...]:
        s, extent = self.s, self.extent(self.s.depth)
        return (*((self.extent(i), 1) for i in other_k), (quasi("min", affine(s.kc), extent) if s.kc else extent, unit))

    def pack_right(self, other_m: tuple[str, ...], other_k: tuple[str, ...]) -> tuple[Bands, Bands]:
        """(what stands before the tiles, what stands before the update) to copy a block of the right operand."""
        s = self.s
        assert s.row is not None
        near = ((affine(s.vector), 1),) if s.beside else ((affine(s.block), s.second),) if s.across else ()
        second = ((affine(s.second), 1),) if s.across else ()
        fine = tuple((affine(steps), 1) for _, steps in self.fine)
        dims = ((affine(s.nc), s.columns), *near, *self.deep(other_k, s.fine), *second, (affine(s.columns), 1), *fine)
        pad = 1 if fine else s.columns
        right, pool = self.c.rights[0], self.c.having(COLUMN) + self.c.having(CONTRACTED)
        self.b.buffer(Buffer(self.name_beside("right"), right.dtype, dims, Space.WORK, pad=pad, private=True))
        m_c, m_r = self.coords(s.row)[:2]
        only = [f"0 <= {m_c.name} < {self.extent(s.row)}"]
        if s.fuse_pack:
            also = (m_c, *(c for i in other_m for c in self.coords(i)), m_r)
            only += [f"{c.name} = 0" for c in also if c is not m_c]
            copy = _Copy(self, right, pool, s.column, None, ())
            return (), self.on_second(copy.write(f"{self.u.name}_right", self.right_place(self.axes, other_k), also, only))
        step = spacing(self.plan, self.u, right, self.own[s.column])
        source = None if step is not None and 1 <= step <= NEAR else self.unit_of(right, pool)
        n_r = self.coords(s.column)[1].name
        copy = _Copy(self, right, pool, s.column, source if not self.fine or source == s.depth else None, (n_r,))
        target = self.right_place({**self.axes, **copy.axes}, other_k)
        each = () if s.rows_behind else (m_c,)
        name = copy.write(f"{self.u.name}_right", target, each, only if each else [])
        around = self.others(COLUMN, s.column, *(i for i in (s.beside, s.across) if i))
        return bands(copy.loops(exclude=around), name), ()

    def pack_ahead(self, other_k: tuple[str, ...]) -> Bands:
        """What copies all of the right operand: before the loops around; or, for one of their iterations, before the tiles."""
        s, load = self.s, self.c.rights[0]
        q, k = self.own[s.column], self.own[s.depth]
        fine = tuple((affine(steps), 1) for _, steps in self.fine)
        extent = self.extent(s.depth)
        dims = (*((self.extent(i), 1) for i in self.lead(other_k)), (self.extent(s.column), s.columns),
                *((self.extent(i), 1) for i in other_k), (extent, s.fine), (affine(s.columns), 1), *fine)
        private = s.ahead == TILES and bool(self.outer)  # else the threads share the tiles, or what is around them
        pad = 1 if fine else s.columns
        self.b.buffer(Buffer(self.name_beside("right"), load.dtype, dims, Space.WORK, pad=pad, private=private))
        panel = Coord(f"{q}_h", s.columns)
        self.b.kinds[panel.name] = (Kind.PARALLEL, None)
        axes = {**self.axes, q: Axis((panel, Coord(self.n_v, 1, s.columns)), self.axes[q].start),
                k: Axis((Coord(f"{k}_p", s.fine), *(Coord(c, 1, steps) for c, steps in self.fine)), self.axes[k].start)}
        pool = tuple(i for i in self.u.dims if i in iterators_of(load) and not (s.ahead == TILES and self.own[i] in self.outer))
        source = self.unit_of(load, pool)
        copy = _Copy(self, load, pool, s.column, source if source not in (None, s.column) and (not self.fine or source == s.depth)
                     else None, (panel.name,), axes)
        name = copy.write(f"{self.u.name}_right", self.ahead_place({**self.axes, **copy.axes}, other_k), (), [])
        loops = copy.loops(exclude=())
        return bands((panel.name, *(c for c in loops if c != panel.name)), name)

    def lead(self, other_k: tuple[str, ...]) -> tuple[str, ...]:
        """The iterators of the right operand for each value of which panels of their own are packed ahead."""
        used = iterators_of(self.c.rights[0]) - {self.s.column, self.s.depth, *other_k}
        return tuple(i for i in self.u.dims if i in used and not (self.s.ahead == TILES and self.own[i] in self.outer))

    def ahead_place(self, axes: Axes, other_k: tuple[str, ...]) -> Load:
        """Where a right operand that was packed ahead stands, in the coordinates of `axes`: the tiles', or those of its copy."""
        panel = sum((affine(c.name) for c in axes[self.own[self.s.column]].coords if c.step % self.s.columns == 0), Affine())
        fine = self.lane_step(axes)
        index = (*(self.offset(i, axes) for i in self.lead(other_k)), panel, *(self.offset(i, axes) for i in other_k),
                 self.offset(self.s.depth, axes) - sum(fine, Affine()), self.offset(self.s.column, axes) - panel, *fine)
        return Load(self.name_beside("right"), index, self.c.rights[0].dtype)

    @property
    def shares_left(self) -> bool:
        """Whether threads share the blocks of columns behind a copy of the left operand: there is nothing else to share."""
        return self.s.pack_left and self.plan.splits(self.u) and not self.batch and not self.outer

    def pack_left(self, other_m: tuple[str, ...], other_k: tuple[str, ...]) -> tuple[Band | str, ...]:
        """What copies a block of the left operand, before the blocks of columns."""
        s = self.s
        assert s.row is not None
        dims = (*((self.extent(i), 1) for i in other_m), (quasi("min", affine(s.mc), self.extent(s.row)), 1), *self.deep(other_k))
        self.b.buffer(Buffer(self.name_beside("left"), self.c.lefts[0].dtype, dims, Space.WORK, private=not self.shares_left))
        pool = (s.row, *other_m, *self.c.having(CONTRACTED))
        source = self.unit_of(self.c.lefts[0], pool)
        copy = _Copy(self, self.c.lefts[0], pool, s.depth, source if source != s.depth else None, ())
        name = copy.write(f"{self.u.name}_left", self.left_place({**self.axes, **copy.axes}, other_m, other_k), (), [])
        return bands(copy.loops(exclude=()), name)

    def unit_of(self, load: Load, pool: tuple[str, ...]) -> str | None:
        return next((i for i in pool if stride(self.plan, self.u, load, self.own[i]) == 1), None)


class _Copy:
    """A copy of one operand, over the iterators `pool` that it uses, with lanes along `lane`.

    source   the iterator along which the operand has unit stride, if that is another: the copy then goes by square
             blocks, rows along `source` and lanes along `lane`, and the emitter transposes them in registers
    keep     coordinates of `lane` that stay tile coordinates of the copy
    axes     those of the copy, if they are not the tiles'
    """

    def __init__(self, p: _Packed, load: Load, pool: tuple[str, ...], lane: str, source: str | None,
                 keep: tuple[str, ...], axes: Axes | None = None) -> None:
        self.p, self.load, self.lane, self.source = p, load, lane, source
        used = iterators_of(load)
        self.used = tuple(i for i in p.u.dims if i in used)
        self.pool = tuple(i for i in self.used if i in pool)
        self.is_apart = axes is not None
        self.axes = {p.own[i]: (axes or p.axes)[p.own[i]] for i in self.used}
        vector = p.s.vector
        if p.s.across in used and not p.s.fuse_pack:  # there the copy has no rows that run in lock step
            q = p.own[p.s.across]
            block, step, inside = p.axes[q].coords
            self.axes[q] = Axis((block, step, replace(inside, name=f"{q}_y")), p.axes[q].start)
        if source is not None:
            steps = vector * (p.s.fine if source == p.s.depth else 1)  # as many words as a vector has
            if vector % NARROW == 0 and is_window(p.u, source):
                steps = NARROW
            for i, last, size in ((lane, "l", vector), (source, "s", steps)):
                q = p.own[i]
                axis = self.axes[q]
                stay = tuple(c for c in axis.coords if c.step > 1 and (p.is_around(c.name) or c.name in keep))
                cap = stay[-1].step if stay else None
                square = Coord(f"{q}_{'x' if size == vector else 'w'}", size, cap)
                self.axes[q] = Axis((*stay, square, Coord(f"{q}_{last}", 1, size)), axis.start)
            p.b.kinds |= {f"{p.own[lane]}_l": (Kind.LANES, vector), f"{p.own[source]}_s": (Kind.ROWS, steps)}

    def write(self, name: str, target: Load, also: tuple[Coord, ...], only: list[str]) -> str:
        """The statement of the copy: `also` are tile coordinates in which it is repeated, under the conditions `only`."""
        p = self.p
        batch = p.others(BATCH) if p.s.rows_behind else p.batch
        around = () if self.is_apart and p.s.ahead == ALL else (i for i in p.u.dims if p.own[i] in p.outer or i in batch)
        repeated = {p.own[i]: p.axes[p.own[i]] for i in around}
        axes = {**repeated, **self.axes}
        values = {i: axes[p.own[i]].value for i in p.u.dims if p.own[i] in axes}
        coords = tuple(c for i in values for c in axes[p.own[i]].coords)
        coords += tuple(c for c in also if c not in coords)
        domain = p.b.domain(name, p.u, values, coords, only)
        p.b.stmts.append(TileStmt(name, coords, domain, None, (), target, None, place(self.load, values), p.b.tests(p.u, values)))
        return name

    def loops(self, exclude: tuple[str, ...]) -> tuple[str, ...]:
        """The copy's own loops, outermost first: those that the tiles around do not already have."""
        p = self.p
        inner = {i: [c.name for c in self.axes[p.own[i]].coords if not p.is_around(c.name)]
                 for i in self.pool if i not in exclude}
        if self.source is not None and self.source in inner:
            inside = [inner[self.source].pop(), inner[self.lane].pop()]
            around = [c for i in self.pool if i != self.lane and i in inner for c in inner[i]]
            return (*inner[self.lane], *around, *inside)
        inside = [inner[self.lane].pop()]
        fine = [c for c, _ in p.fine if self.lane != p.s.depth]
        around = [c for i in self.pool if i != self.lane and i in inner for c in inner[i] if c not in fine]
        return (*around, *inner[self.lane], *inside, *fine)
