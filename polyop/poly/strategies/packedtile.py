"""The register tile of strategy "packed": coordinates of its loops, kinds of these, and words for what they count."""

from __future__ import annotations

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Load, affine, quasi
from polyop.ir.loops import Kind
from polyop.poly.build import Axes, Builder, Plan, register
from polyop.poly.homes import find_homes
from polyop.poly.schedule.nodes import Cluster
from polyop.poly.strategies.contract import PackedStrategy
from polyop.poly.strategies.roles import BATCH, ROW
from polyop.poly.strides import lower_bound, stride
from polyop.poly.tiles import Axis, Band, Coord, bands

Bands = tuple[Band | str, ...]


class Tile:
    """What `s` cuts the loops of `cluster` into, inside the loops `outer`; `b` takes the statements and buffers.

    batch, other_m  iterators whose loops stand around the blocks, and rows beside `s.row` whose loops stand inside
    row, across     (coordinate, extent) of the loops in lock step; `locked`: with the lanes; `fine`: the steps of a lane
    chunk           the coordinate that counts chunks of depth, if there are any; n_v: that of the lanes
    beyond          the loops of `s.beyond`, without that over the values in a block of the last one
    acc             the element of the accumulators at the current point
    """

    def __init__(self, plan: Plan, cluster: Cluster, outer: Axes, s: PackedStrategy) -> None:
        self.plan, self.cluster, self.outer, self.s = plan, cluster, outer, s
        self.c, self.u = s.what, s.what.update
        self.own = plan.classes[self.u.name]
        self.axes: dict[str, Axis] = dict(outer)
        q = self.own
        # contractions that take tiles of rows, or of columns, together may step through them by different numbers
        n = f"{q[s.column]}_{self.u.name}" if q[s.column] in plan.tiled else q[s.column]
        block = plan.tiled.get(q[s.column], Coord(f"{q[s.column]}_c", s.nc))
        chains: dict[str, tuple[Coord, ...]] = {
            s.column: (block, Coord(f"{n}_r", s.columns, s.nc), Coord(f"{n}_v", 1, s.columns)),
        }
        if s.row:
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
        for i in s.beyond[-1:]:
            chains[i] = (Coord(f"{q[i]}_c", s.together), Coord(q[i], 1, s.together))
        for i in self.u.dims:
            if q[i] in outer:
                continue
            if q[i] in plan.tiled and i not in (s.row, s.column):
                if i in chains:
                    raise UnsupportedError(f"{i} is taken tile by tile, and is no row of {self.u.name}")
                chains[i] = (plan.tiled[q[i]], Coord(q[i], 1, plan.tiled[q[i]].step))
            start = lower_bound(plan, self.u, q[i], outer)
            self.axes[q[i]] = Axis(chains.get(i, (Coord(q[i]),)), start)
        self.given = {c.name for c in plan.tiled.values()}
        other_m = self.others(ROW, s.row) if s.row else ()
        self.batch = self.others(BATCH) + (other_m if s.rows_outside else ())
        self.other_m = () if s.rows_outside else other_m
        self.n_v = f"{n}_v"
        self.beyond = self.loops(s.beyond)[:-1]
        self.chunk = f"{q[s.depth]}_c" if s.kc else None
        self.apart = tuple(q[i] for i in s.apart)
        self.row = ((chains[s.row][-1].name, s.rows),) if s.row else ()
        self.across = ((f"{q[s.across]}_p", s.second),) if s.across else ()
        self.locked = (*self.row, *self.across, (self.n_v, s.columns))
        self.homes = find_homes(plan, cluster, tuple(outer), self.locked, s.columns)
        self.b = Builder(plan, cluster, self.homes, frozenset(q[i] for i in self.u.dims if q[i] not in outer))
        self.b.kinds |= {c: (Kind.LANES if c == self.n_v else Kind.ROWS, extent) for c, extent in self.locked}
        self.b.kinds |= {c: (Kind.ROWS, steps) for c, steps in self.fine}
        for h in self.homes.values():
            self.b.buffer(h.buffer)
        buffer, self.acc = register(self.name_beside("acc"), self.u.target.dtype, self.locked)
        self.b.buffers.pop(f"{self.stem}_reg", None)
        self.b.buffer(buffer)

    def others(self, role: str, *used: str) -> tuple[str, ...]:
        return tuple(i for i in self.c.having(role) if i not in used)

    def coords(self, i: str) -> tuple[Coord, ...]:
        return self.axes[self.own[i]].coords

    def loops(self, items: tuple[str, ...]) -> tuple[str, ...]:
        """The loops over `items`, without those that stand around all."""
        return tuple(c.name for i in items for c in self.coords(i) if c.name not in self.given)

    def is_around(self, coord: str) -> bool:
        """Whether `coord` counts blocks, so that it stands around what copies a block."""
        return coord.endswith("_c") or coord in self.given or coord in self.apart

    def extent(self, i: str) -> Affine:
        """The number of values of iterator `i`, in sizes alone."""
        return self.plan.extent(self.u, i)

    def offset(self, i: str, axes: Axes) -> Affine:
        """Iterator `i` counted from its start, in the coordinates of `axes`."""
        axis = axes[self.own[i]]
        return axis.value - axis.start

    def on_rows(self, *items: str) -> Bands:
        return tuple(x for item in items for x in bands(tuple(c for c, _ in (*self.row, *self.across)), item))

    def on_second(self, item: str) -> Bands:
        return bands(tuple(c for c, _ in (*self.across, *self.fine)), item)

    def lane_step(self, axes: Axes) -> tuple[Affine, ...]:
        """Which of the steps that one lane takes at once this is, if it takes several: the last position in a packed operand."""
        if not self.fine:
            return ()
        last = axes[self.own[self.s.depth]].coords[-1]
        step = affine(last.name)
        return (step if last.cap == self.s.fine else quasi("mod", step, affine(self.s.fine)),)

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

    def unit_of(self, load: Load, pool: tuple[str, ...]) -> str | None:
        return next((i for i in pool if stride(self.plan, self.u, load, self.own[i]) == 1), None)
