"""The pieces in which a vector of lanes over two indices lies: so many lanes side by side, and the next ones somewhere else."""

from __future__ import annotations

from dataclasses import dataclass

from polyop.codegen.llvm.state import State
from polyop.codegen.llvm.types import Int, constant_mask


@dataclass(frozen=True, slots=True)
class Piece:
    """`lanes` of a vector, from lane `first` on, which lie side by side `at` elements behind lane 0 of the first vector."""

    first: int
    lanes: int
    at: Int


def pieces_of(s: State, runs: tuple[int, Int], v: int) -> tuple[Piece, ...]:
    """The pieces of vector `v`, where { [v] -> further * floor(v / extent) + v mod extent }; `runs`: (extent, further)."""
    extent, further = runs
    out: list[Piece] = []
    lane, end = v * s.width, (v + 1) * s.width
    while lane < end:
        q, inside = divmod(lane, extent)
        count = min(end - lane, extent - inside)
        out.append(Piece(lane - v * s.width, count, s.b.add(s.b.mul(q, further), inside)))
        lane += count
    return tuple(out)


def lanes_between(s: State, y: Piece) -> str:
    """The mask of the lanes of `y`."""
    return constant_mask(y.first <= i < y.first + y.lanes for i in range(s.width))
