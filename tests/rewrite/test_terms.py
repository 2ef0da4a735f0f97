"""Sums of products become plain products of two operands, and stay the sums of the text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyop
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.target import target
from polyop.poly.wellformed import check
from polyop.rewrite.copies.early import APART, COLUMNS, FAR, ROWS, find_early, plain_products
from polyop.rewrite.regimes.regimes import kinds, regime, regimes_of
from polyop.rewrite.sums.shares import cut_into_shares
from tests.rewrite.ops import op

HEAD = "op f(A: f32[M, K], B: f32[K, N], a: f32[M, K], b: f32[K, N], d: f32[N], e: f32[K]; x: f32) -> (C: f32[M, N]) {"
SUMS = {
    "A[m, k] * B[k, n] - a[m, k] * b[k, n]": [
        "C[m, n] += (A[m, k] * B[k, n])", "C[m, n] += neg((a[m, k] * b[k, n]))"],
    "2 * A[m, k] * B[k, n] * d[n]": [
        "C_sum[m, n] += (A[m, k] * B[k, n])", "C[m, n] = ((C_sum[m, n] * f32(2.0)) * d[n])"],
    "A[m, k] * B[k, n] / d[n]": [
        "C_sum[m, n] += (A[m, k] * B[k, n])", "C[m, n] = (C_sum[m, n] / d[n])"],
    "x * (A[m, k] * B[k, n]) where k <= n": [
        "C_sum[m, n] += (A[m, k] * B[k, n])", "C[m, n] = (C_sum[m, n] * x)"],
    "tanh(A[m, k]) * B[k, n]": [
        "C_factor[m, k] = tanh(A[m, k])", "C[m, n] += (C_factor[m, k] * B[k, n])"],
    "A[m, k] * (sigmoid(B[k, n]) * e[k])": [
        "C_factor[k, n] = (sigmoid(B[k, n]) * e[k])", "C[m, n] += (A[m, k] * C_factor[k, n])"],
    "exp(A[m, k]) * B[k, n] where k <= m": [
        "C_factor[m, k] = exp(A[m, k])", "C[m, n] += (C_factor[m, k] * B[k, n])"],
    "A[m, k] * B[k, n] / a[m, k]": [
        "C_factor[m, k] = (A[m, k] / a[m, k])", "C[m, n] += (B[k, n] * C_factor[m, k])"],
}
MEANS = {
    "op f(X: f32[M, K, N]) -> (Y: f32[M, N]) { Y[m, n] += X[m, k, n] / K }":
        ["Y_sum[m, n] += X[m, k, n]", "Y[m, n] = (Y_sum[m, n] / f32(K))"],
    "op f(X: f32[M, K]) -> (Y: f32[M]) where K >= 3 { Y[m] += X[m, k] * X[m, k] / 3 / (2 * K) where k in 0:3 }":
        ["Y_sum[m] += (X[m, k] * X[m, k])", "Y[m] = ((Y_sum[m] / f32(3.0)) / f32(2*K))"],
    "op f(X: f32[M, K], d: f32[M]) -> (Y: f32[M]) { Y[m] += X[m, k] / d[m] }": [
        "Y_sum[m] += X[m, k]",
        "Y[m] = (Y_sum[m] / d[m])"],
}
STAY = [
    "op f(X: f32[M, K], d: f32[M]) -> (Y: f32[M]) { Y[m] += X[m, k] / d[m] where k < m }",
    "op f(X: f32[M, K], d: f32[M], at: i64[M]) -> (Y: f32[M]) { Y[(at[m])] += X[m, k] / K }",
    "op f(X: f32[M, K]) -> (Y: f32[M]) { Y[m] max= X[m, k] / K }",
    "op f(X: f32[M, K], F: f32[K]) -> (Y: f32[M]) { Y[m] += X[m, k] * (Y[m - 1] else F[k]) / K }",
    "op f(X: i32[M, K]) -> (Y: i32[M]) { Y[m] += X[m, k] / 3 }",
]
OTHERS = ["A[m, k] * B[k, n]", "(A[m, k] - e[k]) * B[k, n]", "A[m, k] * B[k, n] + e[k]", "A[m, k] * e[k] + d[n]",
          "exp(A[m, k] - B[k, n])", "exp(A[m, k]) * B[k, n] where m <= n", "A[m, k] * exp((B[k - 1, n + k] else 0))"]


def sum_of(text):
    return op(HEAD + f" C[m, n] += {text} }}")


def said(o):
    return [str(s).split("  where")[0] for s in o.steps]


@pytest.mark.parametrize("text", SUMS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_sum_is_that_of_the_text(text, data):
    o = sum_of(text)
    made = plain_products(o, Options())
    assert said(made) == SUMS[text]
    check(made)
    sizes = {n: data.draw(st.integers(1, 5), n) for n in o.sizes}
    rng = np.random.default_rng(data.draw(st.integers(0, 99), "seed"))
    arrays = {t.name: rng.uniform(0.5, 2, [sizes[e.name] for e in t.shape]).astype(np.float32) for t in o.inputs}
    want, got = (evaluate(x, sizes, {"x": 0.5}, arrays, wide=True) for x in (o, made))
    np.testing.assert_allclose(got["C"], want["C"], rtol=1e-11)


@pytest.mark.parametrize("text", OTHERS)
def test_other_sums_stay(text):
    o = sum_of(text)
    assert plain_products(o, Options()) is o


@pytest.mark.parametrize("text", SUMS)
def test_the_order_of_the_text_is_kept_where_it_is_asked_for_or_a_size_is_0(text):
    o = sum_of(text)
    assert plain_products(o, Options(numerics="strict")) is plain_products(o, Options(regime="any")) is o


def test_what_few_results_share_is_computed_where_it_is_used():
    text = "tanh(A[m, k]) * B[k, n]"
    assert said(plain_products(sum_of(text), Options(few=(("N", 3),)))) == said(sum_of(text))
    assert said(plain_products(sum_of(text), Options(ones=("N",)))) == said(sum_of(text))
    assert said(plain_products(sum_of("A[m, k] * tanh(B[k, n])"), Options(rows=4))) == said(sum_of("A[m, k] * tanh(B[k, n])"))


def test_a_factor_stays_where_the_result_has_other_terms():
    o = op(HEAD + " C[m, n] += 2 * A[m, k] * B[k, n]; C[m, n] += d[n] }")
    assert plain_products(o, Options()) is o


def test_a_rounded_operand_is_kept_as_it_is_rounded():
    o = op("op f(A: f32[M, K], B: bf16[K, N]) -> (C: f32[M, N]) { C[m, n] += f32(bf16(tanh(A[m, k]))) * f32(B[k, n]) }")
    made = plain_products(o, Options())
    assert made.tensor("C_factor").dtype.name == "bf16"
    assert said(made)[1] == "C[m, n] += (f32(C_factor[m, k]) * f32(B[k, n]))"


@pytest.mark.parametrize("text", SUMS)
def test_kernels_compute_it(text):
    f = polyop.op(HEAD + f" C[m, n] += {text} }}")
    rng = np.random.default_rng(0)
    for m, n, k in ((0, 3, 2), (2, 3, 0), (1, 1, 1), (7, 65, 17), (13, 16, 64)):
        shapes = {"A": (m, k), "B": (k, n), "a": (m, k), "b": (k, n), "d": (n,), "e": (k,)}
        arrays = {name: rng.uniform(0.5, 2, s).astype(np.float32) for name, s in shapes.items()}
        want = evaluate(sum_of(text), {"M": m, "N": n, "K": k}, {"x": 0.5}, arrays, wide=True)["C"]
        np.testing.assert_allclose(f(*arrays.values(), x=0.5), want, rtol=1e-5, atol=1e-4)


CHEAP = {
    "max(A[m, k], 0) * B[k, n]": ["C_factor[m, k] = max(A[m, k], f32(0.0))", "C[m, n] += (C_factor[m, k] * B[k, n])"],
    "A[m, k] * e[k] * B[k, n]": ["C_factor[m, k] = (A[m, k] * e[k])", "C[m, n] += (C_factor[m, k] * B[k, n])"],
}


@pytest.mark.parametrize("text", CHEAP)
def test_what_takes_little_is_computed_before_where_it_is_asked_for(text):
    o = sum_of(text)
    made = plain_products(o, Options(early=("A",)))
    assert said(plain_products(o, Options())) == said(o) and said(made) == CHEAP[text]
    check(made)
    assert plain_products(o, Options(early=("A",), numerics="strict")) is o


def asked(o, **sizes):
    return regime(regimes_of(o), {"M": 500, "N": 500, "K": 50} | sizes, Options(), target("x86:sapphirerapids")).early


def test_calls_ask_for_it_where_enough_results_share_an_operand():
    left, right = sum_of("max(A[m, k], 0) * B[k, n]"), sum_of("A[m, k] * max(B[k, n], 0)")
    assert asked(left, N=COLUMNS) == ("A",) and asked(left, N=COLUMNS - 1) == ()
    assert asked(right, M=ROWS) == ("B",) and asked(right, M=ROWS - 1) == ()
    far = target("x86:sapphirerapids").l2 // 4 // 500 + 1
    assert asked(left, K=far, N=FAR * COLUMNS) == ("A",) and asked(left, K=far, N=FAR * COLUMNS - 1) == ()
    assert asked(sum_of("A[m, k] * B[k, n]")) == () == asked(sum_of("(A[m, k] - e[k]) * B[k, n]"), N=1)
    assert "takes little" in " ".join(kinds(left)) and "takes little" not in " ".join(kinds(sum_of("A[m, k] * B[k, n]")))


SYMMETRIC = "op f(S: f32[N, N], B: f32[M, N]) -> (C: f32[M, N]) { C[m, n] += B[m, k] * (k >= n ? S[k, n] : S[n, k]) }"


def test_halves_of_a_matrix_are_put_together_for_fewer_results():
    o = op(SYMMETRIC)
    assert asked(o, M=APART) == ("S",) and asked(o, M=APART - 1) == ()
    f = polyop.op(SYMMETRIC, options=Options(early=("S",)))
    rng = np.random.default_rng(0)
    for m, n in ((1, 1), (7, 17), (13, 33)):
        s, b = rng.integers(-9, 9, (n, n)).astype(np.float32), rng.integers(-9, 9, (m, n)).astype(np.float32)
        whole = np.tril(s) + np.tril(s, -1).T
        np.testing.assert_array_equal(f(s, b), b.astype(np.float64) @ whole)


GROUPS = "op f(X: f32[M, 8*G], W: i8[N, 8*G], S: f32[N, G]) -> (Y: f32[M, N]) { Y[m, n] += X[m, k] * (%s) }"


@pytest.mark.parametrize("scaled,first", [("f32(W[n, k]) * S[n, k / 8]", "W"), ("S[n, k / 8] * f32(W[n, k])", "S")])
def test_scales_of_groups_go_into_their_operand_for_few_rows(scaled, first):
    text = GROUPS % scaled
    assert asked(op(text), M=APART, G=10) == (first,) and asked(op(text), M=APART - 1, G=10) == ()
    rng, f = np.random.default_rng(0), polyop.op(text)
    for m, n, g in ((9, 1, 1), (9, 17, 2), (13, 33, 3), (65, 16, 1)):
        x, w = rng.integers(-9, 9, (m, 8 * g)).astype(np.float32), rng.integers(-128, 128, (n, 8 * g)).astype(np.int8)
        s = rng.integers(-3, 4, (n, g)).astype(np.float32)
        for _ in range(4):  # the second one may have a kernel of its own
            np.testing.assert_array_equal(f(x, w, s), x.astype(np.float64) @ (w * np.repeat(s.astype(np.float64), 8, 1)).T)


def test_what_is_computed_in_each_turn_of_a_recurrence_is_not_early():
    o = op("op f(U: f32[K, K], h: f32[B, K]; T: int) -> (Y: f32[T, B, K]) where T >= 1 {"
           " Y[0, b, g] = h[b, g]; z[t, b, g] += max(Y[t - 1, b, k], 0) * U[k, g] where t in 1:T;"
           " Y[t, b, g] = z[t, b, g] where t in 1:T }")
    assert find_early(o) == ()


@pytest.mark.parametrize("text", MEANS)
@pytest.mark.parametrize("size", [1, 3, 17])
def test_a_sum_is_divided_once(text, size):
    o = op(text)
    made = plain_products(o, Options())
    assert said(made) == MEANS[text]
    check(made)
    rng = np.random.default_rng(1)
    arrays = {t.name: rng.uniform(0.5, 2, [size + 2] * len(t.shape)).astype(np.float32) for t in o.inputs}
    want, got = (evaluate(x, dict.fromkeys(o.sizes, size + 2), {}, arrays, wide=True)["Y"] for x in (o, made))
    for y in (got, polyop.op(text)(*arrays.values())):
        np.testing.assert_allclose(y, want, rtol=1e-5)


@pytest.mark.parametrize("text", STAY, ids=["with conditions", "scattered", "a maximum", "a recurrence", "whole numbers"])
def test_other_terms_are_divided_one_by_one(text):
    o = op(text)
    assert plain_products(o, Options()) == o


def test_a_mean_over_nothing_is_0():
    f = polyop.op("op f(X: f32[M, K], W: f32[K, N], d: f32[M]) -> (Y: f32[M, N]) {"
                  " Y[m, n] += X[m, k] * W[k, n] / d[m] where k < m }")
    rng, n = np.random.default_rng(1), np.arange(5, dtype=np.float32)
    x, w = rng.random((5, 6), np.float32), rng.random((6, 40), np.float32)
    want = np.tril(x, -1) @ w / np.maximum(n, 1)[:, None]
    np.testing.assert_allclose(f(x, w, n), want, rtol=1e-5)


def test_several_threads_share_a_sum_that_is_divided():
    f = op("op f(X: f32[K, N]) -> (Y: f32[N]) { Y[n] += X[k, n] / K }")
    assert [s.target.source for s in cut_into_shares(plain_products(f, Options()), {"Y": 8}).steps if s.reduce] == [
        "Y_sum_parts", "Y_sum"]
