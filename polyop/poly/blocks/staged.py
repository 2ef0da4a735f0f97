"""Strategy "staged": a contraction on a GPU, its operands staged in the memory that the threads of a block share.

    batch.. m_c n_c (parallel: a block of threads each)
        m_t n_t (threads) ( m_q n_q m_p n_p (rows) ( init or fill ) )
        contracted.. ( k_f ( first tiles copied )
            k_c ( a later turn's tiles copied   m_t n_t ( k_p ( m_q n_q m_p n_p ( update ) ) ) ) )         see staging.py
        m_t n_t ( m_q n_q m_p n_p ( finish, and what follows at the same point ) )

Each thread has 2 x 2 groups of 4 x 4 results: what it reads of the staged operands are 16 bytes that lie together, and
what its neighbours read lies beside them. Where the target has a matrix unit for the operands' types, a warp has a tile of
results instead, of which the unit takes an atom at once:

        m_w n_w (threads: a warp each)
            k_o ( m_q ( m_p k_p (atom) ( left loaded ) )  n_q ( k_p n_p (atom) ( right loaded ) )
                  m_q n_q (rows) ( m_p n_p k_p (atom) ( update ) ) )

A unit that reads shared memory itself multiplies the staged tiles where they are, and nothing is loaded:

        m_w n_w (threads: a group of warps each) ( m_q n_q (rows) ( m_p n_p k_p (atom) ( update ) ) )

What lies outside a tensor is 0 in the copies, so a whole atom adds nothing but zeros beyond the end of a sum: that is among
the proofs. Roles come from `contract.classify`: nothing here knows an operator.

Source: CUTLASS, "Efficient GEMM in CUDA", for the hierarchy of tiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Const, Load, affine, expr_names, map_loads, names, place, quasi, substitute, substitute_expr
from polyop.ir.loops import Buffer, Kind, Space
from polyop.poly.blocks.blocktile import SHARED, SWIZZLE, StagedStrategy
from polyop.poly.blocks.copier import Copies, stage
from polyop.poly.blocks.cutatoms import apart
from polyop.poly.blocks.sides import SideCut, cut
from polyop.poly.blocks.staging import Staging, Turns, slot_bytes, with_slots
from polyop.poly.blocks.turns import slots, stage_in_turns
from polyop.poly.build import Axes, Builder, Home, Part, Plan
from polyop.poly.homes import aligned, is_local, uses
from polyop.poly.schedule.nodes import Cluster
from polyop.poly.scop import INIT, MAP, Stmt, everywhere
from polyop.poly.strategies.roles import BATCH, COLUMN, CONTRACTED, ROW, iterators_of
from polyop.poly.strides import lower_bound
from polyop.poly.tiles import Axis, Band, Coord, TileStmt, band, bands

LANES = 4, 8
"""Threads of a warp along rows and columns of results that they add up without a unit.

