"""A reduction to one element becomes shares that several threads may take, and computes what it did."""

from __future__ import annotations

import numpy as np
import pytest

from polyop.ir.loops import structure
from polyop.ir.options import Layout, Options
from polyop.ir.reference import evaluate
from polyop.ir.target import target
from polyop.poly.middle import lower, scop_of
from polyop.poly.verify import first_failure, prove
from polyop.rewrite.sums.shares import LONG, ROWS, cut_into_shares, sums, thread_shares
from tests.rewrite.ops import op

TEXTS = {
    "sum": "op f(X: f64[N]) -> (y: f64) { y += X[i] }",
    "dot": "op f(X: f64[N], Z: f64[N]) -> (y: f64) { y += X[i] * Z[i] }",
    "max": "op f(X: f64[N]) -> (y: f64) { y max= X[i] }",
    "place": "op f(X: f64[N]) -> (Y: f64[1]) { Y[0] += X[i] }",
    "from 1": "op f(X: f64[N]) -> (y: f64) { y += X[i] - X[i - 1] where 1 <= i < N }",
    "matrix": "op f(X: f64[N, M]) -> (y: f64) { y += X[i, j] * j }",
    "triangle": "op f(X: f64[N, M]) -> (y: f64) { y += X[i, j] where j <= i }",
    "sizes decide": "op f(X: f64[N], Z: f64[M]) -> (y: f64) { y += X[i] where M > 2 }",
    "never": "op f(X: f64[N]) -> (y: f64) { y += X[i] where 1 < 0 }",
    "twice": "op f(X: f64[N], Z: f64[M]) -> (y: f64) {\n y += X[i]\n y += Z[j]\n}",
}
SIZES = [{"N": n, "M": 3} for n in (0, 1, 2, ROWS - 1, ROWS, ROWS + 1, 3 * ROWS + 7)] + [{"N": LONG + 5, "M": 1}]


@pytest.mark.parametrize("name", TEXTS)
def test_shares_add_up_to_the_same(name):
    whole = op(TEXTS[name])
    cut = cut_into_shares(whole)
    assert len(cut.steps) == 2 * len(whole.steps)
    for sizes in SIZES:
        if sizes["N"] > 1000 and "matrix" in name:
            continue
        rng = np.random.default_rng(0)
        sizes = {s: n for s, n in sizes.items() if s in whole.sizes}
        arrays = {t.name: rng.integers(-9, 9, [sizes[str(e)] for e in t.shape]).astype(float) for t in whole.inputs}
        out = whole.outputs[0].name
        np.testing.assert_array_equal(evaluate(cut, sizes, {}, arrays)[out], evaluate(whole, sizes, {}, arrays)[out])


@pytest.mark.parametrize("name", TEXTS)
def test_the_loop_over_shares_is_parallel_and_proved(name):
    scop = scop_of(cut_into_shares(op(TEXTS[name])))
    layout = Layout(tuple((t.name, len(t.shape) - 1 if t.shape else None) for t in scop.op.tensors if t.role != "temp"))
    m = lower(scop, layout, target("x86:x86-64-v4"), Options(threads=True), "tuned")
    assert first_failure(prove(m.scop, m.nest, m.context)) is None
    assert "(parallel)" in str(m.nest) or name == "never"


@pytest.mark.parametrize("text", [
    "op f(X: f64[N, M]) -> (Y: f64[M]) { Y[j] += X[i, j] }",
    "op f(X: f64[4]) -> (y: f64) { y += X[i] }",
    "op f(X: f64[N], ids: i64[N], M: int) -> (Y: f64[M]) { Y[ids[i]] += X[i] }",
])
def test_what_has_other_loops_to_share_or_nothing_to_cut_stays_whole(text):
    whole = op(text)
    assert cut_into_shares(whole) is whole


