"""Strategy "spread", chosen and built: on a GPU, loops inside the shell are spread over the threads of a block.

    shell.. (parallel: a block each)  per group:
        kept.. ( start  reduced.. c_t ( c_v (threads) ( c_p (rows) ( update of this thread's part ) ) )  fold  finish )
        kept.. c_t ( c_v (threads) ( c_p (rows) ( statement ) ) )

Threads run along what has unit stride, so a warp reads whole lines: along the loops inside, where these have it, with several
rows of the shell side by side in one block if rows are known to be short; else along the shell, with a few threads for each
point, which share the loops inside. A reduction is cut in two: a part for each thread, in a register, and a fold over the
threads. What there is one of for each point of the shell is a register that all its threads have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Const, Load, affine
from polyop.ir.loops import Buffer, Kind, Space
from polyop.poly.build import Axes, Builder, Home, Part, Plan
from polyop.poly.homes import find_homes
from polyop.poly.lanes import is_few, is_window, score
from polyop.poly.nodes import Cluster, Group
from polyop.poly.rows import init_of, is_taken_over, scatters
from polyop.poly.scop import UPDATE, Stmt
from polyop.poly.strides import common_start, stride
from polyop.poly.strips import MOST, WIDE
from polyop.poly.tiles import Axis, Band, Coord, bands

BLOCK = 256     # threads where nothing is known of a row's length
EACH = 8        # iterations of a thread that are worth a thread
COPIES = 4      # iterations of a thread that wait for memory at once
SHORT = 16      # loops of less iterations are not spread
FEWEST = 4      # threads of a row
ACROSS = 8      # threads that share a point of the shell, where the shell has the unit stride
SHARED = 16 << 10
"""Bytes of a row that is kept in shared memory."""


@dataclass(frozen=True, slots=True)
class SpreadStrategy:
    """Where threads run.

    inner    for each group, in order, the class that is spread over `many` threads, or None
    beside   a class of the shell of which a block has `rows` values side by side, or None
    near     how many threads that are neighbours differ in `beside`; the next ones along `inner`, and then in `beside` again
    """

    inner: tuple[str | None, ...]
    many: int
    beside: str | None
    rows: int
    near: int = 1

    def __str__(self) -> str:
        along = ", ".join(i or "-" for i in self.inner)
        near = "" if self.near == 1 else ", side by side" if self.near == self.rows else f", {self.near} side by side"
        beside = f", {self.rows} of {self.beside} in a block{near}" if self.beside else ""
        return f"spread: threads {along} x {self.many}{beside}"


def choose(plan: Plan, cluster: Cluster) -> tuple[SpreadStrategy, ...]:
    """The strategy for `cluster`.

    Raises  UnsupportedError, if no loop inside its shell is worth threads.
    """
    groups = [g for g in cluster.body if isinstance(g, Group)]
    if len(groups) < len(cluster.body):
        raise UnsupportedError("there is a recurrence inside")
    tile = next((c for c in cluster.shell if c in plan.tiled), None)
    if plan.block and tile:  # the rows of a block, side by side, and what is left of its threads along each of them
        rows = plan.tiled[tile].step
        inner = tuple(_best(plan, g)[0] or _longest(plan, g) for g in groups)
        many = plan.block // rows
        return (SpreadStrategy(inner, many, tile, rows, max(1, min(rows, plan.target.warp // many))),)
    if any(scatters(plan, s, g.reduced) for g in groups for s in g.stmts):
        raise UnsupportedError("where it writes is known only inside")
    local = frozenset(s.target.source for s in cluster.stmts if plan.scop.op.tensor(s.target.source).role == "temp")
    shell = {c: score(plan, cluster.stmts, c, local) for c in cluster.shell}
    lane = max(shell, key=lambda c: shell[c], default=None)
    found = [_best(plan, g) for g in groups]
    if any(c for c, _ in found) and not (lane and shell[lane] >= sum(gain for _, gain in found) > 0):
        inner = tuple(c for c, gain in found)
        if any(gain > 0 for _, gain in found):
            return (_along(plan, cluster, inner),)
    if lane and shell[lane] > 0 and not cluster.is_contraction:
        inner = tuple(_longest(plan, g) for g in groups)
        if any(inner):
            return (SpreadStrategy(inner, ACROSS, lane, plan.target.warp, plan.target.warp),)
    raise UnsupportedError("no loop inside is long, and all of it in order")


def _loops(plan: Plan, g: Group) -> list[str]:
    """The loops of `g` that may be spread."""
    strict = plan.options.numerics == "strict"
    return [c for c in (*g.kept, *g.reduced) if not (strict and c in g.reduced) and not is_few(plan, g.stmts, c, SHORT)]


def _best(plan: Plan, g: Group) -> tuple[str | None, int]:
    """The loop of `g` that its accesses run along best, and how well they do."""
    gains = {c: score(plan, g.stmts, c) // (2 if c in g.reduced and is_window(plan, g.stmts, c) else 1) for c in _loops(plan, g)}
    best = max(gains, key=lambda c: gains[c], default=None)
    return (best, gains[best]) if best and gains[best] > 0 else (None, 0)


def _longest(plan: Plan, g: Group) -> str | None:
    """The outermost loop of `g` whose length is not known, or else the longest one."""
    loops = [c for c in _loops(plan, g) if not is_window(plan, g.stmts, c)]
    return max(loops, key=lambda c: _extent(plan, g.stmts, c) or 1 << 30, default=None)


def _extent(plan: Plan, stmts: Iterable[Stmt], loop: str) -> int:
    """The most iterations of `loop` that are known or hinted at; 0, if some are not."""
    hints = dict(plan.options.hints)
    sizes = [r.upper - r.lower for s in stmts for r in s.ranges if plan.classes[s.name].get(r.index) == loop]
    known = [e.const if e.is_constant else hints.get(e.name or "", 0) for e in sizes]
    return max(known) if known and all(known) else 0


def _along(plan: Plan, cluster: Cluster, inner: tuple[str | None, ...]) -> SpreadStrategy:
    """Threads along `inner`: a block for a row, unless rows are known to be short, of which a block has several then."""
    groups = [g for g in cluster.body if isinstance(g, Group)]
    extents = [_extent(plan, g.stmts, c) for g, c in zip(groups, inner, strict=True) if c]
    longest = max(extents) if all(extents) else 0
    if not longest or _hands_on(cluster):
        return SpreadStrategy(inner, BLOCK, None, 1)
    many = min(4 * BLOCK // 2, max(FEWEST, 1 << (-(-longest // EACH) - 1).bit_length()))
    rows = BLOCK // 2 // many
    if rows > 1 and cluster.shell and not is_few(plan, cluster.stmts, cluster.shell[-1], rows):
        return SpreadStrategy(inner, many, cluster.shell[-1], rows)
    return SpreadStrategy(inner, max(many, plan.target.warp), None, 1)


def _hands_on(cluster: Cluster) -> bool:
    """Whether a row is written to memory and read again: the proof that the same threads do so knows one row in a block."""
    written = {s.target.source for s in cluster.stmts if len(s.target.index) > len(cluster.shell)}
    return any(x.source in written for s in cluster.stmts for x in s.reads)


def build(plan: Plan, cluster: Cluster, outer: Axes, s: SpreadStrategy) -> Part:
    """The part of the tile program that `s` stands for, inside the loops `outer`."""
    if plan.tiled and not plan.block:
        raise UnsupportedError(f"{' and '.join(plan.tiled)} is taken tile by tile")
    axes = dict(outer)
    beside: tuple[Coord, ...] = ()
    for c in (*(c for c in cluster.shell if c != s.beside), *((s.beside,) if s.beside else ())):
        if c == s.beside:
            start = common_start(plan, cluster.stmts, c, axes)
            beside = (*((Coord(f"{c}_y", s.near, s.rows),) if 1 < s.near < s.rows else ()),
                      Coord(f"{c}_v", 1, s.near if s.near > 1 else s.rows))
            axes[c] = Axis((plan.tiled.get(c) or Coord(f"{c}_c", s.rows), *beside), start)
        else:
            axes[c] = Axis((Coord(c),))
    around = {x.name for x in (*beside, *plan.tiled.values())}
    grid = [n for c in axes if c not in outer for n in axes[c].names if n not in around]
    cut = frozenset(c for c in (*s.inner, s.beside) if c) if plan.block else frozenset[str]()
    b = Builder(plan, cluster, _homes(plan, cluster, outer, beside), cut)
    for h in b.homes.values():
        b.buffer(h.buffer)
    b.kinds |= dict.fromkeys(grid, (Kind.PARALLEL, None))
    weight = 1 if s.near > 1 else s.many
    for x in reversed(beside):
        extent = (x.cap or 1) // x.step
        b.kinds[x.name], b.weights[x.name] = (Kind.THREADS, extent), weight
        weight = s.near * s.many
    writer = _Spread(b, s, axes, (*outer, *(c for c in axes if c not in outer)), beside)
    groups = [g for g in cluster.body if isinstance(g, Group)]
    return b.part(bands(grid, *(x for g, c in zip(groups, s.inner, strict=True) for x in writer.group(g, c))))


def _homes(plan: Plan, cluster: Cluster, outer: Axes, beside: tuple[Coord, ...]) -> dict[str, Home]:
    """A home for each temporary: a register for each point of the shell; else a row, shared where it is known to fit."""
    locked = tuple((c.name, c.cap or 1) for c in beside)
    homes = find_homes(plan, cluster, tuple(outer), locked, 1)
    left = SHARED
    for tensor, h in homes.items():
        if h.buffer.space == Space.REG:
            continue
        t = plan.scop.op.tensor(tensor)
        extents = [e for e, _ in h.buffer.dims]
        bytes_ = prod(e.const for e in extents) * t.dtype.bytes_
        if all(e.is_constant for e in extents) and bytes_ <= left:
            left -= bytes_
            homes[tensor] = replace(h, buffer=replace(h.buffer, space=Space.SHARED, private=False, pad=1))
        else:
            whole = Buffer(h.buffer.name, t.dtype, tuple((e, 1) for e in t.shape), Space.WORK)
            homes[tensor] = Home(whole, (False,) * len(t.shape), ())
    return homes


@dataclass(eq=False)
class _Spread:
    """Writes the groups of one cluster, inside the loops `loops` of its shell."""

    b: Builder
    s: SpreadStrategy
    axes: Axes
    loops: tuple[str, ...]
    beside: tuple[Coord, ...]

    def leaf(self, name: str, *inner: Coord, also: Sequence[str] = ()) -> Band | str:
        """`name` on the threads of its point of the shell, and of `inner`; the others of `inner` run in each thread.

        also   what follows it in the same loops
        """
        threads = [c for c in inner if self.b.kinds[c.name][0] == Kind.THREADS]
        own = [c for c in inner if c not in threads]
        both = (*threads, *self.beside) if self.s.near == self.s.rows else (*self.beside, *threads)
        return bands([c.name for c in (*both, *own)], name, *also)[0]

    def along(self, c: str) -> tuple[Stmt, ...]:
        """The statements of all groups that are spread along the class `c`: their loops are cut alike."""
        groups = [g for g in self.b.cluster.body if isinstance(g, Group)]
        return tuple(s for g, lane in zip(groups, self.s.inner, strict=True) if lane == c for s in g.stmts)

    def axis(self, stmts: tuple[Stmt, ...], c: str, axes: Axes) -> Axis:
        """The class `c` over the threads: neighbours for each, if all of it reads and writes such, in one access.

        Else threads of one warp have neighbours, each in steps of all threads.
        """
        extent = _extent(self.b.plan, stmts, c)
        n = extent // self.s.many if extent else MOST
        most = self.neighbours(stmts, c)
        copies = most or COPIES
        while copies > max(1, n):
            copies //= 2
        each = copies if most else 1
        t, v = Coord(f"{c}_t", self.s.many * copies), Coord(f"{c}_v", each, each * self.s.many)
        p = (Coord(f"{c}_p", 1, each) if most else Coord(f"{c}_p", self.s.many, self.s.many * copies),) if copies > 1 else ()
        self.b.kinds[v.name] = (Kind.THREADS, self.s.many)
        self.b.weights[v.name] = self.s.near
        self.b.kinds |= {x.name: (Kind.ROWS, copies) for x in p}
        return Axis((t, v, *p), common_start(self.b.plan, stmts, c, axes))

    def neighbours(self, stmts: tuple[Stmt, ...], c: str) -> int:
        """How many elements that are neighbours along `c` one access moves; 0, if not all accesses of memory are such."""
        found = [(x, stride(self.b.plan, s, x, c)) for s in stmts for x in (s.target, *s.reads) if x.source not in self.b.homes]
        if any(step not in (0, 1) for _, step in found) or not any(step for _, step in found):
            return 0
        return min(MOST, WIDE // min(x.dtype.bytes_ for x, step in found if step))

    def group(self, g: Group, lane: str | None) -> tuple[Band | str, ...]:
        """The loops of one group. An init that its update's group takes over has been dropped by then."""
        b = self.b
        stmts = tuple(s for s in g.stmts if not is_taken_over(b, s))
        if not stmts:
            return ()
        kept = [c for c in g.kept if c != lane] + [c for c in g.kept if c == lane]
        reduced = [c for c in g.reduced if c != lane] + [c for c in g.reduced if c == lane]
        inside = dict(self.axes)
        own: tuple[Coord, ...] = ()
        for c in (*kept, *reduced):
            if c == lane:
                inside[c] = self.axis(self.along(c), c, inside)
                own = inside[c].coords[1:]
            else:
                inside[c] = Axis((Coord(c),))
        every = (*self.loops, *kept, *reduced)
        before: list[Band | str] = []
        body: list[Band | str] = []
        after: list[Band | str] = []
        sums: list[str] = []  # those that follow each other share what they read

        def summed() -> None:
            if sums:
                body.append(self.leaf(sums[0], *own, also=sums[1:]))
                sums.clear()

        for s in stmts:
            if s.kind != UPDATE or not set(b.plan.classes[s.name].values()) & set(reduced):
                summed()
                body.append(self.leaf(b.compute(s, inside, every), *own))
            elif lane in reduced:
                sums.append(self.folded(s, inside, (*self.loops, *kept), every, own[0], before, after))
            else:
                sums.append(self.accumulated(s, inside, (*self.loops, *kept), every, own, before, after))
        summed()
        first = [own[0].name, *(c.name for c in own[1:])] if own else []
        outer_loops = [n for c in kept for n in inside[c].names if n not in first]
        inner_loops = [n for c in reduced for n in inside[c].names if n not in first]
        return bands(outer_loops, *before, *bands(inner_loops, *body), *after)

    def register(self, name: str, like: Load, coords: Iterable[Coord]) -> Load:
        """A register of each of the threads `coords`, for a value of `like`, at the current point."""
        coords = tuple(coords)
        self.b.buffer(Buffer(name, like.dtype, tuple((affine(c.cap or 1), c.step) for c in coords), Space.REG))
        return Load(name, tuple(affine(c.name) for c in coords), like.dtype)

    def started(self, s: Stmt, axes: Axes, outside: tuple[str, ...], at: Load, *inner: Coord) -> tuple[Band | str, Band | str]:
        """What the reduction starts from, in the register `at`, and how the result comes home: joined, if it has been started."""
        b = self.b
        init, home = init_of(b, s), b.place(s, s.target, axes)
        if init and is_taken_over(b, init):
            return (self.leaf(b.move(init.name, s, axes, outside, at, init.expr, origin=init), *inner),
                    self.leaf(b.move(f"{s.name}_finish", s, axes, outside, home, at), *inner))
        if b.plan.options.numerics == "strict":
            raise UnsupportedError(f"{s.name} would be added to {s.target.source} in another order")
        return (self.leaf(b.move(f"{s.name}_fill", s, axes, outside, at, _identity(s)), *inner),
                self.leaf(b.move(f"{s.name}_join", s, axes, outside, home, at, s.reduce), *inner))

    def folded(self, s: Stmt, axes: Axes, outside: tuple[str, ...], every: tuple[str, ...], v: Coord,
               before: list[Band | str], after: list[Band | str]) -> str:
        """A part for each thread, then a fold: `part[v] = identity; part[v] op= e; total op= part[v]; T = total`; the update."""
        b = self.b
        part = self.register(f"{b.plan.stems[s.target.source]}_{s.name}_part", s.target, (*self.beside, v))
        last: list[Band | str] = []
        if self.is_register(s):
            total = b.place(s, s.target, axes)
        else:
            total = self.register(f"{b.plan.stems[s.target.source]}_{s.name}_total", s.target, self.beside)
            first, *last = self.started(s, axes, outside, total)
            before.append(first)
        only = [f"0 <= {v.name} < {v.cap}"]
        before.append(self.leaf(b.move(f"{s.name}_start", s, axes, outside, part, _identity(s), extra=(v,), only=only), v))
        after.append(self.leaf(b.move(f"{s.name}_fold", s, axes, outside, total, part, s.reduce, (v,), only), v))
        after += last
        return b.compute(s, axes, every, target=part)

    def accumulated(self, s: Stmt, axes: Axes, outside: tuple[str, ...], every: tuple[str, ...], own: tuple[Coord, ...],
                    before: list[Band | str], after: list[Band | str]) -> str:
        """A sum of each thread's own, in a register: start (or fill from memory), update, finish; the update."""
        b = self.b
        if self.is_register(s):
            return b.compute(s, axes, every)
        acc = self.register(f"{b.plan.stems[s.target.source]}_{s.name}_acc", s.target, (*self.beside, *own))
        first, last = self.started(s, axes, outside, acc, *own)
        before.append(first)
        after.append(last)
        return b.compute(s, axes, every, target=acc)

    def is_register(self, s: Stmt) -> bool:
        home = self.b.homes.get(s.target.source)
        return home is not None and home.buffer.space == Space.REG


def _identity(s: Stmt) -> Const:
    assert s.reduce is not None
    return Const(s.reduce.identity, s.target.dtype)
