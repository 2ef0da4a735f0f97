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

from polyop.codegen.cscope import Scope
from polyop.codegen.cthreads import NUMBER
from polyop.ir.banks import BANKS, cycles, number, phases
from polyop.ir.expr import Affine, Load, Quasi, loads
from polyop.ir.loops import Buffer, For, Space, Store

Places = tuple[tuple[int, ...], ...]
"""For each lane of a warp and each row where the element lies, in bytes."""


def order(n: For, stores: Iterable[Store], scope: Scope) -> str:
    """The C text of what a lane's order differs in, bit by bit, from that of the rows `n`; empty, if no order is better."""
    extent = n.extent or 1
    warp = scope.tiles.warp if scope.tiles.warp > 1 else BANKS
    digits = tuple((f.index, f.weight, f.extent or 1, f.step) for f in scope.digits)
    places = dict.fromkeys(x for s in stores for x in (s.target, *loads(s.expr))
                           if scope.buffers[x.source].space == Space.SHARED)
    found = [(t, b.dtype.bytes_) for x in places
             if (t := _places(x, b := scope.buffers[x.source], digits, n.index, extent, warp)) is not None]
    return _text(_bits(tuple(found), extent)) if found and not extent & (extent - 1) else ""


@cache
def _places(x: Load, b: Buffer, digits: tuple[tuple[str, int, int, int], ...], row: str, rows: int, warp: int) -> Places | None:
    """Where `x` lies, if loops around begin at 0; None, if its place is no plain sum."""
    if any(not isinstance(p, Affine) or any(isinstance(a, Quasi) for a, _ in p.terms) for p in x.index):
        return None
    sums = [({a: f for a, f in p.terms if isinstance(a, str)}, p.const) for p in x.index if isinstance(p, Affine)]
    out = []
    for t in range(warp):
        at = {i: t // weight % extent * step for i, weight, extent, step in digits}
        first = [const + sum(f * at.get(a, 0) for a, f in terms.items()) for terms, const in sums]
        out.append(tuple(number(b, [p + terms.get(row, 0) * r for p, (terms, _) in zip(first, sums, strict=True)])
                         * b.dtype.bytes_ for r in range(rows)))
    return tuple(out)


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
    for places, bytes_ in found:
        mixed = [sum((t >> b & 1) << k for k, b in enumerate(bits) if b is not None) for t in range(len(places))]
        total += sum(cycles([of[row ^ m] for of, m in zip(places, mixed, strict=True)], bytes_, phases(len(places), bytes_, True))
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
