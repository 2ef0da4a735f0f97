"""Fixing a size at 1 keeps what an operator computes, and takes its loops away."""

from __future__ import annotations

import numpy as np

from polyop.compiler import compile_op
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.span import Source
from polyop.ir.target import BY_NAME
from polyop.known import Known, seen_as
from polyop.rewrite.ones import fix_sizes, without_single
from polyop.rewrite.regimes.questions import questions
from polyop.rewrite.regimes.regimes import narrow_sizes, regime, regimes_of
from polyop.runtime.bind import bind
from polyop.runtime.layout import contiguous
from tests.rewrite.ops import library

AVX512 = BY_NAME["x86:x86-64-v4"]
MATMUL = instantiate(parse(Source("<test>", """
op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }
""")), "f")


def test_a_product_with_one_column_is_a_product_with_a_vector():
    fixed = fix_sizes(MATMUL, {"N": 1})
    assert fixed.steps[0].indices == ("m", "k")
    assert str(fixed.steps[0].target) == "C[m, 0]"
    assert fixed.sizes == MATMUL.sizes  # still arguments


def test_the_result_is_the_same():
    rng, sizes = np.random.default_rng(0), {"K": 3, "M": 4, "N": 1}
    arrays = {"A": rng.standard_normal((4, 3)).astype(np.float32), "B": rng.standard_normal((3, 1)).astype(np.float32)}
    for ones in (("N",), ("N", "M")):
        at = sizes | dict.fromkeys(ones, 1)
        cut = arrays | {"A": arrays["A"][: at["M"]]}
        got = evaluate(fix_sizes(MATMUL, dict.fromkeys(ones, 1)), at, {}, cut)["C"]
        np.testing.assert_array_equal(got, evaluate(MATMUL, at, {}, cut)["C"])


def test_temporaries_lose_what_has_one_element():
    op = instantiate(parse(Source("<test>", """op f(A: f32[S, N], at: i64[N]) -> (Y: f32[S, N]) {
        t[i, j] = A[i, j] + 1
        top[i] max= t[i, j]
        Y[i, j] = t[i, at[j]] - top[i]
    }""")), "f")
    fixed, arrays = fix_sizes(op, {"S": 1}), {"A": np.float32([[3, 1, 2]]), "at": np.array([2, 0, 1])}
    assert {t.name: len(t.shape) for t in fixed.temporaries} == {"t": 1, "top": 0}
    np.testing.assert_array_equal(evaluate(fixed, {"S": 1, "N": 3}, {}, arrays)["Y"], [[-1, 0, -2]])


def test_what_the_text_says_is_one_has_no_loop():
    body = "e[n, k, c] = exp(X[n, k, c] - max[j](X[n, j, c])); Y[n, k, c] = e[n, k, c] / sum[j](e[n, j, c])"
    plain, single = (instantiate(parse(Source("<test>", f"op f(X: f32[N, K{c}]) -> (Y: f32[N, K{c}]) {{ {text} }}")), "f")
                     for c, text in (("", body.replace(", c]", "]")), (", 1", body)))
    got = without_single(single)
    assert [s.indices for s in got.steps] == [s.indices for s in plain.steps] != [s.indices for s in single.steps]
    assert [t.shape for t in got.temporaries] == [t.shape for t in plain.temporaries]
    x, sizes = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32), {"N": 3, "K": 5}
    want = evaluate(plain, sizes, {}, {"X": x})["Y"]
    np.testing.assert_array_equal(evaluate(got, sizes, {}, {"X": x[..., None]})["Y"][..., 0], want)
    assert without_single(plain) is plain


def test_a_sum_of_which_no_element_is_left_has_a_value_as_before():
    text = """op f(p: f32[S, N], g: f32[S]) -> (O: f32[S]) {
        z[i] += p[i, j] where j <= i + N - S
        O[i] = z[i] + g[i]
    }"""
    op, sizes = instantiate(parse(Source("<test>", text)), "f"), {"S": 4, "N": 1}
    fixed = fix_sizes(op, {"N": 1})
    assert fixed.steps[0].indices == ("i", "j")
    arrays = {"p": np.arange(4, dtype=np.float32).reshape(4, 1), "g": np.full(4, 5, np.float32)}
    np.testing.assert_array_equal(evaluate(fixed, sizes, {}, arrays)["O"], [5, 5, 5, 8])
    made = compile_op(fixed, contiguous(op), AVX512, Options(special=False))
    assert made.rung == "tuned"
    always = instantiate(parse(Source("<test>", text.replace("j <= i + N - S", "j <= i"))), "f")
    assert fix_sizes(always, {"N": 1}).steps[0].indices == ("i",)  # no sum is without an element
    rows = instantiate(parse(Source("<test>", text.replace("j <= i + N - S", "i >= 2").replace("z[i] + g", "g"))), "f")
    assert fix_sizes(rows, {"N": 1}).steps[0].indices == ("i",)  # of which rows there are sums is said as before


