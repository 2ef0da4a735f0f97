"""In which order each lane takes neighbours in shared memory one by one, so that few lanes meet in a bank.

    for p in [0, 8) (rows 8) { if t: X_s[y, x + p] = .. }        for x < 8 { p = x ^ (pop_n / 8 % 4); if t: X_s[y, x + p] = .. }

Where each lane has 16 bytes, lines lie so that moving them at once meets nowhere; but of the words in these 16 bytes all lanes
would take the first at one time, and then the second. Rows are in lock step, so each lane may take them in an order of its own.
Which bits of a thread's number say in which order is found by counting words in banks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product

from polyop.codegen.c.scope import Scope
from polyop.codegen.c.threads import NUMBER
from polyop.ir.banks import BANKS, Digit, Places, cycles, phases, places
from polyop.ir.expr import loads
from polyop.ir.loops import For, Space, Store


def order(n: For, stores: Iterable[Store], scope: Scope) -> str:
    """The C text of what a lane's order differs in, bit by bit, from that of the rows `n`; empty, if no order is better."""
    extent = n.extent or 1
    warp = scope.tiles.warp if scope.tiles.warp > 1 else BANKS
    digits = tuple(Digit(f.index, f.weight, f.extent or 1, f.step) for f in scope.digits)
    touched = dict.fromkeys(x for s in stores for x in (s.target, *loads(s.expr))
                            if scope.buffers[x.source].space == Space.SHARED)
    found = [(t, b.dtype.bytes_) for x in touched
             if (t := places(x, b := scope.buffers[x.source], digits, warp, n.index, extent)) is not None]
    return _text(_bits(tuple(found), extent)) if found and not extent & (extent - 1) else ""


@cache
def _bits(found: tuple[tuple[Places, int], ...], extent: int) -> tuple[int | None, ...]:
    """Which bit of a thread's number each bit of a row differs by, the lowest first, where lanes meet least."""
    lanes = len(found[0][0])
    free = (None, *range(lanes.bit_length() - 1))
    best, least = (None,) * (extent.bit_length() - 1), 0
    for bits in sorted(product(free, repeat=len(best)), key=lambda w: sum(b is not None for b in w)):
        first = _cycles(found, bits, (0,))
        if least and first * extent >= least:
            continue
        all_ = _cycles(found, bits, range(extent))
        if not least or all_ < least:
            best, least = bits, all_
        if least == sum(len(phases(len(x), bytes_, True)) for x, bytes_ in found) * extent:
            break
    return best


def _cycles(found: Iterable[tuple[Places, int]], bits: Sequence[int | None], rows: Iterable[int]) -> int:
    total = 0
    for of_lanes, bytes_ in found:
        mixed = [sum((t >> b & 1) << k for k, b in enumerate(bits) if b is not None) for t in range(len(of_lanes))]
        total += sum(cycles([of[row ^ m] for of, m in zip(of_lanes, mixed, strict=True)], bytes_,
                            phases(len(of_lanes), bytes_, True))
                     for row in rows)
    return total


def _text(bits: Sequence[int | None]) -> str:
    """Neighbouring bits that come of neighbouring ones are one term."""
    terms: list[tuple[int, int, int]] = []  # the bit from which so many are taken, and where they go
    for k, b in enumerate(bits):
        if b is None:
            continue
        if terms and terms[-1][0] + terms[-1][1] == b and terms[-1][2] + terms[-1][1] == k:
            terms[-1] = (terms[-1][0], terms[-1][1] + 1, terms[-1][2])
        else:
            terms.append((b, 1, k))
    parts = [f"{NUMBER} / {1 << b} % {1 << many}" + (f" * {1 << k}" if k else "") for b, many, k in terms]
    return " + ".join(parts)