PLACES = {
    "counts": "op f(at: i64[M], N: int) -> (Y: i64[N]) { Y[at[m]] += 1 }",
    "rows": "op f(X: f64[M, D], at: i64[M], N: int) -> (Y: f64[N, D]) { Y[at[m], d] += X[m, d] }",
    "max": "op f(X: f64[M, D], at: i64[M], N: int) -> (Y: f64[D, N]) { Y[d, at[m]] max= X[m, d] }",
    "two": "op f(X: f64[M], at: i64[M], N: int) -> (Y: f64[N, N]) { Y[at[m], at[m]] += X[m] }",
    "where": "op f(X: f64[M], at: i64[M], N: int) -> (Y: f64[N, 1]) { Y[at[m], 0] += X[m] where m > 2, X[m] > 0 }",
}


@pytest.mark.parametrize("name", PLACES)
def test_each_share_has_all_places_that_come_from_data(name):
    whole = op(PLACES[name])
    (found,) = sums(whole)
    assert found.index == "m" and len(found.places) == (2 if name == "two" else 1)
    cut = cut_into_shares(whole, {"Y": 4})
    assert len(cut.steps) == 2
    rng = np.random.default_rng(0)
    for m, n in ((0, 3), (1, 1), (4, 3), (11, 5)):
        sizes = {s: x for s, x in (("M", m), ("N", n), ("D", 3)) if s in whole.sizes}
        arrays = {t.name: rng.integers(0, n, [sizes[str(e)] for e in t.shape]).astype(t.dtype.numpy) for t in whole.inputs}
        np.testing.assert_array_equal(evaluate(cut, sizes, {}, arrays)["Y"], evaluate(whole, sizes, {}, arrays)["Y"])
    scop = scop_of(cut_into_shares(whole, {"Y": 512}))
    layout = Layout(tuple((t.name, len(t.shape) - 1) for t in scop.op.tensors if t.role != "temp"))
    made = lower(scop, layout, target("x86:x86-64-v4"), Options(threads=True, shares=(("Y", 512),)), "tuned")
    assert first_failure(prove(made.scop, made.nest, made.context)) is None
    assert "t:parallel" in structure(made.nest.body)


def test_what_two_steps_add_to_the_same_places_is_left_whole():
    assert sums(op("op f(at: i64[M], N: int) -> (Y: i64[N]) {\n Y[at[m]] += 1\n Y[at[m]] += 2\n}")) == ()


@pytest.mark.parametrize("first", [False, True])
def test_a_sum_to_which_other_steps_add_single_terms_is_cut_and_they_stay(first):
    steps = ["Y[m, n] += A[m, k] * B[k, n]", "Y[m, n] += b[n]"]
    body = "\n".join(steps[::-1] if first else steps)
    whole = op(f"op f(A: f64[M, K], B: f64[K, N], b: f64[N]) -> (Y: f64[M, N]) {{\n {body}\n}}")
    (found,) = sums(whole)
    cut = cut_into_shares(whole, {"Y": 4})
    assert found.index == "k" and len(cut.steps) == 3 and sum("b" in str(s.expr) for s in cut.steps) == 1
    for k in (0, 1, 3, 4, 5, 13):
        rng, sizes = np.random.default_rng(k), {"M": 2, "K": k, "N": 3}
        arrays = {t.name: rng.integers(-9, 9, [sizes[str(e)] for e in t.shape]).astype(float) for t in whole.inputs}
        got = evaluate(cut, sizes, {}, arrays)["Y"]
        np.testing.assert_array_equal(got, arrays["A"] @ arrays["B"] + arrays["b"])


def test_single_terms_may_be_of_any_monoid_but_two_sums_are_left_whole():
    text = "op f(A: f64[M, K], b: f64[M]) -> (Y: f64[M]) {\n Y[m] max= A[m, k]\n Y[m] max= b[m]\n}"
    assert len(sums(op(text))) == 1
    assert sums(op("op f(A: f64[M, K], B: f64[M, K]) -> (Y: f64[M]) {\n Y[m] += A[m, k]\n Y[m] += B[m, k]\n}")) == ()


def test_a_sum_without_results_is_not_cut():
    (found,) = sums(op("op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }"))
    assert thread_shares((found,), {"M": 0, "K": 1, "N": 1}, 0) == thread_shares((found,), {"M": 0, "K": 10**6, "N": 5}, 1) == ()