def test_sizes_are_narrow_where_another_loop_could_have_the_lanes():
    assert narrow_sizes(questions(MATMUL), {"K": 1, "M": 1, "N": 7}) == ()
    assert narrow_sizes(questions(MATMUL), {"K": 3, "M": 3, "N": 1}) == ("N",)
    scaled = instantiate(parse(Source("<test>", "op f(X: f32[N]) -> (Y: f32[N]) { Y[n] = X[n] * 2 }")), "f")
    assert narrow_sizes(questions(scaled), {"N": 1}) == ()  # there is no other loop
    middle = instantiate(parse(Source("<test>", "op f(X: f32[A, R, B]) -> (Y: f32[A, B]) { Y[a, b] += X[a, r, b] }")), "f")
    assert narrow_sizes(questions(middle), {"A": 3, "R": 7, "B": 1}) == ("B",)


def test_a_window_of_one_element_has_a_kernel_of_its_own():
    conv = instantiate(parse(Source("<test>", """
    op f(X: f32[C, H, W], F: f32[K, C, R, S]) -> (Y: f32[K, H - R + 1, W - S + 1]) {
        Y[k, p, q] += X[c, p + r, q + s] * F[k, c, r, s] }""")), "f")
    sizes = {"C": 64, "H": 56, "W": 56, "K": 64}
    for r, s, ones in ((1, 1, ("R", "S")), (1, 3, ("R",)), (3, 3, ())):
        assert regime(regimes_of(conv), sizes | {"R": r, "S": s}, Options(), AVX512).ones == ones
    assert questions(MATMUL).windows == ()


def test_a_single_row_is_a_fixed_size():
    ones = [regime(regimes_of(MATMUL), {"K": 64, "M": rows, "N": 70}, Options(), AVX512).ones for rows in (1, 2)]
    assert ones == [("M",), ()]
    biased = instantiate(parse(Source("<test>", """
    op f(A: f32[M, K], B: f32[K, N], b: f32[N]) -> (C: f32[M, N]) {
        C[m, n] += A[m, k] * B[k, n]
        C[m, n] += b[n] }""")), "f")
    assert questions(biased).single == ()


def test_a_known_window_leaves_what_is_computed():
    sliding = instantiate(parse(Source("<test>", """
    op f(X: f32[N, D], W: f32[R, D]) -> (Y: f32[N - R + 1, D]) where N >= R { Y[i, d] += X[i + r, d] * W[r, d] }""")), "f")
    fixed, rng = fix_sizes(sliding, {"R": 3}), np.random.default_rng(1)
    arrays = {"X": rng.standard_normal((9, 5)).astype(np.float32), "W": rng.standard_normal((3, 5)).astype(np.float32)}
    sizes = {"D": 5, "N": 9, "R": 3}
    np.testing.assert_array_equal(evaluate(fixed, sizes, {}, arrays)["Y"], evaluate(sliding, sizes, {}, arrays)["Y"])
    assert "R" not in {n for r in fixed.steps[0].ranges for n in (*map(str, (r.lower, r.upper)),)}
    assert len(fixed.facts) == len(sliding.facts) + 1


def test_windows_of_one_element_are_put_in_though_nothing_is_one_dimension_then():
    conv, x = library("conv", "conv2d", consts={"stride": 2}), np.ones((1, 3, 9, 9), np.float32)
    for window, found in ((1, ("R", "S")), (2, ())):
        bound = bind(conv, {"X": x, "F": np.ones((4, 3, window, window), np.float32)})
        known = Known(conv)
        merged = known.merged(bound, special=True)
        seen = seen_as(bound, merged.flat)
        assert seen.op is merged.flat.op and merged.questions.windows == tuple(n for n in ("R", "S") if n not in found)
        assert seen.sizes == bound.sizes and {n: v.strides for n, v in seen.views.items()} == {
            n: v.strides for n, v in bound.views.items()}
