"""Memory that lasts from call to call: what kernels make of frozen inputs in the first call of each, and read in all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyop.ir.affine import evaluate
from polyop.ir.loops import Buffer
from polyop.ir.module import room
from polyop.runtime import blocks, forks
from polyop.runtime.arrays import refuse

FILLING = forks.rlock()
"""Held by a call that fills such memory: what adds up in it must not begin again while others read it."""


@dataclass(eq=False, slots=True)
class Held:
    """What kernels keep that do the same in their first call: where their buffers are, and whether a call has filled them."""

    memory: np.ndarray
    addresses: Mapping[str, int]
    is_filled: bool = False


class Lasting:
    """What the kernels of one operator keep, whose frozen inputs are the same arrays in all its calls."""

    def __init__(self) -> None:
        self._held: dict[Any, Held] = {}

    def of(self, first_call: str, buffers: tuple[Buffer, ...], sizes: Mapping[str, int]) -> Held:
        """What kernels keep in such buffers whose `first_call` has this digest.

        Raises CallError, if there is no memory for it.
        """
        key = first_call, tuple(evaluate(e, sizes) for b in buffers for e, _ in b.dims)
        return self._held.get(key) or self._held.setdefault(key, _made(buffers, dict(sizes)))

    @property
    def bytes_(self) -> int:
        """Of all that is kept."""
        return sum(h.memory.nbytes for h in tuple(self._held.values()))


def _made(buffers: tuple[Buffer, ...], sizes: dict[str, int]) -> Held:
    """Room for `buffers`, one behind the other."""
    starts, total = {}, 0
    for b in buffers:
        starts[b.name] = total
        total += room(b, sizes, 1)
    try:
        memory = np.empty(total + blocks.PAGE, np.uint8)
    except (MemoryError, ValueError) as e:
        raise refuse("E606", f"no memory for {total} bytes that are made of frozen inputs") from e
    first = int(memory.__array_interface__["data"][0])
    first += -first % blocks.PAGE
    return Held(memory, {n: first + at for n, at in starts.items()})
