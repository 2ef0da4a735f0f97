"""Copies of the tiles that a block of threads works on, from tensors to the memory that it shares.

There are several slots for each tile: while one is used, the tiles of the next turns are on their way to the others.

    contracted.. ( k_f ( first: slot k_f / deep )
        k_c ( next: slot (k_c / deep + ahead) mod slots   update: slot (k_c / deep) mod slots ) )

The first copies go round as often whatever the depth is, so that a barrier in their loop closes a group of copies each time:
`ahead - 1` of these may be on their way at each barrier then, there and in the loop over all turns (`barriers.py`).

Where copies do not go on by themselves, the next tile waits in registers while this one is used, so that the way from memory
takes its time beside the products all the same:

    k_c ( ahead: registers   update   next: from the registers )

There is one slot then, so that shared memory has room for the blocks that multiply while this one waits for its barriers.

Threads run along what has unit stride in the tensor, with as many neighbours for each as 16 bytes hold where they are
neighbours in the copy too. Tiles are copied whole, and what lies outside the tensor is 0 there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Const, Load, affine, names, place, quasi, substitute
from polyop.ir.expr import Test as Tests
from polyop.ir.loops import Buffer, Space
from polyop.poly.build import Axes, Builder, Plan
from polyop.poly.cuts import Cut, cut, squares
from polyop.poly.roles import iterators_of
from polyop.poly.scop import Stmt
from polyop.poly.strides import stride
from polyop.poly.tiles import Band, Coord, TileStmt, band

CHUNK = 16  # bytes that a thread copies at once
PAD = 16  # bytes by which lines are longer than they must be, so that neighbours in a column lie in different banks
LEAST = 4  # elements by which they are, at least: a half warp reads four lines of f64
SLOTS = 4  # at most: what is left of a turn's latency then is little
OTHERS = 64  # registers of a thread beside its results and operands: addresses, and what is on its way


@dataclass(frozen=True, eq=False)
class Staging:
    """What the copies of all operands of `update` have in common.

    sizes    of the tile, for the iterators that are tiled; `depth` is the one that goes turn by turn
    chunk    the coordinate that counts the turns
    threads  of a block, all of which copy
    by_unit  dtype sizes whose tiles lie as in the tensor, since what reads them can turn them; others lie along the depth.
             None: all lie along rows or columns
    swizzle  bytes of the lines that change places, for tiles that a matrix unit reads itself, or that are written from registers;
             0: lines are longer instead
    slots    of each tile; ahead: turns before it is used each is copied
    """

    plan: Plan
    update: Stmt
    axes: Axes
    sizes: Mapping[str, int]
    depth: str
    chunk: Coord
    threads: int
    by_unit: tuple[int, ...] | None
    swizzle: int = 0
    slots: int = 2
    ahead: int = 1

    @property
    def own(self) -> Mapping[str, str]:
        return self.plan.classes[self.update.name]

    def starts(self, turn: Affine) -> dict[str, Affine]:
        """iterator -> its first value in a block's tiles, `turn` of the depth."""
        axes = {i: self.axes[self.own[i]] for i in self.update.dims}
        return {i: x.start + (turn if i == self.depth else affine(x.coords[0].name)) if i in self.sizes else x.value
                for i, x in axes.items()}

    @property
    def early(self) -> tuple[Coord, ...]:
        """What counts the turns whose tiles are copied before the first one is used; nothing, if it is that one alone."""
        deep = self.chunk.step
        return (Coord(f"{self.own[self.depth]}_f", deep, self.ahead * deep),) if self.slots > 1 else ()

    def blocks(self, turns: tuple[Coord, ...]) -> tuple[Coord, ...]:
        """What chooses a block, and a turn of it."""
        axes = {i: self.axes[self.own[i]].coords for i in self.update.dims}
        found = (c for i, coords in axes.items() for c in (coords[:1] if i in self.sizes else coords))
        return tuple(x for c in found for x in (turns if c is self.chunk else (c,)))

    @property
    def has_one_turn(self) -> bool:
        """Whether the sum is known to be no longer than a tile is deep."""
        extent = self.update.extent(self.depth)
        return extent.is_constant and extent.const <= self.chunk.step

    def slot(self, turn: Affine) -> Affine:
        """The slot of the tile of a turn."""
        return quasi("mod", quasi("div", turn, affine(self.chunk.step)), affine(self.slots))


