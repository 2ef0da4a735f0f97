"""Few columns of a product are taken from a copy that lies by columns, which changes nothing that is computed."""

import numpy as np
import pytest

import polyop
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.span import Source
from polyop.ir.target import BY_NAME
from polyop.rewrite.copies.upright import columns_upright
from polyop.rewrite.regimes.questions import questions
from polyop.rewrite.regimes.regimes import kinds, regime, regimes_of

AVX512 = BY_NAME["x86:x86-64-v4"]


def op(text):
    return instantiate(parse(Source("<test>", text)), "f")


PRODUCT = op("op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }")
IMAGE = """op f(X: f32[H, W, C], F: f32[R, S, C, K]) -> (Y: f32[H - R + 1, W - S + 1, K]) where H >= R, W >= S {
    Y[p, q, k] += X[p + r, q + s, c] * F[r, s, c, k] }"""


def test_the_small_operand_is_copied_by_columns():
    made = columns_upright(PRODUCT, {"N": 4})
    copy, update = (str(s).split("  where")[0] for s in made.steps)
    assert copy == "B_upright[n, k] = B[k, n]" and update == "C[m, n] += (A[m, k] * B_upright[n, k])"
    assert columns_upright(PRODUCT, {}) == columns_upright(PRODUCT, {"M": 4}) == columns_upright(PRODUCT, {"N": 8}) == PRODUCT


def test_the_result_is_the_same():
    rng, sizes = np.random.default_rng(0), {"C": 5, "H": 6, "K": 3, "R": 2, "S": 3, "W": 7}
    arrays = {"X": rng.standard_normal((6, 7, 5)).astype(np.float32), "F": rng.standard_normal((2, 3, 5, 3)).astype(np.float32)}
    made = columns_upright(op(IMAGE), {"K": 4})
    assert str(made.steps[0]).startswith("F_upright[k, r, s, c] = F[r, s, c, k]")
    np.testing.assert_array_equal(evaluate(made, sizes, {}, arrays)["Y"], evaluate(op(IMAGE), sizes, {}, arrays)["Y"])


@pytest.mark.parametrize("text", [
    "op f(A: f32[K, M], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[k, m] * B[k, n] }",             # A lies along its rows
    "op f(A: f32[M, K], B: f32[K + 1, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k + 1, n] }",     # not from its start
    "op f(A: i32[M, K], B: i32[K, N]) -> (C: i32[M, N]) { C[m, n] += A[m, k] * B[k, n] }",             # no floats
    "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { b[k, n] = B[k, n] + 1\n C[m, n] += A[m, k] * b[k, n] }",
    "op f(B: f32[K, N]) -> (C: f32[N]) { C[n] += B[k, n] }",
])
def test_what_lies_another_way_stays(text):
    assert columns_upright(op(text), {"N": 4}) == op(text) and questions(op(text)).heads == ()


def test_calls_with_up_to_four_columns_ask_for_it():
    found = [regime(regimes_of(PRODUCT), {"K": 300, "M": 64, "N": n}, Options(), AVX512).few for n in (2, 4, 5)]
    assert found == [(("N", 4),), (("N", 4),), ()]
    assert "where N is at most 4" in kinds(PRODUCT)


@pytest.mark.parametrize("columns", [2, 3, 4])
@pytest.mark.parametrize("width", [9, 14])
def test_a_window_of_few_columns_shares_its_elements_with_four_rows(columns, width):
    rng, f = np.random.default_rng(1), polyop.op(IMAGE)
    x, w = rng.standard_normal((6, width, 37)).astype(np.float32), rng.standard_normal((3, 3, 37, columns)).astype(np.float32)
    want = sum(np.einsum("pqc,ck->pqk", x[r : r + 4, s : s + width - 2], w[r, s]) for r in range(3) for s in range(3))
    for _ in range(4):
        np.testing.assert_allclose(f(x, w), want, rtol=1e-4, atol=1e-4)
    assert "and q x 4" in "\n".join(f.compile(AVX512.name, options=Options(few=(("K", 4),))).notes)
