"""Sums over digits of a place and sums of partial sums are one sum, with the terms that they had."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.ir.reference import evaluate
from polyop.poly.wellformed import check
from polyop.rewrite.sums.joined import joined
from tests.rewrite.ops import op

HEAD = "op f(X: f32[M, K], W: i8[N, K], S: f32[N, K/8]) -> (Y: f32[M, N]) where K % 8 == 0 {"
PARTS = HEAD + " P[m, n, g] += X[m, 8*g + j] * f32(W[n, 8*g + j]) where j in 0:8;"
TERM = "(X[m, {0}] * f32(W[n, {0}]))"
SAME = {
    HEAD + " Y[m, n] += X[m, 8*g + j] * f32(W[n, 8*g + j]) * S[n, g] where j in 0:8 }":
        f"({TERM.format('g')} * S[n, floor((g)/8)])  where m in 0:M, n in 0:N, g in 0:K",
    PARTS + " Y[m, n] += P[m, n, g] * S[n, g] }":
        f"({TERM.format('g')} * S[n, floor((g)/8)])  where m in 0:M, n in 0:N, g in 0:K",
    HEAD + " Y[m, n] += X[m, 8*g + 2*i + j] * f32(W[n, 8*g + 2*i + j]) * S[n, g] where i in 0:4, j in 0:2 }":
        f"({TERM.format('g')} * S[n, floor((g)/8)])  where m in 0:M, n in 0:N, g in 0:K",
    HEAD.replace("where K % 8 == 0", "") + " Y[m, n] += X[m, 8*g + j] * f32(W[n, 8*g + j]) * S[n, g] where j in 0:8 }":
        f"({TERM.format('g')} * S[n, floor((g)/8)])  where m in 0:M, n in 0:N, g in 0:8*floor((K)/8)",
}
STAY = [
    HEAD + " Y[m, n] += X[m, 8*g + j] * f32(W[n, 8*g + j]) * S[n, g] where j in 0:7 }",       # leaves places out
    HEAD + " Y[m, n] += X[m, 8*g + j] * f32(W[n, 8*g + j]) * S[n, j] where j in 0:8, g in 0:K/8, K >= 64 }",  # the digit alone
    HEAD + " Y[m, n] += X[m, 8*g + j] * f32(W[n, 8*g + j]) * S[n, g] where j in 0:8, j <= m }",
    "op f(X: f32[K]; const r: int = 3) -> (Y: f32[K - r + 1]) { Y[p] += X[p + i] where i in 0:r }",
    PARTS + " Q[m, g] += P[m, n, g] * S[n, g]; Y[m, n] += Q[m, g] * P[m, n, g] }",             # taken twice
    "op f(A: f32[M, K], B: f32[K, L], C: f32[L, N]) -> (Y: f32[M, N]) {"
    " P[m, l] += A[m, k] * B[k, l]; Y[m, n] += P[m, l] * C[l, n] }",
    "op f(X: i8[M, K], W: i8[N, K], S: f32[N, K/8]) -> (Y: f32[M, N]) where K % 8 == 0 {"
    " P[m, n, g] += i32(X[m, g]) * i32(W[n, g]) where g in 0:K/8; Y[m, n] += f32(P[m, n, g]) * S[n, g] }",
]


def said(o):
    return [str(s) for s in o.steps]


def arrays(o, sizes, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"X": (sizes["M"], sizes["K"]), "W": (sizes["N"], sizes["K"]), "S": (sizes["N"], sizes["K"] // 8)}
    make = {"f32": lambda s: rng.uniform(0.5, 2, s).astype("f4"), "i8": lambda s: rng.integers(-128, 128, s).astype("i1")}
    return {t.name: make[str(t.dtype)](shapes[t.name]) for t in o.inputs}


@pytest.mark.parametrize("text", SAME)
def test_the_sum_is_that_of_the_text(text):
    o = op(text)
    made = joined(o)
    assert said(made) == ["Y[m, n] += " + SAME[text]]
    check(made)
    for m, n, k in ((1, 1, 8), (2, 3, 24), (3, 2, 0)):
        sizes = {"M": m, "N": n, "K": k}
        want, got = (evaluate(x, sizes, {}, arrays(o, sizes), wide=True) for x in (o, made))
        np.testing.assert_allclose(got["Y"], want["Y"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("text", STAY)
def test_what_is_no_place_or_no_partial_sum_stays(text):
    o = op(text)
    assert said(joined(o)) == said(o)


def test_a_softmax_keeps_the_sums_that_follow_it():
    o = op("""op f(Z: f32[H, I, J], V: f32[H, J, D], w: f32[H]) -> (Y: f32[I, D]) {
        e[h, i, j] = exp(Z[h, i, j]); z[h, i] += e[h, i, j]; o[h, i, d] += e[h, i, j] / z[h, i] * V[h, j, d]
        Y[i, d] += o[h, i, d] * w[h] }""")
    assert joined(o) is o


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("text", [t for t in SAME if "where K" in t])
def test_kernels_compute_it(text, strict):
    f = polyop.op(text, options=polyop.Options(numerics="strict") if strict else None)
    for m, n, k in ((1, 1, 8), (13, 17, 40), (2, 33, 0), (19, 65, 136)):
        a = arrays(op(text), {"M": m, "N": n, "K": k}, m)
        want = a["X"].astype(float) @ (a["W"] * np.repeat(a["S"].astype(float), 8, 1)).T
        np.testing.assert_allclose(f(*a.values()), want, rtol=1e-4, atol=1e-2)


def test_what_is_compiled_ahead_has_one_sum():
    text = next(iter(SAME))
    assert "floor" in str(polyop.op(text).compile().op)
