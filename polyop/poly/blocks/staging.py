"""Copies of the tiles that a block of threads works on, from tensors to the memory that it shares.

There are several slots for each tile: while one is used, the tiles of the next turns are on their way to the others.

    contracted.. ( k_f ( first: slot k_f / deep )
        k_c ( next: slot (k_c / deep + ahead) mod slots   update: slot (k_c / deep) mod slots ) )

The first copies go round as often whatever the depth is, so that a barrier in their loop closes a group of copies each time:
`ahead - 1` of these may be on their way at each barrier then, there and in the loop over all turns (`barriers.py`).

Loops of a sum whose extents are numbers, as those of a window mostly are, stand inside of the one over the depth, and turns are
counted over all of them, so that the copies of the next ones go on where a window goes to its next line:

    k_f ( first: slot k_f )
        k_c r s ( next: slot (9 (k_c / deep) + 3 r + s + ahead) mod slots   update: slot (9 (k_c / deep) + 3 r + s) mod slots )

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

from polyop.ir.atoms import Atom
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Load, affine, quasi, substitute
from polyop.poly.blocks.sides import Side
from polyop.poly.build import Axes, Plan
from polyop.poly.scop import Stmt
from polyop.poly.strategies.roles import iterators_of
from polyop.poly.strides import stride
from polyop.poly.tiles import Coord

CHUNK = 16  # bytes that a thread copies at once
PAD = 16  # bytes by which lines are longer than they must be, so that neighbours in a column lie in different banks
LEAST = 4  # elements by which they are, at least: a half warp reads four lines of f64
SLOTS = 4  # at most: what is left of a turn's latency then is little
NARROW, AT_ONCE = 16, 4  # rows or columns of a tile that waits for memory, and how many blocks have such ones beside each other
OTHERS = 64  # registers of a thread beside its results and operands: addresses, and what is on its way
ADDRESSES = 48  # the same without a unit, where nothing is on its way in registers


@dataclass(frozen=True, slots=True)
class Turns:
    """How tiles are staged in the turns of the serial loop `loop` around: in so many slots, so many turns `ahead`."""

    loop: str
    slots: int
    ahead: int


@dataclass(frozen=True, eq=False)
class Staging:
    """What the copies of all operands of `update` have in common.

    sides    of the tile: rows, columns and depth; `depth` is the iterator that goes turn by turn
    chunk    the coordinate that counts the turns; taps: those of other loops of the sum, whose extents are numbers, in whose
             iterations each turn of `chunk` has one of its own
    threads  of a block, all of which copy
    by_unit  dtype sizes whose tiles lie as in the tensor, since what reads them can turn them; others lie along the depth.
             None: all lie along rows or columns
    swizzle  bytes of the lines that change places, for tiles that a matrix unit reads itself, or that are written from registers;
             0: lines are longer instead
    slots    of each tile; ahead: turns before it is used each is copied
    terms    the unit whose atoms conditions cut along the sum, if it reads registers: see `cutatoms.py`
    around   the coordinate of a serial loop around, if each turn of that has one tile of all the depth: slots are for its turns
             then, see `turns.py`
    """

    plan: Plan
    update: Stmt
    axes: Axes
    sides: tuple[Side, ...]
    depth: str
    chunk: Coord
    threads: int
    by_unit: tuple[int, ...] | None
    swizzle: int = 0
    terms: Atom | None = None
    slots: int = 2
    ahead: int = 1
    around: str = ""
    taps: tuple[Coord, ...] = ()

    @property
    def own(self) -> Mapping[str, str]:
        return self.plan.classes[self.update.name]

    @property
    def sizes(self) -> dict[str, int]:
        """Of the tile, for the iterators that are tiled."""
        return dict(x for side in self.sides for x in side)

    def starts(self, turn: Affine, taps: Mapping[str, Affine] | None = None) -> dict[str, Affine]:
        """iterator -> its first value in a block's tiles, `turn` of the depth, and at these `taps`, or those of now."""
        axes = {i: self.axes[self.own[i]] for i in self.update.dims}
        return {i: x.start + (turn if i == self.depth else affine(x.coords[0].name)) if i in self.sizes
                else substitute(x.value, taps or {}) for i, x in axes.items()}

    @property
    def early(self) -> tuple[Coord, ...]:
        """What counts the turns whose tiles are copied before the first one is used; nothing, if it is that one alone."""
        step = 1 if self.taps else self.chunk.step
        return (Coord(f"{self.own[self.depth]}_f", step, self.ahead * step),) if self.slots > 1 and not self.around else ()

    @property
    def turns(self) -> tuple[Coord, ...]:
        """What counts the turns of a sum."""
        return (self.chunk, *self.taps)

    def blocks(self, turns: tuple[Coord, ...]) -> tuple[Coord, ...]:
        """What chooses a block, and a turn of it."""
        axes = {i: self.axes[self.own[i]].coords for i in self.update.dims}
        found = [c for i, coords in axes.items() for c in (coords[:1] if i in self.sizes else coords)]
        chosen = [c for c in found if c not in self.taps]
        return tuple(x for c in chosen for x in (turns if c is self.chunk else (c,)))

    def later(self, turns: tuple[Coord, ...], ahead: int) -> tuple[Affine, Affine, dict[str, Affine]]:
        """Of the turn that is `ahead` of the one that `turns` count: its number, its depth, and its taps.

            { [k, r, s] -> [t = 9 k / 64 + n; k + 64 floor(n / 9); floor(n / 3) mod 3, n mod 3] : n = 3 r + s + ahead }
        """
        deep = self.chunk.step
        if not self.taps:
            depth = sum((affine(c.name) for c in turns), Affine()) + ahead * deep
            return quasi("div", depth, affine(deep)), depth, {}
        whole, number, weight, found = Affine(), Affine(const=ahead), 1, dict[str, Affine]()
        for c in reversed(turns):
            if c is self.chunk:
                whole = affine(c.name)
            else:
                number, weight = number + affine(c.name) * weight, weight * (c.cap or 1)
        every = 1
        for c in reversed(self.taps):
            found[c.name] = quasi("mod", quasi("div", number, affine(every)), affine(c.cap or 1))
            every *= c.cap or 1
        depth = whole + quasi("div", number, affine(every)) * deep
        return quasi("div", whole, affine(deep)) * every + number, depth, found

    @property
    def has_one_turn(self) -> bool:
        """Whether the sum is known to be no longer than a tile is deep."""
        return 0 < self.plan.at_most(self.update.extent(self.depth)) <= self.chunk.step

    def slot(self, number: Affine) -> Affine:
        """The slot of the tile of the turn of this `number`."""
        return quasi("mod", number, affine(self.slots))


