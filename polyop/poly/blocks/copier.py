"""How the copies of the tiles that a block of threads works on are written: see `staging.py` for which there are.

What each thread copies is for `cuts.py`. Tiles are copied whole, and what lies outside the tensor is 0 there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from polyop.ir.expr import Affine, Const, Load, affine, names, place, quasi, substitute
from polyop.ir.expr import Test as Tests
from polyop.ir.loops import Buffer, Space
from polyop.poly.blocks.cuts import LEAST, WORD, Cut, cut, lines, squares
from polyop.poly.blocks.staging import CHUNK, Staging, Tile, tile_of
from polyop.poly.blocks.tilelines import places, turned, write_cycles
from polyop.poly.build import Builder, holds
from polyop.poly.strategies.roles import iterators_of
from polyop.poly.tiles import Band, Coord, TileStmt, band

SECTOR = 32
"""Bytes that memory takes at once: lanes beside each other that read as many leave none of it out."""

MOST = 32
"""Numbers of a square: until it is turned, each of them has a register, bytes too."""


@dataclass(frozen=True, eq=False)
class Copies:
    """The copies of one operand.

    once    what stands before the serial loop around, early: at the beginning of each of its turns, and last: behind this
            turn's sum, see `turns.py`
    first   what brings the first turn's tile
    before  what fetches the next turn's tile before this one is used, and `after`: what brings it to its place then; each may be
            nothing
    found   where this turn's tile has the element wanted
    zeros   what makes 0 what lies outside, of an operand that is where it is
    """

    first: tuple[Band | str, ...]
    before: tuple[Band | str, ...]
    after: tuple[Band | str, ...]
    found: Load
    zeros: tuple[Band | str, ...] = ()
    once: tuple[Band | str, ...] = ()
    early: tuple[Band | str, ...] = ()
    last: tuple[Band | str, ...] = ()


@dataclass(frozen=True, eq=False)
class Copier:
    """Writes the copies of one operand, number `n`, between its tensor, its tile and registers.

    mine   the coordinates of a copy in the tile
    by_registers   whether it goes through registers
    """

    b: Builder
    s: Staging
    n: int
    load: Load
    tile: Tile
    mine: Cut
    by_registers: bool

    @property
    def name(self) -> str:
        """The tile."""
        return f"{self.b.plan.stems[self.load.source]}_{self.s.update.name}_tile{self.n}"

    def copied(self, label: str, starts: Mapping[str, Affine], blocks: tuple[Coord, ...], slot: Affine, to: Load | None = None,
               of: Load | None = None, known: Mapping[str, Affine] | None = None, only: Iterable[str] = (),
               also: Mapping[str, Affine] | None = None) -> Band | str:
        """Adds the copy of a tile from `starts` on to its slot, or to `to`, from the tensor, or from `of`, where `only` hold.

        known   values that an instance of the update has where there is a copy; if not said, these are `starts`; `also`: as well
        """
        s, label = self.s, f"{self.s.update.name}_{label}{self.n}"
        every = (*blocks, *(c for i in s.sizes if i in self.mine.inside for c in self.mine.inside[i]))
        domain = self.b.domain(label, s.update, starts if known is None else known, every, only)
        domain = domain if also is None else domain.intersect(self.b.domain(label, s.update, also, every, only))
        at = places(self.tile, self.mine.inside)
        target = to or Load(self.name, (slot, *at), self.load.dtype)
        value = of or guarded(s, self.load, starts, self.mine.inside)
        self.b.stmts.append(TileStmt(label, every, domain, None, (), target, None, value, later=not self.by_registers))
        return band(tuple(c.name for c in (*self.mine.loops, *(self.mine.late if of else self.mine.rows))), label)

    def found(self, slot: Affine) -> Load:
        """Where the tile has the element wanted."""
        of_block = places(self.tile, {i: self.s.axes[self.s.own[i]].coords[1:] for i in self.tile.sizes})
        return Load(self.name, (slot, *of_block), self.load.dtype)

    def held(self) -> Load:
        """Registers for what a thread copies."""
        coords = (*self.mine.loops, *self.mine.rows)
        held = Load(f"{self.name}_ahead", tuple(affine(c.name) for c in coords), self.load.dtype)
        self.b.buffer(Buffer(held.source, held.dtype, tuple((affine(c.cap or 1), c.step) for c in coords), Space.REG))
        return held


def copier(b: Builder, s: Staging, n: int, load: Load) -> Copier:
    """What writes the copies of `load`, with room for its tile."""
    t = tile_of(s, load)
    squared = _turned(s, n, load, t)
    mine = squared or _share(s, n, load, t)
    b.over_threads(mine.loops)
    b.over_rows(mine.rows)
    made = Copier(b, s, n, load, t, mine, squared is not None or not s.plan.target.copies)
    dims = [(affine(size), 1) for size in (s.slots, *t.shape)]
    folded = s.swizzle > 0 and not s.plan.target.copies  # no unit reads the tile itself
    b.buffer(Buffer(made.name, load.dtype, tuple(dims), Space.SHARED, swizzle=s.swizzle, folded=folded,
                    turned=turned(s, n, load, t, mine)))
    return made


def stage(b: Builder, s: Staging, n: int, load: Load) -> Copies:
    """Adds the copies of `load`, operand number `n`, to what `b` builds."""
    if load.source in s.plan.inside:
        return _where_it_is(b, s, n, load, tile_of(s, load))
    c = copier(b, s, n, load)
    now, early = s.turns, s.early

    def copied(label: str, turns: tuple[Coord, ...], ahead: int, to: Load | None = None, of: Load | None = None) -> Band | str:
        """Adds the copy of a tile `ahead` turns from now."""
        number, depth, taps = s.later(turns, ahead)
        starts = s.starts(depth, taps)
        # early turns are there whatever the depth is, so that each has its group of copies; and where copies go through
        # registers, each turn has them: what is loaded behind a test may be on its way in the next turn, and compilers wait
        known = {i: x for i, x in starts.items() if not turns or turns != early or i != s.depth}
        known |= {s.depth: s.starts(s.later(turns, 0)[1])[s.depth]} if c.by_registers and s.depth in known else {}
        # a copy for the next turn of the depth has one of now around: isl does not see that from the former alone
        also = s.starts(s.later(turns, 0)[1]) if s.taps and turns == now else None
        return c.copied(label, starts, s.blocks(turns), s.slot(number), to, of, known, also=also)

    found = c.found(s.slot(s.later(now, 0)[0]))
    if not c.by_registers and s.slots == 1:
        return Copies((copied("first", early, 0),), (), (), found)
    if not c.by_registers:
        return Copies((copied("first", early, 0),), (copied("next", now, s.ahead),), (), found)
    held = c.held()
    first = (copied("fetch", early, 0, to=held), copied("first", early, 0, of=held))
    return Copies(first, (copied("ahead", now, s.ahead, to=held),), (copied("next", now, s.ahead, of=held),), found)


def _turned(s: Staging, n: int, load: Load, t: Tile) -> Cut | None:
    """What each thread copies of a tile that lies across what is fast in the tensor, of elements too small for copies that go on
    by themselves: these go through registers, too. None of other tiles.
    """
    small = s.plan.target.copies and load.dtype.bytes_ < WORD and not s.swizzle and not s.around and s.slots > 1
    square = (WORD // load.dtype.bytes_) ** 2  # elements of the least one
    if not small or t.inner == t.fast or t.stride != 1 or len(t.sizes) != 2 or prod(t.sizes.values()) < square * s.threads:
        return None
    return lines(s.own, n, t.sizes, (t.fast, t.inner), load.dtype.bytes_, s.threads)


def _share(s: Staging, n: int, load: Load, t: Tile) -> Cut:
    """What each thread copies of a tile: squares, if it lies across what is fast in the tensor, and goes through registers."""
    beside = max(1, CHUNK // load.dtype.bytes_)
    if t.inner == t.fast or s.plan.target.copies or not t.slow or t.stride != 1:
        if t.inner == t.fast:
            return cut(s.own, n, t.sizes, (t.fast, *t.slow), beside, s.threads)
        ways = [cut(s.own, n, t.sizes, (t.fast, *t.slow), 1, s.threads, near) for near in (0, SECTOR // load.dtype.bytes_)]
        return min(ways, key=lambda c: write_cycles(c, t, load.dtype.bytes_, s.plan.target.warp))
    if load.dtype.bytes_ < WORD and not s.swizzle and len(t.sizes) == 2:
        return lines(s.own, n, t.sizes, (t.fast, t.inner), load.dtype.bytes_, s.threads)
    most = min(beside, MOST * load.dtype.bytes_ // LEAST)
    nears = (0,) if s.swizzle else (0, max(1, SECTOR // (most * load.dtype.bytes_)))
    ways = [squares(s.own, n, t.sizes, (t.fast, t.inner), load.dtype.bytes_, most, s.threads, near) for near in nears]
    return min(ways, key=lambda c: write_cycles(c, t, load.dtype.bytes_, s.plan.target.warp))


def _where_it_is(b: Builder, s: Staging, n: int, load: Load, t: Tile) -> Copies:
    """What lies in the block's memory is used there. Where its tile is cut, what lies outside is made 0, which copies are too."""
    extents = {i: size if i != s.depth else s.update.extent(i).const for i, size in t.sizes.items()}
    mine = cut(s.own, n, extents, (t.fast, *t.slow), max(1, CHUNK // load.dtype.bytes_), s.threads)
    inside, loops, rows = mine.inside, mine.loops, mine.rows
    b.over_threads(loops)
    b.over_rows(rows)
    starts = s.starts(Affine())
    guard = guarded(s, load, starts, inside).guard
    values = {i: starts[i] + sum((affine(c.name) for c in coords), Affine()) for i, coords in inside.items()}
    at = place(load, dict(starts) | values)
    label, every = f"{s.update.name}_zero{n}", (*s.blocks(()), *loops, *rows)
    domain = b.domain(label, s.update, starts, every, ())
    asked = list(dict.fromkeys(guard))
    for test in tuple(asked):  # those that others imply fail nowhere else
        if holds(domain, test, [t for t in asked if t != test]):
            asked.remove(test)
    trees: tuple[Band | str, ...] = ()
    if asked:  # zeros are written in one loop, whichever condition fails
        zero = Load(at.source, at.index, at.dtype)
        b.stmts.append(TileStmt(label, every, domain, None, (), zero, None, Const(0, at.dtype),
                                (quasi("max", *(t * -1 - 1 for t in asked)),)))
        trees = (band(tuple(c.name for c in (*loops, *rows)), label),)
    own = {i: s.axes[s.own[i]].value for i in s.update.dims}
    return Copies((), (), (), place(load, own), trees)


def guarded(s: Staging, load: Load, starts: Mapping[str, Affine], inside: Mapping[str, tuple[Coord, ...]]) -> Load:
    """The element to copy, where it is one: of the sum's, that is where it has such a term; of others, inside the tensor."""
    own = dict(starts) | {i: starts[i] + sum((affine(c.name) for c in coords), Affine()) for i, coords in inside.items()}
    ranges = {r.index: r for r in s.update.ranges}
    tests = [_inside(s, load, i, own) or ranges[i].upper - 1 - own[i] for i in inside]
    for w in s.update.where:
        if isinstance(w, Tests):
            tests += [substitute(t, own) for t in w.tests if names(t) & set(s.update.dims) <= iterators_of(load)]
    source = place(load, own)
    return Load(source.source, source.index, source.dtype, (*source.guard, *tests), source.span)


def _inside(s: Staging, load: Load, i: str, own: Mapping[str, Affine]) -> Affine | None:
    """The test that a larger `i` does not leave the tensor; None if `i` is the sum's, or no term of just one position.

    Results beyond the last `i` are nobody's, so whatever lies there may be read for them: { X[c, p + r] : p + r < W }.
    """
    places = [(d, p) for d, p in enumerate(load.index) if isinstance(p, Affine) and i in names(p)]
    if i == s.depth or len(places) != 1 or places[0][1].factor(i) < 1 or s.depth in names(places[0][1]):
        return None
    d, p = places[0]
    return s.plan.scop.op.tensor(load.source).shape[d] - 1 - substitute(p, own)
