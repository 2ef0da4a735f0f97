"""Strategy "spread", built: on a GPU, loops inside the shell are spread over the threads of a block.

    shell.. (parallel: a block each)  per group:
        kept.. ( start  reduced.. c_t ( c_v (threads) ( c_p (rows) ( update of this thread's part ) ) )  fold  finish )
        kept.. c_t ( c_v (threads) ( c_p (rows) ( statement ) ) )

Threads run along what has unit stride, so a warp reads whole lines: along the loops inside, where these have it, with several
rows of the shell side by side in one block if rows are known to be short; else along the shell, with a few threads for each
point, which share the loops inside. Where the loop of a group is short, the threads that it leaves run across it, along another
one. A reduction is cut in two: a part for each thread, in a register, and a fold over the threads. What there is one of for each
point of the shell is a register that all its threads have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Const, Load, affine, substitute
from polyop.ir.loops import Buffer, Kind, Space
from polyop.poly.blocks.spreadchoice import COPIES, SpreadStrategy, longest_of
from polyop.poly.blocks.strips import MOST, WIDE
from polyop.poly.build import Axes, Builder, Home, Part, Plan
from polyop.poly.homes import find_homes
from polyop.poly.schedule.nodes import Cluster, Group
from polyop.poly.scop import UPDATE, Stmt
from polyop.poly.strategies.rows import init_of, is_taken_over
from polyop.poly.strides import common_start, stride
from polyop.poly.tiles import Axis, Band, Coord, bands

TURNS, TOGETHER = 4, 16  # accesses of neighbours by a thread, and elements in these, that wait for memory at once
SHARED = 16 << 10
"""Bytes of a row that is kept in shared memory."""


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
    across = s.across or (None,) * len(groups)
    return b.part(bands(grid, *(x for g, c, a in zip(groups, s.inner, across, strict=True) for x in writer.group(g, c, a))))


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

    def leaf(self, name: str, *inner: Coord) -> Band | str:
        """`name` on the threads of its point of the shell, and of `inner`; the others of `inner` run in each thread."""
        return self.together((name,), *inner)[0]

    def together(self, stmts: Sequence[str], *inner: Coord) -> tuple[Band | str, ...]:
        """The same of several, one after the other in the same loops, if there are any."""
        threads = [c for c in inner if self.b.kinds[c.name][0] == Kind.THREADS]
        own = sorted((c for c in inner if c not in threads), key=lambda c: c.step == 1)  # neighbours are moved at once
        both = (*threads, *self.beside) if self.s.near == self.s.rows else (*self.beside, *threads)
        return bands([c.name for c in (*both, *own)], *stmts)

    def along(self, c: str) -> tuple[Stmt, ...]:
        """The statements of all groups that are spread along the class `c`: their loops are cut alike."""
        groups = [g for g in self.b.cluster.body if isinstance(g, Group)]
        return tuple(s for g, lane in zip(groups, self.s.inner, strict=True) if lane == c for s in g.stmts)

    def axis(self, stmts: tuple[Stmt, ...], c: str, axes: Axes, many: int) -> Axis:
        """The class `c` over `many` threads: neighbours for each, if all of it reads and writes such, in one access.

        Else threads of one warp have neighbours, each in steps of all threads.
        """
        extent = longest_of(self.b.plan, stmts, c)
        longest = extent // many if extent else MOST * self.s.copies
        most = self.neighbours(stmts, c)
        copies = most or self.s.copies
        while copies > max(1, longest):
            copies //= 2
        each, turns = copies if most or self.has_line(stmts, c) else 1, 1
        while most == each and 2 * turns <= min(TURNS, TOGETHER // each) and (not extent or 2 * turns * each <= longest):
            turns *= 2  # neighbours in several turns are asked for at once
        n = "" if many == self.s.many else _size(many, each, copies)  # another group may have the class on all threads
        t, v = Coord(f"{c}_t{n}", many * copies * turns), Coord(f"{c}_v{n}", each, each * many)
        p = (Coord(f"{c}_p{n}", 1, each) if each > 1 else Coord(f"{c}_p{n}", many, many * copies),) if copies > 1 else ()
        q = (Coord(f"{c}_q{n}", many * each, many * each * turns),) if turns > 1 else ()
        self.b.kinds[v.name] = (Kind.THREADS, many)
        self.b.weights[v.name] = self.s.near
        self.b.kinds |= {x.name: (Kind.ROWS, copies) for x in p} | {x.name: (Kind.ROWS, turns) for x in q}
        return Axis((t, v, *q, *p), common_start(self.b.plan, stmts, c, axes, self.b.ties))

    def rest(self, stmts: tuple[Stmt, ...], c: str, axes: Axes, many: int) -> Axis:
        """The class `c` over the threads that those of a lane, which are `many`, leave."""
        others = self.s.many // many
        extent = longest_of(self.b.plan, stmts, c)
        copies = min(COPIES, max(1, extent // others)) if extent else COPIES
        n = _size(others, 1, copies)
        t, v = Coord(f"{c}_s{n}", others * copies), Coord(f"{c}_w{n}", 1, others)
        p = (Coord(f"{c}_q{n}", others, others * copies),) if copies > 1 else ()
        self.b.kinds[v.name], self.b.weights[v.name] = (Kind.THREADS, others), many
        self.b.kinds |= {x.name: (Kind.ROWS, copies) for x in p}
        return Axis((t, v, *p), common_start(self.b.plan, stmts, c, axes, self.b.ties))

    def neighbours(self, stmts: tuple[Stmt, ...], c: str) -> int:
        """How many elements that are neighbours along `c` one access moves; 0, if not all accesses of memory are such."""
        found = [(x, stride(self.b.plan, s, x, c)) for s in stmts for x in (s.target, *s.reads) if x.source not in self.b.homes]
        if any(step not in (0, 1) for _, step in found) or not any(step for _, step in found):
            return 0
        return min(MOST, WIDE // min(x.dtype.bytes_ for x, step in found if step))

    def has_line(self, stmts: tuple[Stmt, ...], c: str) -> bool:
        """Whether threads side by side share elements that are neighbours along `c`, which each then reads at once."""
        reads = [(s, x) for s in stmts for x in s.reads if x.source not in self.b.homes]
        plain = all(isinstance(p, Affine) for _, x in reads for p in x.index)
        return plain and self.s.near > 1 and any(stride(self.b.plan, s, x, c) == 1 for s, x in reads)

    def group(self, g: Group, lane: str | None, across: tuple[str, int] | None) -> tuple[Band | str, ...]:
        """The loops of one group, spread along `lane`, and maybe `across` it.

        An init that its update's group takes over has been dropped by then.
        """
        b = self.b
        stmts = tuple(s for s in g.stmts if not is_taken_over(b, s))
        if not stmts:
            return ()
        other, many = across or (None, self.s.many)
        kept, reduced = (sorted(loops, key=lambda c: c in (lane, other)) for loops in (g.kept, g.reduced))
        inside = dict(self.axes)
        here: tuple[Coord, ...] = ()  # that have a sum each
        own: tuple[Coord, ...] = ()   # that share it, or all
        for c in (*kept, *reduced):
            if c == lane:
                inside[c] = self.axis(self.along(c) if across is None else stmts, c, inside, many)
            else:
                inside[c] = self.rest(stmts, c, inside, many) if c == other else Axis((Coord(c),))
            if across and c in (lane, other) and c in kept:
                here = inside[c].coords[1:]
            elif c in (lane, other):
                own = inside[c].coords[1:]
        every = (*self.loops, *kept, *reduced)
        before: list[Band | str] = []
        body: list[Band | str] = []
        after: list[Band | str] = []
        sums: list[str] = []  # those that follow each other share what they read

        def summed() -> None:
            if sums:
                body.extend(self.together(sums, *here, *own))
                sums.clear()

        for s in stmts:
            if s.kind != UPDATE or not set(b.plan.classes[s.name].values()) & set(reduced):
                summed()
                body.append(self.leaf(b.compute(s, inside, every), *here, *own))
            elif lane in reduced or across:
                sums.append(self.folded(s, inside, (*self.loops, *kept), every, here, own[0], before, after))
            else:
                sums.append(self.accumulated(s, inside, (*self.loops, *kept), every, own, before, after))
        summed()
        first = [c.name for c in (*here, *own)]
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

    def folded(self, s: Stmt, axes: Axes, outside: tuple[str, ...], every: tuple[str, ...], here: tuple[Coord, ...], v: Coord,
               before: list[Band | str], after: list[Band | str]) -> str:
        """A part for each thread, then a fold: `part[v] = identity; part[v] op= e; total op= part[v]; T = total`; the update.

        here   the coordinates of this group of which each has a fold
        """
        b = self.b
        part = self.register(f"{b.plan.stems[s.target.source]}_{s.name}_part", s.target, (*self.beside, *here, v))
        last: list[Band | str] = []
        if self.is_register(s):
            total = b.place(s, s.target, axes)
        else:
            total = self.register(f"{b.plan.stems[s.target.source]}_{s.name}_total", s.target, (*self.beside, *here))
            first, *last = self.started(s, axes, outside, total, *here)
            before.append(first)
        only = [f"0 <= {v.name} < {v.cap}"]
        before.append(self.leaf(b.move(f"{s.name}_start", s, axes, outside, part, _identity(s), extra=(v,), only=only), *here, v))
        # all threads meet in each fold: what a thread has of them it goes through in a plain loop
        one = {c: replace(c, name=f"{c.name}_fold") for c in here if b.kinds[c.name][0] == Kind.ROWS}
        by_one = {i: replace(a, coords=tuple(one.get(c, c) for c in a.coords)) for i, a in axes.items()}
        into, mine = (_renamed(x, {c.name: n.name for c, n in one.items()}) for x in (total, part))
        fold = b.move(f"{s.name}_fold", s, by_one, outside, into, mine, s.reduce, (v,), only)
        after += bands([c.name for c in one.values()], self.leaf(fold, *(c for c in here if c not in one), v))
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


def _size(many: int, each: int, copies: int) -> str:
    """What the names of a loop's coordinates end with, so that those of other sizes have other names in another group."""
    return str(many) if (each, copies) == (1, COPIES) else f"{many}x{each}x{copies}"


def _renamed(x: Load, names: dict[str, str]) -> Load:
    env = {a: affine(b) for a, b in names.items()}
    return replace(x, index=tuple(substitute(p, env) for p in x.index if isinstance(p, Affine)))


def _identity(s: Stmt) -> Const:
    assert s.reduce is not None
    return Const(s.reduce.identity, s.target.dtype)
