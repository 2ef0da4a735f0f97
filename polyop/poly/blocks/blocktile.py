"""The tiles that a block of a GPU's threads has of a contraction, and what its threads or warps have of them: strategy "staged".

`tilechoice.py` says which tiles it has, `staged.py` builds the statements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from polyop.ir.atoms import Atom
from polyop.ir.expr import Affine
from polyop.ir.target import Target
from polyop.poly.blocks.sides import Side
from polyop.poly.strategies.roles import Contraction

SHARED = 48 << 10  # bytes that every block may have
SWIZZLE = 128  # bytes of lines whose eighths change places: those that a matrix unit reads, and those written from registers
DEEPEST = 256  # iterations of a sum of which a block has all

RESULTS = 64  # registers of a thread for results that it adds up without a unit: 8 x 8 of 32 bits
DEEP = 32  # steps of a turn in which threads add up so many, where copies go on by themselves and there is room
WORD = 4  # bytes of a register, and the fewest that such a copy moves
HELD = 168  # registers of a lane for tiles: the others are for addresses and what is on its way
SPARE = 8  # fewer of these, where what is on its way is counted, too
WIDE_WARP = 64  # lanes: of CDNA
ADDRESSES = 48  # registers of a lane beside tiles and what is on its way, where that is counted


@dataclass(frozen=True, eq=False)
class StagedStrategy:
    """Sizes of the tiles: of `rows` x `columns` results by a block, in steps of `deep`; a thread has `high` x `wide` of them.

    atom   what a matrix unit takes at once; `high` x `wide` is a warp's then
    cuts   conditions that cut an atom along the sum, see `cutatoms.py`
    lines  iterators of which it has several values beside those of `row` or `column`, and how many: of these it has fewer then
    joined whether a lane has the operands of all steps of a turn at once: they are read while the unit is at the step before
    """

    what: Contraction
    row: str
    column: str
    depth: str
    rows: int
    columns: int
    deep: int
    high: int
    wide: int
    atom: Atom | None = None
    cuts: tuple[Affine, ...] = ()
    joined: bool = False
    lines: tuple[tuple[str, int], ...] = ()

    @property
    def down(self) -> Side:
        """What the rows of a tile run over."""
        return self._side(self.row, self.rows)

    @property
    def across(self) -> Side:
        """What its columns run over."""
        return self._side(self.column, self.columns)

    def _side(self, i: str, extent: int) -> Side:
        beside = tuple((j, n) for j, n in self.lines if self.what.roles[j] == self.what.roles[i])
        return (*beside, (i, extent // prod(n for _, n in beside)))

    @property
    def reads_shared(self) -> bool:
        """Whether the matrix unit reads the staged tiles itself."""
        return self.atom is not None and self.atom.b_map is None

    @property
    def multiplies_first(self) -> bool:
        """Whether the products of a turn stand before the copies of a later one: those of a unit that goes on by itself, and
        those which are so many that all copies have arrived by the next turn.
        """
        return self.reads_shared or self.is_deep

    @property
    def is_deep(self) -> bool:
        """Whether a thread without a unit has `DEEP` steps in a turn."""
        return self.atom is None and self.deep == DEEP

    @property
    def threads(self) -> int:
        return self.rows // self.high * (self.columns // self.wide) * (self.atom.warp if self.atom else 1)

    @property
    def registers(self) -> int:
        """Of a thread, for its results and one step's operands."""
        results = self.high * self.wide * self.what.update.target.dtype.bytes_ // 4
        if self.atom is None:
            return results + (self.high + self.wide) * max(x.dtype.bytes_ for x in (*self.what.lefts, *self.what.rights)) // 4
        if self.atom.a_map is None or self.atom.b_map is None:
            return results // self.atom.warp
        down, across, steps = self.high // self.atom.m, self.wide // self.atom.n, self.deep // self.atom.k if self.joined else 1
        return round(down * across * self.atom.c_map.regs * self.atom.c.bytes_ / 4
                     + steps * down * self.atom.a_map.regs * self.atom.a.bytes_ / 4
                     + steps * across * self.atom.b_map.regs * self.atom.b.bytes_ / 4)

    def __str__(self) -> str:
        who = "groups of warps" if self.reads_shared else "warps"
        by = f", {who} with {self.high} x {self.wide} by {self.atom.name}" if self.atom else f" with {self.high} x {self.wide}"
        down, over = (" and ".join(f"{i} x {n}" for i, n in side) for side in (self.down, self.across))
        return (f"staged: rows {down}, columns {over}, "
                f"depth {self.depth} x {self.deep}, {self.threads} threads{by}")


