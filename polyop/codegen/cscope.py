"""What the text of an expression or a statement depends on beside itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from polyop.codegen.cdigits import Digits
from polyop.ir.atoms import Atom, Fragment
from polyop.ir.expr import Affine, Load
from polyop.ir.loops import Buffer, For, Store


@dataclass(frozen=True, slots=True)
class Held:
    """A tile that the lanes of a warp hold together: as which operand of which atom, and the loops over its sides."""

    atom: Atom
    fragment: Fragment
    row: Digits
    column: Digits

    @property
    def loops(self) -> frozenset[str]:
        """Over both sides."""
        return frozenset(i for i, _ in (*self.row, *self.column))


@dataclass(frozen=True, slots=True)
class Rows:
    """Registers with one value for each row of a tile: all lanes have it that hold elements of the row, see `clanes.py`.

    fragment   { [lane, reg] -> [row, 0] }; row: the loop over the tile's rows
    every      registers of the tile's elements from one row to the next
    over       lanes that share a row, whose numbers differ by multiples of `step`
    """

    fragment: Fragment
    row: str
    warp: int
    every: int
    over: int
    step: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """What the lanes of a warp hold together in a nest: tiles of a matrix unit.

    held       the registers that hold them; rows: those that hold values of their rows
    products   the statements that multiply them, as (c, a, b)
    handed     those by which one lane's element of each row becomes all lanes': the column in which it lies
    warp       lanes that hold one
    squares    whether these can load squares of 8 lines from shared memory together
    """

    held: Mapping[str, Held] = field(default_factory=dict)
    rows: Mapping[str, Rows] = field(default_factory=dict)
    products: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    handed: Mapping[str, Affine] = field(default_factory=dict)
    warp: int = 1
    squares: bool = False


@dataclass(frozen=True, slots=True)
class Box:
    """A copy of a whole tile from inside a tensor, whose lines are swizzled in shared memory.

    number    of what the kernel is told of the tensor
    to        the first element of each panel of lines in shared memory
    corners   of each panel: where in the tensor its box begins, as the engine counts dimensions
    bytes_    of each
    """

    number: int
    to: tuple[Load, ...]
    corners: tuple[tuple[Affine, ...], ...]
    bytes_: int


@dataclass(frozen=True, slots=True)
class Scope:
    """What an expression needs to know.

    names     the C name of each iterator, size, scalar and buffer
    sites     the number of each Load with a computed position
    values    scalars whose C variable is a value already, not an element: the arguments of a monoid
    block     threads of a block that work together, outside of loops over them; else 0
    digits    the loops over threads around
    folds     the statements that combine what threads have, with the loops over these threads
    tiles     what is done by matrix units
    barrier   the C statement that a barrier of the kernel is; `{}`: how many groups of copies it leaves on their way
    producer  the number of the first of the threads that do nothing but copy, where the text is theirs; else 0
    boxes     the copies that an engine may do, by statement; copies: those whose rows are a loop
    steps     what the index of each loop is a multiple of; chains: the loops in which nothing but another serial loop stands
    counts    the C type of an index; what data say of a place is i64
    fresh     whether the product of a tile is the first of its sum
    whole     whether all elements of a tile are inside, and lie so that neighbours may be moved at once
    turns     loops that a thread goes through around what it does
    twos      whether results are stored by two neighbours at most
    most      how long the text of a tile may be before it is rolled up (`croll.py`); 0, where it is written out in any case
    beside    how long the text of a copy of a loop is, which asks and stands beside it
    row       the C text of the register of a row, see `Rows`
    anew      a block's coordinates, and sizes, about which turns of loops ask anew (`canew.py`)
    found     whether these turns find anew what depends on a thread's number, too
    deep      whether all steps of a turn are written out: compilers are told how many registers a thread has for its sums
    failed    questions, as C text, that have been answered with no
    """

    names: Mapping[str, str]
    buffers: Mapping[str, Buffer]
    sites: Mapping[Load, int]
    values: frozenset[str] = frozenset()
    block: int = 0
    digits: tuple[For, ...] = ()
    folds: Mapping[str, tuple[For, ...]] = field(default_factory=dict)
    tiles: Tiles = field(default_factory=Tiles)
    barrier: str = "pop_barrier();"
    producer: int = 0
    boxes: Mapping[str, Box] = field(default_factory=dict)
    copies: frozenset[str] = frozenset()
    steps: Mapping[str, int] = field(default_factory=dict)
    chains: frozenset[str] = frozenset()
    counts: str = "pop_i64"
    fresh: bool = False
    whole: bool = False
    turns: int = 0
    twos: bool = False
    most: int = 0
    beside: int = 0
    row: str = "pop_r"
    anew: frozenset[str] = frozenset()
    found: bool = False
    deep: bool = False
    failed: frozenset[str] = frozenset()


Printed = Callable[[Store, Scope], list[str]]
"""The lines of one store."""
