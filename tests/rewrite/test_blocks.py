"""Triangular recurrences in blocks compute the same: bit for bit, where the order of a reduction does not matter."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.compiler import compile_op
from polyop.ir.options import Options
from polyop.rewrite.sums import blocks
from polyop.rewrite.sums.blocks import cut_into_blocks
from polyop.rewrite.sums.triangles import find_triangle, joined
from polyop.runtime import cpu
from polyop.runtime.layout import contiguous
from tests.rewrite.ops import assert_same, library, op

FORWARDS = """op f(L: i32[M, M], B: i32[M, N]) -> (X: i32[M, N]) {
    s: i32[M, N]
    s[i, n] += L[i, k] * X[k, n]  where k < i
    X[i, n]  = B[i, n] - s[i, n] }"""
BACKWARDS = FORWARDS.replace("k < i", "k > i")
LONGEST = """op f(W: f32[M, M], B: f32[M, N]) -> (X: f32[M, N]) {
    s: f32[M, N]
    s[i, n] max= W[i, k] + X[k, n]  where k < i
    X[i, n]  = max(B[i, n], s[i, n]) }"""
FACTOR = """op f(A: i32[N, N]) -> (L: i32[N, N]) {
    s: i32[N, N]
    s[i, j] += L[i, k] * L[j, k]  where k < j, j <= i
    L[i, j]  = i > j ? A[i, j] - s[i, j] - L[j, j] : i == j ? A[i, i] + s[i, i] : 7 }"""
BATCHED = """op f(L: i32[P, M, M], B: i32[P, M, N]) -> (X: i32[P, M, N]) {
    s: i32[P, M, N]
    s[b, i, n] += L[b, i, k] * X[b, k, n]  where k < i
    X[b, i, n]  = B[b, i, n] - s[b, i, n] }"""
OTHER_NAMES = """op f(L: i32[M, M], B: i32[M, N]) -> (X: i32[N, M]) {
    s: i32[M, N]
    s[i, n] += L[i, k] * X[n, k]  where k < i
    X[c, r]  = B[r, c] - s[r, c] }"""
BAND = """op f(L: i32[M, M], B: i32[M, N]) -> (X: i32[M, N]) {
    s: i32[M, N]
    s[i, n] += L[i, k] * X[k, n]  where k < i, k >= i - 3
    X[i, n]  = B[i, n] - s[i, n] }"""
UNCOVERED = """op f(A: i32[N, N]) -> (L: i32[N, N]) {
    s: i32[N, N]
    s[i, j] += L[i, k] * L[j, k]  where k < j, j <= i
    L[i, j]  = A[i, j] - s[i, j] }"""
ALL = {"forwards": FORWARDS, "backwards": BACKWARDS, "longest": LONGEST, "factor": FACTOR, "batched": BATCHED,
       "other names": OTHER_NAMES, "band": BAND, "uncovered": UNCOVERED}


@pytest.mark.parametrize("size", range(11))
@pytest.mark.parametrize("name", ALL)
def test_blocks_compute_the_same(name, size, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 4)
    o = op(ALL[name])
    cut = cut_into_blocks(o)
    assert cut is not o and len(cut.steps) >= 3
    assert_same(o, cut, dict.fromkeys(o.sizes, size) | ({"P": 2} if "P" in o.sizes else {}))


ONE_COLUMN = """op f(L: i32[M, M], b: i32[M]) -> (x: i32[M]) {
    s: i32[M]
    s[i] += L[i, k] * x[k]  where k < i
    x[i]  = b[i] - s[i] }"""
READ_TWICE = """op f(L: i32[M, M], B: i32[M, N]) -> (X: i32[M, N], Z: i32[M, N]) {
    s: i32[M, N]
    s[i, n] += L[i, k] * X[k, n]  where k < i
    X[i, n]  = B[i, n] - s[i, n]
    Z[i, n]  = s[i, n] }"""
FIXED = FORWARDS.replace("M", "12")
ITSELF_TOO = FORWARDS.replace("where k < i", "where k <= i").replace("X[k, n]", "(X[k - 1, n] else 0)")


@pytest.mark.parametrize("text", [ONE_COLUMN, READ_TWICE, FIXED, ITSELF_TOO])
def test_what_is_no_contraction_or_read_elsewhere_stays_whole(text):
    o = op(text)
    assert find_triangle(o) is None and cut_into_blocks(o) is o


def test_terms_in_the_order_of_the_text_stay_so():
    o = op(LONGEST)
    assert cut_into_blocks(o, in_order=True) is o


def test_a_recurrence_along_time_is_no_triangle():
    assert find_triangle(library("rnn", "lstm")) is None and find_triangle(library("attention", "attention_causal")) is None


def test_turns_that_lie_side_by_side_are_kept_turned():
    cut = cut_into_blocks(library("linalg", "cholesky"))
    assert {"L_block", "s_turned", "A_turned"} <= {t.name for t in cut.temporaries}
    assert not any("turned" in t.name for t in cut_into_blocks(library("linalg", "trsm")).temporaries)
    assert not any("turned" in t.name for t in cut_into_blocks(op(UNCOVERED)).temporaries)


def test_regions_that_touch_are_one():
    t = find_triangle(op(FACTOR))
    assert t is not None and len(t.inside) == 2 and len(t.outside) == 1
    (region,) = joined(p.region for p in t.inside)
    assert [str(x) for x in region] == ["i - j"]


@pytest.mark.parametrize("name", ["trsm", "cholesky"])
def test_blocks_are_contractions_and_proved(name):
    o = library("linalg", name)
    made = compile_op(o, contiguous(o), cpu.resolve("x86"), Options())
    assert made.rung == "tuned" and all(p.holds for p in made.proofs)
    assert any("packed" in c for c in made.chosen) and not any("not on rung" in n for n in made.notes)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 64, 100])
def test_compiled_blocks_solve_and_factor(size):
    rng = np.random.default_rng(size)
    lower = np.tril(rng.standard_normal((size, size))) / (size + 1) + 2 * np.eye(size)
    b = rng.standard_normal((size, 37))
    np.testing.assert_allclose(lower @ polyop.library("trsm")(lower, b), b, rtol=1e-9, atol=1e-9)
    if size:
        np.testing.assert_allclose(polyop.library("cholesky")(lower @ lower.T), np.linalg.cholesky(lower @ lower.T), atol=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_compiled_blocks_compute_what_the_text_says(name):
    rng, n = np.random.default_rng(1), 70
    made = polyop.op(ALL[name])
    plain = polyop.op(ALL[name], options=Options(numerics="strict"))
    shapes = [t.shape for t in op(ALL[name]).inputs]
    arrays = [rng.integers(-2, 3, (2, n, n) if len(s) == 3 else (n, n)).astype(np.float32 if name == "longest" else np.int32)
              for s in shapes]
    np.testing.assert_array_equal(made(*arrays), plain(*arrays))
