"""The matrices of bilinear algorithms are those of the sum over a window, exactly, and the tables that the literature has."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest

from polyop.rewrite.windows.toom import POINTS, matrices

ALL = [(m, r) for m, r in product(range(1, 7), range(1, 7)) if 2 <= m + r - 1 <= len(POINTS) + 1]

# A, G and B of F(2, 3) and F(4, 3) in Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016, 4.1 and 4.3
F23 = ([[1, 1, 1, 0], [0, 1, -1, -1]],
       [[1, 0, 0], ["1/2", "1/2", "1/2"], ["1/2", "-1/2", "1/2"], [0, 0, 1]],
       [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
F43 = ([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]],
       [["1/4", 0, 0], ["-1/6", "-1/6", "-1/6"], ["-1/6", "1/6", "-1/6"], ["1/24", "1/12", "1/6"], ["1/24", "-1/12", "1/6"],
        [0, 0, 1]],
       [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1]])


def fractions(rows):
    return tuple(tuple(map(Fraction, row)) for row in rows)


@pytest.mark.parametrize("m, r", ALL)
def test_the_identity_holds_for_numbers_without_rounding(m, r):
    a, b, g = matrices(m, r)
    n = m + r - 1
    assert [(len(x), len(x[0])) for x in (a, b, g)] == [(m, n), (n, n), (n, r)]
    for s, k, j in product(range(m), range(r), range(n)):
        assert sum(a[s][i] * g[i][k] * b[i][j] for i in range(n)) == (j == s + k)


@pytest.mark.parametrize("m, r", ALL)
def test_results_and_elements_are_made_with_whole_numbers(m, r):
    a, b, g = matrices(m, r)
    assert all(x.denominator == 1 for part in (a, b) for row in part for x in row)
    assert all(any(row) for part in (a, b, g) for row in part)


@pytest.mark.parametrize("m, r, table", [(2, 3, F23), (4, 3, F43)])
def test_tables_of_lavin_and_gray_are_these_but_for_signs(m, r, table):
    """A product may have its sign in another factor, or in the results."""
    a, b, g = matrices(m, r)
    results, weights, elements = map(fractions, table)
    for i in range(m + r - 1):
        column, wanted = [row[i] for row in a], [row[i] for row in results]
        signs = [next(s for s in (1, -1) if [s * x for x in got] == [*want])
                 for got, want in ((column, wanted), (g[i], weights[i]), (b[i], elements[i]))]
        assert signs[0] * signs[1] * signs[2] == 1


@pytest.mark.parametrize("m, r", [(4, 4), (2, 6), (7, 1)])
def test_more_points_than_there_are_make_none(m, r):
    with pytest.raises(AssertionError, match="too few points"):
        matrices(m, r)
