"""Numbers that the operator computes and reads under a condition: they have no positions, but the condition names indices."""

import numpy as np
import pytest

import polyop
from polyop.ir.reference import evaluate
from polyop.poly.wellformed import check
from polyop.rewrite.sums.cascade import cascaded
from tests.rewrite.ops import op

N = 17
A, B = np.random.default_rng(0).integers(-3, 4, (2, N, N)).astype(np.float32)
LOWER = np.tri(N, dtype=bool)
TEXTS = {
    "(k <= j ? t : 2) * A[i, k]": A.astype(np.float64) @ np.where(LOWER.T, 6, 2),
    "A[i, k] * (j <= k ? t : B[k, j])": A.astype(np.float64) @ np.where(LOWER, 6, B),
    "relu(A[i, k]) * B[k, j] * (j <= k ? t : 1)": np.maximum(A, 0).astype(np.float64) @ np.where(LOWER, 6 * B, B),
}


@pytest.mark.parametrize("text", TEXTS)
def test_they_are_multiplied(text):
    given = "A: f32[N, N], B: f32[N, N], q: f32[L]"
    f = polyop.op(f"op f({given}) -> (Y: f32[N, N]) {{\n    t max= 2 * q[l]\n    Y[i, j] += {text}\n}}")
    np.testing.assert_array_equal(f(A, B, np.float32([1, 3, -2])), TEXTS[text])


@pytest.mark.parametrize("term", ["(j < i ? t : 1) * X[i, j]", "(j < i ? t : X[i, j])"])
def test_rows_of_them_are_done_in_blocks(term):
    o = op(f"""op f(X: f32[M, N], q: f32[L]) -> (Y: f32[M]) {{
        t: f32[]
        t max= 2 * q[l]
        m[i] max= {term} where i in 0:M, j in 0:N
        Y[i] += exp({term} - m[i]) where i in 0:M, j in 0:N }}""")
    made, sizes = cascaded(o), {"M": N, "N": N, "L": 3}
    check(made)
    arrays = {"X": A, "q": np.float32([1, 3, -2])}
    want, got = (evaluate(x, sizes, {}, arrays) for x in (o, made))
    assert made is not o
    np.testing.assert_allclose(got["Y"], want["Y"], rtol=1e-5)
