"""Where lanes run, and how many rows a tile has: which sizes of a call ask for another kernel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.options import SHORT, TURNED, Options
from polyop.ir.registers import fitting_pair
from polyop.ir.span import Source
from polyop.ir.target import BY_NAME
from polyop.rewrite.ones import fix_sizes
from polyop.rewrite.ordered import in_order
from polyop.rewrite.regimes.questions import questions
from polyop.rewrite.regimes.regimes import kinds, regime, regimes_of
from polyop.rewrite.regimes.tile_regimes import few_rows, passes_by, shortness
from tests.rewrite.ops import library

AVX512 = BY_NAME["x86:x86-64-v4"]
AVX2 = BY_NAME["x86:x86-64-v3"]
MATMUL = instantiate(parse(Source("<test>", """
op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }
""")), "f")
LSTM = instantiate(parse(Source("<test>", """
op f(W: f32[H, H], h: f32[B, H], X: f32[L, B, H]) -> (Y: f32[L, B, H]) {
    z: f32[L, B, H]
    z[t, b, g] += (Y[t-1, b, k] else h[b, k]) * W[g, k]
    Y[t, b, g]  = z[t, b, g] + X[t, b, g] }""")), "f")


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


@pytest.mark.parametrize(("filters", "channels"), [(4, 64), (12, 64), (20, 48), (20, 96), (100, 64)])
def test_windows_are_read_in_place_by_lanes_along_filters_where_images_have_their_channels_last(filters, channels):
    seen = in_order(library("conv", "conv2d"), (("X", (0, 2, 3, 1)),), strict=False)
    sizes = {"B": 1, "C": channels, "H": 30, "W": 30, "K": filters, "R": 3, "S": 3}
    found = regime(regimes_of(seen), sizes, Options(), AVX2)
    assert found.short == TURNED and not found.inward


def test_lanes_run_along_filters_sooner_where_these_are_turned_once_for_all_calls():
    conv = library("conv", "conv2d", consts={"stride": 2, "pad": 1})
    sizes = {"B": 1, "C": 256, "H": 32, "W": 32, "K": 256, "R": 3, "S": 3}
    assert shortness(questions(conv), sizes, AVX2) == SHORT
    assert shortness(questions(conv), sizes, AVX2, ("X",)) == SHORT
    assert shortness(questions(conv), sizes, AVX2, ("F",)) == TURNED


@pytest.mark.parametrize("window", [1, 3])
def test_lanes_run_along_filters_where_elements_lie_apart_and_leave_some_missing(window):
    conv = library("conv", "conv2d", consts={"stride": 2, "pad": window // 2})
    for width, found in ((28, TURNED), (30, TURNED), (32, SHORT)):
        sizes = {"B": 1, "C": 256, "H": width, "W": width, "K": 512, "R": window, "S": window}
        assert shortness(questions(conv), sizes, AVX2) == found


def test_lanes_run_along_another_loop_where_rows_leave_too_many_of_them_empty():
    conv = instantiate(parse(Source("<test>", """
    op f(X: f32[B, C, H, W], F: f32[K, C, 3, 3]) -> (Y: f32[B, K, H, W]) {
        Y[b, k, p, q] += (X[b, c, p + r - 1, q + s - 1] else 0) * F[k, c, r, s] }""")), "f")
    for b, c, w, found, height in ((1, 512, 7, TURNED, 7), (8, 256, 14, TURNED, 8), (1, 64, 56, TURNED, 4), (1, 64, 112, 0, 0),
                                   (1, 9, 4, TURNED, 4), (1, 16, 14, SHORT, 0), (1, 20, 14, SHORT, 10), (1, 28, 14, SHORT, 7),
                                   (1, 16, 28, 0, 8), (1, 16, 7, TURNED, 7), (1, 17, 8, TURNED, 8), (1, 16, 9, TURNED, 5),
                                   (1, 15, 8, TURNED, 8)):
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
    assert found(2, 64, 3) == found(2, 24, 7) == 0  # few terms for results that are turned, few rows to run along


@pytest.mark.parametrize("filters,columns,step,turned", [
    (8, 6, 1, True),     # 6 of 16 lanes, or 8 of them for each pixel
    (4, 6, 1, False),
    (8, 12, 1, False),
    (12, 8, 1, True),    # filters are tiles of 8 and of 4 rows else
    (4, 8, 2, True),     # a vector of every other element takes as long as 12 multiply-adds
    (8, 16, 2, False),
    (12, 56, 2, True),   # however many vectors there are
    (3, 56, 2, False),
    (24, 28, 3, True),
    (24, 28, 1, False),
])
def test_lanes_run_along_few_filters_where_columns_are_fewer_or_lie_apart(filters, columns, step, turned):
    """8 filters of 7 x 7 in steps of three, 6 columns: 1490 us with lanes along these, 526 along filters (PyTorch 580)."""
    conv = instantiate(parse(Source("<test>", f"""
    op f(X: f32[C, H, W], F: f32[K, C, 3, 3]) -> (Y: f32[K, (H - 3) / {step} + 1, (W - 3) / {step} + 1]) where H >= 3, W >= 3 {{
        Y[k, p, q] += X[c, {step}*p + r, {step}*q + s] * F[k, c, r, s] }}""")), "f")
    sizes = {"C": 64, "K": filters, "H": 29 * step + 3, "W": (columns - 1) * step + 3}
    found = regime(regimes_of(conv), sizes, Options(), AVX512)
    assert (found.short == TURNED) == turned
    assert not (turned and found.rows)


def test_few_rows_are_counted_where_a_product_would_use_its_right_operand_again():
    for rows, found in ((1, 1), (2, 4), (4, 4), (5, 8), (8, 8), (9, 0)):
        assert few_rows(questions(MATMUL), {"K": 64, "M": rows, "N": 7}) == found
        assert few_rows(questions(MATMUL), {"K": 64, "M": rows, "N": 7}, masks=False) == (rows if found else 0)
    batched = instantiate(parse(Source("<test>", """
    op f(A: f32[B, P, Q, K], X: f32[B, K, N]) -> (C: f32[B, P, Q, N]) { C[b, p, q, n] += A[b, p, q, k] * X[b, k, n] }""")), "f")
    assert few_rows(questions(batched), {"B": 50, "P": 2, "Q": 3, "K": 9, "N": 5}) == 8
    assert few_rows(questions(batched), {"B": 1, "P": 4, "Q": 3, "K": 9, "N": 5}) == 0


def test_lanes_run_along_rows_where_columns_are_few_and_the_left_operand_lies_so():
    upright = instantiate(parse(Source("<test>", """
    op f(A: f32[K, M], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[k, m] * B[k, n] }""")), "f")
    for m, n, found in ((100, 2, TURNED), (100, 64, TURNED), (100, 65, 0), (30, 40, 0), (8, 3, 0)):
        assert regime(regimes_of(upright), {"K": 9, "M": m, "N": n}, Options(), AVX512).short == found
    assert "more rows" in " ".join(kinds(upright)) and not questions(MATMUL).upright


def test_a_taller_tile_does_as_well_as_lanes_along_the_rows_where_the_right_operand_has_batches():
    """Turned, all of B was copied by squares, and 406 products of 32 x 384 x 384 took 132 ms, not 37."""
    text = "op f(A: f32[M, K], B: f32[P, K, N]) -> (C: f32[P, M, N]) { C[p, m, n] += A[m, k] * B[p, k, n] }"
    batches = instantiate(parse(Source("<test>", text)), "f")
    for m, n in ((32, 384), (64, 384), (32, 200), (48, 100)):
        assert not regime(regimes_of(batches), {"P": 99, "K": 300, "M": m, "N": n}, Options(), AVX512).short, (m, n)


def test_few_columns_of_dot_products_are_counted():
    dots = instantiate(parse(Source("<test>", """
    op f(A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }""")), "f")
    sizes = ({"K": 9, "M": m, "N": n} for m, n in ((99, 2), (99, 4), (99, 5), (4, 3)))
    found = [regime(regimes_of(dots), s, Options(), AVX512).few for s in sizes]
    assert found == [(("N", 4),), (("N", 4),), (), ()]
    assert "where N is at most 4" in kinds(dots)


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


def test_the_rows_that_a_tile_takes_are_the_last_ones_written():
    conv = instantiate(parse(Source("<test>", """
    op f(X: f32[H, W, C], F: f32[3, 3, C, K]) -> (Y: f32[H, W, K]) {
        Y[p, q, k] += (X[p + r - 1, q + s - 1, c] else 0) * F[r, s, c, k] }""")), "f")
    sizes = {"C": 64, "H": 7, "K": 512}
    assert [regime(regimes_of(conv), sizes | {"W": w}, Options(), AVX512).height for w in (7, 14, 60)] == [7, 7, 0]


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


def test_a_pair_is_for_contractions_with_two_columns():
    assert not regime(regimes_of(MATMUL), {"K": 99, "M": 99, "N": 24}, Options(), AVX512).pair


@pytest.mark.parametrize(("m", "k", "rows"), [
    (8, 4, 8), (8, 5, 0), (8, 127, 0), (8, 128, 8), (4, 63, 0), (4, 64, 4), (1, 15, 0), (1, 16, 1)])
def test_few_rows_of_few_terms_are_no_dot_products(m, k, rows):
    """A fold for each of them takes longer than a copy of the right operand, unless lanes run along columns, or these are few."""
    nt, nn = (instantiate(parse(Source("<test>", f"op f(A: f32[M, K], B: f32[{b}]) -> (C: f32[M, N]) "
                                                f"{{ C[m, n] += A[m, k] * B[{b.lower()}] }}")), "f") for b in ("N, K", "K, N"))
    sizes = {"K": k, "M": m, "N": 100}
    assert regime(regimes_of(nt), sizes, Options(), AVX512).rows == rows
    assert regime(regimes_of(nn), sizes, Options(), AVX512).rows == min(n for n in (1, 4, 8) if n >= m)
    assert regime(regimes_of(nt), sizes | {"N": 4}, Options(), AVX512).rows > 0
