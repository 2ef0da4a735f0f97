"""Copies of the operands of strategy "packed": blocks of the right one, blocks of the left one, or all of the right one ahead."""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.expr import Affine, Load, affine, names, place, quasi, substitute
from polyop.ir.loops import LOCKSTEP, Buffer, Kind, Space
from polyop.ir.target import LINE, NARROW, NEAR
from polyop.poly.build import Axes
from polyop.poly.strategies.ahead import is_frozen, of_all_calls
from polyop.poly.strategies.contract import ALL, TILES
from polyop.poly.strategies.packedtile import Bands, Tile
from polyop.poly.strategies.roles import BATCH, COLUMN, CONTRACTED, ends, is_window, iterators_of
from polyop.poly.strides import spacing
from polyop.poly.tiles import Axis, Band, Coord, TileStmt, bands

EIGHTH = 8
"""Of a row of a copy may be between it and the next."""
SOME = 64
"""Rows of a copy at a time where a square has half a line of each: its other half is written before caches lose it."""


def pack_right(t: Tile, other_m: tuple[str, ...], other_k: tuple[str, ...]) -> tuple[Bands, Bands]:
    """(what stands before the tiles, what stands before the update) to copy a block of the right operand."""
    s = t.s
    assert s.row is not None
    near = ((affine(s.vector), 1),) if s.beside else ((affine(s.block), s.second),) if s.across else ()
    second = ((affine(s.second), 1),) if s.across else ()
    fine = tuple((affine(steps), 1) for _, steps in t.fine)
    dims = ((affine(s.nc), s.columns), *near, *t.deep(other_k, s.fine), *second, (affine(s.columns), 1), *fine)
    pad = 1 if fine else s.columns
    right, pool = t.c.rights[0], t.c.having(COLUMN) + t.c.having(CONTRACTED)
    private = not (shares_left(t) and is_one_block(t))
    t.b.buffer(Buffer(t.name_beside("right"), right.dtype, dims, Space.WORK, pad=pad, private=private))
    m_c, m_r = t.coords(s.row)[:2]
    only = [f"0 <= {m_c.name} < {t.extent(s.row)}"]
    if s.fuse_pack:
        also = (m_c, *(c for i in other_m for c in t.coords(i)), m_r)
        only += [f"{c.name} = 0" for c in also if c is not m_c]
        copy = _Copy(t, right, pool, s.column, None, ())
        return (), t.on_second(copy.write(f"{t.u.name}_right", right_place(t, t.axes, other_k), also, only))
    step = spacing(t.plan, t.u, right, t.own[s.column])
    source = None if step is not None and 1 <= step <= NEAR else t.unit_of(right, tuple(i for i in pool if i != s.across))
    n_r = t.coords(s.column)[1].name
    copy = _Copy(t, right, pool, s.column, source if not t.fine or source == s.depth else None, (n_r,))
    target = right_place(t, {**t.axes, **copy.axes}, other_k)
    each = () if s.rows_behind else (m_c,)
    name = copy.write(f"{t.u.name}_right", target, each, (only if each else []) + kept_from_before(t))
    around = t.others(COLUMN, s.column, *(i for i in (s.beside, s.across) if i))
    return bands(copy.loops(exclude=around), name), ()


def kept_from_before(t: Tile) -> list[str]:
    """What says of a step of the depth that the turn before has not copied it: k >= 32 b - 32 of { k < 32 b }.

    Where some columns go through all turns, what one turn has copied of them is still there in the next one.
    """
    if t.plan.classes[t.u.name][t.s.column] not in t.plan.tiled or t.s.fuse_pack:
        return []
    turns = frozenset(i for i in t.u.dims if t.own[i] in t.outer)
    found = ends(t.u, t.s.depth, turns)
    moves = names(t.axes[t.own[t.s.depth]].start) - {*t.plan.scop.op.sizes}
    if len(found) != 1 or moves or turns & iterators_of(t.c.rights[0]):
        return []
    turn, = {c.name for i in names(found[0]) & turns for c in t.coords(i)}
    now = substitute(found[0], t.plan.values(t.u, t.axes))
    return [f"{substitute(now, {turn: affine(turn) - 1})} < 0"]


