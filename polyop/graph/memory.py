"""Memory for what runs between kernels: a slot is used again once nothing reads what was in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyop.ir.op import Tensor


@dataclass(frozen=True, slots=True)
class Slots:
    """Which slot each tensor lies in, and which tensors share one.

    Notes   Sizes are not known yet, so who shares is decided by life time and likeness alone; a slot has as many bytes as
            the largest tensor in it.
    """

    of: Mapping[str, int]
    count: int

    def bytes_(self, needed: Mapping[str, int]) -> tuple[int, ...]:
        """The size of each slot, where each tensor needs so many bytes."""
        out = [0] * self.count
        for name, slot in self.of.items():
            out[slot] = max(out[slot], needed[name])
        return tuple(out)


def assign(tensors: Sequence[Tensor], lives: Mapping[str, tuple[int, int]]) -> Slots:
    """A slot for each tensor; two whose lives meet never share.

    lives   (first, last) kernel that writes or reads the tensor, both included
    """
    of: dict[str, int] = {}
    last_used: list[int] = []
    looks: list[tuple[object, ...]] = []
    for t in sorted(tensors, key=lambda t: lives[t.name]):
        first, last = lives[t.name]
        look = (t.dtype, t.shape)
        free = [k for k, end in enumerate(last_used) if end < first]
        # one that held a tensor of the same look wastes nothing, whatever the sizes are
        slot = next((k for k in free if looks[k] == look), free[0] if free else len(last_used))
        if slot == len(last_used):
            last_used.append(last)
            looks.append(look)
        last_used[slot], looks[slot] = last, look
        of[t.name] = slot
    return Slots(of, len(last_used))
