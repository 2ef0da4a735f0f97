"""Memory that lasts from call to call: what kernels make of frozen inputs in the first call of each, and read in all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyop.ir.loops import Buffer
from polyop.ir.module import room
from polyop.runtime import blocks
from polyop.runtime.arrays import refuse


@dataclass(eq=False, slots=True)
class Held:
    """What one kernel keeps: its buffers, by name where they are, and whether a call has filled them.

    Notes   Calls on several threads that find it empty all fill it, with the same.
    """

    memory: np.ndarray
    addresses: Mapping[str, int]
    is_filled: bool = False


class Lasting:
    """What the kernels of one operator keep, whose frozen inputs are the same arrays in all its calls."""

    def __init__(self) -> None:
        self._held: dict[Any, Held] = {}

    def of(self, kernel: Any, buffers: tuple[Buffer, ...], sizes: Mapping[str, int]) -> Held:
        """What `kernel` keeps in such buffers, whose extents are the same in all calls.

        Raises CallError, if there is no memory for it.
        """
        return self._held.get(kernel) or self._held.setdefault(kernel, _made(buffers, sizes))

    @property
    def bytes_(self) -> int:
        """Of all that is kept."""
        return sum(h.memory.nbytes for h in tuple(self._held.values()))


def _made(buffers: tuple[Buffer, ...], sizes: Mapping[str, int]) -> Held:
    """Room for `buffers`, one behind the other."""
    starts, total = {}, 0
    for b in buffers:
        starts[b.name] = total
        total += room(b, dict(sizes), 1)
    try:
        memory = np.empty(total + blocks.PAGE, np.uint8)
    except (MemoryError, ValueError) as e:
        raise refuse("E606", f"no memory for {total} bytes that are made of frozen inputs") from e
    first = int(memory.__array_interface__["data"][0])
    first += -first % blocks.PAGE
    return Held(memory, {n: first + at for n, at in starts.items()})