In lines of 16 half a warp reads 256 bytes of columns at once, which takes shared memory two turns; in 4 lines of 8 it reads 128
of them, and both halves the same: 8 turns for 64 products of each thread, not 12.
"""


def build(plan: Plan, cluster: Cluster, outer: Axes, s: StagedStrategy, held: Iterable[str] = (),
          turns: Turns | None = None, cells: Cells | None = None) -> Part:
    """The part of the tile program that `s` stands for, inside the loops `outer`.

    held    temporaries that the next turn of the loop around, or other clusters of the block, use too, and that its threads keep
            in registers as they keep results: `Part.once` makes room for them
    turns   how tiles are staged in the turns of that loop
    cells   what lanes keep of other clusters as they keep results
    """
    writer = _Staged(plan, cluster, outer, s, frozenset(held), turns, cells or Cells())
    part = writer.build()
    room = tuple(writer.begun(t, turns.loop if turns else "") for t in held)
    return replace(part, once=(*room, *part.once), stmts=tuple(writer.b.stmts))


def tile_bytes(plan: Plan, cluster: Cluster, outer: Axes, s: StagedStrategy, held: Iterable[str], turns: Turns,
               cells: Cells | None) -> int:
    """Bytes of the tiles that `build` would stage, told before anything is built."""
    writer = _Staged(plan, cluster, outer, s, frozenset(held), turns, cells or Cells())
    staged = (x for x in writer.operands if x.source not in plan.inside and x.source not in writer.cells.homes)
    return sum(slots(writer.staging, x) * slot_bytes(writer.staging, (x,)) for x in staged)


@dataclass(frozen=True, eq=False)
class Cells:
    """What the lanes of a warp keep from cluster to cluster as they keep a unit's results: see `fragments.py`.

    rows    how the names of the rows' coordinates begin, which are those of all clusters then; "": each has its own
    across  how the columns are cut
    homes   the registers of temporaries, of which one is for each row, or for each element
    """

    rows: str = ""
    across: SideCut | None = None
    homes: Mapping[str, Home] = field(default_factory=dict)


def sides_of(plan: Plan, s: StagedStrategy, rows: str = "") -> tuple[SideCut, SideCut]:
    """How the rows and the columns of the results of `s` are cut; `rows`: as in `Cells`."""
    plain = _sides(plan, s, rows, (0, 0))
    if s.atom or plan.tiled or plan.block or plan.target.warp != prod(LANES):
        return plain
    threads = [(x.threads[-1].cap or 1) // x.threads[-1].step if x.threads else 1 for x in plain]
    return _sides(plan, s, rows, LANES) if all(n % m == 0 for n, m in zip(threads, LANES, strict=True)) else plain


def _sides(plan: Plan, s: StagedStrategy, rows: str, lanes: tuple[int, int]) -> tuple[SideCut, SideCut]:
    own, a = plan.classes[s.what.update.name], s.atom
    bytes_ = max(x.dtype.bytes_ for x in (*s.what.lefts, *s.what.rights))
    down = {**own, s.row: rows} if rows else own
    return (cut(s.down, down, s.high, bytes_, a.m if a else 0, plan.tiled.get(own[s.row]), lanes[0]),
            cut(s.across, own, s.wide, bytes_, a.n if a else 0, lanes=lanes[1]))


def _in_order(down: SideCut, across: SideCut) -> tuple[Coord, ...]:
    """The loops over threads: those of rows around those of columns, and where a side has lanes of a warp, those of both last."""
    if down.has_lanes or across.has_lanes:
        return (*down.threads[:-1], *across.threads[:-1], down.threads[-1], across.threads[-1])
    return (*down.threads, *across.threads)


class _Staged:
    def __init__(self, plan: Plan, cluster: Cluster, outer: Axes, s: StagedStrategy, held: frozenset[str],
                 turns: Turns | None, cells: Cells) -> None:
        self.plan, self.cluster, self.outer, self.s, self.held, self.cells = plan, cluster, outer, s, held, cells
        self.c, self.u = s.what, s.what.update
        q = self.own = plan.classes[self.u.name]
        a = s.atom
        self.down, self.across = sides_of(plan, s, cells.rows)
        self.chunk = Coord(f"{q[s.depth]}_c", s.deep)
        d = q[s.depth]
        loaded = a and not s.reads_shared
        self.steps = (Coord(f"{d}_o", a.k, s.deep), Coord(f"{d}_p", 1, a.k)) if a and loaded else (Coord(f"{d}_p", 1, s.deep),)
        chains = {**self.down.of, **self.across.of, s.depth: (self.chunk, *self.steps)}
        taps = {i: Coord(q[i], 1, self.u.extent(i).const) for i in self.taps()}
        self.axes: dict[str, Axis] = dict(outer)
        for i in self.u.dims:
            if q[i] not in outer:
                self.axes[q[i]] = Axis(chains.get(i, (taps.get(i, Coord(q[i])),)), lower_bound(plan, self.u, q[i], outer))
        self.threads = _in_order(self.down, self.across)
        self.rows = (*self.down.rows, *self.across.rows)
        self.atoms = (*self.down.atom, *self.across.atom)
        self.homes = self.registers()
        self.b = Builder(plan, cluster, {**cells.homes, **self.homes}, frozenset(q[i] for i in chains), chains, s.depth)
        for h in self.homes.values():
            self.b.buffer(h.buffer)
        # squares of 16-bit elements are turned on the way to registers
        by_unit = None if a is None else (a.a.bytes_,) if s.reads_shared else (2,) if plan.target.family == "cuda" else ()
        sides = (s.down, s.across, ((s.depth, s.deep),))
        plain = Staging(plan, self.u, self.axes, sides, s.depth, self.chunk, s.threads, by_unit,
                        SWIZZLE if s.reads_shared or (a and not plan.target.copies) else 0, a if s.cuts and loaded else None,
                        taps=tuple(taps.values()))
        self.operands = tuple(dict.fromkeys((*self.c.lefts, *self.c.rights)))
        once = None if turns is None or self.others(CONTRACTED, s.depth) or self.are_made(turns.loop) else turns
        self.staging = with_slots(plain, self.operands, s.registers, s.reads_shared, once)
        self.b.over_rows(self.rows)
        self.b.over_rows(self.steps[:1] if s.joined else ())
        self.b.kinds |= {c.name: (Kind.ATOM, c.cap) for c in (*self.atoms, *(self.steps[-1:] if a else ()))}
        self.b.over_threads(self.threads, s.atom.warp if s.atom else 1)

    def taps(self) -> tuple[str, ...]:
        """The other iterators of the sum whose extents are numbers, about which no condition says anything.

        Each turn of the depth has one turn for each of their values, and copies go on from one to the next.
        """
        others = self.others(CONTRACTED, self.s.depth)
        if self.plan.tiled or self.plan.block or self.u.extent(self.s.depth).is_constant:
            return ()
        said = frozenset[str]().union(*map(expr_names, self.u.where), *(names(r.lower) | names(r.upper) for r in self.u.ranges))
        return tuple(i for i in others if self.u.extent(i).is_constant and i not in said)

    def are_made(self, loop: str) -> bool:
        """Whether an operand in memory is written in turns of `loop`, so that its tile cannot be copied a turn ahead."""
        return any(loop in self.plan.classes[w.name].values() for x in self.operands if x.source not in self.plan.inside
                   for w in self.plan.scop.writers(x.source))

    def registers(self) -> dict[str, Home]:
        """A register for each temporary that only this cluster uses: one for each result."""
        homes = {}
        around = {*self.outer, *self.cluster.shell}
        locked = self.locked
        for tensor in dict.fromkeys(x.target.source for x in self.cluster.stmts):
            if not is_local(self.plan, self.cluster, tensor) and tensor not in self.held:
                continue
            t = self.plan.scop.op.tensor(tensor)
            for s, load in uses(self.cluster, tensor) if tensor not in self.held else ():
                if any(not aligned(self.plan, s, load, d, around) for d in range(len(t.shape))):
                    raise UnsupportedError(f"{tensor} has more than an element for each result")
            homes[tensor] = _held_home(self.plan, tensor, locked)
        return homes

    def begun(self, tensor: str, turn: str) -> Band | str:
        """A first value for the register of `tensor`, which is never read, under no condition: registers live from there on."""
        writer = everywhere(self.plan.scop, next(x for x in self.cluster.stmts if x.target.source == tensor))
        axes = {c: x for c, x in self.axes.items() if c != turn}
        home = self.homes[tensor]
        at = Load(home.buffer.name, tuple(map(affine, home.locked)), home.buffer.dtype)
        loops = [*(c for c in self.outer if c != turn), *(c for c in self.cluster.shell if c not in self.outer)]
        name = f"{self.plan.stems[tensor]}_room"
        self.b.move(name, writer, axes, loops, at, Const(0, at.dtype))
        return band(names_of((*self.across.blocks, *self.locked)), name)

    @property
    def locked(self) -> tuple[Coord, ...]:
        """What chooses a result of a block."""
        return (*self.threads, *self.rows, *self.atoms)

    def others(self, role: str, *used: str) -> tuple[str, ...]:
        return tuple(i for i in self.c.having(role) if i not in used)

    def build(self) -> Part:
        s, u, plan, q = self.s, self.u, self.plan, self.own
        tiled = (*self.down.of, *self.across.of)
        for i in (*tiled, s.depth):
            plan.extent(u, i)
        grid = [q[i] for i in (*self.others(BATCH), *self.others(ROW, *tiled), *self.others(COLUMN, *tiled))]
        grid += [x.name for x in (*self.down.blocks, *self.across.blocks) if x not in plan.tiled.values()]
        if not plan.tiled:
            self.b.kinds |= dict.fromkeys(grid, (Kind.PARALLEL, None))
        taps = names_of(self.staging.taps)
        turns = tuple(q[i] for i in self.others(CONTRACTED, s.depth) if q[i] not in taps)
        values = plan.values(u, self.axes)
        copies = {load: self.copies(n, load) for n, load in enumerate(self.operands)}
        staged = {place(load, values): x.found for load, x in copies.items()}
        most = plan.target.multi.room() if s.multiplies_first and plan.target.multi else SHARED
        if not plan.block and min(2, self.staging.slots) * slot_bytes(self.staging, self.operands) > most:
            raise UnsupportedError(f"the staged operands take more than {most} bytes")
        before, after = self.results()
        loaded: list[Band | str] = []
        in_tiles = dict(staged)
        if s.atom and not s.reads_shared:
            for side, load in (("left", self.c.lefts[0]), ("right", self.c.rights[0])):
                if load.source in self.cells.homes:
                    continue
                tree, at = self.load(side, load, staged[place(load, values)])
                loaded.append(tree)
                staged[place(load, values)] = at
        expr = map_loads(substitute_expr(u.expr, values), lambda x: staged.get(x, x))
        every = [*self.outer, *(q[i] for i in u.dims if q[i] not in self.outer)]
        self.b.compute(u, self.axes, every, target=self.acc, expr=expr)
        if s.reads_shared and not self.staging.around and self.staging.ahead < self.staging.slots - 1:
            self.b.stmts[-1] = replace(self.b.stmts[-1], outlasts=True)
        beside, behind = self.apart(in_tiles) if s.cuts else ((), ())
        threads, rows, results = names_of(self.threads), names_of(self.rows), names_of((*self.threads, *self.rows, *self.atoms))
        if s.atom:  # the last step is its own
            product = band((*rows, *names_of((*self.atoms, self.steps[-1]))), u.name)
            steps = names_of(self.steps[:-1])
            update = band(threads, *bands(steps, *loaded, product, *beside), *(x for t in behind for x in bands(steps, t)))
        else:
            update = band((*threads, *names_of(self.steps), *rows), u.name)
        zeros, copied = [t for x in copies.values() for t in x.zeros], [t for x in copies.values() for t in x.first]
        first = (*zeros, *(bands(names_of(self.staging.early), *copied) if copied else ()))
        fetched, put = [t for x in copies.values() for t in x.before], [t for x in copies.values() for t in x.after]
        # a product that goes on by itself starts first
        turn = (update, *fetched) if s.multiplies_first and not put else (*fetched, update, *put)
        sums = bands(turns, *first, band(names_of(self.staging.turns), *turn))
        last = [t for x in copies.values() for t in x.last]
        inside = (*(band(results, x) for x in before), *sums, *(band(results, x) for x in after), *last)
        once, early = ([t for x in copies.values() for t in x.once], [t for x in copies.values() for t in x.early])
        return replace(self.b.part(bands(grid, *inside)), once=_around(grid, once), early=_around(grid, early))

    def apart(self, in_tiles: Mapping[Load, Load]) -> tuple[tuple[Band | str, ...], tuple[Band | str, ...]]:
        """The last statement as those of whole atoms, and of terms of atoms that a condition cuts: their loops, see `Apart`.

        in_tiles   where the operands lie before they are loaded for the unit
        """
        values, left = self.plan.values(self.u, self.axes), self.c.lefts[0]
        terms = map_loads(substitute_expr(self.u.expr, values), lambda x: in_tiles.get(x, x))
        held = in_tiles[place(left, values)] if left.source in self.cells.homes else None
        asked = [substitute(t, values) for t in self.s.cuts]
        found = apart(self.b.stmts.pop(), asked, (self.down, self.across), self.steps[-1], terms, held)
        self.b.stmts += found.stmts
        for x in found.buffers:
            self.b.buffer(x)
        return found.beside, found.behind

    def copies(self, n: int, load: Load) -> Copies:
        """The copies of an operand; of one in registers there are none."""
        if load.source in self.cells.homes:
            return Copies((), (), (), self.piece(self.cells.homes[load.source]))
        in_turns = self.staging.around and load.source not in self.plan.inside
        return (stage_in_turns if in_turns else stage)(self.b, self.staging, n, load)

    def piece(self, home: Home) -> Load:
        """Where a step finds its left operand in registers that lie as other results, whose columns are this sum's depth.

            { [j_o, j_p] -> [j_q, j'] : j_q + j' = j_o + j_p and 0 <= j' < n }, where an atom of those has n columns
        """
        across = self.cells.across
        if self.s.atom is None or across is None or len(across.atom) != 1:
            raise UnsupportedError(f"{home.buffer.name} lies with the lanes of a unit, and no unit reads it")
        n, k, at = across.atom[0].cap or 1, self.steps[-1].cap or 1, affine(self.steps[-1].name)
        first = affine(self.steps[0].name) if len(self.steps) > 1 else Affine()
        if n % k and k % n:
            raise UnsupportedError(f"a step of {k} does not go by results of {n} columns")
        many, few = affine(n), n < k
        whole = first + quasi("div", at, many) * n if few else first if n == k else quasi("div", first, many) * n
        rest = quasi("mod", at, many) if few else at if n == k else (quasi("mod", first, many) if across.rows else first) + at
        of = dict.fromkeys(names_of(across.threads), Affine()) | dict.fromkeys(names_of(across.rows), whole)
        of[across.atom[0].name] = rest
        return Load(home.buffer.name, tuple(of.get(c, affine(c)) for c in home.locked), home.buffer.dtype)

    def load(self, side: str, load: Load, staged: Load) -> tuple[Band | str, Load]:
        """The loops that bring one step's atoms of an operand from shared memory to registers; where the product finds them."""
        u = self.u
        mine = self.down if side == "left" else self.across
        step, inner = self.steps[0], self.steps[-1]
        sides = (*mine.atom, inner) if side == "left" else (inner, *mine.atom)
        chosen = (*self.threads, *(self.steps[:1] if self.s.joined else ()), *mine.rows, *sides)
        name = f"{self.plan.stems[load.source]}_{u.name}_{side}"
        self.b.buffer(Buffer(name, load.dtype, tuple((affine(c.cap or 1), c.step) for c in chosen), Space.REG))
        target = Load(name, tuple(affine(c.name) for c in chosen), load.dtype)
        # of a turn's steps that are joined all are read, also beyond the sum's end, where the unit adds zeros
        starts = self.staging.starts(affine(self.chunk.name) + (Affine() if self.s.joined else affine(step.name)))
        coords = (*self.staging.blocks(self.staging.turns), *self.threads, step, *mine.rows, *sides)
        label = f"{u.name}_{side}"
        domain = self.b.domain(label, u, starts, coords, [])
        self.b.stmts.append(TileStmt(label, coords, domain, None, (), target, None, staged))
        return band(names_of((*mine.rows, *sides)), label), target

    def results(self) -> tuple[list[str], list[str]]:
        """What stands before and after the contraction: init or fill; finish, or the statements that follow."""
        u, plan = self.u, self.plan
        init = next((x for x in self.cluster.stmts if x.kind == INIT and x.target.source == u.target.source), None)
        follow = [x for x in self.cluster.stmts if x.kind == MAP]
        locked = self.locked
        name = acc_name(plan, u)
        self.b.buffers.pop(f"{self.plan.stems[u.target.source]}_reg", None)
        self.b.buffer(Buffer(name, u.target.dtype, tuple((affine(c.cap or 1), c.step) for c in locked), Space.REG))
        self.acc = Load(name, tuple(affine(c.name) for c in locked), u.target.dtype)
        home = place(u.target, plan.values(u, self.axes))
        loops = [*self.outer, *(self.own[i] for i in u.dims if i in iterators_of(u.target) and self.own[i] not in self.outer)]
        if init:
            before = [self.b.move(init.name, u, self.axes, loops, self.acc, init.expr, origin=init)]
        else:
            before = [self.b.move(f"{u.name}_fill", u, self.axes, loops, self.acc, home)]
        after = []
        if not is_local(plan, self.cluster, u.target.source) and u.target.source not in self.cells.homes:
            after.append(self.b.move(f"{u.name}_finish", u, self.axes, loops, home, self.acc))
        for x in follow:
            around = [*self.outer, *(k for i in x.dims if (k := plan.classes[x.name][i]) not in self.outer)]
            expr = map_loads(x.expr, lambda y: self.acc if y.source == u.target.source else y)
            after.append(self.b.compute(x, self.axes, around, expr=self.b.located(x, expr, self.axes)))
        return before, after


def acc_name(plan: Plan, u: Stmt) -> str:
    """The registers in which `u` adds up."""
    return f"{plan.stems[u.target.source]}_{u.name}_acc"


def follow(plan: Plan, cluster: Cluster, outer: Axes, s: StagedStrategy, column: str, held: Iterable[str], cells: Cells) -> Part:
    """The part for a cluster without reductions, whose points a block's threads have as they have the results of `s`.

    column   its class that runs along the columns; `held`: the temporaries that are in the threads' registers
    """
    a = s.atom
    row = next(c for c in cluster.shell if c in plan.tiled)
    down, across = sides_of(plan, s, cells.rows)
    axes = {**outer, row: Axis(down.of[s.row]), column: Axis(across.of[s.column])}
    threads, rows, atoms = (*down.threads, *across.threads), (*down.rows, *across.rows), (*down.atom, *across.atom)
    homes = {t: _held_home(plan, t, (*threads, *rows, *atoms)) for t in held}
    b = Builder(plan, cluster, {**cells.homes, **homes})
    b.over_rows(rows)
    b.kinds |= {c.name: (Kind.ATOM, c.cap) for c in atoms}
    b.over_threads(threads, a.warp if a else 1)
    names_ = names_of((*across.blocks, *threads, *rows, *atoms))
    return b.part(bands((), *(band(names_, b.compute(x, axes, (*outer, row, column))) for x in cluster.stmts)))


def _around(grid: Iterable[str], trees: Sequence[Band | str]) -> tuple[Band | str, ...]:
    return bands(grid, *trees) if trees else ()


def _held_home(plan: Plan, tensor: str, locked: tuple[Coord, ...]) -> Home:
    """A register for each result of a thread."""
    t = plan.scop.op.tensor(tensor)
    dims = tuple((affine(c.cap or 1), c.step) for c in locked)
    buffer = Buffer(f"{plan.stems[tensor]}_reg", t.dtype, dims, Space.REG)
    return Home(buffer, (True,) * len(t.shape), names_of(locked))


def names_of(coords: Iterable[Coord]) -> tuple[str, ...]:
    return tuple(c.name for c in coords)
