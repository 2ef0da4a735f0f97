"""Reductions that need another one's result, in one pass over blocks: the values of the text, infinities and NaN included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyop.ir.reference import evaluate
from polyop.poly.wellformed import check
from polyop.rewrite.sums.cascade import cascaded
from polyop.rewrite.sums.dependent import find_chain
from tests.rewrite.ops import library, op, shape_of

LIBRARY = [("softmax", n) for n in ("softmax", "softmax_first", "softmax_temperature", "softmax_masked", "softmax_causal",
                                    "log_softmax", "logsumexp", "cross_entropy", "cross_entropy_mean", "cross_entropy_soft")]
LIBRARY += [("norm", n) for n in ("layernorm", "add_layernorm", "batchnorm_train", "standardize")]
LIBRARY += [("reduce", n) for n in ("var_rows", "var_columns")]
ATTENTION = ["attention", "attention_causal", "attention_window", "attention_masked", "attention_padded", "attention_alibi",
             "attention_mqa", "attention_decode"]
TEXTS = {
    "a minimum": """op f(X: f32[N, C]) -> (Z: f32[N]) {
        low[n] min= X[n, c]
        Z[n]     += exp2(low[n] - X[n, c]) }""",
    "weighted": """op f(X: f32[N, C], W: f32[C], V: f32[N, C]) -> (Z: f32[N], A: f32[N]) {
        top[n] max= X[n, c] * W[c]
        Z[n]     += exp(X[n, c] * W[c] - top[n]) / 3
        A[n]     += V[n, c] * exp(X[n, c] * W[c] - top[n]) * 0.5 }""",
    "a mask of the sum alone": """op f(X: f32[N, C], keep: bool[N, C]) -> (Z: f32[N]) {
        top[n] max= X[n, c]
        Z[n]     += keep[n, c] ? exp(X[n, c] - top[n]) : 0 }""",
    "rows that may be empty": """op f(X: f32[N, N], V: f32[N, N]) -> (Z: f32[N], A: f32[N]) {
        top[n] max= X[n, c]                          where c < n
        Z[n]     += exp(X[n, c] - top[n])            where c < n
        A[n]     += exp(X[n, c] - top[n]) * V[n, c]  where c < n }""",
    "a band": """op f(X: f32[N, N]) -> (Z: f32[N]) {
        total[n] += X[n, c]                                      where c <= n, c > n - 3
        Z[n]     += (X[n, c] - total[n] / 3) * (X[n, c] - total[n] / 3)  where c <= n, c > n - 3 }""",
    "empty rows are read": """op f(X: f32[N, N], C: int) -> (Y: f32[N], Z: f32[N]) where C <= N {
        top[n] max= X[n, c]                where c < n, c < C
        l[n]     += exp(X[n, c] - top[n])  where c < n, c < C
        Y[n]      = log(l[n]) + top[n]
        m[n]     += X[n, c]                                        where c < C
        v[n]     += (X[n, c] - m[n] / 3) * (X[n, c] - m[n] / 3)    where c < C
        Z[n]      = v[n] - m[n] }""",
    "two means": """op f(X: f32[N, C], Y: f32[N, C]) -> (Z: f32[N]) {
        a[n] += X[n, c]
        b[n] += Y[n, c]
        Z[n] += (X[n, c] - a[n] / C) * (b[n] / C - Y[n, c]) }""",
    "kept more": """op f(X: f32[N, N], V: f32[N, E]) -> (Z: f32[N], O: f32[N, E]) {
        top[n]  max= X[n, c]                          where c < n
        e[n, c]    = exp(X[n, c] - top[n])            where c < n
        Z[n]      += e[n, c]                          where c < n
        O[n, k]   += e[n, c] * V[c, k]                where c < n }""",
    "kept more, a mask of the sum alone": """op f(X: f32[N, C], keep: bool[N, C], V: f32[C, E]) -> (Z: f32[N], O: f32[N, E]) {
        top[n]  max= X[n, c]
        Z[n]      += keep[n, c] ? exp(X[n, c] - top[n]) : 0
        O[n, k]   += (keep[n, c] ? exp(X[n, c] - top[n]) : 0) * V[c, k] }""",
    "kept more, masked": """op f(X: f32[N, C], keep: bool[N, C], V: f32[C, E]) -> (Z: f32[N], O: f32[N, E]) {
        top[n]  max= keep[n, c] ? X[n, c] : -inf
        e[n, c]    = keep[n, c] ? exp(X[n, c] - top[n]) : 0
        Z[n]      += e[n, c]
        O[n, k]   += e[n, c] * V[c, k] }""",
    "place": "op f(X: f32[N, C]) -> (Y: i64[N]) { Y[n] argmax= X[n, c] }",
    "place of the least": "op f(X: i32[N, C]) -> (Y: i64[N]) { Y[n] argmin= X[n, c] }",
    "place and powers": """op f(X: f32[N, C]) -> (Y: i64[N], Z: f32[N]) {
        top[n] max= X[n, c]
        Y[n]   min= X[n, c] == top[n] ? i64(c) : i64(9223372036854775807)
        Z[n]   += exp(X[n, c] - top[n]) }""",
    "beside it": """op f(X: f32[N, C], W: f32[C]) -> (Y: f32[N]) {
        top[n] min= X[n, c]
        Y[n]   max= top[n] == X[n, c] ? W[c] : -inf }""",
}
ALL = {**{n: lambda room=room, n=n: library(room, n) for room, n in LIBRARY},
       **{n: lambda n=n: library("attention", n) for n in ATTENTION},
       "attention_gqa": lambda: library("attention", "attention_gqa", consts={"group": 2}),
       **{n: lambda t=t: op(t) for n, t in TEXTS.items()}}
STRANGE = np.array([-np.inf, np.inf, np.nan, 0, -3, 5], np.float32)  # no power of their products is rounded to 0


def drawn(o, sizes, seed, strange):
    """Arrays and scalars for `o`; with `strange`, some of them infinite or NaN, and whole rows -inf."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for t in o.inputs:
        shape = shape_of(t, sizes)
        if not t.dtype.is_float:
            arrays[t.name] = rng.integers(0, 2, shape).astype(t.dtype.numpy)
            continue
        x = rng.normal(0, 3, shape).astype(t.dtype.numpy)
        if strange and x.size:
            chosen = rng.random(shape) < rng.choice([0, 0.1, 0.6])
            x[chosen] = rng.choice(STRANGE[:rng.integers(1, 7)], int(chosen.sum()))
            if x.ndim > 1:
                x[rng.random(shape[:-1]) < 0.3] = -np.inf
        arrays[t.name] = x
    values = {p.name: 0.5 if p.dtype.is_float else 1 for p in o.params if not p.is_size}
    return values, arrays


