"""Fixing a size at 1 keeps what an operator computes, and takes its loops away."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import polyop
from polyop.compiler import compile_op
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.options import SHORT, TURNED, Options
from polyop.ir.reference import evaluate
from polyop.ir.registers import MISSING, fitting_height, fitting_pair, height_beside, register_tile, time, usual_beside
from polyop.ir.span import Source
from polyop.ir.target import BY_NAME
from polyop.known import Known, seen_as
from polyop.rewrite.copy_regimes import AT_HAND, AT_ONCE, AWAY, FEW
from polyop.rewrite.ones import fix_sizes
from polyop.rewrite.questions import questions
from polyop.rewrite.regimes import kinds, narrow_sizes, regime, regimes_of
from polyop.rewrite.row_regimes import LONG
from polyop.rewrite.scans import find_abreast
from polyop.rewrite.taps import along_taps, find_taps
from polyop.rewrite.tile_regimes import BRIEF, few_rows, has_strip, passes_by, shortness, tile_height
from polyop.runtime.bind import bind
from polyop.runtime.layout import contiguous
from tests.rewrite.ops import library

AVX512 = BY_NAME["x86:x86-64-v4"]
AVX2 = BY_NAME["x86:x86-64-v3"]
XEON = BY_NAME["x86:sapphirerapids"]
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


def test_a_convolution_on_few_columns_is_short_and_a_product_is_not():
    conv = instantiate(parse(Source("<test>", """
    op f(X: f32[C, H, W], F: f32[K, C, 3, 3]) -> (Y: f32[K, H, W]) {
        Y[k, p, q] += (X[c, p + r - 1, q + s - 1] else 0) * F[k, c, r, s] }""")), "f")
    sizes = {"C": 64, "H": 7, "K": 64}
    assert shortness(questions(conv), sizes | {"W": 7}, AVX512) and not shortness(questions(conv), sizes | {"W": 112}, AVX512)
    assert not shortness(questions(MATMUL), {"K": 64, "M": 64, "N": 7}, AVX512)  # nothing else would use a laid-out A again


@pytest.mark.parametrize("channels,filters,width,turned", [
    (64, 64, 56, True),    # 7 vectors are two tiles of 3 and one of 1
    (128, 128, 28, True),  # lanes are missing in the last of 4
    (20, 40, 22, True),    # so they are here, where all else stays in L1
    (16, 64, 24, False),   # 3 vectors are one tile, and what a tile reads stays in L1
    (64, 4, 56, False),    # fewer filters than two vectors have lanes
])
def test_lanes_run_along_filters_where_narrow_vectors_leave_rows_of_an_image_too_empty(channels, filters, width, turned):
    conv = instantiate(parse(Source("<test>", """
    op f(X: f32[C, H, W], F: f32[K, C, 3, 3]) -> (Y: f32[K, H, W]) {
        Y[k, p, q] += (X[c, p + r - 1, q + s - 1] else 0) * F[k, c, r, s] }""")), "f")
    sizes = {"C": channels, "H": width, "K": filters, "W": width}
    assert shortness(questions(conv), sizes, AVX2) == (TURNED if turned else 0)


def test_a_window_of_one_element_has_a_kernel_of_its_own():
    conv = instantiate(parse(Source("<test>", """
    op f(X: f32[C, H, W], F: f32[K, C, R, S]) -> (Y: f32[K, H - R + 1, W - S + 1]) {
        Y[k, p, q] += X[c, p + r, q + s] * F[k, c, r, s] }""")), "f")
    sizes = {"C": 64, "H": 56, "W": 56, "K": 64}
    for r, s, ones in ((1, 1, ("R", "S")), (1, 3, ("R",)), (3, 3, ())):
        assert regime(regimes_of(conv), sizes | {"R": r, "S": s}, Options(), AVX512).ones == ones
    assert questions(MATMUL).windows == ()


def test_lanes_run_along_another_loop_where_rows_leave_too_many_of_them_empty():
    conv = instantiate(parse(Source("<test>", """
    op f(X: f32[B, C, H, W], F: f32[K, C, 3, 3]) -> (Y: f32[B, K, H, W]) {
        Y[b, k, p, q] += (X[b, c, p + r - 1, q + s - 1] else 0) * F[k, c, r, s] }""")), "f")
    for b, c, w, found, height in ((1, 512, 7, TURNED, 7), (8, 256, 14, TURNED, 7), (1, 64, 56, TURNED, 4), (1, 64, 112, 0, 0),
                                   (1, 9, 4, TURNED, 4), (1, 16, 14, SHORT, 0), (1, 20, 14, SHORT, 10), (1, 28, 14, SHORT, 7),
                                   (1, 16, 28, 0, 8), (1, 16, 7, TURNED, 7), (1, 17, 8, TURNED, 8), (1, 16, 9, SHORT, 0),
                                   (1, 15, 8, SHORT, 5)):
        o = regime(regimes_of(conv), {"B": b, "C": c, "K": c, "H": w, "W": w}, Options(), AVX512)
        assert (o.short, o.height) == (found, height)


def test_lanes_run_along_another_loop_where_copies_of_windows_would_pick_elements_that_lie_apart():
    def found(step: int, k: int, r: int) -> int:
        conv = instantiate(parse(Source("<test>", f"""
        op f(X: f32[C, H, W], F: f32[K, C, R, R]) -> (Y: f32[K, (H - R) / {step} + 1, (W - R) / {step} + 1])
            where R >= 1, H >= R, W >= R {{
            Y[k, p, q] += X[c, {step}*p + r, {step}*q + s] * F[k, c, r, s] }}""")), "f")
        rows = 111 * step + r
        return regime(regimes_of(conv), {"C": 3, "K": k, "R": r, "H": rows, "W": rows}, Options(), AVX512).short

    assert (found(1, 64, 7), found(2, 64, 7)) == (0, TURNED)
    assert found(2, 64, 3) == found(2, 31, 7) == 0  # few terms for results that are turned, few rows to run along


def test_few_rows_are_counted_where_a_product_would_use_its_right_operand_again():
    for rows, found in ((1, 1), (2, 4), (4, 4), (5, 8), (8, 8), (9, 0)):
        assert few_rows(questions(MATMUL), {"K": 64, "M": rows, "N": 7}) == found
        assert few_rows(questions(MATMUL), {"K": 64, "M": rows, "N": 7}, masks=False) == (rows if found else 0)
    batched = instantiate(parse(Source("<test>", """
    op f(A: f32[B, P, Q, K], X: f32[B, K, N]) -> (C: f32[B, P, Q, N]) { C[b, p, q, n] += A[b, p, q, k] * X[b, k, n] }""")), "f")
    assert few_rows(questions(batched), {"B": 50, "P": 2, "Q": 3, "K": 9, "N": 5}) == 8
    assert few_rows(questions(batched), {"B": 1, "P": 4, "Q": 3, "K": 9, "N": 5}) == 0


def test_a_single_row_is_a_fixed_size():
    ones = [regime(regimes_of(MATMUL), {"K": 64, "M": rows, "N": 70}, Options(), AVX512).ones for rows in (1, 2)]
    assert ones == [("M",), ()]
    biased = instantiate(parse(Source("<test>", """
    op f(A: f32[M, K], B: f32[K, N], b: f32[N]) -> (C: f32[M, N]) {
        C[m, n] += A[m, k] * B[k, n]
        C[m, n] += b[n] }""")), "f")
    assert questions(biased).single == ()


def test_lanes_run_along_rows_where_columns_are_few_and_the_left_operand_lies_so():
    upright = instantiate(parse(Source("<test>", """
    op f(A: f32[K, M], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[k, m] * B[k, n] }""")), "f")
    for m, n, found in ((100, 2, TURNED), (100, 64, TURNED), (100, 65, 0), (30, 40, 0), (8, 3, 0)):
        assert regime(regimes_of(upright), {"K": 9, "M": m, "N": n}, Options(), AVX512).short == found
    assert "more rows" in " ".join(kinds(upright)) and not questions(MATMUL).upright


def test_the_sizes_of_little_products_are_known_where_there_are_many_of_them():
    def known(text, **sizes):
        op = instantiate(parse(Source("<test>", f"op f{text}")), "f")
        return dict(regime(regimes_of(op), sizes, Options(), AVX512).fixed)

    many = "(A: f32[B, M, K], W: f32[B, K, N]) -> (C: f32[B, M, N]) { C[b, m, n] += A[b, m, k] * W[b, k, n] }"
    assert known(many, B=99, M=4, N=64, K=3) == {"M": 4, "N": 64, "K": 3} and known(many, B=9, M=4, N=65, K=3) == {}
    some = "(A: f32[B, M, 5], W: f32[B, 5, N]) -> (C: f32[B, M, N]) { C[b, m, n] += A[b, m, k] * W[b, k, n] }"
    assert known(some, B=99, M=4, N=16) == {"M": 4, "N": 16}
    one = "(A: f32[M, K], W: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * W[k, n] }"
    assert known(one, M=4, N=16, K=3) == {}
    two = """(A: f32[B, M, K], W: f32[B, K, N], V: f32[B, N, N]) -> (C: f32[B, M, N]) {
        T[b, m, n] += A[b, m, k] * W[b, k, n]
        C[b, m, n] += T[b, m, j] * V[b, j, n] }"""
    assert known(two, B=9, M=4, N=16, K=3) == {"M": 4, "N": 16, "K": 3} and known(two, B=9, M=4, N=17, K=3) == {}
    window = "(X: f32[B, M], W: f32[B, K, N]) -> (C: f32[B, M, N]) { C[b, m, n] += (X[b, m - k] else 0) * W[b, k, n] }"
    assert known(window, B=99, M=4, N=16, K=3) == {}
    op = instantiate(parse(Source("<test>", f"op f{many}")), "f")
    assert "where M and N and K are all at most 64, one for each" in " ".join(kinds(op))


def test_rows_that_leave_the_first_cache_lie_in_the_results_made_of_them():
    op = instantiate(parse(Source("<test>", """
    op f(X: f32[R, C]) -> (Y: f32[R, C]) { e[r, c] = exp(X[r, c]); s[r] += e[r, c]; Y[r, c] = e[r, c] / s[r] }""")), "f")
    longest = AVX512.l1 // LONG // 4
    assert [regime(regimes_of(op), {"R": 9, "C": c}, Options(), AVX512).lent for c in (longest, longest + 1)] == [False, True]
    assert "in which rows that are kept before they become a result are long" in kinds(op)


def test_small_windows_along_rows_of_the_result_are_known():
    depthwise = instantiate(parse(Source("<test>", """
    op f(X: f32[C, H, W], F: f32[C, R, S]) -> (Y: f32[C, H - R + 1, W - S + 1]) where H >= R, W >= S {
        Y[c, p, q] += X[c, p + r, q + s] * F[c, r, s] }""")), "f")
    sizes = {"C": 64, "H": 30, "W": 30}
    for r, s, found in ((3, 5, {"R": 3, "S": 5}), (8, 8, {"R": 8, "S": 8}), (9, 3, {"S": 3}), (1, 3, {"S": 3}), (1, 9, {})):
        assert dict(regime(regimes_of(depthwise), sizes | {"R": r, "S": s}, Options(), AVX512).fixed) == found
    assert "where R is one of 2 to 8" in kinds(depthwise)
    last = instantiate(parse(Source("<test>", """
    op f(X: f32[H, W, C], F: f32[R, S, C]) -> (Y: f32[H - R + 1, W - S + 1, C]) where H >= R, W >= S {
        Y[p, q, c] += X[p + r, q + s, c] * F[r, s, c] }""")), "f")
    assert questions(last).slides == ("R", "S") and len(questions(last).slid) == 1
    dense = instantiate(parse(Source("<test>", """
    op f(X: f32[C, H, W], F: f32[K, C, R, S]) -> (Y: f32[K, H - R + 1, W - S + 1]) where H >= R, W >= S {
        Y[k, p, q] += X[c, p + r, q + s] * F[k, c, r, s] }""")), "f")
    assert questions(dense).slides == ()  # a product of matrices, which is packed


def test_a_known_window_leaves_what_is_computed():
    sliding = instantiate(parse(Source("<test>", """
    op f(X: f32[N, D], W: f32[R, D]) -> (Y: f32[N - R + 1, D]) where N >= R { Y[i, d] += X[i + r, d] * W[r, d] }""")), "f")
    fixed, rng = fix_sizes(sliding, {"R": 3}), np.random.default_rng(1)
    arrays = {"X": rng.standard_normal((9, 5)).astype(np.float32), "W": rng.standard_normal((3, 5)).astype(np.float32)}
    sizes = {"D": 5, "N": 9, "R": 3}
    np.testing.assert_array_equal(evaluate(fixed, sizes, {}, arrays)["Y"], evaluate(sliding, sizes, {}, arrays)["Y"])
    assert "R" not in {n for r in fixed.steps[0].ranges for n in (*map(str, (r.lower, r.upper)),)}
    assert len(fixed.facts) == len(sliding.facts) + 1


def test_few_columns_of_dot_products_are_counted():
    dots = instantiate(parse(Source("<test>", """
    op f(A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }""")), "f")
    sizes = ({"K": 9, "M": m, "N": n} for m, n in ((99, 2), (99, 4), (99, 5), (4, 3)))
    found = [regime(regimes_of(dots), s, Options(), AVX512).few for s in sizes]
    assert found == [(("N", 4),), (("N", 4),), (), ()]
    assert "where N is at most 4" in kinds(dots)


def test_a_strip_is_a_sum_of_rows_that_stays_in_registers():
    columns = instantiate(parse(Source("<test>", "op f(X: f32[N, B]) -> (S: f32[B]) { S[b] += X[n, b] }")), "f")
    q = questions(columns)
    assert has_strip(q, {"N": 3, "B": 64}, False) and not has_strip(q, {"N": 3, "B": 65}, False)
    q = questions(MATMUL)
    assert has_strip(q, {"K": 3, "M": 1, "N": 64}, True) and not has_strip(q, {"K": 3, "M": 64, "N": 64}, False)


def test_a_strip_is_told_of_a_contraction_only_where_its_one_row_is_not_packed():
    found = [regime(regimes_of(MATMUL), {"K": 9, "M": m, "N": 64}, Options(), AVX512) for m in (1, 2, 8)]
    assert [(x.rows, x.strip) for x in found] == [(1, True), (0, False), (0, False)]


@given(st.fixed_dictionaries({x: st.integers(1, 70) for x in "KMN"}))
def test_a_regime_differs_only_where_the_operator_says_so(sizes):
    relu = instantiate(parse(Source("<test>", "op f(X: f32[K]) -> (Y: f32[K]) { Y[k] = relu(X[k]) }")), "f")
    assert regime(regimes_of(relu), sizes, Options(), AVX512) == Options() and kinds(relu) == ("with an empty size",)
    found = regime(regimes_of(MATMUL), sizes, Options(), AVX512)
    words = " ".join(kinds(MATMUL))
    assert ("N" in found.ones) == (sizes["N"] == 1) and "N is 1" in words
    assert bool(found.rows) <= (sizes["M"] <= 8) and "at most 8" in words
    assert found.strip <= (sizes["M"] <= 8) and found.short == 0 and "bytes" in words
    waits = (sizes["N"] - 1) // 16 % 4 == 0  # the last tile of a row has one vector, and six sums are too few
    narrow = 16 < sizes["N"] <= 32  # tiles are as tall as two vectors of sums allow
    assert not (found.height and (found.rows or (sizes["M"] % 6 == 0 and not waits and not narrow))) and "tiles" in words


@pytest.mark.parametrize(("rows", "columns", "threads", "paged"), [
    (1, 2048, 2, True), (1, 2047, 2, False), (1, 4096, 1, False), (1, 4096, 8, False), (8, 8192, 8, True), (9, 8192, 2, False)])
def test_threads_take_pages_of_rows_that_have_one_for_each(rows, columns, threads, paged):
    """The right operand of a product with few rows is read so; with more it is packed."""
    found = regime(regimes_of(MATMUL), {"K": 64, "M": rows, "N": columns}, Options(), AVX512, threads)
    assert found.paged is paged


@pytest.mark.parametrize(("rows", "columns", "threads", "broad"), [
    (1024, 512, 2, True), (1023, 512, 2, False), (1024, 512, 3, False), (1024, 512, 1, False), (256, 2048, 2, True),
    (255, 4096, 2, False), (100000, 65, 2, True), (100000, 64, 2, False)])
def test_threads_copy_more_columns_each_where_they_have_many_rows(rows, columns, threads, broad):
    sizes = {"K": 64, "M": rows, "N": columns}
    assert regime(regimes_of(MATMUL), sizes, Options(), AVX512, threads).broad is broad
    across = "op f(A: f32[K, M], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[k, m] * B[k, n] }"  # A is copied
    below = "op f(A: f32[M, M], B: f32[M, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] where k < m }"
    for text in (across, below):
        q = regimes_of(instantiate(parse(Source("<test>", text)), "f"))
        assert not regime(q, sizes, Options(), AVX512, threads).broad


@pytest.mark.parametrize(("rows", "columns", "terms", "threads", "flat"), [
    (512, 512, 8, 1, True), (512, 512, 9, 1, False), (511, 512, 8, 1, False), (512, 512, 8, 2, False), (1024, 512, 1, 2, True),
    (255, 4096, 8, 1, False), (256, 4096, 8, 2, True)])
def test_blocks_have_more_columns_where_many_results_are_short_sums(rows, columns, terms, threads, flat):
    sizes = {"K": terms, "M": rows, "N": columns}
    assert regime(regimes_of(MATMUL), sizes, Options(), AVX512, threads).flat is flat
    assert any("at most 8 terms" in k for k in kinds(MATMUL))


@pytest.mark.parametrize(("rows", "terms", "threads", "slim"), [
    (FEW, 512, 1, True), (FEW + 1, 512, 1, False), (9, 512, 1, True), (8, 512, 1, False), (FEW, 512, 2, False),
    (FEW, 128, 1, False), (FEW, 4681, 1, True), (FEW, 4682, 1, False)])
def test_blocks_are_slim_where_few_rows_stay_in_the_second_cache(rows, terms, threads, slim):
    """1,024 kB of A and no more; more than 2,048 of B; and with one to eight rows nothing is copied."""
    sizes = {"M": rows, "K": terms, "N": 2048}
    assert regime(regimes_of(MATMUL), sizes, Options(), XEON, threads).slim is slim
    lies = "op f(A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }"  # copied by squares
    pages = "op f(A: f32[M, K], B: f32[K, N, J]) -> (C: f32[M, N, J]) { C[m, n, j] += A[m, k] * B[k, n, j] }"
    for text in (lies, pages):
        q = regimes_of(instantiate(parse(Source("<test>", text)), "f"))
        assert not regime(q, sizes | {"J": 64}, Options(), XEON, threads).slim


@pytest.mark.parametrize(("change", "bare"), [
    ({}, True), ({"M": AT_HAND + 1}, False), ({"M": 9}, True), ({"M": 8}, False), ({"N": 512}, False),
    ({"N": 512, "M": AT_ONCE}, True), ({"N": 512, "M": AT_ONCE + 1}, False), ({"K": 1310}, True), ({"K": 1311}, False),
    ({"threads": 2}, True)])
def test_columns_are_read_where_they_lie_where_few_rows_use_what_a_cache_holds(change, bare):
    """1,536 kB at most; rows of 2 kB fall on each other in L1."""
    sizes = {"M": AT_HAND, "K": 64, "N": 300} | change
    threads = sizes.pop("threads", 1)
    assert regime(regimes_of(MATMUL), sizes, Options(), XEON, threads).bare is bare
    assert any("32 rows use an operand that lies along columns" in k for k in kinds(MATMUL))
    lies = "op f(A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }"
    batches = "op f(A: f32[P, M, K], B: f32[P, K, N]) -> (C: f32[P, M, N]) { C[p, m, n] += A[p, m, k] * B[p, k, n] }"
    for text, found in ((lies, False), (batches, bare)):
        q = regimes_of(instantiate(parse(Source("<test>", text)), "f"))
        assert regime(q, sizes | {"P": 99}, Options(), XEON, threads).bare is found


@pytest.mark.parametrize(("change", "streamed"), [
    ({}, True), ({"M": AWAY + 1}, False), ({"M": 9}, True), ({"M": 8}, False), ({"N": 2048}, False), ({"N": 2049}, True),
    ({"threads": 2}, True)])
def test_rows_share_the_way_of_what_comes_from_memory_for_few_of_them(change, streamed):
    """More than 16 MB of the last cache."""
    sizes = {"M": AWAY, "K": 2048, "N": 4096} | change
    threads, target = sizes.pop("threads", 1), replace(XEON, l3=16 << 20)
    found = regime(regimes_of(MATMUL), sizes, Options(), target, threads)
    assert found.streamed is streamed and not found.bare
    assert any("32 rows use an operand that lies along columns, which exceeds the last cache" in k for k in kinds(MATMUL))
    lies = "op f(A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }"
    assert not regime(regimes_of(instantiate(parse(Source("<test>", lies)), "f")), sizes, Options(), target, threads).streamed


@pytest.mark.parametrize(("text", "threads", "bare"), [
    ("A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }", 1, True),
    ("A: f64[M, K, L], B: f64[K, L, N]) -> (C: f64[M, N]) { C[m, n] += A[m, k, l] * B[k, l, n] }", 2, True),
    ("A: f32[K, M], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[k, m] * B[k, n] }", 1, True),
    ("A: f32[K, M], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[k, m] * B[k, n] }", 2, False),  # rows are copied anyway
    ("A: i8[M, K], B: i8[K, N]) -> (C: i32[M, N]) { C[m, n] += i32(A[m, k]) * i32(B[k, n]) }", 1, False),
    ("A: bf16[M, K], B: bf16[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }", 1, False),
    ("A: f32[M, K], B: f32[K, N], D: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * (B[k, n] + D[k, n]) }", 1, False),
    ("A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }", 1, False)])
def test_a_kernel_that_reads_columns_where_they_lie_is_asked_for_where_it_is_another_one(text, threads, bare):
    o = instantiate(parse(Source("<test>", f"op f({text}")), "f")
    sizes = {n: x for n, x in {"M": 20, "N": 100, "K": 60, "L": 5}.items() if n in o.sizes}
    for name, target in (("bare", XEON), ("streamed", replace(XEON, l2=1024, l3=4096))):
        asked = regime(regimes_of(o), sizes, Options(), target, threads)
        assert getattr(asked, name) is bare
        both = (compile_op(o, contiguous(o), target, replace(asked, **{name: b})) for b in (True, False))
        so, else_ = (str(x.trace["final"]) for x in both)
        assert (so != else_) is bare


@pytest.mark.parametrize(("change", "direct"), [
    ({}, True), ({"M": 255}, True), ({"M": 256}, False), ({"N": 256}, True), ({"N": 257}, False), ({"K": 384}, True),
    ({"K": 385}, False), ({"threads": 2}, False)])
def test_rows_that_lie_along_an_operand_are_read_there_where_few_columns_use_few_lines(change, direct):
    """Up to a KB from line to line, which are 24 KB at most."""
    sizes = {"M": 64, "K": 64, "N": 64} | change
    threads = sizes.pop("threads", 1)
    for end, lies in (("k, n", "K, N"), ("n, k", "N, K")):
        text = f"op f(A: f32[K, M], B: f32[{lies}]) -> (C: f32[M, N]) {{ C[m, n] += A[k, m] * B[{end}] }}"
        o = instantiate(parse(Source("<test>", text)), "f")
        assert regime(regimes_of(o), sizes, Options(), XEON, threads).direct is direct
        assert any("256 columns use an operand that lies along rows" in k for k in kinds(o))
    assert not regime(regimes_of(MATMUL), sizes, Options(), XEON, threads).direct


@pytest.mark.parametrize("name", ["conv2d", "conv2d_nhwc"])
def test_blocks_are_slim_where_a_window_reads_an_image_that_stays(name):
    op = library("conv", name)
    q = regimes_of(op)
    sizes = {"B": 1, "C": 256, "K": 256, "H": 14, "W": 14, "R": 3, "S": 3}
    for change, slim in (({}, True), ({"K": 64}, False), ({"B": 8}, False), ({"R": 1, "S": 1}, False)):
        assert regime(q, sizes | change, Options(), XEON).slim is slim, change
    assert any("stay in L2" in k for k in kinds(op))


@pytest.mark.parametrize(("hidden", "columns", "paged"), [(4096, 4096, True), (4096, 768, False), (768, 4096, False)])
def test_pages_are_for_kernels_whose_rows_all_have_enough(hidden, columns, paged):
    """768 columns would be one piece of work: half of the threads had nothing to do."""
    text = """op f(X: f32[M, K], V: f32[K, H], W: f32[H, N]) -> (Y: f32[M, N]) {
        h[m, i] += X[m, k] * V[k, i]
        Y[m, n] += h[m, i] * W[i, n]
    }"""
    two = regimes_of(instantiate(parse(Source("<test>", text)), "f"))
    assert regime(two, {"M": 1, "K": 64, "H": hidden, "N": columns}, Options(), AVX512, 2).paged is paged


@pytest.mark.parametrize(("body", "rows", "columns", "abreast"), [
    ("(Y[m, n-1] else 0) + X[m, n]", 8, 100, True), ("(Y[m, n-1] else 0) + X[m, n]", 7, 100, False),
    ("(Y[m, n-1] else 0) + X[m, n]", 8, 8193, False), ("(Y[m, n-1] else 1) * X[m, n]", 100, 8192, True),
    ("max((Y[m, n-1] else X[m, n]), X[m, n])", 100, 100, False), ("(Y[m-1, n] else 0) + X[m, n]", 100, 100, False),
    ("(Y[m, n+1] else 0) + X[m, n]", 100, 100, False)])
def test_running_sums_of_enough_rows_that_stay_in_a_cache_go_abreast(body, rows, columns, abreast):
    """A maximum always does; what runs down columns, or back, never."""
    op = instantiate(parse(Source("<test>", f"op f(X: f32[M, N]) -> (Y: f32[M, N]) {{ Y[m, n] = {body} }}")), "f")
    found = regime(regimes_of(op), {"M": rows, "N": columns}, Options(), AVX512)
    assert found == replace(Options(), abreast=abreast)
    assert any("running sums" in k for k in kinds(op)) is bool(find_abreast(op))


def test_a_sum_along_the_last_index_has_no_strips():
    rows = instantiate(parse(Source("<test>", "op f(X: f32[K, N]) -> (S: f32[K]) { S[k] += X[k, n] }")), "f")
    assert regime(regimes_of(rows), {"K": 3, "N": 9}, Options(), AVX512) == Options()


LSTM = instantiate(parse(Source("<test>", """
op f(W: f32[H, H], h: f32[B, H], X: f32[L, B, H]) -> (Y: f32[L, B, H]) {
    z: f32[L, B, H]
    z[t, b, g] += (Y[t-1, b, k] else h[b, k]) * W[g, k]
    Y[t, b, g]  = z[t, b, g] + X[t, b, g] }""")), "f")


def test_rows_in_each_turn_of_a_recurrence_are_counted_without_its_steps():
    for rows, found in ((1, 1), (3, 4), (16, 16), (17, 32), (33, None)):
        few = regime(regimes_of(LSTM), {"L": 100, "B": rows, "H": 64}, Options(), AVX512).few
        assert few == ((("B", found),) if found else ())
    assert "where B is 1, at most 4, 8, 16, or 32" in kinds(LSTM)
    assert questions(MATMUL).turns == ()


def test_a_chain_of_products_is_no_recurrence():
    chain = instantiate(parse(Source("<test>", """
    op f(X: f32[M, K], W: f32[K, N], V: f32[N, N]) -> (Z: f32[M - 1, N]) {
        y: f32[M, N]
        y[m, n] += X[m, k] * W[k, n]
        Z[m, n] += y[m + 1, k] * V[k, n] }""")), "f")
    assert questions(chain).turns == ()


def test_a_tile_of_another_height_is_for_rows_that_it_fills():
    assert register_tile(AVX512, 16) == (6, 4) and register_tile(AVX512, 16, height=7) == (7, 3)
    assert fitting_height(AVX512, 16, 7, 512) == fitting_height(AVX512, 16, 14, 256) == 7
    assert fitting_height(AVX512, 16, 16, 1000) == 8 and fitting_height(AVX512, 16, 10, 64) == 5
    assert fitting_height(AVX512, 16, 12, 64) == fitting_height(AVX512, 16, 1000, 1000) == 0
    assert fitting_height(AVX512, 16, 56, 64) == 4 and fitting_height(AVX512, 16, 56, 128) == 8  # as full, and read half as often


def test_tiles_of_two_short_rows_have_as_many_rows_as_registers_allow_or_fit():
    avx2 = BY_NAME["x86:x86-64-v3"]
    assert [height_beside(AVX512, m) for m in (7, 8, 12, 16, 20, 24, 28, 1000)] == [7, 0, 6, 0, 10, 0, 7, 0]
    assert usual_beside(AVX512) == 8 and usual_beside(avx2) == 6 and height_beside(avx2, 20) == 5
    for t, rows in ((AVX512, 10), (avx2, 6)):
        assert register_tile(t, t.lanes(4), most=1, second=2, height=rows) == (rows, 1)


def test_a_tile_of_two_vectors_in_all_is_as_tall_as_registers_allow():
    assert [fitting_height(AVX512, 16, 20, n, tall=True) for n in (16, 17, 24, 32, 33)] == [7, 10, 10, 10, 5]
    assert [fitting_height(AVX512, 16, m, 24, tall=True) for m in (12, 13, 400)] == [12, 13, 14]
    assert fitting_height(AVX512, 16, 20, 24) == 5
    text = "op f(A: f32[I, J, K], B: f32[K, N]) -> (C: f32[J, I, N]) { C[j, i, n] += A[i, j, k] * B[k, n] }"
    two = questions(instantiate(parse(Source("<test>", text)), "f"))
    assert [tile_height(two, {"I": 20, "J": 20, "N": n, "K": 24}, AVX512, 0) for n in (24, 48)] == [10, 5]
    assert [tile_height(questions(MATMUL), {"M": 20, "N": n, "K": 24}, AVX512, 0) for n in (24, 48)] == [5, 5]


@pytest.mark.parametrize(("filters", "height"), [(32, 8), (36, 0), (35, 7)])
def test_classes_of_one_contraction_have_a_tile_that_fits_them(filters, height):
    apart = library("conv", "conv2d_transposed", consts={"stride": 2, "pad": 1})
    sizes = {"B": 1, "C": 64, "K": filters, "H": 28, "W": 28, "R": 4, "S": 4}
    summed = instantiate(parse(Source("<test>", """
    op f(X: f32[C, H, W], F: f32[C, K, R, S]) -> (Y: f32[K, 2*H + R - 4, 2*W + S - 4]) {
        Y[k, p, q] += X[c, i, j] * F[c, k, p + 1 - 2*i, q + 1 - 2*j]  where 0 <= p + 1 - 2*i < R, 0 <= q + 1 - 2*j < S
    }""")), "f")
    for op in (apart, along_taps(summed, find_taps(summed))):
        assert regime(regimes_of(op), {n: sizes[n] for n in op.sizes}, Options(), AVX512).height == height


def test_a_transposed_convolution_in_tiles_that_fit_is_right_at_their_edges():
    run, rng = polyop.library("conv2d_transposed"), np.random.default_rng(5)
    for c, k, h, w in ((1, 8, 1, 1), (3, 7, 2, 16), (2, 16, 3, 17), (5, 9, 1, 15)):
        x, f = (rng.standard_normal(s).astype(np.float32) for s in ((2, c, h, w), (c, k, 4, 4)))
        full = np.zeros((2, k, 2 * h + 2, 2 * w + 2))
        for r, s in np.ndindex(4, 4):
            full[:, :, r : r + 2 * h : 2, s : s + 2 * w : 2] += np.einsum("bchw,ck->bkhw", x.astype(np.float64), f[:, :, r, s])
        for _ in range(2):  # the second call has a kernel of its own
            np.testing.assert_allclose(run(x, f, stride=2, pad=1), full[:, :, 1:-1, 1:-1], rtol=1e-4, atol=1e-4)


def test_a_taller_tile_pays_earlier_where_l2_is_far_and_nothing_streams_from_memory():
    far, image = BY_NAME["x86:sapphirerapids"], 56 * 56
    assert fitting_height(far, 16, 64, image, streams=False) == 8 and fitting_height(far, 16, 256, image, streams=False) == 0
    assert fitting_height(far, 16, 64, image) == fitting_height(AVX512, 16, 64, image, streams=False) == 0
    more = [(fitting_height(far, 16, m, 1024, streams=False), fitting_height(far, 16, m, 1024)) for m in range(1, 200)]
    assert min(h for h, known in more if h != known) > 6

    def heights(text, **sizes):
        q = questions(instantiate(parse(Source("<test>", f"op f{text}")), "f"))
        return [tile_height(q, sizes | {"K": k}, far, 0) for k in (1000, 2000)]

    lying, standing = "A[m, k] * B[k, n]", "A[m, k] * B[n, k]"
    for rows, right, shape, found in ((64, lying, "K, N", [8, 0]), (128, lying, "K, N", [8, 0]), (64, standing, "N, K", [8, 0]),
                                      (128, standing, "N, K", [8, 8])):
        text = f"(A: f32[M, K], B: f32[{shape}]) -> (C: f32[M, N]) {{ C[m, n] += {right} }}"
        assert heights(text, M=rows, N=1008) == found, (rows, right)


def test_a_tile_of_few_sums_waits_for_itself():
    assert time((6, 4), 16, 100, 77, chains=8) == 16 * (48 + 10 + 16 + 7) + MISSING * (40 + 9 + 16 + 6)
    assert fitting_height(AVX512, 16, 100, 77) == 8 and fitting_height(AVX512, 16, 100, 77, known=True) == 0
    assert register_tile(AVX512, 16, 100, 77) == (5, 3) and register_tile(AVX512, 16, 16, 16) == (8, 1)


@given(st.integers(9, 300), st.integers(1, 600))
def test_a_tile_that_fits_never_takes_longer_than_the_targets_own(rows, columns):
    for t in BY_NAME.values():
        if t.family == "x86" and (height := fitting_height(t, t.lanes(4), rows, columns)):
            tiles = register_tile(t, t.lanes(4), height=height), register_tile(t, t.lanes(4))
            ours, own = (time(x, t.lanes(4), rows, columns, chains=t.fma_chains) for x in tiles)
            assert ours < own


def test_the_rows_that_a_tile_takes_are_the_last_ones_written():
    conv = instantiate(parse(Source("<test>", """
    op f(X: f32[H, W, C], F: f32[3, 3, C, K]) -> (Y: f32[H, W, K]) {
        Y[p, q, k] += (X[p + r - 1, q + s - 1, c] else 0) * F[r, s, c, k] }""")), "f")
    sizes = {"C": 64, "H": 56, "K": 512}
    assert [regime(regimes_of(conv), sizes | {"W": w}, Options(), AVX512).height for w in (7, 14, 60)] == [7, 7, 0]


def test_a_sum_is_deep_where_several_indices_of_it_are_long_and_leave_the_second_cache():
    text = "op f(X: f32[L, K, I], Y: f32[K, J, L]) -> (Z: f32[J, I]) { Z[j, i] += X[l, k, i] * Y[k, j, l] }"
    op = instantiate(parse(Source("<test>", text)), "f")
    q, larger = regimes_of(op), replace(AVX512, l2=4 << 20)
    for k, n, t, deep in ((192, 188, AVX512, True), (64, 64, larger, False), (63, 9999, AVX512, False), (9999, 64, larger, True)):
        assert regime(q, {"I": 99, "J": 99, "K": k, "L": n}, Options(), t).deep == deep
    assert not regime(regimes_of(MATMUL), {"K": 99999, "M": 99, "N": 99}, Options(), AVX512).deep
    assert "long in several indices" in " ".join(kinds(op))


def test_the_terms_of_sums_are_known_where_they_are_few_and_the_result_passes_by_the_caches():
    text = "op f(X: f32[B, K, I], Y: f32[J, L, K]) -> (Z: f32[J, L, B, I]) { Z[j, l, b, i] += X[b, k, i] * Y[j, l, k] }"
    q, large = regimes_of(instantiate(parse(Source("<test>", text)), "f")), {"B": 32, "I": 64, "J": 32, "L": 32}
    assert prod(large.values()) * 4 == AVX512.stream_bytes
    for sizes, known in ((large, {"K": BRIEF}), (large | {"J": 31}, {}), (large | {"K": BRIEF + 1}, {})):
        assert dict(regime(q, {"K": BRIEF} | sizes, Options(), AVX512).fixed) == known
    assert not regime(q, large | {"K": 9}, Options(special=False), AVX512).fixed
    assert "terms" in " ".join(kinds(instantiate(parse(Source("<test>", text)), "f")))


@pytest.mark.parametrize(("columns", "meet", "known"), [(4096, False, True), (4096, True, False), (4095, True, True)])
def test_rows_whole_pages_apart_do_not_pass_by_the_caches_where_they_meet_on_their_way(columns, meet, known):
    found = regime(regimes_of(MATMUL), {"K": 16, "M": 4096, "N": columns}, Options(), replace(AVX512, pages_meet=meet))
    assert bool(found.fixed) == known


def test_columns_that_a_block_has_as_whole_rows_stream_from_memory_in_tiles_of_any_width():
    """Of 96 columns three vectors at a time leave nothing, in 8 rows; of 328 pieces of four come sooner."""
    text = "op f(X: f32[C, A, B, K], Y: f32[K, J]) -> (Z: f32[C, J, B, A]) { Z[c, j, b, a] += X[c, a, b, k] * Y[k, j] }"
    q, far = questions(instantiate(parse(Source("<test>", text)), "f")), BY_NAME["x86:sapphirerapids"]
    sizes = {"A": 96, "B": 84, "C": 84, "J": 24, "K": 96}
    assert [tile_height(q, sizes | {"A": a}, far, 0) for a in (96, 328)] == [8, 0]


def test_lanes_run_over_two_columns_where_one_leaves_vectors_half_empty():
    text = "op f(X: f32[B, K, I], Y: f32[J, A, K]) -> (Z: f32[I, J, B, A]) { Z[i, j, b, a] += X[b, k, i] * Y[j, a, k] }"
    q, sizes = regimes_of(instantiate(parse(Source("<test>", text)), "f")), {"A": 24, "B": 21, "I": 9, "J": 20, "K": 99}
    found = regime(q, sizes, Options(), AVX512)
    assert (found.height, found.pair, found.fixed) == (7, 2, (("A", 24),))
    for other in ({"A": 32}, {"A": 31}, {"A": 3}, {"J": 1}):
        assert not regime(q, sizes | other, Options(), AVX512).pair
    large = regime(q, sizes | {"B": 20, "I": 999, "K": 24}, Options(), AVX512)
    assert (large.height, large.pair, large.fixed) == (4, 4, (("K", 24), ("A", 24)))  # four rows fill whole lines
    assert not regime(q, sizes, Options(), BY_NAME["x86:x86-64-v3"]).pair  # three vectors of eight
    assert fitting_pair(AVX512, 16, 20, 20, 24, lines=False) == (4, 4)
    assert fitting_pair(AVX512, 16, 21, 20, 24, lines=True)[0] % 2 == 0


@pytest.mark.parametrize(("width", "height", "pair"), [(56, 3, 4), (28, 0, 0), (64, 0, 0)])
def test_lanes_run_over_two_rows_of_an_image_that_is_read_in_steps(width, height, pair):
    conv = fix_sizes(library("conv", "conv2d", consts={"stride": 2}), {"R": 1, "S": 1})
    q, sizes = regimes_of(conv), {"B": 8, "C": 256, "K": 512, "H": width, "W": width, "R": 1, "S": 1}
    found = regime(q, sizes, Options(), AVX512)
    assert (found.pair, found.fixed) == (pair, (("W", width),) if pair else ())
    assert not pair or found.height == height
    assert passes_by(q.questions, sizes, AVX512) == (width > 40)  # though rows of the result then lie apart


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


def test_a_pair_is_for_contractions_with_two_columns():
    assert not regime(regimes_of(MATMUL), {"K": 99, "M": 99, "N": 24}, Options(), AVX512).pair


@pytest.mark.parametrize(("m", "n", "k"), [
    (1, 1, 1), (17, 31, 33), (32, 32, 32), (33, 17, 2), (63, 64, 65), (64, 48, 16), (5, 64, 64)])
def test_little_products_have_all_their_terms(m, n, k):
    rng = np.random.default_rng(m + n + k)
    a, b = rng.standard_normal((3, m, k), np.float32), rng.standard_normal((3, k, n), np.float32)
    f = polyop.library("bmm")
    for _ in range(4):  # until the sizes have a kernel of their own
        np.testing.assert_allclose(f(a, b), a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)
