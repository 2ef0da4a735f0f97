"""Positions of a memory in digits of mixed radix, so that a tiled store and the element it writes agree coordinate by coordinate.

A store at `C[4800 m_c + 6 m_r + m_p]`, with m_r below 800 and m_p below 6, writes the element whose digits are m_c, m_r and
m_p. A position and its digits are the same thing, for all integers:

    i = r_0 y_0 + r_1 y_1 + .. + r_n y_n,   0 <= y_j < r_(j+1) / r_j for all but the last,   1 = r_0 | r_1 | .. | r_n

so two positions are equal where all their digits are. For isl, the one question is an integer programme, the other is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from polyop.ir.expr import Affine, affine, bounds, quasi
from polyop.poly.verify.frame import is_linear
from polyop.poly.verify.sites import Site

Radices = tuple[int, ...]
Limits = Mapping[str, int]
"""Coordinates that are known to be at least 0 and below a constant."""


def limits(site: Site) -> dict[str, int]:
    """The coordinates of `site` with constant limits: see `sites.counted`."""
    found: dict[str, int] = {}
    for a in site.around:
        if is_linear(a.loop.lower):
            first = a.loop.lower
            lengths = [b.const - first.const for b in bounds(a.loop.upper) if b.terms == first.terms]
            if lengths:
                found[a.loop.index] = max(0, -(-min(lengths) // a.loop.step))
    return found


def quotient(x: Affine, d: int, known: Limits) -> Affine:
    """floor(x / d); a plain sum where what d does not divide is known to stay below d."""
    rest = Affine(tuple((a, f) for a, f in x.terms if f % d), x.const % d)
    most = rest.const
    for a, f in rest.terms:
        if f < 0 or not isinstance(a, str) or a not in known:
            return quasi("div", x, affine(d))
        most += f * max(0, known[a] - 1)
    if most >= d:
        return quasi("div", x, affine(d))
    whole = x - rest
    return Affine(tuple((a, f // d) for a, f in whole.terms), whole.const // d)


def digits(x: Affine, radices: Radices, known: Limits) -> tuple[Affine, ...]:
    """The digits of `x`, the last first."""
    parts = [quotient(x, r, known) for r in radices]
    low = [here - above * (s // r) for (here, above), (r, s) in zip(pairwise(parts), pairwise(radices), strict=True)]
    return (parts[-1], *reversed(low))


def radices(positions: Iterable[tuple[Affine, Limits]]) -> Radices:
    """Radices in which the digits of all `positions` are plain sums; (1,) where there are none but the positions themselves."""
    given = tuple(positions)
    found = tuple(sorted({1} | {abs(f) for x, _ in given for a, f in x.terms if isinstance(a, str)}))
    if any(s % r for r, s in pairwise(found)) or not all(is_linear(y) for x, known in given for y in digits(x, found, known)):
        return (1,)
    return found
