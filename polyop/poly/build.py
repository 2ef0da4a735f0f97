"""What every strategy builds with: the plan of a nest, and the parts of a tile program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import islpy as isl

from polyop.cached import cached_property
from polyop.ir.dtypes import DType
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Expr, Load, affine, expr_names, loads, map_loads, names, substitute, substitute_expr
from polyop.ir.expr import Test as Tests
from polyop.ir.loops import Buffer, Kind, Space
from polyop.ir.op import Monoid
from polyop.ir.options import Layout, Options
from polyop.ir.target import Target
from polyop.poly.iterators import shares_of, written
from polyop.poly.labels import stems
from polyop.poly.schedule.nodes import Classes, Cluster, Group
from polyop.poly.scop import Scop, Stmt, limits
from polyop.poly.sets import Linear, params
from polyop.poly.tiles import Axis, Band, Coord, TileStmt, instances

Axes = Mapping[str, Axis]


@dataclass(frozen=True, eq=False)
class Plan:
    """What is the same for all parts of one nest.

    context  the sizes that the nest is for
    spare    registers that are left free beside those that a strategy knows it needs
    tiled    classes of which a loop around gives one tile: their first coordinate. It differs by part
    inside   temporaries in the memory of a block of threads that has all clusters of the part; `block`: its threads, or 0
    """

    scop: Scop
    classes: Classes
    context: isl.Set
    layout: Layout
    target: Target
    options: Options
    spare: int = 0
    tiled: Mapping[str, Coord] = field(default_factory=dict)
    inside: frozenset[str] = frozenset()
    block: int = 0

    @cached_property
    def stems(self) -> Mapping[str, str]:
        """tensor -> how the names of buffers beside it begin."""
        op = self.scop.op
        tensors = [t.name for t in op.tensors]
        return stems(tensors, {*tensors, *(p.name for p in op.params)}, {s.name for s in self.scop.stmts})

    def extent(self, u: Stmt, i: str) -> Affine:
        """How many values the iterator `i` of `u` has, in sizes alone.

        Raises  UnsupportedError, if that depends on other iterators.
        """
        out = u.extent(i)
        if not names(out) <= set(self.scop.op.sizes):
            raise UnsupportedError(f"the extent of {i}, {out}, depends on other loops")
        return out

    def at_most(self, extent: Affine) -> int:
        """What `extent` never exceeds, as far as that is known; else 0."""
        return extent.const if extent.is_constant else dict(self.options.held).get(extent.name or "", 0)

    def splits(self, u: Stmt) -> bool:
        """Whether several threads share the loops of `u`. One thread does a share of a sum, in whatever order it likes best."""
        return self.options.threads and not shares_of(u)

    @property
    def head(self) -> str:
        return params(self.scop.op.sizes)

    @property
    def lane_bytes(self) -> int:
        """The size of the element that a lane is made for: 8 bytes if lanes may run through such elements, else 4.

        They do not run through `ids` of `E[ids[b, l], d]`, which is asked for one position at a time.
        """
        return 8 if any(self._wide(s) for s in self.scop.stmts) else 4

    def _wide(self, s: Stmt) -> bool:
        last = s.target.index[-1] if s.target.index else None
        lane = last.name if isinstance(last, Affine) else None
        direct = {s.target, *loads(s.expr)}
        inner = {x for y in direct for p in y.index if not isinstance(p, Affine) for x in loads(p)}
        return any(x.dtype.bytes_ == 8 for x in direct if x not in inner or lane is None or lane in expr_names(x))

    def values(self, s: Stmt, axes: Axes) -> dict[str, Affine]:
        """iterator -> its value in tile coordinates, for the iterators whose class has an axis."""
        own = self.classes[s.name]
        return {i: axes[own[i]].value for i in s.dims if own[i] in axes}


@dataclass(frozen=True, eq=False)
class Part:
    """A piece of a tile program.

    ahead   what stands before all loops around the cluster
    once    what stands before the loop that gives the tiles, see `Plan.tiled`, or the serial one in it; early: at the beginning
            of each turn of that one
    chosen  the strategy of each cluster in it; `notes`: what was refused and why
    """

    stmts: tuple[TileStmt, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    tree: tuple[Band | str, ...] = ()
    kinds: tuple[tuple[str, Kind, int | None], ...] = ()
    ahead: tuple[Band | str, ...] = ()
    once: tuple[Band | str, ...] = ()
    early: tuple[Band | str, ...] = ()
    chosen: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    weights: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, eq=False)
class Home:
    """Where a temporary lives inside its cluster.

    dropped  its dimensions that run along loops around: one element at a time exists
    locked   coordinates of lock-step loops around, which index copies of it
    turn     a class of serial loop: beside this turn's value that of the turn before is kept, first the one and then the other
    """

    buffer: Buffer
    dropped: tuple[bool, ...]
    locked: tuple[str, ...]
    turn: str = ""

    def place(self, load: Load, s: Stmt, plan: Plan, axes: Axes) -> Load:
        index = tuple(p for p, gone in zip(load.index, self.dropped, strict=True) if not gone)
        if self.turn:  # behind the loop the last turn's value is read
            now = next((i for i, c in plan.classes[s.name].items() if c == self.turn), "")
            back = [-p.const for p in load.index if now and isinstance(p, Affine) and p.terms == affine(now).terms]
            index = (*index, affine(max(back, default=0)))
        return Load(self.buffer.name, (*index, *(affine(c) for c in self.locked)), load.dtype, load.guard, load.span)


@dataclass(eq=False)
class Builder:
    """A part under construction for one cluster. `axes` are those of the loops around the current place.

    free   classes whose loops are cut into tiles: conditions between two of them stay out of the domains, which are boxes
           then, and stand before each statement as tests. So do those between rows that are taken tile by tile and a loop around.
           What such a condition says of a tile as a whole bounds the loops around it
    tiles  the coordinates of the iterators of a contraction that are cut, those of tiles first; turn: the one whose tiles are
           taken one after the other, from the first one on, until a condition leaves the others' tiles no term
    """

    plan: Plan
    cluster: Cluster
    homes: Mapping[str, Home]
    free: frozenset[str] = frozenset()
    tiles: Mapping[str, tuple[Coord, ...]] = field(default_factory=dict)
    turn: str = ""
    stmts: list[TileStmt] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    kinds: dict[str, tuple[Kind, int | None]] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)

    def buffer(self, b: Buffer) -> str:
        self.buffers[b.name] = b
        return b.name

    def located(self, s: Stmt, e: Expr, axes: Axes) -> Expr:
        """`e` in tile coordinates, each Load taken from where its tensor lives."""
        values = self.plan.values(s, axes)

        def home(load: Load) -> Expr:
            h = self.homes.get(load.source)
            return h.place(load, s, self.plan, axes) if h else load
        return substitute_expr(map_loads(e, home), values)

    def place(self, s: Stmt, load: Load, axes: Axes) -> Load:
        out = self.located(s, load, axes)
        assert isinstance(out, Load)
        return out

    def domain(self, name: str, s: Stmt, values: Mapping[str, Affine], coords: tuple[Coord, ...], only: Iterable[str]) -> isl.Set:
        """{ name[coords] : some instance of `s` has `values`, and `only` hold }, with values for some iterators or all."""
        within = self.box(s).intersect_params(self.plan.context)
        for i in reversed(range(len(s.dims))):
            if s.dims[i] not in values:
                within = within.project_out(isl.dim_type.set, i, 1)
        at = tuple(values[i] for i in s.dims if i in values)
        some = [t for t in (self.of_tile(s, t, values) for t in self.ties(s)) if t]
        return instances(self.plan.head, name, coords, at, within.set_tuple_name("point"), only, some)

    def ties(self, s: Stmt) -> tuple[Affine, ...]:
        """The conditions of `s` between iterators of two loops that are cut: { j <= i }.

        Those with a remainder or a quotient stay in the domains: as tests they would waste most of a tile, and isl finds no end.
        """
        if any((names(r.lower) | names(r.upper)) & set(s.dims) for r in s.ranges):
            return ()
        return tuple(t for w in s.where if isinstance(w, Tests) for t in w.tests
                     if all(isinstance(a, str) for a, _ in t.terms) and self.is_tie(s, t))

    def is_tie(self, s: Stmt, t: Affine) -> bool:
        """Whether it ties two loops that are cut, or rows to loops around their tiles, or says where in a tile they begin."""
        classes = {c: t.factor(i) for i, c in self.plan.classes[s.name].items() if t.factor(i)}
        rows = classes.keys() & self.plan.tiled.keys()
        begins = len(classes) > 1 or any(classes[c] > 0 for c in rows)
        return len(classes.keys() & self.free) > 1 or (bool(rows) and begins and not classes.keys() & (self.inner - rows))

    @cached_property
    def inner(self) -> frozenset[str]:
        """The classes of the cluster's own loops."""
        groups = (g for g in self.cluster.body if isinstance(g, Group))
        return frozenset((*self.cluster.shell, *(c for g in groups for c in (*g.kept, *g.reduced))))

    def of_tile(self, s: Stmt, t: Affine, values: Mapping[str, Affine]) -> Affine | None:
        """What is >= 0 if the condition `t` holds somewhere in a tile, in coordinates of loops around; None if unknown."""
        at: dict[str, Affine] = {}
        for r in s.ranges:
            c, first = self.plan.classes[s.name][r.index], self.plan.tiled.get(self.plan.classes[s.name][r.index])
            if not t.factor(r.index):
                continue
            if first and r.index in values and first.name in names(values[r.index]):
                least = r.lower + affine(first.name)
                most = least + (first.step - 1)
            elif c not in self.inner and r.index in values:
                least = most = values[r.index]
            elif r.index in values and r.index in self.tiles and t.factor(self.turn) < 0:
                first, *inner = self.tiles[r.index]
                least = substitute(values[r.index], {x.name: Affine() for x in inner})
                most = least + (first.step - 1)
            elif r.lower.is_constant and r.upper.is_constant:
                least, most = r.lower, r.upper - 1
            else:
                return None
            at[r.index] = most if t.factor(r.index) > 0 else least
        out = substitute(t, at)
        return None if names(out) <= set(self.plan.scop.op.sizes) else out

    def tests(self, s: Stmt, values: Mapping[str, Affine], domain: isl.Set | None = None) -> tuple[Affine, ...]:
        """Those of them that can be said with `values`, in tile coordinates, but for rows of tiles that `domain` leaves whole."""
        said = {t: substitute(t, values) for t in self.ties(s) if names(t) & set(s.dims) <= set(values)}
        own = self.plan.classes[s.name]
        return tuple(x for t, x in said.items()
                     if domain is None or len({own[i] for i in names(t) & set(s.dims)} & self.free) > 1 or not holds(domain, x))

    def box(self, s: Stmt) -> isl.Set:
        """The domain of `s` without them."""
        ties = self.ties(s)
        if not ties:
            return s.domain
        where = [Tests(tuple(t for t in w.tests if t not in ties)) if isinstance(w, Tests) else w for w in s.where]
        return Linear.over(self.plan.context.get_space(), s.name, s.dims).holding(limits(s.ranges), where)

    def compute(self, s: Stmt, axes: Axes, loops: Iterable[str], target: Load | None = None, expr: Expr | None = None,
                extra: Iterable[Coord] = (), only: Iterable[str] = ()) -> str:
        """The statement that carries out `s` in the loops over the classes `loops` and `extra`; `target` if not its home."""
        values = self.plan.values(s, axes)
        coords = coords_of(axes, loops) + tuple(extra)
        domain = self.domain(s.name, s, values, coords, only)
        target = target or self.place(s, s.target, axes)
        value = expr if expr is not None else self.located(s, s.expr, axes)
        lift = tuple(values[i] for i in s.dims)
        self.stmts.append(TileStmt(s.name, coords, domain, s.name, lift, target, s.reduce, value, self.tests(s, values, domain)))
        return s.name

    def move(self, name: str, s: Stmt, axes: Axes, loops: Iterable[str], target: Load, expr: Expr, reduce: Monoid | None = None,
             extra: Iterable[Coord] = (), only: Iterable[str] = (), origin: Stmt | None = None) -> str:
        """A statement once for each point that `s` writes: it moves data, or carries out `origin`, an init of `s`."""
        values = self.plan.values(s, axes)
        coords = coords_of(axes, loops) + tuple(extra)
        kept = {i: x for i, x in values.items() if i in written(s)}
        domain = self.domain(name, s, kept, coords, only)
        lift: tuple[Affine, ...] = ()
        if origin is not None:
            matched = {p.name: q for p, q in zip(origin.target.index, s.target.index, strict=True)
                       if isinstance(p, Affine) and isinstance(q, Affine)}
            lift = tuple(substitute(matched[d], values) for d in origin.dims)
        carried = origin.name if origin else None
        self.stmts.append(TileStmt(name, coords, domain, carried, lift, target, reduce, expr, self.tests(s, kept, domain)))
        return name

    def over_threads(self, coords: Sequence[Coord], weight: int = 1) -> None:
        """Loops over threads, the last one with the lowest digit, which has the `weight`."""
        for c in reversed(coords):
            extent = (c.cap or 1) // c.step
            self.kinds[c.name], self.weights[c.name] = (Kind.THREADS, extent), weight
            weight *= extent

    def over_rows(self, coords: Iterable[Coord]) -> None:
        """Loops in each thread, in lock step."""
        self.kinds |= {c.name: (Kind.ROWS, (c.cap or 1) // c.step) for c in coords}

    def part(self, tree: Iterable[Band | str]) -> Part:
        kinds = tuple((c, k, e) for c, (k, e) in self.kinds.items())
        return Part(tuple(self.stmts), tuple(self.buffers.values()), tuple(tree), kinds, weights=tuple(self.weights.items()))


def holds(domain: isl.Set, test: Affine, others: Iterable[Affine] = ()) -> bool:
    """Whether `test` >= 0 everywhere in `domain`, whose dimensions have the names of coordinates, where `others` are too."""
    dims = [domain.get_dim_name(isl.dim_type.set, i) or "" for i in range(domain.dim(isl.dim_type.set))]
    linear = Linear.over(domain.get_space(), domain.get_tuple_name(), dims)
    return bool(domain.is_disjoint(linear.holding((test * -1 - 1, *others))))


def coords_of(axes: Axes, loops: Iterable[str]) -> tuple[Coord, ...]:
    return tuple(c for q in loops for c in axes[q].coords)


def shared_out(plan: Plan, loops: Sequence[str], one: int) -> dict[str, tuple[Kind, int | None]]:
    """The kinds of the parallel ones among `loops`: all of them for several threads, which share them; else number `one`."""
    parallel: tuple[Kind, int | None] = (Kind.PARALLEL, None)
    return dict.fromkeys(loops if plan.options.threads else (loops[max(0, one)],), parallel)


def register(name: str, dtype: DType, locked: Iterable[tuple[str, int]]) -> tuple[Buffer, Load]:
    """A register buffer over lock-step coordinates, and its element at the current point."""
    locked = tuple(locked)
    buffer = Buffer(name, dtype, tuple((affine(e), 1) for _, e in locked), Space.REG)
    return buffer, Load(name, tuple(affine(c) for c, _ in locked), dtype)
