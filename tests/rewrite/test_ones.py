"""Fixing a size at 1 keeps what an operator computes, and takes its loops away."""

from __future__ import annotations

import numpy as np

from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.reference import evaluate
from polyop.ir.span import Source
from polyop.rewrite.ones import fix_at_one
from polyop.rewrite.regimes import is_short, narrow_sizes

MATMUL = instantiate(parse(Source("<test>", """
op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }
""")), "f")


def test_a_product_with_one_column_is_a_product_with_a_vector():
    fixed = fix_at_one(MATMUL, ("N",))
    assert fixed.steps[0].indices == ("m", "k")
    assert str(fixed.steps[0].target) == "C[m, 0]"
    assert fixed.sizes == MATMUL.sizes  # still arguments


def test_the_result_is_the_same():
    rng, sizes = np.random.default_rng(0), {"K": 3, "M": 4, "N": 1}
    arrays = {"A": rng.standard_normal((4, 3)).astype(np.float32), "B": rng.standard_normal((3, 1)).astype(np.float32)}
    for ones in (("N",), ("N", "M")):
        at = sizes | dict.fromkeys(ones, 1)
        cut = arrays | {"A": arrays["A"][: at["M"]]}
        got = evaluate(fix_at_one(MATMUL, ones), at, {}, cut)["C"]
        np.testing.assert_array_equal(got, evaluate(MATMUL, at, {}, cut)["C"])


def test_sizes_are_narrow_where_another_loop_could_have_the_lanes():
    assert narrow_sizes(MATMUL, {"K": 1, "M": 1, "N": 7}) == ()
    assert narrow_sizes(MATMUL, {"K": 3, "M": 3, "N": 1}) == ("N",)
    scaled = instantiate(parse(Source("<test>", "op f(X: f32[N]) -> (Y: f32[N]) { Y[n] = X[n] * 2 }")), "f")
    assert narrow_sizes(scaled, {"N": 1}) == ()  # there is no other loop
    middle = instantiate(parse(Source("<test>", "op f(X: f32[A, R, B]) -> (Y: f32[A, B]) { Y[a, b] += X[a, r, b] }")), "f")
    assert narrow_sizes(middle, {"A": 3, "R": 7, "B": 1}) == ("B",)


def test_a_convolution_on_few_columns_is_short_and_a_product_is_not():
    conv = instantiate(parse(Source("<test>", """
    op f(X: f32[C, H, W], F: f32[K, C, 3, 3]) -> (Y: f32[K, H, W]) {
        Y[k, p, q] += (X[c, p + r - 1, q + s - 1] else 0) * F[k, c, r, s] }""")), "f")
    sizes = {"C": 64, "H": 7, "K": 64}
    assert is_short(conv, sizes | {"W": 7}) and not is_short(conv, sizes | {"W": 56})
    assert not is_short(MATMUL, {"K": 64, "M": 64, "N": 7})  # nothing else would use a laid-out A again