@dataclass(frozen=True, slots=True)
class Tile:
    """One slot of an operand: the sides along its dimensions, and how much longer its lines are.

    fast   the iterator that has unit stride in the tensor; slow: the others, those of its side first, then the fastest first
    stride the stride that it has, which is not 1 where none is known to have that
    """

    order: tuple[Side, ...]
    fast: str
    slow: tuple[str, ...]
    pad: int
    stride: int | None

    @property
    def sizes(self) -> dict[str, int]:
        return dict(x for side in self.order for x in side)

    @property
    def inner(self) -> str:
        """The iterator whose values are neighbours in the slot."""
        return self.order[-1][-1][0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a slot, in elements."""
        *lines, last = (prod(size for _, size in side) for side in self.order)
        return (*lines, last + self.pad)


def tile_of(s: Staging, load: Load) -> Tile:
    used = iterators_of(load)
    sides = tuple(found for side in s.sides if (found := tuple(x for x in side if x[0] in used)))
    if not 0 < len(sides) < 3:
        raise UnsupportedError(f"{load} has {'all' if sides else 'none'} of rows, columns and depth")
    fast = next((i for side in sides for i, _ in side if stride(s.plan, s.update, load, s.own[i]) == 1), sides[-1][-1][0])
    by_depth = s.by_unit is not None and not (load.dtype.bytes_ in s.by_unit and fast != s.depth)
    order = tuple(sorted(sides, key=lambda x: (x[-1][0] == s.depth) == by_depth))
    if s.swizzle and len(order) == 1:
        raise UnsupportedError(f"{load} has one of rows, columns and depth, and a matrix unit reads tiles")
    pad = max(LEAST, PAD // load.dtype.bytes_) if len(order) > 1 and not s.swizzle else 0
    near = sorted(order, key=lambda x: fast not in dict(x))
    slow = tuple(i for side in near for i, _ in reversed(side) if i != fast)
    return Tile(order, fast, slow, pad, stride(s.plan, s.update, load, s.own[fast]))


def with_slots(s: Staging, operands: Sequence[Load], registers: int, outlasting: bool, turns: Turns | None) -> Staging:
    """`s` with the slots that `turns` says, if each of them needs one tile.

    Else with as many as fit into shared memory beside other blocks, which registers leave room for; of tiles so narrow that they
    wait for memory, beside a few, whose copies have further ahead to go.
    Where nothing is copied while threads go on, one. Where slots are enough, and products `outlasting` a barrier, the tile of the
    turn before is still read.

    Units   registers: of a thread, for results and operands
    """
    multi = s.plan.target.multi
    if turns and s.has_one_turn:
        return replace(s, slots=turns.slots, ahead=turns.ahead, around=s.axes[turns.loop].coords[0].name)
    if not s.plan.target.copies or multi is None or (s.plan.block and s.has_one_turn):
        return replace(s, slots=1)
    if s.plan.block:  # there is more in the block's memory
        return replace(s, slots=2)
    total = multi.parts * multi.registers * s.plan.target.warp
    is_narrow = min(prod(n for _, n in side) for side in s.sides[:2]) <= NARROW
    others = ADDRESSES if s.by_unit is None else OTHERS
    at_once = 1 if s.plan.options.alone else AT_ONCE if is_narrow else multi.blocks
    blocks = max(1, min(total // (s.threads * (registers + others)), at_once))
    slots = max(2, min(SLOTS, multi.room(blocks) // slot_bytes(s, operands)))
    return replace(s, slots=slots, ahead=slots - 2 if outlasting and slots == SLOTS else slots - 1)


def slot_bytes(s: Staging, operands: Sequence[Load]) -> int:
    """Bytes of shared memory for one turn."""
    return sum(x.dtype.bytes_ * prod(tile_of(s, x).shape) for x in operands)
