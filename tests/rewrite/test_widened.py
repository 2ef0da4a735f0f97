"""Operands of 16-bit floats are widened before a product that uses them often, where no instruction takes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyop
from polyop.ir.expr import evaluate as value
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.target import target
from polyop.poly.wellformed import check
from polyop.rewrite.questions import questions
from polyop.rewrite.regimes import regime
from polyop.rewrite.widened import LEAST, ROWS, find_wide, widened
from polyop.runtime.loans import everyday
from tests.rewrite.ops import op

V4 = target("x86:x86-64-v4")
BRAIN = replace(V4, name="brain", features="+avx512bf16")
PRODUCT = "op f(A: f16[M, K], B: f16[K, N]) -> (C: f16[M, N]) { C[m, n] += A[m, k] * B[k, n] }"
TEXTS = {
    "product": PRODUCT,
    "turned": "op f(A: f16[K, M], B: f16[N, K]) -> (C: f32[M, N]) { C[m, n] += f32(B[n, k]) * f32(A[k, m]) }",
    "two sorts": "op f(A: bf16[M, K], B: f16[K, N]) -> (C: f32[M, N]) { C[m, n] += f32(A[m, k]) * f32(B[k, n]) }",
    "itself": "op f(A: f16[M, K]) -> (C: f32[M, M]) { C[m, n] += f32(A[m, k]) * f32(A[n, k]) }",
    "batches": "op f(A: f16[B, M, K], W: f16[K, N]) -> (C: f16[B, M, N]) { C[b, m, n] += A[b, m, k] * W[k, n] }",
    "border": """op f(X: f16[H, Q], W: f16[3, Q, N]) -> (C: f32[H, N]) {
        C[p, n] += f32((X[p + r - 1, q] else 0)) * f32(W[r, q, n])  where p in 0:H }""",
    "used again": """op f(A: f16[M, K], B: f16[K, N], s: f32[N]) -> (Y: f32[M, N]) {
        C[m, n] += f32(A[m, k]) * f32(B[k, n])
        Y[m, n] = C[m, n] * s[n] }""",
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_sum_is_that_of_the_text(name):
    o = op(TEXTS[name])
    (x,) = find_wide(o)
    for operands in ((x.left.source,), (x.right.source,), tuple(dict.fromkeys((x.left.source, x.right.source)))):
        made = widened(o, operands)
        check(made)
        for sizes in (dict.fromkeys(o.sizes, 3), {n: 1 + k for k, n in enumerate(o.sizes)}, dict.fromkeys(o.sizes, 0)):
            rng = np.random.default_rng(len(operands))
            arrays = {t.name: rng.integers(-9, 9, [value(e, sizes) for e in t.shape]).astype(t.dtype.numpy) for t in o.inputs}
            want, got = (evaluate(y, sizes, {}, arrays) for y in (o, made))
            for n, y in want.items():
                np.testing.assert_array_equal(got[n], y)


def test_widened_operands_stand_before_the_sum():
    assert [str(s).split("  where")[0] for s in widened(op(PRODUCT), ("A",)).steps][:2] == [
        "A_wide[A_0, A_1] = f32(A[A_0, A_1])", "C_sum[m, n] += (A_wide[m, k] * f32(B[k, n]))"]
    assert widened(op(PRODUCT), ()) == op(PRODUCT)


@pytest.mark.parametrize("text", [
    "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }",           # wide
    "op f(A: f16[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += f32(A[m, k]) * B[k, n] }",
    "op f(A: f16[M, K], B: f16[K, N]) -> (C: f32[M, N]) { C[m, n] max= f32(A[m, k]) * f32(B[k, n]) }",  # no sum
    "op f(A: f16[M, N], B: f16[M, N]) -> (C: f32[M, N]) { C[m, n] += f32(A[m, n]) * f32(B[m, n]) }",  # nothing is used again
    """op f(A: f16[M, K], B: f16[K, L], D: f16[L, N]) -> (E: f32[M, N]) {
        C[m, l] += f32(A[m, k]) * f32(B[k, l]); E[m, n] += C[m, l] * f32(D[l, n]) }""",  # two sums
])
def test_other_sums_stay(text):
    assert find_wide(op(text)) == ()


def options(text: str, t=V4, **sizes: int) -> Options:
    o = op(text)
    return regime(questions(o), sizes, Options(), t)


def test_which_calls_widen():
    assert options(PRODUCT, M=ROWS, N=LEAST, K=10).widened == ("A", "B")
    assert options(PRODUCT, M=ROWS - 1, N=LEAST, K=10).widened == ("A",)
    assert options(PRODUCT, M=LEAST - 1, N=1000, K=10).widened == () == options(PRODUCT, M=1000, N=LEAST - 1, K=10).widened
    brain = PRODUCT.replace("f16", "bf16")
    assert options(brain, BRAIN, M=500, N=500, K=500).widened == ()
    assert options(brain, V4, M=500, N=500, K=500).widened == ("A", "B")
    asked = replace(Options(), widened=("A",))
    assert everyday(asked, Options()).widened == ()


@pytest.mark.parametrize("m,k,n", [(ROWS, 33, LEAST), (200, 64, 100), (65, 17, 70), (193, 1, 65)])
@pytest.mark.parametrize("name", ["product", "turned", "two sorts", "itself"])
def test_calls_get_it_right(name, m, k, n):
    o, f = op(TEXTS[name]), polyop.op(TEXTS[name])
    rng = np.random.default_rng(m)
    sizes = {"M": m, "K": k, "N": n}
    arrays = {t.name: rng.integers(-4, 5, [value(e, sizes) for e in t.shape]).astype(t.dtype.numpy) for t in o.inputs}
    a, b = (x.astype(np.float64) for x in (arrays["A"], arrays.get("B", arrays["A"].T)))
    want = (a.T @ b.T) if name == "turned" else a @ b
    np.testing.assert_array_equal(f(*arrays.values()).astype(np.float64), want)
