"""The banks of a GPU's shared memory: which words an access touches, and how many cycles the lanes of a warp take for it.

There are 32 banks of 4 bytes, and lanes go through them in phases of 128 bytes: see runtime/emulator/pop_emu_banks.h.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

from polyop.ir.affine import Affine, Quasi
from polyop.ir.expr import Load
from polyop.ir.loops import Buffer, eighth, turned

BANKS, BANK, PHASE = 32, 4, 128  # and bytes of each; bytes of all
CROSSED = 64  # lanes of warps in which four lanes read 16 bytes each together with four that are further on

Places = tuple[tuple[int, ...], ...]
"""For each lane of a warp and each turn of a loop where an element lies, in bytes."""


def number(b: Buffer, place: Sequence[int]) -> int:
    """Where in `b`, of constant size, the element at `place` lies, in elements: see `Buffer`."""
    counts = [-(-e.const // unit) for e, unit in b.dims]
    weights = [prod(counts[d + 1:]) for d in range(len(counts))]
    slots = [p // unit for p, (_, unit) in zip(place, b.dims, strict=True)]
    if not b.swizzle:
        if b.turned:
            slots[-2] = turned(slots[-2], b.turned)
        return sum(s * w for s, w in zip(slots, weights, strict=True))
    *outer, y, x = slots
    line = b.swizzle // b.dtype.bytes_
    inner = line * (counts[-2] * (x // line) + y) + (x % line ^ line // 8 * eighth(y, b))
    return sum(s * w for s, w in zip(outer, weights, strict=False)) + inner


@dataclass(frozen=True, slots=True)
class Digit:
    """An index of which a thread has the turn `t // weight % extent * step`, t its number."""

    index: str
    weight: int
    extent: int
    step: int


@cache
def places(x: Load, b: Buffer, digits: tuple[Digit, ...], warp: int, row: str = "", rows: int = 1) -> Places | None:
    """Where `x` lies in `b` for the lanes of a warp, and for each turn of `row`, if all loops around are in their first turn.

    None, if its place is no plain sum of indices.
    """
    if any(not isinstance(p, Affine) or any(isinstance(a, Quasi) for a, _ in p.terms) for p in x.index):
        return None
    sums = [({a: f for a, f in p.terms if isinstance(a, str)}, p.const) for p in x.index if isinstance(p, Affine)]
    out = []
    for t in range(warp):
        at = {d.index: t // d.weight % d.extent * d.step for d in digits}
        first = [const + sum(f * at.get(a, 0) for a, f in terms.items()) for terms, const in sums]
        out.append(tuple(number(b, [p + terms.get(row, 0) * r for p, (terms, _) in zip(first, sums, strict=True)])
                         * b.dtype.bytes_ for r in range(rows)))
    return tuple(out)


def phases(lanes: int, bytes_: int, write: bool) -> tuple[tuple[int, ...], ...]:
    """Which lanes of a warp go together, where each has so many bytes."""
    together = PHASE // max(BANK, bytes_)
    crossed = lanes == CROSSED and bytes_ == 4 * BANK and not write
    order = [t ^ (t >> 2 & 1) << 4 if crossed else t for t in range(lanes)]
    return tuple(tuple(order[t:t + together]) for t in range(0, lanes, together))


def cycles(first: Sequence[int], bytes_: int, together: Iterable[tuple[int, ...]]) -> int:
    """What an access takes whose lanes have so many bytes each, from the byte `first` of each lane on."""
    total = 0
    for lanes in together:
        words = {w for t in lanes for w in range(first[t] // BANK, (first[t] + max(BANK, bytes_)) // BANK)}
        total += max(Counter(w % BANKS for w in words).values())
    return total