def by_threads(plain: StagedStrategy, kept: bool) -> tuple[StagedStrategy, ...]:
    """`plain`, whose threads have no more results than they have registers for. Of rows that are `kept` from turn to turn, which
    takes as many again, also with twice the threads, since others of the block may have as many.

    Of 8 x 8 doubles, 128 registers, AMD's compilers spilled up to 250, or took 380 where there are more, and NVIDIA's took 255.
    """
    size = plain.what.update.target.dtype.bytes_ // 4 * (2 if kept else 1)
    s = plain
    while s.high * s.wide * size > RESULTS:
        s = replace(s, wide=s.wide // 2, columns=s.columns if kept or len(s.across) > 1 else s.columns // 2)
    return (s, replace(s, wide=s.wide // 2)) if kept and s.wide > 1 else (s,)


def in_deep_turns(s: StagedStrategy, target: Target, most: int) -> StagedStrategy:
    """`s` with `DEEP` steps in a turn, if its threads have as many results as they have registers for, and there is room for
    three slots of each of two blocks: half the barriers for as many products, and copies have a whole turn to arrive.

    most   steps that there are at most, or 0 where that is not known
    """
    operands = {*s.what.lefts, *s.what.rights}
    bytes_ = 3 * DEEP * (s.rows + s.columns) * WORD
    if not target.copies or target.multi is None or len(operands) != 2 or bytes_ > target.multi.room(2) or 0 < most < DEEP:
        return s
    is_full = s.atom is None and s.high == s.wide and s.high * s.wide == RESULTS and s.what.update.target.dtype.bytes_ == WORD
    return replace(s, deep=DEEP) if is_full and all(x.dtype.bytes_ == WORD for x in operands) else s


def by_group(plain: StagedStrategy, atom: Atom, columns: int) -> StagedStrategy | None:
    """The strategy with an `atom` that reads shared memory: all columns of a block at once; None if the tiles are not its own."""
    if plain.rows % atom.m or columns != atom.n or columns * atom.b.bytes_ < SWIZZLE:
        return None
    return replace(plain, columns=columns, deep=SWIZZLE // atom.a.bytes_, high=atom.m, wide=atom.n, atom=atom)


def reached(extent: Affine, tile: int, mine: int) -> int:
    """The side of a block's `tile`, halved while results of a constant `extent` leave the warps of one half without any."""
    while extent.is_constant and extent.const <= tile // 2 and mine < tile:
        tile //= 2
    return tile


def by_rows(s: StagedStrategy, kept: bool) -> StagedStrategy | None:
    """`s` with whole rows of results for a warp; None if no lanes hold these, or they would take too many registers.

    kept   whether as many results are kept from turn to turn
    """
    if s.atom is None or s.joined or s.lines or s.rows % s.atom.m or s.columns % s.atom.n:
        return None
    if s.reads_shared and s.columns > s.atom.n:
        return None
    if reached(s.what.update.extent(s.row), s.rows, s.atom.m) < s.rows:  # some warps would have none
        return None
    results = s.atom.m * s.columns * s.atom.c.bytes_ // (4 * s.atom.warp) if kept else 0
    new = replace(s, high=s.atom.m, wide=s.columns)
    return new if new.registers + results <= HELD else None


def by_warps(plain: StagedStrategy, atom: Atom, cut: tuple[Affine, ...], line: int, target: Target) -> StagedStrategy:
    """The strategy with an `atom` that reads registers: a warp has a quarter of the block, or less where that takes too many.

    line   bytes of a staged line along the depth
    """
    deep = max(atom.k, line // plain.what.lefts[0].dtype.bytes_)
    s = replace(plain, deep=deep, high=max(atom.m, plain.rows // 2), wide=max(atom.n, plain.columns // 2), atom=atom, cuts=cut)
    while s.wide > atom.n and not _fits(s, target):
        s = replace(s, wide=s.wide // 2)
    return s


def _fits(s: StagedStrategy, target: Target) -> bool:
    """Whether a lane has the registers for its results, one step's operands, and what is on its way to shared memory."""
    assert s.atom
    if target.copies:
        return s.registers <= HELD
    # of a cut atom a test or an address for each result, and a term for each of its own
    terms = len(s.cuts) * (s.high * s.wide + s.atom.m * s.atom.n) // s.atom.warp
    return s.registers <= min(HELD, target.registers - ADDRESSES - _on_the_way(s, s.rows + s.columns) - terms)


def _on_the_way(s: StagedStrategy, lines: int) -> int:
    """Registers of a thread for so many staged lines, where they go through registers."""
    return lines * s.deep * s.what.lefts[0].dtype.bytes_ // (4 * s.threads)


def joined(s: StagedStrategy) -> StagedStrategy:
    """`s`, with all operands of a turn at once, if there are registers for them."""
    assert s.atom
    new = replace(s, joined=s.deep > s.atom.k)
    return new if new.registers <= HELD else s


def kept_by_warps(s: StagedStrategy, columns: Affine, depth: int, line: int, target: Target) -> tuple[StagedStrategy, ...]:
    """`s` for a tile of rows: a warp's results, if they are kept from turn to turn, take as many registers again.

    Each warp must have results: of few columns, if that is a constant, one warp has all. Results of 64 bits are shared out among
    twice the warps: a block has a multiprocessor to itself anyway, and what is between takes twice the registers, too.

    depth   the most it is, or 0; line: what the depth of a tile is a multiple of
    """
    assert s.atom
    found = []
    ways = (s.wide, s.wide // 2) if s.atom.c.bytes_ < 8 else (s.wide // 2, s.wide)
    for wide in ways:
        new, has_all = replace(s, wide=wide), not columns.is_constant or columns.const > s.columns - wide
        if wide >= s.atom.n and has_all and _fits_twice(new, target):
            found.append(new)
    if s.deep < depth <= DEEPEST:  # tiles of one turn may be copied once, or while other contractions add up
        found = [*(replace(x, deep=-(-depth // line) * line) for x in found), *found]
    return tuple(found)


def _fits_twice(s: StagedStrategy, target: Target) -> bool:
    """Whether a lane has registers for the results once more."""
    assert s.atom and s.atom.c_map
    kept = s.high // s.atom.m * (s.wide // s.atom.n) * s.atom.c_map.regs * s.atom.c.bytes_ // 4
    if target.copies or not s.cuts:
        return s.registers + kept <= HELD
    # the tiles of this contraction, and the other operand of the one before it; each condition that cuts atoms has a test or an
    # address for each result, which compilers keep at the same time. Tests of 64 lanes take scalar registers that there are not,
    # and then vector registers instead
    most = HELD - SPARE if s.atom.warp == WIDE_WARP else target.registers - ADDRESSES
    return s.registers + kept + _on_the_way(s, s.rows + 2 * s.columns) + kept * len(s.cuts) <= most


def kept_by_groups(s: StagedStrategy, depth: int) -> tuple[StagedStrategy, ...]:
    """`s`, whose atom reads shared memory, for a tile of rows: with all of a `depth` of at most so much, or by lines."""
    if 2 * s.registers > HELD:
        return ()
    return (replace(s, deep=-(-depth // s.deep) * s.deep), s) if s.deep < depth <= DEEPEST else (s,)
