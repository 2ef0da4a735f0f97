"""What is added to each element of a sum once is done where the sum is taken on."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.ir.op import Op
from polyop.ir.options import Options
from polyop.rewrite.sums.added import added_behind

LINEAR = "op f(X: f32[M, K], W: f32[N, K], b: f32[N]) -> (Y: f32[M, N]) { Y[m, n] += X[m, k] * W[n, k]; Y[m, n] += b[n] }"
TWICE = """op f(X: f32[M, K], W: f32[N, K], b: f32[N], R: f32[M, N]) -> (Y: f32[M, N]) {
    Y[m, n] += X[m, k] * W[n, k]
    Y[m, n] += b[n]
    Y[m, n] += R[m, n]
}"""
MAXIMA = "op f(X: f32[M, N], b: f32[M]) -> (Y: f32[M]) { Y[m] max= X[m, n]; Y[m] max= b[m] }"
HALVES = "op f(X: bf16[M, K], W: bf16[N, K], b: bf16[N]) -> (Y: bf16[M, N]) { Y[m, n] += X[m, k] * W[n, k]; Y[m, n] += b[n] }"
INTO = "op f(inout Y: f32[M], X: f32[M, K], b: f32[M]) { Y[m] += X[m, k]; Y[m] += b[m] }"
PRODUCT = "op f(X: f32[M, K], W: f32[N, K]) -> (Y: f32[M, N]) { Y[m, n] += X[m, k] * W[n, k] }"


def op_of(text: str) -> Op:
    operator = polyop.op(text)
    return operator._op(operator.choice())


@pytest.mark.parametrize(("text", "steps"), [
    (LINEAR, ["Y_terms[m, n] += ", "Y[m, n] = (Y_terms[m, n] + b[n])"]),
    (TWICE, ["Y_terms_terms[m, n] += ", "Y_terms[m, n] = (Y_terms_terms[m, n] + b[n])", "Y[m, n] = (Y_terms[m, n] + R[m, n])"]),
    (MAXIMA, ["Y_terms[m] max= ", "Y[m] = max(Y_terms[m], b[m])"]),
    (HALVES, ["Y_sum_terms[m, n] += ", "Y_sum[m, n] = (Y_sum_terms[m, n] + f32(b[n]))", "Y[i, j] = bf16(Y_sum[i, j])"]),
    (INTO, ["Y_out_sum_terms[m] += ", "Y_out_sum[m] = (Y_out_sum_terms[m] + b[m])", "Y_out[i] = (Y[i] + Y_out_sum[i])"]),
], ids=["once", "twice", "a maximum", "narrow results", "in place"])
def test_each_sum_has_a_temporary_for_its_terms(text: str, steps: list[str]) -> None:
    made = added_behind(op_of(text))
    assert [str(s)[:len(w)] for s, w in zip(made.steps, steps, strict=True)] == steps


@pytest.mark.parametrize("text", [
    "op f(X: f32[M, K], b: f32[M]) -> (Y: f32[M]) { Y[m] += b[m]; Y[m] += X[m, k] }",
    "op f(X: f32[M, K], b: f32[M]) -> (Y: f32[M]) { Y[m] += X[m, k]; Y[m] += b[m]  where m in 1:M }",
    "op f(X: f32[M, K], b: f32[M]) -> (Y: f32[M]) { Y[m] += X[m, k]; Y[m] += b[m]  where m % 2 == 0 }",
    "op f(X: f32[M], b: f32[M]) -> (Y: f32[M]) { Y[m] += X[m]; Y[m] += b[m] }",
    "op f(X: f32[M, K], b: f32[M]) -> (Y: f32[M]) { Y[m] += X[m, k]  where m >= 2; Y[m] += b[m] }",
    "op f(X: f32[T, K], b: f32[T]) -> (Y: f32[T]) { Y[t] += X[t, k]; Y[t] += (Y[t-1] else 0) * b[t] }",
    "op f(X: f32[T, D], C: f32[T, D], b: f32[T]) -> (Y: f32[T]) { h[t, d] = (h[t-1, d] else 0) + X[t, d]\n"
    "  Y[t] += h[t, d] * C[t, d]; Y[t] += b[t] }",
], ids=["terms last", "some elements", "every other", "no terms", "terms of some elements", "a recurrence", "behind one"])
def test_others_stay_as_they_are(text: str) -> None:
    op = op_of(text)
    assert added_behind(op) is op


def test_a_product_and_its_bias_share_loops_and_give_the_same_bits_in_the_order_of_the_text() -> None:
    assert "[m n : Y_terms_init k*(S0) S1]" in polyop.op(LINEAR).compile().explain()
    g = np.random.default_rng(3)
    for m, n, k in ((1, 1, 1), (7, 25, 700), (33, 48, 5), (4, 3, 0)):
        x, w, b = (g.standard_normal(s).astype(np.float32) for s in ((m, k), (n, k), (n,)))
        first, both = (polyop.op(t, options=Options("strict")) for t in (PRODUCT, LINEAR))
        np.testing.assert_array_equal(both(x, w, b), first(x, w) + b)
        np.testing.assert_allclose(polyop.op(LINEAR)(x, w, b), x.astype(float) @ w.T.astype(float) + b, rtol=1e-4, atol=1e-4)


def test_what_is_added_to_sums_of_some_elements_is_added_to_all() -> None:
    g = np.random.default_rng(4)
    x, b = g.standard_normal((7, 5)).astype(np.float32), g.standard_normal(7).astype(np.float32)
    for said, seen in (("m >= 2", np.arange(7) >= 2), ("m < 5", np.arange(7) < 5)):
        made = polyop.op(f"op f(X: f32[M, K], b: f32[M]) -> (Y: f32[M]) {{ Y[m] += X[m, k]  where {said}; Y[m] += b[m] }}")
        np.testing.assert_allclose(made(x, b), np.where(seen, x.sum(1), 0) + b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [Options("strict"), Options()], ids=["strict", "fast"])
def test_a_sum_has_the_lanes_that_it_has_without_what_is_added(options: Options) -> None:
    """Along what has unit stride: in the order of the text lanes are rows."""
    lanes = []
    for text in ("op f(X: f32[K], W: f32[N, K]) -> (Y: f32[N]) { Y[n] += X[k] * W[n, k] }",
                 "op f(X: f32[K], W: f32[N, K], b: f32[N]) -> (Y: f32[N]) { Y[n] += X[k] * W[n, k]; Y[n] += b[n] }"):
        chosen = polyop.op(text, options=options).compile().explain().partition("strategies\n")[2].splitlines()[0]
        lanes.append("lanes -, -, -" in chosen)
    assert lanes == [False, False]
