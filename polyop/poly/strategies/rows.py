"""Strategy "rows": common outer loops, lanes along unit strides; for every cluster, whatever it computes.

    shell.. ( per group:  kept.. ( start..  reduced..( lanes(statements) )  fold.. ) )        lanes inside the shell, or
    shell.. lane_t ( lane_v ( per group:  kept.. ( start..  reduced..(statements)  finish.. ) ) )      lanes in the shell, or
    shell.. lane_c ( turn! ( lane_t ( lane_v ( statements ) ) ) )           a run of them in each turn of a recurrence, or
    shell.. block.. ( shell.. lane_t ( lane_v ( statements ) ) )            what is copied in another order, block by block
    shell.. lane_t ( lane_v ( per group:  start..  short_p ( statements ) ) )        short rows of memory, turned in registers

A reduction along the lanes is cut in two: partial results per lane, then a fold over the lanes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Const, names
from polyop.ir.loops import Kind, Space
from polyop.poly.build import Axes, Builder, Part, Plan, register, shared_out
from polyop.poly.homes import find_homes
from polyop.poly.schedule.nodes import Cluster, Group, Node, Serial
from polyop.poly.scop import INIT, UPDATE, Stmt
from polyop.poly.strategies import turned
from polyop.poly.strategies.lanes import RowStrategy, groups_of
from polyop.poly.strides import common_start, serial_axis
from polyop.poly.tiles import ZERO, Axis, Band, Coord, bands


def scatters(plan: Plan, s: Stmt, reduced: tuple[str, ...]) -> bool:
    """Whether where the update `s` writes is known only inside the loops `reduced`: `T[ids[i]] +=`, `T[i + j] +=`."""
    own = {i for i in s.dims if plan.classes[s.name].get(i) in reduced}
    return s.kind == UPDATE and any(not isinstance(p, Affine) or names(p) & own for p in s.target.index)


def build(plan: Plan, cluster: Cluster, outer: Axes, strategy: RowStrategy | turned.TurnedStrategy) -> Part:
    """The part of the tile program for `cluster` inside the loops `outer`."""
    whole = isinstance(strategy, turned.TurnedStrategy) or strategy.rows in plan.tiled or strategy.run or strategy.blocks
    if plan.tiled and whole:
        raise UnsupportedError(f"{' and '.join(plan.tiled)} is taken tile by tile")
    if isinstance(strategy, turned.TurnedStrategy):
        return turned.build(plan, cluster, outer, strategy)
    tile = plan.tiled.get(strategy.lane or "")
    if tile:  # which has a whole number of blocks of lanes, of a width of their own
        most = max(v for v in range(1, strategy.vectors + 1) if tile.step % (v * strategy.lanes) == 0)
        strategy = replace(strategy, vectors=most)
    width = strategy.vectors * strategy.lanes
    lane = f"{strategy.lane}_{cluster.stmts[0].name}" if tile else strategy.lane
    axes = dict(outer)
    locked: list[tuple[str, int]] = []
    also, some = strategy.also or (None, 1)
    blocks = dict(strategy.blocks)
    order = [c for c in cluster.shell if c not in (strategy.lane, strategy.rows, also)]
    order = list(cluster.shell) if strategy.inside else [*order, *(c for c in (also, strategy.rows, strategy.lane) if c)]
    for c in order:
        if c == strategy.lane:
            start = common_start(plan, cluster.stmts, c, axes)
            runs = (Coord(f"{c}_c", strategy.run),) if strategy.run else (tile,) if tile else ()
            runs = (Coord(f"{c}_b", blocks[c]),) if c in blocks else runs
            vectors = Coord(f"{lane}_t", width, runs[0].step if runs else None)
            axes[c] = Axis((*runs, vectors, Coord(f"{lane}_v", 1, width)), start)
            locked.append((f"{lane}_v", width))
        elif c in (strategy.rows, also):
            start, extent = common_start(plan, cluster.stmts, c, axes), strategy.row_extent if c == strategy.rows else some
            runs = (Coord(f"{c}_b", blocks[c]),) if c in blocks else ()
            axes[c] = Axis((*runs, Coord(f"{c}_s", extent, blocks.get(c)), Coord(f"{c}_p", 1, extent)), start)
            locked.insert(0, (f"{c}_p", extent))
        elif c in blocks:
            axes[c] = Axis((Coord(f"{c}_b", blocks[c]), Coord(c, 1, blocks[c])))
        elif c in plan.tiled:
            axes[c] = Axis((plan.tiled[c], Coord(c, 1, plan.tiled[c].step)))
        else:
            axes[c] = Axis((Coord(c),))
    around = {t.name for t in plan.tiled.values()}
    homes = find_homes(plan, cluster, tuple(outer), tuple(locked), width)
    along = (c for g in groups_of(cluster.body) for c in (*g.kept, *g.reduced))
    b = Builder(plan, cluster, homes, frozenset(c for c in (strategy.lane, *along) if c and strategy.apart))
    for h in homes.values():
        if h.buffer.space != Space.TENSOR:
            b.buffer(h.buffer)
    several = (strategy.several,) if strategy.several else ()
    b.kinds |= {f"{c}_p": (Kind.ROWS, count) for c, count in (*strategy.within, *several)}
    for c, extent in locked:
        b.kinds[c] = (Kind.LANES if c.endswith("_v") else Kind.ROWS, extent)
    loops = tuple(outer) + tuple(order)
    writer = _Groups(b, strategy, axes, loops, tuple(locked), iter(strategy.inner))
    body = writer.items(cluster.body, axes, loops)
    serial = [n for c in order for n in axes[c].names if n not in (*b.kinds, *strategy.turn, *around, *blocks)]
    if strategy.around:
        serial.insert(serial.index(f"{strategy.rows}_s"), serial.pop(serial.index(f"{lane}_t")))
    lanes = [f"{lane}_v"] if strategy.lane and not strategy.run else [f"{c}_p" for c in (also, strategy.rows) if c]
    lanes = [] if strategy.inside else lanes
    if strategy.rows in blocks:
        inside = f"{strategy.rows}_s", f"{lane}_t"
        serial, lanes = [n for n in serial if n not in inside], [*inside, *lanes]
    elif blocks:
        lanes = [*blocks, serial.pop(), *lanes]
    if plan.target.warp:
        b.kinds |= dict.fromkeys(serial, (Kind.PARALLEL, None))  # a thread for each point
    elif serial:
        b.kinds |= shared_out(plan, serial, 1 if len(serial) > 2 else 0)  # a leading batch is often 1
    return b.part(bands((*serial, *lanes), *body))


@dataclass(frozen=True, eq=False)
class _Groups:
    """Writes the groups of one cluster.

    rows    of the group at hand: its loops around sums that are rows inside the lanes, and how many iterations each has. They
            stand inside the sums' own loops, and each has a sum of its own
    """

    b: Builder
    strategy: RowStrategy
    axes: Axes
    loops: tuple[str, ...]
    locked: tuple[tuple[str, int], ...]
    inner: Iterable[str | None]
    rows: tuple[tuple[str, int], ...] = ()

    def items(self, body: tuple[Node, ...], axes: Axes, loops: tuple[str, ...]) -> tuple[Band | str, ...]:
        out: list[Band | str] = []
        for item in body:
            if isinstance(item, Group):
                out += self.group(item, axes, loops, next(iter(self.inner)))
            elif isinstance(item, Serial):
                inside = {**axes, item.loop: serial_axis(self.b.plan, item)}
                out += bands((item.loop, *self.strategy.turn), *self.items(item.body, inside, (*loops, item.loop)))
            else:
                raise UnsupportedError("a cluster inside a cluster")
        return tuple(out)

    def leaf(self, name: str) -> Band | str:
        """`name` in the rows, where these are inside the lanes; rows around lanes are around all loops of the groups."""
        inside = self.strategy.rows and (self.strategy.lane or self.strategy.inside)
        one, = bands([c for c, _ in self.rows], name)
        return Band(f"{self.strategy.rows}_p", (one,)) if inside else one

    def group(self, g: Group, axes: Axes, loops: tuple[str, ...], lane: str | None) -> tuple[Band | str, ...]:
        """The loops of one group. An init that its update's group takes over has been dropped by then."""
        b, width = self.b, self.strategy.vectors * self.strategy.lanes
        stmts = tuple(s for s in g.stmts if not is_taken_over(b, s))
        if not stmts:
            return ()
        if any(scatters(b.plan, s, g.reduced) for s in stmts):
            g = Group(g.stmts, (), (*g.reduced, *g.kept))  # a scatter: where it writes is known only inside
        short, several = dict(self.strategy.within), dict((self.strategy.several,) if self.strategy.several else ())
        kept, reduced = (sorted(loops, key=lambda c: c == lane or c in short) for loops in (g.kept, g.reduced))
        square, some = self.strategy.squares or (None, 1)
        inside = dict(axes)
        for c in (*kept, *reduced):
            if c in short:
                inside[c] = Axis((Coord(f"{c}_p", 1, short[c]),), common_start(b.plan, stmts, c, inside))
            elif c in several:
                count = several[c]
                inside[c] = Axis((Coord(f"{c}_s", count), Coord(f"{c}_p", 1, count)), common_start(b.plan, stmts, c, inside))
            elif c == square:
                inside[c] = Axis((Coord(f"{c}_s", some), Coord(f"{c}_p", 1, some)), common_start(b.plan, stmts, c, inside))
                b.kinds[f"{c}_p"] = Kind.ROWS, some
            elif c == lane:
                start = common_start(b.plan, stmts, c, inside)
                fine = self.strategy.fine
                steps = (Coord(f"{c}_f", 1, fine),) if fine > 1 else ()
                inside[c] = Axis((Coord(f"{c}_t", width * fine), Coord(f"{c}_v", 1, width, fine), *steps), start)
                b.kinds |= {f"{c}_v": (Kind.LANES, width), **{x.name: (Kind.ROWS, fine) for x in steps}}
                if start != ZERO:  # a vector may then reach past the padding of a row
                    b.buffers.update({n: replace(x, pad=1) for n, x in b.buffers.items()})
            else:
                inside[c] = Axis((Coord(c),))
        every = (*loops, *kept, *reduced)
        rows = {c: n for c, n in short.items() if c in kept and reduced}
        own = replace(self, rows=tuple((f"{c}_p", n) for c, n in rows.items()))
        before: list[Band | str] = []
        body: list[Band | str] = []
        after: list[Band | str] = []
        for s in stmts:
            direct = s.kind != UPDATE or not reduced or scatters(b.plan, s, g.reduced) \
                or not set(b.plan.classes[s.name].values()) & set(reduced)
            if direct:
                body.append(own.leaf(b.compute(s, inside, every)))
            elif lane in reduced:
                own.folded(s, inside, (*loops, *kept), every, (f"{lane}_v", width), before, body, after)
            elif several and set(several) <= set(reduced):
                (c, count), = several.items()
                own.folded(s, inside, (*loops, *kept), every, (f"{c}_p", count), before, body, after)
            else:
                own.accumulated(s, inside, (*loops, *kept), every, lane, before, body, after)
        outer_loops = [n for c in kept if c not in rows for n in inside[c].names]
        inner_loops = [n for c in reduced for n in inside[c].names]
        if square in reduced:  # its rows are around the lanes
            inner_loops.remove(f"{square}_p")
            inner_loops.insert(len(inner_loops) - (lane in reduced), f"{square}_p")
        return bands(outer_loops, *before, *bands(inner_loops, *body), *after)

    def folded(self, s: Stmt, axes: Axes, outside: tuple[str, ...], every: tuple[str, ...], parts: tuple[str, int],
               before: list[Band | str], body: list[Band | str], after: list[Band | str]) -> None:
        """Partial results per lane, or row, then a fold: `part[v] = identity; part[v] op= e; T op= part[v]`."""
        b, (v, width) = self.b, parts
        assert s.reduce is not None
        buffer, part = register(f"{b.plan.stems[s.target.source]}_{s.name}_part", s.target.dtype, [*self.locked, (v, width)])
        b.buffer(buffer)
        home = b.place(s, s.target, axes)
        init = init_of(b, s)
        if init and is_taken_over(b, init):
            before.append(self.leaf(b.move(init.name, s, axes, outside, home, init.expr, origin=init)))
        only = [f"0 <= {v} < {width}"]
        extra = (Coord(v, 1, width),)
        identity = Const(s.reduce.identity, s.target.dtype)
        start = b.move(f"{s.name}_start", s, axes, outside, part, identity, extra=extra, only=only)
        before.append(Band(v, (self.leaf(start),)))
        body.append(self.leaf(b.compute(s, axes, every, target=part)))
        after.append(Band(v, (self.leaf(b.move(f"{s.name}_fold", s, axes, outside, home, part, s.reduce, extra, only)),)))

    def accumulated(self, s: Stmt, axes: Axes, outside: tuple[str, ...], every: tuple[str, ...], lane: str | None,
                    before: list[Band | str], body: list[Band | str], after: list[Band | str]) -> None:
        """An accumulator in registers around the reduced loops: start (or fill from memory), update, finish."""
        b = self.b
        home = b.place(s, s.target, axes)
        if b.homes.get(s.target.source) and b.homes[s.target.source].buffer.space == Space.REG:
            body.append(self.leaf(b.compute(s, axes, every)))
            return
        locked = [*self.rows, *self.locked, *([(f"{lane}_v", self.strategy.vectors * self.strategy.lanes)] if lane else [])]
        buffer, acc = register(f"{b.plan.stems[s.target.source]}_{s.name}_acc", s.target.dtype, locked)
        b.buffer(buffer)
        init = init_of(b, s)
        if init and is_taken_over(b, init):
            before.append(self.leaf(b.move(init.name, s, axes, outside, acc, init.expr, origin=init)))
        else:
            before.append(self.leaf(b.move(f"{s.name}_fill", s, axes, outside, acc, home)))
        body.append(self.leaf(b.compute(s, axes, every, target=acc)))
        after.append(self.leaf(b.move(f"{s.name}_finish", s, axes, outside, home, acc)))


def init_of(b: Builder, s: Stmt) -> Stmt | None:
    """The init in this cluster that only `s` needs: their points are the same, and `s` is the first update."""
    inits = [q for q in b.cluster.stmts if q.kind == INIT and q.target.source == s.target.source]
    updates = [q for q in b.plan.scop.stmts if q.kind == UPDATE and q.target.source == s.target.source]
    if not inits or updates[0] is not s:
        return None
    there = inits[0].access(inits[0].target).intersect_params(b.plan.context).range()
    here = s.access(s.target).intersect_params(b.plan.context).range()
    return inits[0] if there.is_equal(here) else None


def is_taken_over(b: Builder, s: Stmt) -> bool:
    """Whether the init `s` is carried out where its update starts, and not by a loop of its own."""
    if s.kind != INIT:
        return False
    home = b.homes.get(s.target.source)
    if home and home.buffer.space == Space.REG:
        return False
    for g in groups_of(b.cluster.body):
        for u in g.stmts:
            if u.kind == UPDATE and u.target.source == s.target.source and init_of(b, u) is s:
                own = b.plan.classes[u.name].values()
                return bool(set(own) & set(g.reduced)) and not scatters(b.plan, u, g.reduced)
    return False
