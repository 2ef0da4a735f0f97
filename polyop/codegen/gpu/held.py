"""What the lanes of a warp hold together: tiles of a matrix unit, and values of their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from polyop.ir.atoms import Atom, Fragment
from polyop.ir.expr import Affine

Digits = tuple[tuple[str, int], ...]
"""The loops that count one side of an atom, with their extents, the fastest one last."""


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
    """Registers with one value for each row of a tile: all lanes have it that hold elements of the row, see `c/lanes.py`.

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


def extent(side: Digits) -> int:
    """How many rows or columns `side` has."""
    return prod(n for _, n in side)


def step(x: Affine, side: Digits) -> int:
    """How much `x` grows from one row, or column, to the next; 0, if it does so by no one number."""
    each = x.factor(side[-1][0])
    return each if all(x.factor(i) == each * extent(side[d + 1:]) for d, (i, _) in enumerate(side)) else 0
