"""The slots of work buffers and of registers: how many there are, and which of them an access means."""

from __future__ import annotations

from polyop.ir.expr import Affine, Load, affine, quasi
from polyop.ir.loops import Buffer


def slot_counts(b: Buffer) -> tuple[Affine, ...]:
    """How many slots each dimension of a work or register buffer has, padding included."""
    counts = [quasi("div", e + (u - 1), affine(u)) for e, u in b.dims]
    if counts and b.pad > 1:
        counts[-1] = quasi("div", counts[-1] + (b.pad - 1), affine(b.pad)) * b.pad
    return tuple(counts)


def slots_of(x: Load, b: Buffer) -> list[Affine]:
    """In which slot of each dimension of `b`, which is in registers, `x` lies."""
    return [quasi("div", p, affine(unit)) for p, (_, unit) in zip(x.index, b.dims, strict=True) if isinstance(p, Affine)]
