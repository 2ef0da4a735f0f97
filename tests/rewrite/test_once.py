"""A reduction with one term for each element is a plain step."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.rewrite.once import terms_alone
from tests.rewrite.ops import op

OUTER = "op f(X: f32[A], Y: f32[B]) -> (Z: f32[B, A]) { Z[b, a] += X[a] * Y[b] }"
BOTH = "op f(X: f32[A], Y: f32[A, B]) -> (Z: f32[A, B]) { Z[a, b] += X[a]; Z[i, j] += Y[i, j] * Y[i, j] }"
SWAPPED = "op f(X: f32[N, N], Y: f32[N, N]) -> (Z: f32[N, N]) { Z[a, b] max= X[a, b]; Z[b, a] max= Y[a, b] }"
NARROW = "op f(X: bf16[A], Y: bf16[B]) -> (Z: bf16[B, A]) { Z[b, a] += X[a] * Y[b] }"
INTO = "op f(inout Z: f32[A, B], X: f32[A]) { Z[a, b] += X[a] }"
DOT = "op f(X: f32[B, K], W: f32[B, N]) -> (Z: f32[B]) { P[b, n, k] += X[b, k] * W[b, n]; Z[b] += P[b, n, k] }"


@pytest.mark.parametrize(("text", "steps"), [
    (OUTER, ["Z[b, a] = (X[a] * Y[b])"]),
    (BOTH, ["Z[a, b] = (X[a] + (Y[a, b] * Y[a, b]))"]),
    (SWAPPED, ["Z[a, b] = max(X[a, b], Y[b, a])"]),
    (NARROW, ["Z_sum[b, a] = (f32(X[a]) * f32(Y[b]))", "Z[i, j] = bf16(Z_sum[i, j])"]),
    (INTO, ["Z_out_sum[a, b] = X[a]", "Z_out[i, j] = (Z[i, j] + Z_out_sum[i, j])"]),
    (DOT, ["P[b, n, k] = (X[b, k] * W[b, n])", "Z[b] += P[b, n, k]"]),
], ids=["outer", "two", "letters swapped", "narrow", "in place", "a temporary"])
def test_each_is_a_plain_step(text, steps):
    made = terms_alone(op(text))
    assert [str(s)[:len(w)] for s, w in zip(made.steps, steps, strict=True)] == steps


@pytest.mark.parametrize("text", [
    "op f(X: f32[A, K]) -> (Z: f32[A]) { Z[a] += X[a, k] }",
    "op f(X: f32[A], Y: f32[A, K]) -> (Z: f32[A]) { Z[a] += X[a]; Z[a] += Y[a, k] }",
    "op f(X: f32[A]) -> (Z: f32[A]) { Z[a] += X[a]  where a >= 1 }",
    "op f(X: f32[A]) -> (Z: f32[A]) { Z[a] += X[a]  where a % 2 == 0 }",
    "op f(X: f32[A]) -> (Z: f32[A + 1]) { Z[a + 1] += X[a] }",
    "op f(X: f32[A]) -> (Z: f32[A]) { Z[a] += (Z[a - 1] else 0) + X[a] }",
    "op f(X: f32[A], ids: i64[A]) -> (Z: f32[A]) { Z[ids[a]] += X[a] }",
    "op f(X: f32[A]) -> (Z: i64) { Z argmax= X[a] }",
    "op f(X: f32[A], Y: f32[A]) -> (Z: f32[A]) { Z[a] = X[a] * Y[a] }",
], ids=["a sum", "one of two", "some", "every other", "beside", "recurrent", "scattered", "a place", "plain"])
def test_others_stay_as_they_are(text):
    made = op(text)
    assert terms_alone(made) is made


VALUES = {
    OUTER: (lambda a, b: ((a,), (b,)), lambda x, y: np.outer(y, x)),
    BOTH: (lambda a, b: ((a,), (a, b)), lambda x, y: x[:, None] + y * y),
    SWAPPED: (lambda a, b: ((a, a), (a, a)), lambda x, y: np.maximum(x, y.T)),
    NARROW: (lambda a, b: ((a,), (b,)), lambda x, y: np.outer(y, x)),
    DOT: (lambda a, b: ((a, b), (a, 3)), lambda x, y: x.sum(1) * y.sum(1)),
}


@pytest.mark.parametrize("numerics", ["fast", "strict"])
@pytest.mark.parametrize("text", VALUES)
def test_values_are_those_of_the_text(text, numerics):
    f, (shapes, numpy) = polyop.op(text, options=polyop.Options(numerics=numerics)), VALUES[text]
    g = np.random.default_rng(5)
    for a, b in ((0, 3), (1, 1), (1, 17), (17, 1), (33, 5), (16, 65)):
        x, y = (g.integers(-9, 9, s).astype(np.float32) for s in shapes(a, b))
        if text is NARROW:
            ml_dtypes = pytest.importorskip("ml_dtypes")
            x, y = x.astype(ml_dtypes.bfloat16), y.astype(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(f(x, y), numpy(x, y))


def test_it_goes_on_from_what_a_caller_has():
    z, x = np.ones((5, 7), np.float32), np.arange(5, dtype=np.float32)
    polyop.op(INTO)(z, x)
    np.testing.assert_array_equal(z, 1 + np.broadcast_to(x[:, None], (5, 7)))


def test_nothing_is_filled_first():
    assert "Z_init" not in polyop.op(OUTER).compile().explain()
