"""What joins which loops: the end of a contraction, and what lies across the rows that it is made of."""

from __future__ import annotations

import numpy as np
import pytest

import polyop

from .middles import middle, proved, run

ZERO = """op f(X: i32[M, K], W: i32[N, K]) -> (Y: i32[M, N]) {
    z[m, n] += X[m, k] * W[n, k]; c[n] += W[n, k]; r[m] += X[m, k]; Y[m, n] = z[m, n] - 7 * c[n] - 3 * r[m] }"""
PIECES = """op f(X: f32[L, C]) -> (O: f32[L - 2, C]) where L >= 2 {
    V: f32[3, L - 2, C]
    V[0, t, c] = X[t, c] - X[t + 2, c]
    V[1, t, c] = X[t + 1, c] + X[t + 2, c]
    V[2, t, c] = X[t + 2, c] - X[t + 1, c]
    O[t, c] += V[0, d, c] * V[1, t, c] * V[2, t, c] }"""
OTHERS = PIECES.replace("X: f32[L, C]", "X: f32[L, C], Y: f32[L, C]").replace("X[t + 1, c] + X", "Y[t + 1, c] + Y")
SCALED = "op f(X: f32[M, N], W: f32[N, K]) -> (Y: f32[M, N]) { c[n] += W[n, k]; Y[m, n] = X[m, n] * c[n] }"


def test_sums_that_the_end_of_a_product_reads_come_before_it():
    m = middle(ZERO, "tuned")
    assert proved(m) and str(m.schedule).endswith("k*(S0) S3]") and len(m.chosen) == 3
    for sizes in ((1, 1, 1), (7, 33, 5)):
        arrays, got = run(m, dict(zip("MNK", sizes, strict=True)))
        x, w = arrays["X"].astype(np.int64), arrays["W"].astype(np.int64)
        assert np.array_equal(got, x @ w.T - 7 * w.sum(1) - 3 * x.sum(1)[:, None])


def test_sums_that_need_the_product_come_behind_it():
    m = middle("""op f(X: f32[M, K], W: f32[N, K]) -> (Y: f32[M, N]) {
        z[m, n] += X[m, k] * W[n, k]; c[n] += z[m, n]; Y[m, n] = z[m, n] - c[n] }""", "tuned")
    assert proved(m) and "k*(S0) S2]" not in str(m.schedule)
    arrays, got = run(m, {"M": 5, "N": 17, "K": 3})
    z = arrays["X"].astype(np.float64) @ arrays["W"].T.astype(np.float64)
    np.testing.assert_allclose(got, z - z.sum(0), rtol=1e-4, atol=1e-4)


def test_rows_that_are_scaled_by_sums_of_other_rows_are_written_whole():
    assert middle(SCALED, "tuned").chosen[-1].startswith("[m n2 : S1]")
    f = polyop.op(SCALED)
    rng = np.random.default_rng(3)
    for m, n, k in ((5, 17, 33), (2, 3, 0)):
        x, w = rng.standard_normal((m, n)).astype(np.float32), rng.standard_normal((n, k)).astype(np.float32)
        np.testing.assert_allclose(f(x, w), x * w.sum(1, dtype=np.float64), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("text, loops", [
    (PIECES, "t(S0 S1 S2)"),
    (OTHERS, "[t c : S0 S2]"),
])
def test_pieces_of_one_temporary_that_are_made_of_the_same_share_loops(text, loops):
    m = middle(text, "tuned")
    assert loops in str(m.schedule) and proved(m)
    arrays, got = run(m, {"L": 9, "C": 5})
    x = arrays["X"].astype(np.float64)
    y = arrays.get("Y", x).astype(np.float64)
    np.testing.assert_allclose(got, (x[:-2] - x[2:]).sum(0) * (y[1:-1] + y[2:]) * (x[2:] - x[1:-1]), rtol=1e-5)


def test_pieces_of_a_result_stay_apart():
    m = middle("""op f(X: f32[L, C]) -> (O: f32[2, L - 2, C]) where L >= 2 {
        O[0, t, c] = X[t, c] - X[t + 2, c]
        O[1, t, c] = X[t + 1, c] + X[t + 2, c] }""", "tuned")
    assert str(m.schedule).startswith("[t c : S0]\n[t2 c2 : S1]") and proved(m)


def test_pieces_that_need_each_other_keep_their_order():
    m = middle("""op f(X: f32[L, C]) -> (O: f32[L, C]) {
        V: f32[2, L, C]
        V[0, t, c] = 2 * X[t, c]
        V[1, t, c] = V[0, L - 1 - t, c] + X[t, c]
        O[t, c] = V[1, t, c] }""", "tuned")
    assert "S0 S1" not in str(m.schedule) and proved(m)
    arrays, got = run(m, {"L": 9, "C": 5})
    np.testing.assert_allclose(got, 2 * arrays["X"][::-1] + arrays["X"], rtol=1e-6)