def right_place(t: Tile, axes: Axes, other_k: tuple[str, ...]) -> Load:
    """Where a packed right operand stands, in the coordinates of `axes`: the tiles', or those of its copy."""
    s = t.s
    n_c, n_r = (affine(c.name) for c in axes[t.own[s.column]].coords[:2])
    fine = t.lane_step(axes)
    inside = [*(t.offset(i, axes) for i in other_k), t.depth(axes) - sum(fine, Affine())]
    panel = [n_r]
    if s.beside:
        panel.append(t.offset(s.beside, axes) - affine(axes[t.own[s.beside]].coords[0].name))
    if s.across:
        block, step = (affine(c.name) for c in axes[t.own[s.across]].coords[:2])
        panel.append(step)
        inside.append(t.offset(s.across, axes) - block - step)
    return Load(t.name_beside("right"), (*panel, *inside, t.offset(s.column, axes) - n_c - n_r, *fine),
                t.c.rights[0].dtype)


def pack_left(t: Tile, other_m: tuple[str, ...], other_k: tuple[str, ...]) -> tuple[Band | str, ...]:
    """What copies a block of the left operand, before the blocks of columns."""
    s = t.s
    assert s.row is not None
    *inside, (along, unit) = t.deep(other_k)
    rows = quasi("min", affine(s.mc), t.extent(s.row))
    dims = (*((t.extent(i), 1) for i in other_m), (rows, 1), *inside, (_apart(t, along), unit))
    t.b.buffer(Buffer(t.name_beside("left"), t.c.lefts[0].dtype, dims, Space.WORK, private=not shares_left(t)))
    pool = (s.row, *other_m, *t.c.having(CONTRACTED))
    source = t.unit_of(t.c.lefts[0], pool)
    copy = _Copy(t, t.c.lefts[0], pool, s.depth, source if source != s.depth else None, ())
    name = copy.write(f"{t.u.name}_left", left_place(t, {**t.axes, **copy.axes}, other_m, other_k), (), [])
    loops = copy.loops(exclude=())
    if shares_left(t):
        tiles = {c.name for axis in t.axes.values() for c in axis.coords} - {*t.loops(other_m)}
        t.b.kinds |= {c: (Kind.PARALLEL, None) for c in loops if c not in tiles and c not in t.b.kinds}
    return bands(loops, name)


