"""Memory that lasts from call to call: what kernels make of frozen inputs in the first call of each, and read in all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from polyop.ir.loops import Buffer
from polyop.ir.module import room
from polyop.runtime import blocks
from polyop.runtime.arrays import refuse


@dataclass(eq=False, slots=True)
class Held:
    """What kernels keep that do the same in their first call: where their buffers are, and whether a call has filled them.

    Notes   Calls on several threads that find them empty all fill them, with the same.
    """

    memory: np.ndarray
    addresses: Mapping[str, int]
    is_filled: bool = False


class Lasting:
    """What the kernels of one operator keep, whose frozen inputs are the same arrays in all its calls."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, tuple[tuple[str, int], ...]], Held] = {}

    def of(self, first: str, buffers: tuple[Buffer, ...], sizes: Mapping[str, int]) -> Held:
        """What kernels keep in such buffers whose first call does what is called `first`.

        Raises CallError, if there is no memory for it.
        """
        key = first, tuple((b.name, room(b, dict(sizes), 1)) for b in buffers)
        return self._held.get(key) or self._held.setdefault(key, _made(key[1]))

    @property
    def bytes_(self) -> int:
        """Of all that is kept."""
        return sum(h.memory.nbytes for h in tuple(self._held.values()))


def _made(rooms: tuple[tuple[str, int], ...]) -> Held:
    """(buffer, bytes) of each, one behind the other."""
    starts, total = {}, 0
    for name, bytes_ in rooms:
        starts[name] = total
        total += bytes_
    try:
        memory = np.empty(total + blocks.PAGE, np.uint8)
    except (MemoryError, ValueError) as e:
        raise refuse("E606", f"no memory for {total} bytes that are made of frozen inputs") from e
    first = int(memory.__array_interface__["data"][0])
    first += -first % blocks.PAGE
    return Held(memory, {n: first + at for n, at in starts.items()})
