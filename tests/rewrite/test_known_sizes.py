"""Sizes that are numbers in a kernel: windows along rows, few terms of sums, little products."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

import polyop
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.options import Options
from polyop.ir.span import Source
from polyop.ir.target import BY_NAME
from polyop.rewrite.regimes.questions import questions
from polyop.rewrite.regimes.regimes import kinds, regime, regimes_of
from polyop.rewrite.regimes.tile_regimes import BRIEF

AVX512 = BY_NAME["x86:x86-64-v4"]
MATMUL = instantiate(parse(Source("<test>", """
op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }
""")), "f")


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


def test_the_terms_of_sums_are_known_where_they_are_few_and_the_result_passes_by_the_caches():
    text = "op f(X: f32[B, K, I], Y: f32[J, L, K]) -> (Z: f32[J, L, B, I]) { Z[j, l, b, i] += X[b, k, i] * Y[j, l, k] }"
    q, large = regimes_of(instantiate(parse(Source("<test>", text)), "f")), {"B": 32, "I": 64, "J": 32, "L": 32}
    assert prod(large.values()) * 4 == AVX512.stream_bytes
    for sizes, known in ((large, {"K": BRIEF}), (large | {"J": 31}, {}), (large | {"K": BRIEF + 1}, {})):
        assert dict(regime(q, {"K": BRIEF} | sizes, Options(), AVX512).fixed) == known
    assert not regime(q, large | {"K": 9}, Options(special=False), AVX512).fixed
    assert "terms" in " ".join(kinds(instantiate(parse(Source("<test>", text)), "f")))


@pytest.mark.parametrize("meet", [False, True])
def test_the_terms_are_known_whether_or_not_rows_meet_on_their_way_to_memory(meet):
    found = regime(regimes_of(MATMUL), {"K": 16, "M": 4096, "N": 4096}, Options(), replace(AVX512, pages_meet=meet))
    assert dict(found.fixed) == {"K": 16}


@pytest.mark.parametrize(("m", "n", "k"), [
    (1, 1, 1), (17, 31, 33), (32, 32, 32), (33, 17, 2), (63, 64, 65), (64, 48, 16), (5, 64, 64)])
def test_little_products_have_all_their_terms(m, n, k):
    rng = np.random.default_rng(m + n + k)
    a, b = rng.standard_normal((3, m, k), np.float32), rng.standard_normal((3, k, n), np.float32)
    f = polyop.library("bmm")
    for _ in range(4):  # until the sizes have a kernel of their own
        np.testing.assert_allclose(f(a, b), a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)