def _apart(t: Tile, along: Affine) -> Affine:
    """How far rows of `along` elements lie apart: up to a line more, an eighth at most.

    A block's depth is a power of two, and rows so far apart would share a few sets of each cache.
    """
    return along + quasi("min", affine(LINE // t.c.lefts[0].dtype.bytes_), quasi("div", along, affine(EIGHTH)))


def left_place(t: Tile, axes: Axes, other_m: tuple[str, ...], other_k: tuple[str, ...]) -> Load:
    """The same for a packed left operand."""
    assert t.s.row is not None
    m = t.offset(t.s.row, axes) - affine(axes[t.own[t.s.row]].coords[0].name)
    index = (*(t.offset(i, axes) for i in other_m), m, *(t.offset(i, axes) for i in other_k), t.depth(axes))
    return Load(t.name_beside("left"), index, t.c.lefts[0].dtype)


def shares_left(t: Tile) -> bool:
    """Whether threads make one copy of the left operand together, behind which they share blocks of columns, and rows."""
    return t.s.pack_left and t.plan.splits(t.u) and not t.batch and not t.outer


def is_one_block(t: Tile) -> bool:
    """Whether all columns are known to be one block: no loop is left then whose iterations could have copies of their own."""
    extent = t.extent(t.s.column)
    others = (t.extent(i) for i in t.others(COLUMN, t.s.column))
    return extent.is_constant and extent.const <= t.s.nc and all(e.is_constant and e.const <= 1 for e in others)


def pack_ahead(t: Tile, other_k: tuple[str, ...]) -> Bands:
    """What copies all of the right operand: before the loops around; or, for one of their iterations, before the tiles."""
    s, load = t.s, t.c.rights[0]
    q, k = t.own[s.column], t.own[s.depth]
    fine = tuple((affine(steps), 1) for _, steps in t.fine)
    chunks = _chunks(t, other_k)
    deep = t.deep((), s.fine) if chunks else ((t.extent(s.depth), s.fine),)
    dims = (*((t.extent(i), 1) for i in lead(t, other_k)), (t.extent(s.column), s.columns), *chunks,
            *((t.extent(i), 1) for i in other_k), *deep, (affine(s.columns), 1), *fine)
    private = s.ahead == TILES and bool(t.outer)  # else the threads share the tiles, or what is around them
    lasting = s.ahead == ALL and is_frozen(t.plan, t.u, load)
    pad = 1 if fine else s.columns
    t.b.buffer(Buffer(t.name_beside("right"), load.dtype, dims, Space.WORK, pad=pad, private=private, lasting=lasting))
    panel, chunk = Coord(f"{q}_h", s.columns), tuple(Coord(f"{k}_d", s.kc) for _ in chunks if s.kc)
    t.b.kinds[panel.name] = (Kind.PARALLEL, None)
    steps = (*chunk, Coord(f"{k}_p", s.fine, s.kc if chunk else None), *(Coord(c, 1, n) for c, n in t.fine))
    axes = {**t.axes, q: Axis((panel, Coord(t.n_v, 1, s.columns)), t.axes[q].start), k: Axis(steps, t.axes[k].start)}
    pool = tuple(i for i in t.u.dims if i in iterators_of(load) and not (s.ahead == TILES and t.own[i] in t.outer))
    source = t.unit_of(load, pool)
    copy = _Copy(t, load, pool, s.column, source if source not in (None, s.column) and (not t.fine or source == s.depth)
                 else None, tuple(c.name for c in (panel, *chunk)), axes)
    name = copy.write(f"{t.u.name}_right", ahead_place(t, {**t.axes, **copy.axes}, other_k), (), [])
    loops, first = copy.loops(exclude=()), tuple(c.name for c in (panel, *chunk))
    return bands((*first, *(c for c in loops if c not in first)), name)


def _chunks(t: Tile, other_k: tuple[str, ...]) -> tuple[tuple[Affine, int], ...]:
    """The dimension of what is packed ahead that counts chunks of its depth, behind whose window a chunk would be in pieces."""
    return ((t.extent(t.s.depth), t.s.kc),) if t.s.kc and other_k else ()


def ahead_place(t: Tile, axes: Axes, other_k: tuple[str, ...]) -> Load:
    """Where a right operand that was packed ahead stands, in the coordinates of `axes`: the tiles', or those of its copy."""
    def multiple(i: str, of: int) -> Affine:
        return sum((affine(c.name) for c in axes[t.own[i]].coords if c.step % of == 0), Affine())

    panel, fine = multiple(t.s.column, t.s.columns), t.lane_step(axes)
    chunk = tuple(multiple(t.s.depth, step) for _, step in _chunks(t, other_k))
    deep = t.offset(t.s.depth, axes) - sum((*chunk, *fine), Affine())
    index = (*(t.offset(i, axes) for i in lead(t, other_k)), panel, *chunk, *(t.offset(i, axes) for i in other_k), deep,
             t.offset(t.s.column, axes) - panel, *fine)
    return Load(t.name_beside("right"), index, t.c.rights[0].dtype)


def lead(t: Tile, other_k: tuple[str, ...]) -> tuple[str, ...]:
    """The iterators of the right operand for each value of which panels of their own are packed ahead."""
    used = iterators_of(t.c.rights[0]) - {t.s.column, t.s.depth, *other_k}
    return tuple(i for i in t.u.dims if i in used and not (t.s.ahead == TILES and t.own[i] in t.outer))


class _Copy:
    """A copy of one operand, over the iterators `pool` that it uses, with lanes along `lane`.

    source   the iterator along which the operand has unit stride, if that is another: the copy then goes by square
             blocks, rows along `source` and lanes along `lane`, and the emitter transposes them in registers
    keep     coordinates of `lane` that stay tile coordinates of the copy
    axes     those of the copy, if they are not the tiles'
    blocks   its loop over some rows at a time, if it has one
    """

    def __init__(self, p: Tile, load: Load, pool: tuple[str, ...], lane: str, source: str | None,
                 keep: tuple[str, ...], axes: Axes | None = None) -> None:
        self.p, self.load, self.lane, self.source = p, load, lane, source
        used = iterators_of(load)
        self.used = tuple(i for i in p.u.dims if i in used)
        self.pool = tuple(i for i in self.used if i in pool)
        self.is_apart = axes is not None
        self.axes = {p.own[i]: (axes or p.axes)[p.own[i]] for i in self.used}
        self.blocks: tuple[str, ...] = ()
        vector = p.s.vector
        if p.s.across in used and not p.s.fuse_pack:
            self._one_by_one(p.s.across)
        if source is not None and p.s.row in used - {source, lane}:  # squares of each of its values, not of all side by side
            self._one_by_one(p.s.row)
        if source is not None:
            steps = vector * (p.s.fine if source == p.s.depth else 1)  # as many words as a vector has
            if vector % NARROW == 0 and is_window(p.u, source):
                steps = NARROW
            for i, last, size in ((lane, "l", vector), (source, "s", steps)):
                q = p.own[i]
                axis = self.axes[q]
                stay = tuple(c for c in axis.coords if c.step > 1 and (p.is_around(c.name) or c.name in keep))
                cap = stay[-1].step if stay else None
                if i == source and lane == p.s.depth and p.plan.target.across and (cap or SOME) % SOME == 0:
                    self.blocks = (f"{q}_b",)
                    stay, cap = (*stay, Coord(f"{q}_b", SOME, cap)), SOME
                # threads share the squares of the left operand, but not those of the right one
                letter = "w" if size != vector else "z" if i == lane == p.s.depth else "x"
                square = Coord(f"{q}_{letter}", size, cap)
                self.axes[q] = Axis((*stay, square, Coord(f"{q}_{last}", 1, size)), axis.start)
            p.b.kinds |= {f"{p.own[lane]}_l": (Kind.LANES, vector), f"{p.own[source]}_s": (Kind.ROWS, steps)}

    def _one_by_one(self, i: str) -> None:
        """Let what runs in lock step in the tile, the last coordinate of `i`, be a loop of the copy."""
        axis = self.axes[self.p.own[i]]
        *before, inside = axis.coords
        self.axes[self.p.own[i]] = Axis((*before, replace(inside, name=f"{self.p.own[i]}_y")), axis.start)

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
        if self.is_apart and p.s.ahead == ALL and is_frozen(p.plan, p.u, self.load):
            domain = of_all_calls(p.plan, self.load, domain)
        load, tests = place(self.load, values), p.b.tests(p.u, values)
        zeros = self._beyond(load, tests, axes)
        load = replace(load, guard=(*load.guard, *zeros))
        p.b.stmts.append(TileStmt(name, coords, domain, None, (), target, None, load, tuple(t for t in tests if t not in zeros)))
        return name

    def _beyond(self, load: Load, tests: tuple[Affine, ...], axes: Axes) -> tuple[Affine, ...]:
        """Those of `tests` that say where `load` is inside along the lanes: 0 is copied where they fail, and not used.

        A vector that is written whole need not come from memory again for what uses it at once.
        """
        lanes = {c.name for c in axes[self.p.own[self.lane]].coords}
        along = [p - p.const for p in load.index if isinstance(p, Affine) and names(p) & lanes]
        sizes = {*self.p.plan.scop.op.sizes}

        def is_end(t: Affine) -> bool:
            return any(names(t + p * sign) <= sizes for p in along for sign in (1, -1))

        return tuple(t for t in tests if names(t) & lanes and is_end(t))

    def loops(self, exclude: tuple[str, ...]) -> tuple[str, ...]:
        """The copy's own loops, outermost first: those that the tiles around do not already have."""
        p = self.p
        inner = {i: [c.name for c in self.axes[p.own[i]].coords if not p.is_around(c.name)]
                 for i in self.pool if i not in exclude}
        if self.source is not None and self.source in inner:
            inside = [inner[self.source].pop(), inner[self.lane].pop()]
            around = [c for i in self.pool if i != self.lane and i in inner for c in inner[i] if c not in self.blocks]
            return (*self.blocks, *inner[self.lane], *around, *inside)
        inside = [inner[self.lane].pop()]
        fine = [c for c, _ in p.fine if self.lane != p.s.depth]
        around = [c for i in self.pool if i != self.lane and i in inner for c in inner[i] if c not in fine]
        around.sort(key=lambda c: c in p.b.kinds and p.b.kinds[c][0] in LOCKSTEP)  # inside them no loop is shared out
        return (*around, *inner[self.lane], *inside, *fine)
