"""A factor is added up first along what it alone has."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.poly.wellformed import check
from polyop.rewrite.sums.joined import joined
from polyop.rewrite.sums.ownsums import own_sums_first
from tests.rewrite.ops import arguments, op

SUMS = {
    "op f(T: f32[M, P, K], W: f32[N, K]) -> (Y: f32[M, N]) { Y[m, n] += T[m, p, k] * W[n, k] }":
        ["Y_alone[m, k] += T[m, p, k]", "Y[m, n] += (Y_alone[m, k] * W[n, k])"],
    "op f(T: f32[M, 3, K], W: f64[K]) -> (Y: f64[M, 2]) { Y[m, n] += W[k] * f64(T[m, p, k])  where n in 0:2 }":
        ["Y_alone[m, k] += f64(T[m, p, k])", "Y[m, n] += (W[k] * Y_alone[m, k])"],
    "op f(A: f32[M, P], B: f32[N, Q], c: f32[M]) -> (Y: f32[M, N]) { Y[m, n] += A[m, p] * B[n, q] * c[m] }":
        ["Y_alone[m] += A[m, p]", "Y_alone_2[n] += B[n, q]", "Y[m, n] += ((Y_alone[m] * Y_alone_2[n]) * c[m])"],
    "op f(X: f32[H, K], W: f32[K, N]; P: int) -> (Y: f32[H, N]) { Y[h, n] += W[k, n] * (X[h + p, k] else 0) where p in 0:P }":
        None,
    "op f(i: i64[M, P], E: f32[V, K], W: f32[K, N]) -> (Y: f32[M, N]) { Y[m, n] += E[i[m, p], k] * W[k, n] }":
        ["Y_alone[m, k] += E[i[m, p], k]", "Y[m, n] += (Y_alone[m, k] * W[k, n])"],
}
STAY = [
    "op f(T: f32[M, P, K], w: f32[K]) -> (Y: f32[M]) { Y[m] += T[m, p, k] * w[k] }",                           # used once
    "op f(T: f32[M, P, K], W: f32[N, K]) -> (Y: f32[M, N]) { Y[m, n] += T[m, p, k] * W[n, k] where p <= n }",
    "op f(T: i32[M, P, K], W: i32[N, K]) -> (Y: i32[M, N]) { Y[m, n] += T[m, p, k] * W[n, k] }",
    "op f(T: f32[M, P, K], W: f32[N, K]) -> (Y: f32[M, N]) { Y[m, n] max= T[m, p, k] * W[n, k] }",
    "op f(T: f32[M, 1, K], W: f32[N, K]) -> (Y: f32[M, N]) { Y[m, n] += T[m, p, k] * W[n, k] }",
    "op f(X: f32[P, K, R, Z], F: f32[N, K, R]) -> (Y: f32[N, P]) {"
    " Y[n, p] += (X[p + r, k, 0, z] else 0) * F[n, k, r] where p in 0:P, z in 0:Z }",                                   # a window
    "op f(A: f32[M, P], B: f32[P, K], W: f32[N, K]) -> (Y: f32[M, N]) { Y[m, n] += (A[m, p] + B[p, k]) * W[n, k] }",
]


@pytest.mark.parametrize("text", SUMS)
def test_the_sum_is_that_of_the_text(text):
    o = op(text)
    made = own_sums_first(o)
    check(made)
    assert made is not o
    assert SUMS[text] is None or [str(s).split("  where")[0] for s in made.steps] == SUMS[text]
    for size in (0, 1, 2, 5):
        sizes = {n: size + k % 2 for k, n in enumerate(o.sizes)} | ({"V": 7} if "V" in o.sizes else {})
        values, arrays = arguments(o, sizes)
        want, got = (evaluate(x, sizes, values, arrays, wide=True) for x in (o, made))
        np.testing.assert_allclose(got["Y"], want["Y"], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("text", STAY)
def test_what_is_used_once_or_slides_stays(text):
    o = op(text)
    assert own_sums_first(o) is o


@pytest.mark.parametrize(("m", "p", "k", "n"), [(0, 3, 4, 5), (3, 0, 4, 5), (1, 1, 1, 1), (17, 3, 65, 31)])
def test_calls_give_the_numbers_of_numpy(m, p, k, n):
    text = "op f(T: f32[M, P, K], W: f32[N, K]) -> (Y: f32[M, N]) { Y[m, n] += T[m, p, k] * W[n, k] }"
    rng = np.random.default_rng(m + k)
    t, w = rng.standard_normal((m, p, k)).astype("f4"), rng.standard_normal((n, k)).astype("f4")
    want = t.astype("f8").sum(1) @ w.astype("f8").T
    for options in (Options(), Options(numerics="strict")):
        np.testing.assert_allclose(polyop.op(text, options=options)(t, w), want, rtol=1e-4, atol=1e-4)


def test_calls_take_sums_of_one_factor_first():
    o = op(next(iter(SUMS)))
    assert [s.target.source for s in joined(o).steps] == ["Y_alone", "Y"]
