"""A step that goes round a size several times is cut into its rounds, whose positions are affine."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.ir.expr import is_computed, loads
from polyop.poly.wellformed import check
from polyop.rewrite.windows.rounds import MOST, cut_into_rounds
from tests.rewrite.ops import assert_same, op

TILE = "op f(X: f32[M, N]) -> (Y: f32[M, 3*N]) { Y[m, i] = X[m, i % N] }"
BOTH = "op f(X: f32[M, N], b: f32[N]) -> (Y: f32[2*M, 2*N]) { Y[m, i] = X[m % M, i % N] + b[i % N] * f32(m / M) where i < 2*N }"
FOLD = "op f(X: f32[4, N]) -> (Y: f32[4*N]) { Y[i] = X[i / N, i % N] + f32(i) }"


@pytest.mark.parametrize(("text", "rounds"), [(TILE, 3), (BOTH, 4), (FOLD, 4)])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_rounds_compute_what_the_whole_does_by_affine_positions(text, rounds, n):
    whole = op(text)
    cut = cut_into_rounds(whole)
    assert len(cut.steps) == rounds
    assert not any(is_computed(p) for s in cut.steps for x in loads(s.expr) for p in x.index)
    check(cut)  # still written in full and exactly once
    assert_same(whole, cut, {"M": n, "N": n + 2})


def test_rounds_along_several_indices_are_few_together():
    cut = cut_into_rounds(op("op f(X: f32[M, N]) -> (Y: f32[9*M, 5*N]) { Y[m, i] = X[m % M, i % N] }"))
    assert len(cut.steps) == 9 <= MOST


@pytest.mark.parametrize("text", [
    "op f(X: f32[N]) -> (Y: f32[17*N]) { Y[i] = X[i % N] }",
    "op f(X: f32[N]) -> (Y: f32[4*N]) { Y[i] = X[(i + 1) % N] }",
    "op f(X: f32[N], Z: f32[K]) -> (Y: f32[K]) { Y[i] = Z[i] + X[i % N] where N >= 1 }",
    "op f(X: f32[N]) -> (y: f32) { y += X[i % N] where i in 0:4*N }",
], ids=["too many", "shifted", "another range", "a long sum"])
def test_other_steps_stay_whole(text):
    whole = op(text)
    assert cut_into_rounds(whole) == whole


RINGS = {
    "neighbours": "op f(X: f32[N]) -> (Y: f32[N]) { Y[n] = X[(n + N - 1) % N] - X[(n + 1) % N] + X[n % N] }",
    "known to be long": "op f(X: f32[M, N]) -> (Y: f32[M, N]) where N >= 3 { Y[m, n] = X[(m + 1) % M, (n + N - 3) % N] }",
    "backwards": "op f(X: f32[N]) -> (Y: f32[N]) { Y[n] = X[(n - 1) % N] * f32(n) }",
    "a border": "op f(X: f32[M, N]) -> (Y: f32[M+2, N+4]) where M >= 1, N >= 1 { Y[m, n] = X[(m - 1) % M, (n - 2) % N] }",
    "the other way": "op f(X: f32[M, N]) -> (Y: f32[M, N]) { Y[m, n] = X[(M - m) % M, (2*n) % N] }",
    "halves": "op f(X: f32[M, N]) -> (Y: f32[M, N]) { Y[m, n] = X[(m + (M + 1) / 2) % M, (n - N / 2) % N] }",
    "a window": "op f(X: f32[M, N], F: f32[3]) -> (Y: f32[M, N]) { Y[m, n] += X[m, (n + r - 1) % N] * F[r] }",
    "sums": "op f(X: f32[M, N]) -> (y: f32[M]) { y[m] += X[(m + M - 1) % M, (n + 1) % N] where n in 0:N }",
}


@pytest.mark.parametrize("text", RINGS.values(), ids=RINGS)
@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_rings_are_gone_round_by_affine_positions(text, n):
    whole = op(text)
    cut = cut_into_rounds(whole)
    assert not any(is_computed(p) for s in cut.steps for x in loads(s.expr) for p in x.index)
    check(cut)
    if n >= max(3 * ("N >= 3" in text), "N >= 1" in text):
        assert_same(whole, cut, {"M": n, "N": n})


@pytest.mark.parametrize("position", ["(n + 3) % N", "(4*n) % N", "(n + M) % N", "(n + 1) % M"])
def test_what_may_go_round_more_often_stays(position):
    whole = op(f"op f(X: f32[N], Z: f32[M]) -> (Y: f32[N]) {{ Y[n] = (X[{position}] else Z[0]) where M >= 1 }}")
    assert cut_into_rounds(whole) == whole


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (5, 15), (3, 65)])
def test_a_circular_border_is_numpys(shape):
    f = polyop.op("op f(X: i32[M, N]) -> (Y: i32[M+2, N+4]) where M >= 1, N >= 1 { Y[m, n] = X[(m - 1) % M, (n - 2) % N] }")
    x = np.random.default_rng(1).integers(-9, 9, shape).astype(np.int32)
    assert np.array_equal(f(x), np.pad(x, ((1, 1), (2, 2)), mode="wrap"))


def test_rows_are_rolled_by_any_number_as_numpy_does():
    text = "op f(X: i32[M, N]; s: int) -> (Y: i32[M, N]) { Y[m, n] = X[m, (n - s) % N] }"
    cut = cut_into_rounds(op(text))
    assert [is_computed(x.index[-1]) for s in cut.steps for x in loads(s.expr)] == [False, False, False, True, True]
    check(cut)
    f = polyop.op(text)
    for n in (1, 2, 17, 70):
        x = np.random.default_rng(1).integers(-9, 9, (3, n)).astype(np.int32)
        for s in (0, 1, n - 1, n, n + 1, 3 * n + 2):
            assert np.array_equal(f(x, s=s), np.roll(x, s, 1))


def test_a_torus_is_stepped_through_as_numpy_rolls_it():
    f = polyop.op("""op f(X: i32[M, N]; T: int) -> (Y: i32[M, N]) {
        A: i32[T + 1, M, N]; A[0, m, n] = X[m, n]; Y[m, n] = A[T, m, n]
        A[t, m, n] = A[t-1, (m + 1) % M, n] + 2 * A[t-1, m, (n + N - 1) % N] where t >= 1 }""")
    for shape in ((1, 1), (3, 17)):
        x = np.random.default_rng(1).integers(-9, 9, shape).astype(np.int32)
        y = x
        for _ in range(3):
            y = np.roll(y, -1, 0) + 2 * np.roll(y, 1, 1)
        assert np.array_equal(f(x, T=3), y)