def assert_as_the_text(o, made, sizes, seed, strange):
    values, arrays = drawn(o, sizes, seed, strange)
    with np.errstate(all="ignore"):
        want, got = (evaluate(x, sizes, values, arrays, wide=True) for x in (o, made))
    for name, x in want.items():
        np.testing.assert_allclose(got[name], x, rtol=1e-11, atol=1e-11, err_msg=f"{name} of {o}\n{made}")


@pytest.mark.parametrize("name", ALL)
def test_there_is_a_chain_in_each_of_them(name):
    assert find_chain(ALL[name]()) is not None


@pytest.mark.parametrize("strange", [False, True])
@pytest.mark.parametrize("name", ALL)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_blocks_give_the_values_of_the_text(name, strange, data):
    o = ALL[name]()
    made = cascaded(o, data.draw(st.integers(1, 5), "block"))
    sizes = {n: data.draw(st.integers(0, 3 if n in "BHDE" and len(o.sizes) > 3 else 9), n) for n in o.sizes}
    if "used" in sizes:
        sizes |= {"N": max(1, sizes["N"]), "used": 1 + sizes["used"] % max(1, sizes["N"])}
    if "gqa" in name:
        sizes["H"] = 2 * (sizes["H"] // 2)
    if "window" in sizes:
        sizes["window"] += 1
    if name.startswith("cross"):
        sizes["C"] = max(2, sizes["C"])
    assert_as_the_text(o, made, sizes, data.draw(st.integers(0, 999), "seed"), strange)


@pytest.mark.parametrize("name", ALL)
def test_all_that_is_read_of_blocks_is_written(name):
    check(cascaded(ALL[name]()))


def test_only_what_keeps_more_than_the_maximum_is_rolled():
    assert find_chain(library("attention", "attention")).is_rolled
    assert not find_chain(library("softmax", "softmax")).is_rolled


OTHER_RANGE = "op f(X: f32[N, C]) -> (Z: f32[N]) { top[n] max= X[n, c]\n Z[n] += exp(X[n, c] - top[n]) where c in 1:C }"
OTHER_ELEMENT = "op f(X: f32[N, C], Y: f32[N, C]) -> (Z: f32[N]) { top[n] max= X[n, c]\n Z[n] += exp(Y[n, c] - top[n]) }"
MORE_THAN_COMPARED = """op f(X: f32[N, C], keep: bool[C]) -> (Z: f32[N]) {
    top[n] max= keep[c] ? X[n, c] : -inf
    Z[n]     += exp(X[n, c] - top[n]) }"""
OTHER_ROW = "op f(X: f32[N, N]) -> (Z: f32[N]) { top[n] max= X[n, c]\n Z[n] += exp(X[n, c] - top[c]) }"
WRONG_WAY = "op f(X: f32[N, C]) -> (Z: f32[N]) { top[n] max= X[n, c]\n Z[n] += exp(top[n] - X[n, c]) }"
NO_SUM = "op f(X: f32[N, C]) -> (Z: f32[N]) { top[n] max= X[n, c]\n Z[n] max= exp(X[n, c] - top[n]) }"
SQUARES = "op f(X: f32[N, C]) -> (Z: f32[N]) { a[n] += X[n, c]\n Z[n] += X[n, c] * X[n, c] * a[n] }"
FIXED = "op f(X: f32[N, 64]) -> (Z: f32[N]) { top[n] max= X[n, c]\n Z[n] += exp(X[n, c] - top[n]) }"
EACH_THIRD = """op f(X: f32[N, C]) -> (Z: f32[N]) {
    top[n] max= X[n, c]               where 3*c < C
    Z[n]     += exp(X[n, c] - top[n]) where 3*c < C }"""
ANOTHER_TEST = """op f(X: f32[N, C]) -> (Y: i64[N]) {
    top[n] max= X[n, c]
    Y[n]   min= X[n, c] >= top[n] - 1 ? i64(c) : i64(9223372036854775807) }"""
ANOTHER_IDENTITY = """op f(X: f32[N, C]) -> (Y: i64[N]) {
    top[n] max= X[n, c]
    Y[n]   min= X[n, c] == top[n] ? i64(c) : 7 }"""
ABOUT_ANYTHING = """op f(X: f32[N, C], w: f32[N]) -> (Z: f32[N]) {
    a[n] += X[n, c]
    Z[n] += (X[n, c] - w[n] * a[n]) * (X[n, c] - w[n] * a[n]) }"""


@pytest.mark.parametrize("text", [OTHER_RANGE, OTHER_ELEMENT, MORE_THAN_COMPARED, OTHER_ROW, WRONG_WAY, NO_SUM, SQUARES, FIXED,
                                  EACH_THIRD, ABOUT_ANYTHING, ANOTHER_TEST, ANOTHER_IDENTITY])
def test_what_is_no_chain_stays_as_it_is(text):
    o = op(text)
    assert find_chain(o) is None and cascaded(o) is o


NARROWER = """op f(X: f32[N, C], V: f32[C, E]; M: int) -> (Z: f32[N], O: f32[N, E]) where M <= C {
    top[n]  max= X[n, c]                where c in 0:C, c < M
    e[n, c]    = exp(X[n, c] - top[n])  where c in 0:M
    Z[n]      += e[n, c]                where c in 0:C, c < M
    O[n, k]   += e[n, c] * V[c, k]      where c in 0:C, c < M }"""


@pytest.mark.parametrize("columns, used", [(7, 5), (9, 0), (4, 4)])
def test_what_is_kept_aside_is_computed_where_it_was(columns, used):
    o, sizes = op(NARROWER), {"N": 2, "C": columns, "E": 2, "M": used}
    made = cascaded(o, 4)
    assert made is not o
    assert_as_the_text(o, made, sizes, 3, False)


@pytest.mark.parametrize("name", ["a mask of the sum alone", "kept more, a mask of the sum alone", "kept more, masked"])
@pytest.mark.parametrize("block", [1, 2, 3])
def test_every_row_of_strange_numbers_and_masks_gives_what_the_text_says(name, block):
    """All rows of three of these numbers under all masks: a row that keeps nothing is 0 although its maximum is NaN."""
    o = op(TEXTS[name])
    numbers = np.array(np.meshgrid(*[[0.5, -np.inf, np.inf, np.nan]] * 3)).reshape(3, -1).T
    masks = np.array(np.meshgrid(*[[False, True]] * 3)).reshape(3, -1).T
    given = {"X": np.repeat(numbers, len(masks), 0).astype(np.float32), "keep": np.tile(masks, (len(numbers), 1)),
             "V": np.array([[1.0, 2.0], [3.0, -4.0], [0.5, 8.0]], np.float32)}
    arrays = {t.name: given[t.name] for t in o.inputs}
    sizes = {"N": len(given["X"]), "C": 3, "E": 2}
    want, got = (evaluate(x, {n: sizes[n] for n in o.sizes}, {}, arrays, wide=True) for x in (o, cascaded(o, block)))
    for t in o.outputs:
        np.testing.assert_allclose(got[t.name], want[t.name], rtol=1e-12)
