"""Temporaries with products for each of a batch have that first."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.ir.reference import evaluate
from polyop.poly.wellformed import check
from polyop.rewrite.copies.batchfirst import find_sides, pays, with_batches_first
from tests.rewrite.ops import arguments, op

GROUPS = """op f(X: i8[M, 8*G], W: i8[N, 8*G], s: f32[N, G]) -> (Y: f32[M, N]) {
    S[m, n, g] += i32(X[m, 8*g + j]) * i32(W[n, 8*g + j]) where j in 0:8
    Y[m, n] += f32(S[m, n, g]) * s[n, g] }"""
HEADS = """op f(Q: f32[I, H, D], K: f32[J, H, D]) -> (Y: f32[I]) {
    s[i, j, h] += Q[i, h, d] * K[j, h, d]
    Y[i] max= s[i, j, h] }"""
TURNED = {GROUPS: "S[g, m, n]", HEADS: "s[h, i, j]"}
STAY = [
    GROUPS.replace("S[m, n, g]", "S[g, m, n]"),
    GROUPS.replace("X: i8[M, 8*G]", "X: i8[M, 8, G]").replace("X[m, 8*g + j]", "X[m, j, g]"),  # lies along the batch
    GROUPS.replace("Y[m, n] += f32(S[m, n, g]) * s[n, g]", "Y[m, n] += f32(S[m, n, g]) * f32(S[m, n, G - 1 - g]) * s[n, g]"),
    HEADS.replace("(Y: f32[I])", "(Y: f32[I, J, H])").replace("Y[i] max= s", "Y[i, j, h] = 2 * s"),
    HEADS.replace("K: f32[J, H, D]", "K: f32[J, D]").replace("K[j, h, d]", "K[j, d]"),         # no batch
]


@pytest.mark.parametrize("text", TURNED)
def test_the_batch_comes_first_and_the_numbers_are_the_same(text):
    o = op(text)
    made = with_batches_first(o)
    check(made)
    assert str(made.steps[0].target) == TURNED[text]
    assert all(pays(find_sides(o), {"M": m, "N": 2, "I": m, "J": 2}) == (m > 1) for m in (1, 2))
    for size in (0, 1, 3):
        sizes = {n: size + k for k, n in enumerate(o.sizes)}
        values, arrays = arguments(o, sizes)
        want, got = (evaluate(x, sizes, values, arrays, wide=True) for x in (o, made))
        np.testing.assert_allclose(got["Y"], want["Y"], rtol=1e-12)


@pytest.mark.parametrize("text", STAY)
def test_others_stay_as_they_are(text):
    o = op(text)
    assert with_batches_first(o) is o and not find_sides(o)


@pytest.mark.parametrize(("m", "n", "g"), [(0, 2, 2), (1, 1, 1), (2, 3, 0), (17, 33, 3), (5, 16, 7)])
def test_calls_give_the_numbers_of_numpy(m, n, g):
    rng = np.random.default_rng(m)
    x, w = (rng.integers(-128, 128, (r, 8 * g)).astype("i1") for r in (m, n))
    s = rng.uniform(0.5, 2, (n, g)).astype("f4")
    parts = np.einsum("mgj,ngj->mng", x.reshape(m, g, 8).astype("f8"), w.reshape(n, g, 8).astype("f8"))
    np.testing.assert_allclose(polyop.op(GROUPS)(x, w, s), (parts * s).sum(2), rtol=1e-4, atol=0.05)
