"""Few rows of a product whose operands lie along the sum: dot products in place, or lanes along the rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from polyop.ir.options import TURNED, Layout, Options
from polyop.ir.target import BY_NAME, Hints
from polyop.rewrite.regimes.dotted import ROWS
from polyop.rewrite.regimes.regimes import as_it_lies, kinds, regime, regimes_of
from polyop.runtime.layout import contiguous
from tests.poly.middles import middle, proved, run
from tests.rewrite.ops import op

ASKED = replace(BY_NAME["x86:x86-64-v4"], hints=Hints(dots=24))
LAYER = "op f(A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }"
BATCHES = "op f(A: f32[P, M, K], B: f32[P, N, K]) -> (C: f32[P, M, N]) { C[p, m, n] += A[p, m, k] * B[p, n, k] }"
PLAIN = "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }"


def said(text: str, m: int, k: int = 1000, n: int = 1000, target=ASKED, **options) -> Options:
    o = op(text)
    sizes = {s: x for s, x in {"M": m, "K": k, "N": n, "P": 7}.items() if s in o.sizes}
    return as_it_lies(regimes_of(o), contiguous(o), regime(regimes_of(o), sizes, Options(**options), target))


@pytest.mark.parametrize(("m", "k", "dots"), [
    (4, 1000, 0), (5, 1000, ROWS), (8, 1000, ROWS), (12, 1000, ROWS), (24, 1000, ROWS), (25, 1000, 0),
    (10, 160, ROWS), (10, 159, 0)])
@pytest.mark.parametrize("text", [LAYER, BATCHES])
def test_few_rows_of_many_terms_are_dot_products_of_four_rows_together(text, m, k, dots):
    assert said(text, m, k).dots == dots
    assert any("lie along a long sum" in x for x in kinds(op(text)))


@pytest.mark.parametrize("text", [
    PLAIN,
    "op f(A: f32[K, M], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[k, m] * B[n, k] }",
    "op f(A: i8[M, K], B: i8[N, K]) -> (C: i32[M, N]) { C[m, n] += i32(A[m, k]) * i32(B[n, k]) }",
    "op f(A: f16[M, K], B: f16[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }",
    "op f(A: f32[M, K], B: f32[N, K], D: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * (B[n, k] + D[n, k]) }"])
def test_nothing_else_is(text):
    assert not said(text, 12).dots


@pytest.mark.parametrize(("narrow", "wide"), [("i8", "i32"), ("f16", "f32"), ("bf16", "f32")])
def test_narrow_operands_are_copied_as_before(narrow, wide):
    cast = "i32" if wide == "i32" else ""
    text = f"op f(A: {narrow}[M, K], B: {narrow}[N, K]) -> (C: {wide}[M, N]) {{ C[m, n] += {cast}(A[m, k]) * {cast}(B[n, k]) }}"
    assert not said(text, 64, 768, 768).short and said(LAYER, 64, 768, 768).short


AMX = BY_NAME["x86:sapphirerapids"]
BRAIN = """op f(A: bf16[M, K], B: bf16[N, K]) -> (C: bf16[M, N]) {
    s[m, n] += f32(A[m, k]) * f32(B[n, k])
    C[m, n] = bf16(s[m, n]) }"""
BYTES = "op f(A: u8[M, K], B: i8[N, K]) -> (C: i32[M, N]) { C[m, n] += i32(A[m, k]) * i32(B[n, k]) }"
GATE = """op f(A: bf16[M, K], B: bf16[N, K], D: bf16[N, K]) -> (C: bf16[M, N]) {
    s[m, n] += f32(A[m, k]) * f32(B[n, k])
    t[m, n] += f32(A[m, k]) * f32(D[n, k])
    C[m, n] = bf16(s[m, n] * t[m, n]) }"""
TWO = """op f(A: bf16[M, K], B: bf16[N, K], D: bf16[K, N]) -> (C: bf16[M, K]) {
    s[m, n] += f32(A[m, k]) * f32(B[n, k])
    h[m, n] = bf16(s[m, n])
    t[m, k] += f32(h[m, n]) * f32(D[k, n])
    C[m, k] = bf16(t[m, k]) }"""


@pytest.mark.parametrize(("m", "k", "n", "few"), [
    (1, 1000, 1000, None), (2, 1000, 1000, 16), (16, 1000, 1000, 16), (17, 1000, 1000, 32), (40, 1000, 1000, 48),
    (64, 1000, 1000, 64), (65, 1000, 1000, 0), (300, 1000, 1000, None), (16, 64, 4096, None), (16, 1000, 16, None),
    (2, 1000, 15, None)])
@pytest.mark.parametrize("text", [BRAIN, BYTES])
def test_columns_are_rows_of_matrix_tiles_where_copying_them_takes_longer_than_turning_results(text, m, k, n, few):
    o = said(text, m, k * (2 if text == BYTES else 1), n, AMX)
    assert o.short == (0 if few is None else TURNED)
    assert dict(o.few).get("M", 0) == (few or 0) and not (o.short and (o.rows or o.height))


def test_such_tiles_take_no_part_where_they_do_not_exist_or_gain_nothing():
    assert not any(said(BRAIN, 16, target=t).short for t in (ASKED, replace(ASKED, features="+avx512bf16")))
    assert not said(BRAIN, 16, target=AMX, numerics="strict").short and said(BYTES, 16, target=AMX, numerics="strict").short
    assert not said(BRAIN, 16, target=AMX, frozen=("B",)).short and said(BRAIN, 16, target=AMX, frozen=("A",)).short
    assert not said(BYTES.replace("B[n, k]", "B[k, n]").replace("i8[N, K]", "i8[K, N]"), 16, target=AMX).short
    assert [said(GATE, m, target=AMX).short for m in (16, 40, 41)] == [TURNED, TURNED, 0]  # one is stored, and read again
    assert said(TWO, 16, 1000, 1000, AMX).short == TURNED and dict(said(TWO, 16, 1000, 1000, AMX).few) == {"M": 16}
    o = op(BRAIN)
    lying = Layout((*contiguous(o).units[:1], ("B", 0), *contiguous(o).units[2:]))
    sizes = {"M": 16, "K": 1000, "N": 1000}
    assert not as_it_lies(regimes_of(o), lying, regime(regimes_of(o), sizes, Options(), AMX)).short


NARROW = "op f(A: bf16[M, K], B: bf16[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }"
BRAINS = replace(ASKED, features="+avx512bf16")


@pytest.mark.parametrize(("m", "k", "dots"), [
    (4, 2048, 0), (5, 2048, ROWS), (32, 2048, ROWS), (33, 2048, 0), (16, 2016, 0), (16, 2064, 0), (16, 2080, ROWS)])
def test_narrow_ones_are_where_their_terms_fill_the_vectors_of_an_instruction(m, k, dots):
    found = said(NARROW, m, k, target=BRAINS)
    assert found.dots == dots and found.multiples == ((("K", 32),) if dots else ())
    assert any("narrow numbers lie along sums" in x for x in kinds(op(NARROW)))


def test_nor_are_others():
    assert not said(NARROW, 16, 4096).dots and not said(NARROW, 16, 4096, target=BRAINS, numerics="strict").dots
    assert not said(NARROW.replace("bf16", "f16"), 16, 4096, target=BRAINS).dots
    o = op(NARROW)
    turned = as_it_lies(regimes_of(o), Layout((("A", 1), ("B", 0), ("C", 1))), said(NARROW, 16, 4096, target=BRAINS))
    assert not turned.dots and not turned.multiples
    assert said(LAYER, 12, 1024).dots and not said(LAYER, 12, 1024).multiples


@pytest.mark.parametrize("sizes", [(1, 1, 32), (4, 4, 64), (5, 3, 32), (9, 7, 320), (25, 9, 64)])
def test_a_lane_takes_two_terms_at_once(sizes):
    m, n, k = sizes
    found = middle(NARROW, "tuned", Options(dots=ROWS, multiples=(("K", 32),)), t=BRAINS)
    assert proved(found) and "k_t + 2*k_v" in str(found.nest) and "k_f in [0, 2)" in str(found.nest)
    arrays, got = run(found, {"M": m, "N": n, "K": k})
    np.testing.assert_allclose(got, arrays["A"].astype(float) @ arrays["B"].astype(float).T, rtol=1e-4, atol=1e-4)
    assert "k_f" not in str(middle(NARROW, "tuned", Options(dots=ROWS), t=BRAINS).nest)  # some vector may be cut off within two


def test_in_a_recurrence_one_copy_serves_all_turns():
    """With lanes along the rows an LSTM of 32 steps, 32 rows and 512 units took 89 ms, not 42."""
    text = """op f(X: f32[T, B, H], U: f32[H, H]) -> (Y: f32[T, B, H]) {
        z[t, b, g] += (Y[t-1, b, k] else 0) * U[g, k]
        Y[t, b, h] = tanh(X[t, b, h] + z[t, b, h]) }"""
    for rows in (12, 16, 32, 64):
        sizes = {"T": 32, "B": rows, "H": 512}
        found = regime(regimes_of(op(text)), sizes, Options(), ASKED)
        assert not found.short and not found.dots


def test_nor_where_it_was_not_measured_nor_what_is_copied_once_for_all_calls():
    assert not said(LAYER, 12, target=BY_NAME["x86:x86-64-v4"]).dots
    assert said(LAYER, 12).dots and not said(LAYER, 12, frozen=("B",)).dots and not said(LAYER, 12, numerics="strict").dots


def test_what_counts_is_how_arrays_lie():
    """An einsum of `mk,kn->mn` may have W.T, and one of `mk,nk->mn` W that is turned."""
    for text, unit, dots in ((PLAIN, 0, ROWS), (PLAIN, 1, 0), (LAYER, 1, ROWS), (LAYER, 0, 0)):
        o = op(text)
        asked = regime(regimes_of(o), {"M": 12, "K": 1000, "N": 1000}, Options(), ASKED)
        assert as_it_lies(regimes_of(o), Layout((("A", 1), ("B", unit), ("C", 1))), asked).dots == dots


@pytest.mark.parametrize(("m", "short"), [
    (8, 0), (13, 0), (14, TURNED), (16, TURNED), (17, 0), (27, 0), (30, TURNED), (32, TURNED), (40, 0), (48, TURNED),
    (64, TURNED), (128, TURNED), (197, 0), (512, 0)])
def test_rows_that_fill_vectors_read_the_other_operand_in_place(m, short):
    """What would be copied by squares else: 16 x 4096 x 4096 took 10.2 ms, and takes 5.6."""
    found = said(LAYER, m, 768, 768)
    assert found.short == short and not (found.short and found.dots)
    assert not said(PLAIN, m, 768, 768).short and not said(LAYER, m, 768, 768, frozen=("B",)).short
    turned = as_it_lies(regimes_of(op(LAYER)), Layout((("A", 1), ("B", 0), ("C", 1))), found)
    assert not turned.short


@pytest.mark.parametrize("options", [Options(dots=ROWS), Options(short=TURNED), Options(dots=ROWS, threads=True)], ids=str)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (4, 4, 16), (5, 3, 17), (9, 7, 300), (16, 5, 31), (25, 9, 64), (3, 2, 0)])
@pytest.mark.parametrize("text", [LAYER, BATCHES])
def test_both_are_proved_and_compute_the_same(text, sizes, options):
    m, n, k = sizes
    found = middle(text, "tuned", replace(options, regime="any"))
    assert proved(found)
    arrays, got = run(found, {"M": m, "N": n, "K": k, "P": 2})
    np.testing.assert_allclose(got, arrays["A"].astype(float) @ arrays["B"].astype(float).swapaxes(-1, -2), rtol=1e-4, atol=1e-4)