@dataclass(frozen=True, eq=False)
class Copies:
    """The copies of one operand.

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


@dataclass(frozen=True, slots=True)
class _Tile:
    """One slot of an operand: the iterators along its dimensions with their extents, and how much longer its lines are.

    fast   the iterator that has unit stride in the tensor; slow: the other one, if there are two
    stride the stride that it has, which is not 1 where none is known to have that
    """

    order: tuple[tuple[str, int], ...]
    fast: str
    slow: str | None
    pad: int
    stride: int | None


def _tile(s: Staging, load: Load) -> _Tile:
    tile = tuple((i, size) for i, size in s.sizes.items() if i in iterators_of(load))
    fast = next((i for i, _ in tile if stride(s.plan, s.update, load, s.own[i]) == 1), tile[-1][0] if tile else "")
    slow = tuple(i for i, _ in tile if i != fast)
    if not tile or len(slow) > 1:
        raise UnsupportedError(f"{load} has {'none' if not tile else 'all'} of rows, columns and depth")
    by_depth = s.by_unit is not None and not (load.dtype.bytes_ in s.by_unit and fast != s.depth)
    order = sorted(tile, key=lambda x: (x[0] == s.depth) == by_depth)
    if s.swizzle and len(order) == 1:
        raise UnsupportedError(f"{load} has one of rows, columns and depth, and a matrix unit reads tiles")
    pad = max(LEAST, PAD // load.dtype.bytes_) if len(order) > 1 and not s.swizzle else 0
    return _Tile(tuple(order), fast, slow[0] if slow else None, pad, stride(s.plan, s.update, load, s.own[fast]))


def with_slots(s: Staging, operands: Sequence[Load], registers: int, lasting: bool) -> Staging:
    """`s` with as many slots as fit into shared memory beside other blocks, which registers leave room for.

    Where nothing is copied while threads go on, one. Where products may be `lasting`, and slots are enough, the tile of the turn
    before is still read.

    Units   registers: of a thread, for results and operands
    """
    multi = s.plan.target.multi
    if not s.plan.target.copies or multi is None or (s.plan.block and s.has_one_turn):
        return replace(s, slots=1)
    if s.plan.block:  # there is more in the block's memory
        return replace(s, slots=2)
    total = multi.parts * multi.registers * s.plan.target.warp
    blocks = max(1, min(total // (s.threads * (registers + OTHERS)), multi.blocks))
    slots = max(2, min(SLOTS, (multi.shared // blocks - multi.reserved) // slot_bytes(s, operands)))
    return replace(s, slots=slots, ahead=slots - 2 if lasting and slots == SLOTS else slots - 1)


def slot_bytes(s: Staging, operands: Sequence[Load]) -> int:
    """Bytes of shared memory for one turn."""
    tiles = [(x.dtype.bytes_, _tile(s, x)) for x in operands]
    return sum(prod(size for _, size in t.order[:-1]) * (t.order[-1][1] + t.pad) * bytes_ for bytes_, t in tiles)


def stage(b: Builder, s: Staging, n: int, load: Load) -> Copies:
    """Adds the copies of `load`, operand number `n`, to what `b` builds."""
    t = _tile(s, load)
    if load.source in s.plan.inside:
        return _where_it_is(b, s, n, load, t)
    name = f"{b.plan.stems[load.source]}_{s.update.name}_tile{n}"
    dims = [(affine(s.slots), 1), *((affine(size), 1) for _, size in t.order[:-1]), (affine(t.order[-1][1] + t.pad), 1)]
    folded = s.swizzle > 0 and not s.plan.target.copies  # no unit reads the tile itself
    b.buffer(Buffer(name, load.dtype, tuple(dims), Space.SHARED, swizzle=s.swizzle, folded=folded))
    mine = _share(s, n, load, t)
    inside, loops, rows = mine.inside, mine.loops, mine.rows
    b.over_threads(loops)
    b.over_rows(rows)
    coords = tuple(c for i in s.sizes if i in inside for c in inside[i])
    at = tuple(sum((affine(c.name) for c in inside[i]), Affine()) for i, _ in t.order)

    u, now, early = s.update.name, (s.chunk,), s.early

    def copied(label: str, turns: tuple[Coord, ...], ahead: int, to: Load | None = None, of: Load | None = None) -> Band | str:
        """Adds the copy of a tile `ahead` turns from now to its slot, or to `to`, from the tensor, or from `of`."""
        here = sum((affine(c.name) for c in turns), Affine())
        turn = here + ahead * s.chunk.step
        starts = s.starts(turn)
        every = (*s.blocks(turns), *coords)
        # early turns are there whatever the depth is, so that each has its group of copies; and where copies go through
        # registers, each turn has them: what is loaded behind a test may be on its way in the next turn, and compilers wait
        known = {i: x for i, x in starts.items() if not turns or turns != early or i != s.depth}
        known |= {} if s.plan.target.copies or s.depth not in known else {s.depth: s.starts(here)[s.depth]}
        domain = b.domain(label, s.update, known, every, [])
        target = to or Load(name, (s.slot(turn), *at), load.dtype)
        value = of or _guarded(s, load, starts, inside)
        b.stmts.append(TileStmt(label, every, domain, None, (), target, None, value, later=s.plan.target.copies))
        return band(tuple(c.name for c in (*loops, *(mine.late if of else rows))), label)

    of_block = tuple(sum((affine(c.name) for c in s.axes[s.own[i]].coords[1:]), Affine()) for i, _ in t.order)
    found = Load(name, (s.slot(affine(s.chunk.name)), *of_block), load.dtype)
    if s.plan.target.copies and s.slots == 1:
        return Copies((copied(f"{u}_first{n}", early, 0),), (), (), found)
    if s.plan.target.copies:
        return Copies((copied(f"{u}_first{n}", early, 0),), (copied(f"{u}_next{n}", now, s.ahead),), (), found)
    held = Load(f"{name}_ahead", tuple(affine(c.name) for c in (*loops, *rows)), load.dtype)
    b.buffer(Buffer(held.source, load.dtype, tuple((affine(c.cap or 1), c.step) for c in (*loops, *rows)), Space.REG))
    first = (copied(f"{u}_fetch{n}", early, 0, to=held), copied(f"{u}_first{n}", early, 0, of=held))
    return Copies(first, (copied(f"{u}_ahead{n}", now, 1, to=held),), (copied(f"{u}_next{n}", now, 1, of=held),), found)


def _share(s: Staging, n: int, load: Load, t: _Tile) -> Cut:
    """What each thread copies of a tile: squares, if it lies across what is fast in the tensor, and goes through registers."""
    beside = max(1, CHUNK // load.dtype.bytes_)
    if t.order[-1][0] == t.fast or s.plan.target.copies or t.slow is None or t.stride != 1:
        return cut(s.own, n, dict(t.order), (t.fast, t.slow), beside if t.order[-1][0] == t.fast else 1, s.threads)
    return squares(s.own, n, dict(t.order), (t.fast, t.slow), load.dtype.bytes_, beside, s.threads)


def _where_it_is(b: Builder, s: Staging, n: int, load: Load, t: _Tile) -> Copies:
    """What lies in the block's memory is used there. Where its tile is cut, what lies outside is made 0, which copies are too."""
    extents = {i: size if i != s.depth else s.update.extent(i).const for i, size in t.order}
    mine = cut(s.own, n, extents, (t.fast, t.slow), max(1, CHUNK // load.dtype.bytes_), s.threads)
    inside, loops, rows = mine.inside, mine.loops, mine.rows
    b.over_threads(loops)
    b.over_rows(rows)
    starts = s.starts(Affine())
    guard = _guarded(s, load, starts, inside).guard
    caps = {c.name: (c.cap or 1) - c.step for c in (*loops, *rows)}
    values = {i: starts[i] + sum((affine(c.name) for c in coords), Affine()) for i, coords in inside.items()}
    at = place(load, dict(starts) | values)
    trees: list[Band | str] = []
    for k, test in enumerate(guard):
        least = substitute(test, {c: affine(caps[c]) if test.factor(c) < 0 else Affine() for c in names(test) & caps.keys()})
        if least.is_constant and least.const >= 0:
            continue
        label = f"{s.update.name}_zero{n}_{k}"
        every = (*s.blocks(()), *loops, *rows)
        domain = b.domain(label, s.update, starts, every, [f"{least} < 0"])
        zero = Load(at.source, at.index, at.dtype)
        b.stmts.append(TileStmt(label, every, domain, None, (), zero, None, Const(0, at.dtype), (test * -1 - 1, *guard[:k])))
        trees.append(band(tuple(c.name for c in (*loops, *rows)), label))
    own = {i: s.axes[s.own[i]].value for i in s.update.dims}
    return Copies((), (), (), place(load, own), tuple(trees))


def _guarded(s: Staging, load: Load, starts: Mapping[str, Affine], inside: Mapping[str, tuple[Coord, ...]]) -> Load:
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
    """The test that a larger `i` does not leave the tensor; None if `i` is the sum's, or no plain term of just one position.

    Results beyond the last `i` are nobody's, so whatever lies there may be read for them: { X[c, p + r] : p + r < W }.
    """
    places = [(d, p) for d, p in enumerate(load.index) if isinstance(p, Affine) and i in names(p)]
    if i == s.depth or len(places) != 1 or places[0][1].factor(i) != 1 or s.depth in names(places[0][1]):
        return None
    d, p = places[0]
    return s.plan.scop.op.tensor(load.source).shape[d] - 1 - substitute(p, own)
