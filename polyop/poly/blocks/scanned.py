"""Strategy "scanned": on a GPU, a scan in chunks, of which each thread of a block has one at a time.

    shell.. (parallel: a block each)
        start
        u_c ( u_v (threads) ( i_p (rows) ( taken ) )              what each chunk reads, in registers
              u_v (threads) ( i ( alone ) )                       each chunk alone, in registers
              u_v (threads) ( before = carried  carried = .. )    the scan of their totals: see `ir/scans.py`
              u_v (threads) ( i_p (rows) ( whole ) ) )

Nothing is read twice, and what is before the chunks is a register. Threads run along chunks; where the shell has the unit stride,
half a warp along that, and the others share a point of it. What a chunk reads is on its way before any of it is added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Const, Expr, Load, affine, loads, map_loads, names, place
from polyop.ir.integers import power_of_two
from polyop.ir.loops import Buffer, Kind, Space
from polyop.poly.build import Axes, Builder, Home, Part, Plan, coords_of
from polyop.poly.schedule.nodes import Cluster
from polyop.poly.schedule.scans import Pieces, pieces_of
from polyop.poly.scop import Stmt
from polyop.poly.strides import spacing, stride
from polyop.poly.tiles import Axis, Band, Coord, TileStmt, band, bands

THREADS = 128  # where nothing is known of a row's length
ACROSS = 512   # threads of a block where the shell has the unit stride, half a warp along that: columns enough for one block
               # with whole warps for each multiprocessor are two blocks so, of which one computes while the other waits


@dataclass(frozen=True, eq=False)
class ScanStrategy:
    """`many` threads along the chunks of a row, and `rows` values of the shell's class `beside` side by side."""

    pieces: Pieces
    each: int
    many: int
    beside: str | None = None
    rows: int = 1

    def __str__(self) -> str:
        beside = f", {self.rows} of {self.beside} side by side" if self.beside else ""
        return f"scanned: chunks {self.pieces.chunks} of {self.each} x {self.many} threads{beside}"


