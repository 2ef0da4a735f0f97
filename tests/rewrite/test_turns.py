"""Cutting a step where what it reads turns round keeps what it computes, and leaves rows that run one way."""

from __future__ import annotations

import numpy as np
import pytest

from polyop.ir.clamps import cases, decided, innermost
from polyop.ir.expr import Affine, affine, evaluate, quasi
from polyop.ir.reference import evaluate as computed
from polyop.poly.wellformed import check
from polyop.rewrite.windows.turns import cut_at_turns
from tests.rewrite.ops import op as op_of

MIRROR = """op f(X: f32[M, N]) -> (Y: f32[M, N + 4]) where N > 2 {
    Y[i, j] = X[i, min(max(j - 2, 2 - j), 2*N - 2 - (j - 2))] }"""
BOTH = "op f(X: f32[M, N]) -> (Y: f32[M, N]) where N > 2 { Y[i, j] = X[i, max(j - 1, 1 - j)] + X[i, min(j + 1, 2*N - 3 - j)] }"
EDGE = "op f(X: f32[M, N]) -> (Y: f32[M, N]) { Y[i, j] = 2 * X[i, max(j - 2, 0)] }"
COPY = "op f(X: f32[M, N]) -> (Y: f32[M, N]) where N > 1 { Y[i, j] = X[i, min(max(j - 2, 0), N - 2)] }"
ROWS = "op f(X: f32[M, N]) -> (Y: f32[M, N]) where M > 1 { Y[i, j] = X[max(i - 1, 1 - i), j] }"


@pytest.mark.parametrize("text", [MIRROR, BOTH, EDGE, COPY, ROWS])
@pytest.mark.parametrize("n", [3, 4, 9])
def test_the_pieces_compute_what_the_whole_does(text, n):
    op = op_of(text)
    cut = cut_at_turns(op)
    check(cut)  # still written in full and exactly once
    sizes, x = {"M": n, "N": n}, np.random.default_rng(0).standard_normal((n, n)).astype(np.float32)
    np.testing.assert_array_equal(computed(cut, sizes, {}, {"X": x})["Y"], computed(op, sizes, {}, {"X": x})["Y"])


@pytest.mark.parametrize(("text", "pieces"), [(MIRROR, 3), (BOTH, 4), (EDGE, 1), (COPY, 3), (ROWS, 1)])
def test_rows_that_turn_round_are_cut_and_copies_that_stay_at_an_edge(text, pieces):
    assert len(cut_at_turns(op_of(text)).steps) == pieces


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("j", range(-3, 9))
def test_a_decided_clamp_has_the_value_of_the_clamp(op, j):
    p = quasi("min", quasi(op, affine("j") * 2 - 5, affine("N") - affine("j") * 3), affine(7)) * 3 + 1
    clamp, sizes = innermost(p, "j"), {"j": j, "N": 4}
    assert clamp is not None and isinstance(p, Affine)
    tests, first, rest = cases(clamp)
    value = first if all(evaluate(t, sizes) >= 0 for t in tests) else rest
    assert evaluate(decided(p, clamp, value), sizes) == evaluate(p, sizes)
