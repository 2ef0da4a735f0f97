"""Products with digits of words, as weights of four bits are: few rows in place, more of digits that are taken apart before."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.compiler import compile_op
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.rewrite.copies.early import APART, BENT
from polyop.rewrite.regimes.regimes import regime, regimes_of
from polyop.runtime.layout import contiguous
from tests.rewrite.ops import op

SUM = "op f(X: f32[M, K], W: u8[{}]) -> (Y: f32[M, N]) {{ Y[m, n] += X[m, j] * f32({} & 15) }}"
ROWS = SUM.format("N, (K + 1)/2", "(W[n, j/2] >> (4*(j % 2)))")
COLUMNS = SUM.format("(K + 1)/2, N", "(W[j/2, n] >> (4*(j % 2)))")
ROUND = SUM.format("N, 4", "W[n, j % 4]")
SIZES = [(0, 2, 3), (2, 0, 3), (2, 3, 0), (1, 1, 1), (1, 17, 2), (2, 3, 3), (3, 2, 63), (4, 5, 64), (5, 4, 65), (8, 3, 131),
         (9, 17, 31), (13, 33, 67), (64, 5, 7), (65, 16, 2)]


def digits(w, k):
    j = np.arange(k)
    return w[:, j // 2].astype(np.int64) >> (4 * (j % 2)) & 15


def asked(text, m):
    sizes = {"M": m, "N": 500, "K": 5000}
    return regime(regimes_of(op(text)), sizes, Options(), target("x86:sapphirerapids")).early


def test_calls_with_more_rows_ask_for_digits_taken_apart_before():
    assert asked(ROWS, APART) == ("W",) and asked(ROWS, APART - 1) == ()
    assert asked(COLUMNS, BENT) == ("W",) and asked(COLUMNS, BENT - 1) == ()


def test_few_rows_take_digits_along_the_sum_in_place():
    o = op(ROWS)
    made = compile_op(o, contiguous(o), target("x86:sapphirerapids"), Options(check=False, rows=4))
    assert "lanes -, j" in made.chosen[0] and "rows m x 4" in made.chosen[0]


@pytest.mark.parametrize("text", [ROWS, COLUMNS, ROUND], ids=("rows", "columns", "round"))
def test_products_of_digits_of_any_size(text):
    f, rng = polyop.op(text), np.random.default_rng(0)
    for m, n, k in SIZES:
        x = rng.integers(-9, 9, (m, k)).astype(np.float32)
        w = rng.integers(0, 256, (n, 4 if text is ROUND else (k + 1) // 2)).astype("u1")
        want = x.astype(np.float64) @ (w[:, np.arange(k) % 4] & 15 if text is ROUND else digits(w, k)).T.astype(np.float64)
        for _ in range(3):  # a later one may have a kernel of its own
            assert np.array_equal(f(x, np.ascontiguousarray(w.T) if text is COLUMNS else w), want), (m, n, k)
