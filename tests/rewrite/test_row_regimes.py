"""Which rows deserve a kernel of their own: by where they lie, and how many there are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.options import Options
from polyop.ir.span import Source
from polyop.ir.target import BY_NAME, LINE
from polyop.rewrite.regimes.questions import questions
from polyop.rewrite.regimes.regimes import kinds, regime, regimes_of
from polyop.rewrite.regimes.row_regimes import LONG
from polyop.rewrite.regimes.tile_regimes import has_strip
from polyop.rewrite.sums.scans import find_abreast

AVX512 = BY_NAME["x86:x86-64-v4"]
AVX2 = BY_NAME["x86:x86-64-v3"]
MATMUL = instantiate(parse(Source("<test>", """
op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }
""")), "f")


def test_rows_that_leave_the_first_cache_lie_in_the_results_made_of_them():
    op = instantiate(parse(Source("<test>", """
    op f(X: f32[R, C]) -> (Y: f32[R, C]) { e[r, c] = exp(X[r, c]); s[r] += e[r, c]; Y[r, c] = e[r, c] / s[r] }""")), "f")
    longest = AVX512.l1 // LONG // 4
    assert [regime(regimes_of(op), {"R": 9, "C": c}, Options(), AVX512).lent for c in (longest, longest + 1)] == [False, True]
    assert "in which rows that are kept before they become a result are long" in kinds(op)


def test_a_strip_is_a_sum_of_rows_that_stays_in_registers():
    columns = instantiate(parse(Source("<test>", "op f(X: f32[N, B]) -> (S: f32[B]) { S[b] += X[n, b] }")), "f")
    q = questions(columns)
    assert has_strip(q, {"N": 3, "B": 64}, False) and not has_strip(q, {"N": 3, "B": 65}, False)
    q = questions(MATMUL)
    assert has_strip(q, {"K": 3, "M": 1, "N": 64}, True) and not has_strip(q, {"K": 3, "M": 64, "N": 64}, False)


def test_a_strip_is_that_of_a_result_that_is_laid_along_what_is_read():
    q = questions(instantiate(parse(Source("<test>", "op f(X: f32[A, B, C]) -> (S: f32[C, A]) { S[c, a] += X[a, b, c] }")), "f"))
    assert has_strip(q, {"A": 300, "B": 3, "C": 64}, False) and not has_strip(q, {"A": 3, "B": 3, "C": 65}, False)
    apart = "op f(X: f32[B, A, C]) -> (S: f32[C, A]) { S[c, a] += X[b, a, c] }"  # a strip would have a piece of each page
    assert not questions(instantiate(parse(Source("<test>", apart)), "f")).strips


def test_a_strip_is_told_of_a_contraction_only_where_its_one_row_is_not_packed():
    found = [regime(regimes_of(MATMUL), {"K": 9, "M": m, "N": 64}, Options(), AVX512) for m in (1, 2, 8)]
    assert [(x.rows, x.strip) for x in found] == [(1, True), (0, False), (0, False)]


@pytest.mark.parametrize(("rows", "columns", "threads", "paged"), [
    (1, 2048, 2, True), (1, 2047, 2, False), (1, 4096, 1, False), (1, 4096, 8, False), (8, 8192, 8, True), (9, 8192, 2, False)])
def test_threads_take_pages_of_rows_that_have_one_for_each(rows, columns, threads, paged):
    """The right operand of a product with few rows is read so; with more it is packed."""
    found = regime(regimes_of(MATMUL), {"K": 64, "M": rows, "N": columns}, Options(), AVX512, threads)
    assert found.paged is paged


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


def test_columns_are_tall_where_their_lines_fall_on_each_other_in_more_ways_than_l2_has():
    turned = instantiate(parse(Source("<test>", "op f(X: f32[R, C]) -> (Y: f32[C, R]) { Y[c, r] = X[r, c] }")), "f")

    def is_tall(ways: int, rows: int, bytes_: int) -> bool:
        """Of columns of `rows` elements in rows of `bytes_`."""
        t = replace(AVX2, l2=512 << 10, l2_ways=ways)
        return regime(regimes_of(turned), {"R": rows, "C": bytes_ // 4}, Options(), t).tall

    assert [is_tall(8, r, 64 << 10) for r in (2, 3)] == [False, True]  # three are more than a third of eight
    assert [is_tall(16, r, 64 << 10) for r in (5, 6)] == [False, True]
    assert [is_tall(2, r, 256 << 10) for r in (0, 1)] == [False, True]
    assert not is_tall(8, 99, (64 << 10) + LINE) and AVX2.l2_ways == 8


@pytest.mark.parametrize("body", ["Y[c, r] = X[r, c] * Z[r, c]", "t[r, c] = X[r, c] + Z[r, c]; Y[c, r] = 2 * t[r, c]"])
def test_columns_that_are_written_are_tall_too_where_several_arrays_are_read_along_their_rows(body):
    """Lanes run along what is read, down the columns of the result: as many as `X` has, as far apart as its rows are many."""
    o = instantiate(parse(Source("<test>", f"op f(X: f32[R, C], Z: f32[R, C]) -> (Y: f32[C, R]) {{ {body} }}")), "f")
    t = replace(AVX2, l2=512 << 10, l2_ways=8)
    found = {(r, c): regime(regimes_of(o), {"R": r, "C": c}, Options(), t).tall
             for r, c in ((16 << 10, 2), (16 << 10, 3), (3, 16 << 10), (1024, 1024))}
    assert found == {(16 << 10, 2): False, (16 << 10, 3): True, (3, 16 << 10): True, (1024, 1024): True}


def test_a_sum_along_the_last_index_has_no_strips():
    rows = instantiate(parse(Source("<test>", "op f(X: f32[K, N]) -> (S: f32[K]) { S[k] += X[k, n] }")), "f")
    assert regime(regimes_of(rows), {"K": 3, "N": 9}, Options(), AVX512) == Options()
