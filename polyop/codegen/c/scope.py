"""What the text of an expression or a statement depends on beside itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from polyop.codegen.gpu.held import Tiles
from polyop.ir.expr import Affine, Load
from polyop.ir.loops import Buffer, For, Store


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
    most      how long the text of a tile may be before it is rolled up (`c/roll.py`); 0, where it is written out in any case
    beside    how long the text of a copy of a loop is, which asks and stands beside it
    row       the C text of the register of a row, see `Rows`
    anew      a block's coordinates, and sizes, about which turns of loops ask anew (`c/anew.py`)
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
