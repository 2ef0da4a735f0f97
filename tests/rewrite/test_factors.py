"""Factors that do without an index of a sum stand outside of the sum over it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyop
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.target import target
from polyop.poly.wellformed import check
from polyop.rewrite.regimes.regimes import regime, regimes_of
from polyop.rewrite.sums.factors import COLUMNS, DEPTH, MOST, find_inner, taken_out
from polyop.runtime.loans import everyday
from tests.rewrite.ops import library, op

V4 = target("x86:x86-64-v4")
TEXTS = {
    "three factors": """op f(X: f32[I, J, K], B: f32[J, R], C: f32[K, R]) -> (Y: f32[I, R]) {
        Y[i, r] += X[i, j, k] * B[j, r] * C[k, r] }""",
    "in another order": """op f(X: f32[K, I, J], B: f32[J, R], C: f32[K, R]) -> (Y: f32[I, R]) {
        Y[i, r] += C[k, r] * (B[j, r] * X[k, i, j]) }""",
    "four factors": """op f(X: f64[I, J, K], B: f64[J, R], C: f64[K, R], D: f64[J]) -> (Y: f64[I, R]) {
        Y[i, r] += X[i, j, k] * B[j, r] * C[k, r] * D[j] }""",
    "low rank": """op f(X: f32[I, K], A: f32[J, K], B: f32[R, J]) -> (Y: f32[I, R]) {
        Y[i, r] += X[i, k] * A[j, k] * B[r, j] }""",
    "in batches": """op f(X: f64[H, I, K], A: f64[H, K, J], B: f64[H, J, R]) -> (Y: f64[H, I, R]) {
        Y[h, i, r] += X[h, i, k] * A[h, k, j] * B[h, j, r] }""",
    "a form": """op f(A: f32[B, I], W: f32[I, J], C: f32[B, J]) -> (Y: f32[B]) { Y[b] += A[b, i] * W[i, j] * C[b, j] }""",
    "what is before": """op f(Q: f32[S, D], K: f32[S, D], V: f32[S, E]) -> (O: f32[S, E]) {
        O[i, e] += Q[i, d] * K[j, d] * V[j, e]  where j <= i, e < S }""",
    "used again": """op f(X: f32[I, J, K], B: f32[J, R], C: f32[K, R]) -> (Z: f32[I, R]) {
        Y[i, r] += X[i, j, k] * B[j, r] * C[k, r]
        Z[i, r] = Y[i, r] * 2 }""",
}


@pytest.mark.parametrize("name", TEXTS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_sum_is_that_of_the_text(name, data):
    o = op(TEXTS[name])
    made = taken_out(o, data.draw(st.integers(1, len(find_inner(o)[0])), "way"))
    sizes = {n: data.draw(st.integers(0, 4), n) for n in o.sizes}
    rng = np.random.default_rng(data.draw(st.integers(0, 99), "seed"))
    arrays = {t.name: rng.standard_normal([sizes[e.name] for e in t.shape]).astype(t.dtype.numpy) for t in o.inputs}
    want, got = (evaluate(x, sizes, {}, arrays, wide=True) for x in (o, made))
    for n, x in want.items():
        np.testing.assert_allclose(got[n], x, rtol=1e-11, atol=1e-11)


def test_what_is_left_inside_is_a_product_of_two():
    made = taken_out(op(TEXTS["three factors"]))
    assert [str(s).split("  where")[0] for s in made.steps] == [
        "Y_inner[i, j, r] += (X[i, j, k] * C[k, r])", "Y[i, r] += (Y_inner[i, j, r] * B[j, r])"]


def test_an_inner_sum_lies_along_what_it_is_added_up_along():
    assert str(taken_out(op(TEXTS["a form"])).steps[0]).startswith("Y_inner[b, i] += (W[i, j] * C[b, j])")


def test_tiles_are_those_of_the_inner_sum_though_the_outer_one_has_no_rows():
    regimes, sizes = regimes_of(op(TEXTS["a form"])), {"B": 100, "I": 64, "J": 64}
    asked = regime(regimes, sizes, Options(), V4)
    assert asked.factors and not asked.rows
    assert regime(regimes, sizes | {"B": 4}, Options(), V4).rows == 4


TRAIN = "op f(A: f32[I, R], B: f32[R, J, S], C: f32[S, K]) -> (Y: f32[I, J, K]) { Y[i, j, k] += A[i, r] * B[r, j, s] * C[s, k] }"


@pytest.mark.parametrize(("text", "sizes", "pays"), [
    (TRAIN, {"I": 64, "R": 16, "J": 64, "S": 16, "K": 64}, True),
    (TRAIN, {"I": 2, "R": 2, "J": 64, "S": 2, "K": 64}, False),
    (TEXTS["what is before"], {"S": 500, "D": 64, "E": 64}, True),
    (TEXTS["what is before"], {"S": 1 << 13, "D": 64, "E": 64}, False),
])
def test_short_sums_are_taken_out_where_both_have_far_fewer_terms_and_memory_has_room(text, sizes, pays):
    assert bool(regime(regimes_of(op(text)), sizes, Options(), V4).factors) == pays


@pytest.mark.parametrize("s", [0, 1, 2, 17, 64, 131])
def test_products_with_what_is_before_are_masked_once(s):
    f, rng = polyop.op(TEXTS["what is before"].replace(", e < S", "")), np.random.default_rng(0)
    q, k, v = (rng.integers(-4, 5, (s, n)).astype(np.float32) for n in (64, 64, 33))
    for _ in range(3):
        assert np.array_equal(f(q, k, v), np.tril(q.astype(np.float64) @ k.T) @ v)


@pytest.mark.parametrize("name", TEXTS)
def test_all_of_the_inner_sum_that_is_read_is_written(name):
    o = op(TEXTS[name])
    for way in range(1, len(find_inner(o)[0]) + 1):
        check(taken_out(o, way))


@pytest.mark.parametrize("text", [
    "op f(X: f32[I, K], C: f32[K, R]) -> (Y: f32[I, R]) { Y[i, r] += X[i, k] * C[k, r] }",                          # two factors
    "op f(X: f32[I, K], B: f32[K, R], C: f32[K, R]) -> (Y: f32[I, R]) { Y[i, r] += X[i, k] * B[k, r] * C[k, r] }",  # one index
    "op f(X: i32[I, J, K], B: i32[J, R], C: i32[K, R]) -> (Y: i32[I, R]) { Y[i, r] += X[i, j, k] * B[j, r] * C[k, r] }",
    "op f(X: f32[I, J, K], B: f32[J, R], C: f32[K, R]) -> (Y: f32[I, R]) { Y[i, r] += X[i, j, k] * (B[j, r] + C[k, r]) }",
    """op f(X: f32[I, J, K], B: f32[J, R], C: f32[K, R]) -> (Y: f32[I, R]) {
        Y[i, r] += X[i, j, k] * B[j, r] * C[k, r] where k <= j }""",
])
def test_what_has_no_factor_to_take_out_stays_as_it_is(text):
    o = op(text)
    assert find_inner(o) == () and taken_out(o) is o


def test_factors_are_taken_out_where_the_inner_sum_is_long():
    q, sizes = regimes_of(library("linalg", "mttkrp")), {"I": 99, "J": 99, "K": DEPTH, "R": COLUMNS}
    assert regime(q, sizes, Options(), V4).factors
    assert regime(q, sizes | {"R": MOST * DEPTH}, Options(), V4).factors
    assert not regime(q, sizes | {"R": MOST * DEPTH + 1}, Options(), V4).factors
    assert not regime(q, sizes | {"K": DEPTH - 1}, Options(), V4).factors
    assert not regime(q, sizes | {"R": COLUMNS - 1}, Options(), V4).factors
    assert not regime(q, sizes, Options(numerics="strict"), V4).factors
    assert not regime(q, sizes, Options(special=False), V4).factors


def test_of_two_ways_the_one_with_far_fewer_terms_is_taken():
    q, sizes = regimes_of(op(TEXTS["low rank"])), {"I": 500, "R": 500, "J": 500, "K": 500}
    assert [str(w.over) for w in q.questions.inner[0]] == ["j", "k"]
    assert regime(q, sizes, Options(), V4).factors == 1               # as many terms either way: what lies last in memory
    assert regime(q, sizes | {"J": 16}, Options(), V4).factors == 2   # a product of 500 x 16, not of 500 x 500
    assert regime(q, sizes | {"I": 50}, Options(), V4).factors == 2
    assert regime(q, sizes | {"R": 50}, Options(), V4).factors == 1
    made = taken_out(op(TEXTS["low rank"]), 2)
    assert [str(s).split("  where")[0] for s in made.steps] == [
        "Y_inner[i, j] += (X[i, k] * A[j, k])", "Y[i, r] += (Y_inner[i, j] * B[r, j])"]


@pytest.mark.parametrize("way", [1, 2])
def test_a_kernel_of_either_way_computes_the_same(way):
    f = polyop.op(TEXTS["low rank"], options=Options(factors=way))
    rng = np.random.default_rng(1)
    for i, k, j, r in ((0, 3, 2, 4), (3, 0, 2, 4), (3, 4, 0, 2), (1, 1, 1, 1), (7, 40, 17, 65), (49, 33, 64, 15)):
        x, a, b = (rng.standard_normal(s).astype(np.float32) for s in ((i, k), (j, k), (r, j)))
        np.testing.assert_allclose(f(x, a, b), x.astype(float) @ a.T @ b.T, rtol=1e-4, atol=1e-3)


def test_a_call_may_borrow_a_kernel_whose_factors_stay_inside():
    assert everyday(Options(factors=True), Options()) == Options()


def test_a_kernel_with_factors_outside_computes_the_same():
    f = polyop.op(TEXTS["three factors"], options=Options(factors=True))
    rng = np.random.default_rng(1)
    x, b, c = (rng.standard_normal(s).astype(np.float32) for s in ((5, 17, 40), (17, 19), (40, 19)))
    np.testing.assert_allclose(f(x, b, c), np.einsum("ijk,jr,kr->ir", x, b, c), rtol=1e-4, atol=1e-4)
