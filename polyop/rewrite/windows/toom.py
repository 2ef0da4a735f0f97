"""The matrices of bilinear algorithms for a few results of a sum over a window, with as few products as there are elements.

    sum over r of x[s + r] f[r]  =  sum over i of A[s, i] (sum over r of G[i, r] f[r]) (sum over j of B[i, j] x[j])     for s < m

with A of m x n, B of n x n and G of n x R numbers, n = m + R - 1. Two polynomials of degrees m - 1 and R - 1 are multiplied by
their values at n points, of which one is infinity; sums over windows are that, transposed: { A[s, i] = a_i^s, G[i, r] = a_i^r /
N_i, B[i, :] = the coefficients of the product of x - a over all points a but a_i }, N_i that product at a_i.

Source: Toom, 1963; Cook, 1966; Winograd, "Arithmetic complexity of computations", 1980.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import cache
from math import prod
from typing import NamedTuple

POINTS = (0, 1, -1, 2, -2)
"""Where both polynomials are evaluated, beside infinity, the first ones first: small numbers, whose powers are small, too."""

Matrix = tuple[tuple[Fraction, ...], ...]


class Matrices(NamedTuple):
    """Of what results, elements and weights are made."""

    results: Matrix
    elements: Matrix
    weights: Matrix


@cache
def matrices(m: int, r: int) -> Matrices:
    """Those for `m` results of windows of `r` elements, at most `len(POINTS) + 1` products."""
    points = POINTS[: m + r - 2]
    assert len(points) == m + r - 2, "too few points"
    a = [[Fraction(p) ** s for p in points] + [Fraction(s == m - 1)] for s in range(m)]
    b = [*(_signed(p, [*_expanded(q for q in points if q != p), Fraction(0)], points) for p in points), _expanded(points)]
    g = [*(_signed(p, [Fraction(p) ** k / _value(p, points) for k in range(r)], points) for p in points),
         [Fraction(k == r - 1) for k in range(r)]]
    return Matrices(*(tuple(map(tuple, x)) for x in (a, b, g)))


def _value(p: int, points: Iterable[int]) -> int:
    """{ the product of p - q over the other points q }."""
    return prod(p - q for q in points if q != p)


def _signed(p: int, row: list[Fraction], points: tuple[int, ...]) -> list[Fraction]:
    """`row`, with the sign for which the weights' first row is positive, as tables of these matrices have it."""
    return [-x for x in row] if p == 0 and _value(p, points) < 0 else row


def _expanded(roots: Iterable[int]) -> list[Fraction]:
    """The coefficients of the product of x - a over `roots`, the constant one first."""
    out = [Fraction(1)]
    for a in roots:
        out = [x - a * y for x, y in zip([Fraction(0), *out], [*out, Fraction(0)], strict=True)]
    return out