def choose(plan: Plan, cluster: Cluster) -> ScanStrategy | None:
    """The strategy for `cluster`, if it is a scan in chunks."""
    p = pieces_of(cluster)
    if p is None:
        return None
    own = plan.classes[p.whole.name]
    extent = p.whole.extent(next(i for i in p.whole.dims if own[i] == p.inside))
    if not extent.is_constant:
        raise UnsupportedError(f"chunks have {extent} elements")
    beside = next((c for c in cluster.shell if stride(plan, p.whole, p.whole.target, c) in (1, -1)), None)
    if beside:
        i = next(i for i, c in own.items() if c == beside)
        side, few = plan.target.warp // 2, _known(plan, p.whole.extent(i))
        across = min(side, power_of_two(few)) if few else side
        return ScanStrategy(p, extent.const, ACROSS // across, beside, across)
    known = _length(plan, p)
    many = THREADS if not known else min(2 * THREADS, max(plan.target.warp, power_of_two(-(-known // extent.const))))
    return ScanStrategy(p, extent.const, many)


def _length(plan: Plan, p: Pieces) -> int:
    """The elements of a row, if they are known or hinted at, else 0."""
    own = {i for i, c in plan.classes[p.whole.name].items() if c in (p.chunks, p.inside)}
    shape = plan.scop.op.tensor(p.whole.target.source).shape
    (e,) = (e for e, x in zip(shape, p.whole.target.index, strict=True) if isinstance(x, Affine) and names(x) & own)
    return _known(plan, e)


def _known(plan: Plan, extent: Affine) -> int:
    """An extent, if it is known or hinted at, else 0."""
    return extent.const if extent.is_constant else dict(plan.options.hints).get(extent.name or "", 0)


def build(plan: Plan, cluster: Cluster, outer: Axes, strategy: ScanStrategy) -> Part:
    """The part of the tile program for `cluster` inside the loops `outer`."""
    if plan.tiled:
        raise UnsupportedError(f"{' and '.join(plan.tiled)} is taken tile by tile")
    return _Scanned(plan, cluster, outer, strategy).build()


class _Scanned:
    def __init__(self, plan: Plan, cluster: Cluster, outer: Axes, s: ScanStrategy) -> None:
        self.plan, self.s, self.p, self.outer = plan, s, s.pieces, outer
        self.axes: dict[str, Axis] = dict(outer)
        self.beside: tuple[Coord, ...] = ()
        grid = []
        for c in cluster.shell:
            if c == s.beside:
                self.beside = (Coord(f"{c}_v", 1, s.rows),)
                self.axes[c] = Axis((Coord(f"{c}_c", s.rows), *self.beside))
            else:
                self.axes[c] = Axis((Coord(c),))
            grid.append(self.axes[c].coords[0].name)
        self.grid = tuple(grid)
        u, i = self.p.chunks, self.p.inside
        self.turn, self.chunk = Coord(f"{u}_c", s.many), Coord(f"{u}_v", 1, s.many)
        self.threads = (self.chunk, *self.beside)
        self.around = (*outer, *cluster.shell)
        start = {**self.axes, u: Axis((self.turn, self.chunk))}
        self.in_order: Axes = {**start, i: Axis((Coord(i, 1, s.each),))}
        self.in_rows: Axes = {**start, i: Axis((Coord(f"{i}_p", 1, s.each),))}
        self.b = Builder(plan, cluster, self.homes())
        self.b.kinds |= dict.fromkeys(self.grid, (Kind.PARALLEL, None))
        self.b.kinds |= {self.chunk.name: (Kind.THREADS, s.many), f"{i}_p": (Kind.ROWS, s.each)}
        self.b.weights[self.chunk.name] = s.rows
        for lane in self.beside:
            self.b.kinds[lane.name] = (Kind.THREADS, s.rows)
            self.b.weights[lane.name] = 1

    def homes(self) -> dict[str, Home]:
        """Registers: of a chunk for what is computed of it alone; of all threads of a row for what is carried."""
        known, each = self.p.carried.target, Coord(self.p.inside, 1, self.s.each)
        of_row = self.register(known, "carried", self.beside)
        found = {known.source: Home(of_row, (True,) * len(known.index), names_of(self.beside))}
        for s in self.p.alone:
            own = self.plan.classes[s.name]
            dropped = tuple(not (isinstance(p, Affine) and own.get(p.name or "") == self.p.inside) for p in s.target.index)
            if dropped.count(False) != 1:
                raise UnsupportedError(f"{s.target} has more than an element for each of a chunk's")
            buffer = self.register(s.target, "alone", (each, *self.threads))
            found[s.target.source] = Home(buffer, dropped, names_of(self.threads))
        return found

    def register(self, like: Load, word: str, coords: tuple[Coord, ...]) -> Buffer:
        name = f"{self.plan.stems[like.source]}_{word}"
        return Buffer(name, like.dtype, tuple((affine(c.cap or 1), c.step) for c in coords), Space.REG)

    def build(self) -> Part:
        p, b = self.p, self.b
        for h in b.homes.values():
            b.buffer(h.buffer)
        u, i = p.chunks, p.inside
        taken, trees = self.taken()
        for s in p.alone:
            trees.append(self.begun(s))
            expr = map_loads(b.located(s, s.expr, self.in_order), lambda x: taken.get(x, x))
            b.compute(s, self.in_order, (*self.around, u, i), expr=expr)
        before = self.before()
        b.compute(p.start, self.axes, self.around)
        b.compute(p.carried, self.in_order, (*self.around, u))
        carried = b.homes[p.carried.target.source].buffer.name
        expr = map_loads(b.located(p.whole, p.whole.expr, self.in_rows), lambda x: before if x.source == carried else x)
        b.compute(p.whole, self.in_rows, (*self.around, u, i), expr=expr)
        alone = band(names_of(self.threads), band((i,), *(s.name for s in p.alone)))
        scan = band(names_of(self.threads), f"{p.carried.name}_before", p.carried.name)
        whole = band((*names_of(self.threads), f"{i}_p"), p.whole.name)
        start = bands(names_of(self.beside), p.start.name)
        return b.part(bands(self.grid, *start, band((self.turn.name,), *trees, alone, scan, whole)))

    def before(self) -> Load:
        """What is before each chunk, which the scan leaves in a register of its thread: adds the statement that does."""
        s, known = self.p.whole, self.p.carried.target
        buffer = self.register(known, "before", self.threads)
        self.b.buffer(buffer)
        target = Load(buffer.name, tuple(affine(c.name) for c in self.threads), known.dtype)
        home = self.b.homes[known.source]
        source = Load(home.buffer.name, tuple(affine(c) for c in home.locked), known.dtype)
        values = {i: x for i, x in self.plan.values(s, self.in_order).items() if self.plan.classes[s.name][i] != self.p.inside}
        coords = coords_of(self.in_order, (*self.around, self.p.chunks))
        self.add(f"{self.p.carried.name}_before", s, values, coords, target, source)
        return target

    def begun(self, s: Stmt) -> Band | str:
        """Zeros where `s` writes: registers live as long as what is around their first store. Nobody reads them."""
        p, row = self.p, self.in_rows[self.p.inside].coords[0]
        values = self.plan.values(s, self.in_rows)
        target = self.b.place(s, s.target, self.in_rows)
        zero = Const(0.0 if target.dtype.is_float else 0, target.dtype)
        self.add(f"{s.name}_start", s, values, coords_of(self.in_rows, (*self.around, p.chunks, p.inside)), target, zero)
        return band((*names_of(self.threads), row.name), f"{s.name}_start")

    def taken(self) -> tuple[dict[Load, Load], list[Band | str]]:
        """The reads of a chunk in memory, by registers, and the loops that fill these."""
        found: dict[Load, Load] = {}
        trees: list[Band | str] = []
        p, (row,) = self.p, self.in_rows[self.p.inside].coords
        coords = coords_of(self.in_rows, (*self.around, p.chunks, p.inside))
        for s in p.alone:
            for x in dict.fromkeys(loads(s.expr)):
                here = place(x, self.plan.values(s, self.in_order))
                moves = all(isinstance(y, Affine) for y in x.index) and spacing(self.plan, s, x, p.inside) != 0
                if x.source in self.b.homes or x.guard or here in found or not moves:
                    continue
                label = f"{s.name}_taken{len(found)}"
                name = self.b.buffer(Buffer(f"{self.plan.stems[x.source]}_taken{len(found)}", x.dtype,
                                            tuple((affine(c.cap or 1), c.step) for c in (row, *self.threads)), Space.REG))
                to, at = (Load(name, (affine(i), *(affine(c.name) for c in self.threads)), x.dtype) for i in (row.name, p.inside))
                values = self.plan.values(s, self.in_rows)
                self.add(label, s, values, coords, to, place(x, values))
                trees.append(band((*names_of(self.threads), row.name), label))
                found[here] = at
        return found, trees

    def add(self, label: str, s: Stmt, values: Mapping[str, Affine], coords: tuple[Coord, ...], target: Load,
            source: Expr) -> None:
        """A statement that moves data wherever `s` has an instance with these values."""
        domain = self.b.domain(label, s, values, coords, [])
        self.b.stmts.append(TileStmt(label, coords, domain, None, (), target, None, source))


def names_of(coords: Iterable[Coord]) -> tuple[str, ...]:
    return tuple(c.name for c in coords)
