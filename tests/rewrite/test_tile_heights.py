"""How many rows and vectors a register tile has, and what it takes for those that it does not fill."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import polyop
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.options import Options
from polyop.ir.registers import MISSING, fitting_height, height_beside, register_tile, time, usual_beside
from polyop.ir.span import Source
from polyop.ir.target import BY_NAME
from polyop.rewrite.regimes.questions import questions
from polyop.rewrite.regimes.regimes import regime, regimes_of
from polyop.rewrite.regimes.tile_regimes import tile_height
from polyop.rewrite.windows.taps import along_taps, find_taps
from tests.rewrite.ops import library

AVX512 = BY_NAME["x86:x86-64-v4"]
MATMUL = instantiate(parse(Source("<test>", """
op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }
""")), "f")


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


def test_columns_that_a_block_has_as_whole_rows_stream_from_memory_in_tiles_of_any_width():
    """Of 96 columns three vectors at a time leave nothing, in 8 rows; of 328 pieces of four come sooner."""
    text = "op f(X: f32[C, A, B, K], Y: f32[K, J]) -> (Z: f32[C, J, B, A]) { Z[c, j, b, a] += X[c, a, b, k] * Y[k, j] }"
    q, far = questions(instantiate(parse(Source("<test>", text)), "f")), BY_NAME["x86:sapphirerapids"]
    sizes = {"A": 96, "B": 84, "C": 84, "J": 24, "K": 96}
    assert [tile_height(q, sizes | {"A": a}, far, 0) for a in (96, 328)] == [8, 0]
