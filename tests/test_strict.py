"""`numerics="strict"`: the bits of the text, which adds up the terms of one element step by step, the last index fastest."""

import numpy as np
import pytest

import polyop
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from tests.rewrite.ops import arguments, op

SEVERAL = {
    "some elements have a first term": "Y[i] += b[i] where i % 2 == 0; Y[i] += a[i, k]",
    "a term between two sums": "Y[i] += a[i, k]; Y[i] += b[i] where i >= 2; Y[i] += 2 * a[i, k]",
    "sums of a triangle and of all": "Y[i] += a[i, k] where k <= i; Y[i] += b[i]; Y[i] += a[i, k] where k > i",
    "conditions on data": "Y[i] += b[i] where b[i] > 0; Y[i] += a[i, k] where a[i, k] < b[k]; Y[i] += 0.3 * b[i]",
    "products": "Y[i] *= 2 * b[i] where i % 3 == 1; Y[i] *= a[i, k] where k < 5; Y[i] *= 1 + b[i] where i < 4",
    "a recurrence between two sums": "Y[i] += (Y[i-1] else 0) * b[i]; Y[i] += a[i, k] where k <= i; Y[i] += (Y[i-2] else 1)",
    "what a recurrence makes": "s[i] = (s[i-1] else 0) + b[i]; Y[i] += s[i] where i > 3; Y[i] += a[i, k]; Y[i] += s[i]",
    "a product of a matrix and a term": "Y[i] += b[i] where i < 7; Y[i] += a[i, k] * b[k]; Y[i] += a[k, i] * b[k] where k < i",
    "sums of rows and of columns": "Y[i] += a[i, k] where k < 5; Y[k] += a[i, k] where i % 2 == 1; Y[i] += a[i, i]",
    "rows at places from data": "Y[p[i]] += a[i, k] where k <= i; Y[i] += a[i, k] where k >= 1; Y[p[i]] += 3 * b[i]",
    "a term for all, and rows at places from data": "Y[i] += b[i]; Y[p[i]] += a[i, k]; Y[i] += 0.1 where i in 0:N",
    "elements and neighbours": "Y[i] += b[i] where i > 1; Y[i - 1] += a[i, k] where i >= 1; Y[i] += b[i] * b[i] where i % 4 == 3",
}


@pytest.mark.parametrize("what", SEVERAL)
def test_the_terms_of_several_steps_are_added_in_the_order_of_the_text(what, caplog):
    o = op(f"op f(a: f32[N, N], b: f32[N], p: i64[N]) -> (Y: f32[N]) {{ {SEVERAL[what]} }}")
    text = polyop.op(f"op f(a: f32[N, N], b: f32[N], p: i64[N]) -> (Y: f32[N]) {{ {SEVERAL[what]} }}",
                     options=Options(numerics="strict"))
    before = polyop.get_num_threads()
    try:
        for n in (0, 1, 2, 9, 33):
            _, given = arguments(o, {"N": n}, seed=n)
            given["p"] = np.random.default_rng(n).integers(0, max(n, 1), n)
            want = evaluate(o, {"N": n}, {}, given)["Y"]
            for threads in (1, 2):
                polyop.set_num_threads(threads)
                np.testing.assert_array_equal(text(*given.values()), want, err_msg=f"N = {n}, {threads} threads")
    finally:
        polyop.set_num_threads(before)
    assert not caplog.records, "nothing is interpreted, and no rung of the ladder broke"


def test_terms_of_a_number_are_added_in_the_order_of_the_text():
    text = "op f(a: f32[M, N]) -> (y: f32) { y += a[i, k] where i < 3; y += a[i, k] where i >= 1; y += a[i, k] where k % 2 == 0 }"
    a = np.random.default_rng(0).standard_normal((9, 17), np.float32)
    want = np.float32(0)
    for terms in (a[:3], a[1:], a[:, ::2]):
        for x in terms.ravel():
            want += x
    assert polyop.op(text, options=Options(numerics="strict"))(a) == want


def test_the_reference_adds_what_data_place_in_the_order_of_the_text():
    o = op("op f(x: f32[N], p: i64[N]) -> (Y: f32[1]) { Y[p[i]] += x[i]; Y[j] += 1.0 where j in 0:1 }")
    assert evaluate(o, {"N": 2}, {}, {"x": np.float32([1e8, -1e8]), "p": np.int64([0, 0])})["Y"] == [1]


ORDERS = {
    "a short index before others, along the lanes":
        "(Y: f32[4, 8], Z: f32[K, 8, I, 4]) -> (t: f32[K]) { t[k] += Y[j, l] - abs(Z[k, l, i, j]) }",
    "columns of blocks": "(Y: f32[I, 40, 2]) -> (t: f32[2]) { t[l] += max(Y[i, j, l], 0.1) }",
    "what is stored in another order":
        "(X: f32[I, 5, J, K]) -> (t: f32[K]) { a[l, i, j, k] = abs(X[i, l, j, k]) + 1; t[k] += X[i, l, j, k] * a[l, i, j, k] }",
    "two sums in different orders":
        "(X: f32[I, J, K], Z: f32[J, I, K]) -> (s: f32[K], t: f32[K]) { s[k] += X[i, j, k]; t[k] += Z[j, i, k] * X[i, j, k] }",
    "channels around a window": "(X: f32[C, H], F: f32[D, C, 3]) -> (t: f32[D, H - 2]) { t[d, p] += F[d, c, r] * X[c, p + r] }",
}


@pytest.mark.parametrize("what", ORDERS)
def test_the_terms_of_one_step_are_added_in_the_order_of_its_indices(what, caplog):
    text = f"op f{ORDERS[what]}"
    o, f = op(text), polyop.op(text, options=Options(numerics="strict"))
    before = polyop.get_num_threads()
    try:
        for n in (1, 2, 9):
            sizes = {size: n + i for i, size in enumerate(o.sizes)}
            if "H" in sizes:
                sizes["H"] += 2
            _, given = arguments(o, sizes, seed=n)
            want = evaluate(o, sizes, {}, given)
            for threads in (1, 2):
                polyop.set_num_threads(threads)
                got = f(**given)
                for g, t in zip(got if isinstance(got, tuple) else (got,), o.outputs, strict=True):
                    np.testing.assert_array_equal(g, want[t.name], err_msg=f"{sizes}, {threads} threads")
    finally:
        polyop.set_num_threads(before)
    assert not caplog.records, "no rung of the ladder broke: each is proved to keep the order"
