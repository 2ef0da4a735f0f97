"""Kernels that go over their rows once: chosen by size, as exact as the others, and proved on the first rung."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyop
from polyop.compiler import compile_op
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.rewrite.regimes.regimes import regime, regimes_of
from polyop.rewrite.sums.passes import find_passes, one_pass_pays
from polyop.runtime.layout import contiguous
from tests.rewrite.ops import library, op

V4 = target("x86:x86-64-v4")
ONE_PASS = Options(cascade=True)


def in_one_pass(name):
    found = polyop.library(name)
    return type(found)(found.interface, found._instantiate, found._compile, ONE_PASS)


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(0, 2, shape).astype(np.float32)


def softmax(x):
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("columns", [1, 4095, 4096, 4097, 9000])
def test_rows_of_any_length_are_right_in_one_pass(columns):
    x = random(3, columns)
    np.testing.assert_allclose(in_one_pass("softmax")(x), softmax(x.astype(np.float64)), rtol=2e-6, atol=1e-12)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(in_one_pass("var_rows")(x), wide.var(-1), rtol=2e-6, atol=1e-12)
    want = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(in_one_pass("standardize")(x), want, rtol=2e-5, atol=2e-5)


def test_columns_are_right_in_one_pass():
    x = random(5000, 70)
    np.testing.assert_allclose(in_one_pass("softmax_first")(x), softmax(x.T.astype(np.float64)).T, rtol=1e-5, atol=1e-12)


def test_infinities_and_nan_are_those_of_the_text():
    x = random(6, 9000)
    x[0, :5000] = -np.inf       # a whole block
    x[1] = -np.inf
    x[2, 4100] = np.inf
    x[3, 8999] = np.nan
    x[4, 1:] = -np.inf
    with np.errstate(invalid="ignore", divide="ignore"):
        want = polyop.library("logsumexp")(x)
    np.testing.assert_allclose(in_one_pass("logsumexp")(x), want, rtol=1e-6)
    np.testing.assert_allclose(in_one_pass("softmax")(x), polyop.library("softmax")(x), rtol=1e-5, atol=1e-12)


def test_a_large_mean_costs_no_digits():
    x = random(2, 20000) + np.float32(1000)
    np.testing.assert_allclose(in_one_pass("var_rows")(x), x.astype(np.float64).var(-1), rtol=1e-4)


@pytest.mark.parametrize("name", ["attention", "attention_causal", "attention_window", "attention_masked", "attention_padded"])
def test_attention_in_one_pass_is_the_attention_of_the_text(name):
    heads, n, d = 2, 2100, 24
    q, k, v = (random(1, heads, n, d, seed=s) for s in range(3))
    more = {"attention_masked": (random(n, n, seed=4),), "attention_padded": (random(1, n, seed=5) > -2,)}.get(name, ())
    if name == "attention_masked":
        more[0][3, :1100] = -np.inf
        more[0][4, 1100:] = -np.inf
        more[0][5] = -np.inf
    numbers = {"scale": 0.2} | ({"window": 1000} if name == "attention_window" else {})
    want = polyop.library(name)(q, k, v, *more, **numbers)
    np.testing.assert_allclose(in_one_pass(name)(q, k, v, *more, **numbers), want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["attention_causal", "attention_window"])
def test_keys_that_a_row_does_not_see_are_not_met_in_one_pass(name):
    q, k, v = (random(1, 1, 2000, 8, seed=s) for s in range(3))
    numbers = {"scale": 0.2} | ({"window": 300} if name == "attention_window" else {})
    want = polyop.library(name)(q, k, v, **numbers)[0, 0, 900:1000]
    k[0, 0, 1000:], v[0, 0, 1000:] = np.nan, np.inf
    if name == "attention_window":
        k[0, 0, :601], v[0, 0, :601] = np.inf, np.nan
    np.testing.assert_allclose(in_one_pass(name)(q, k, v, **numbers)[0, 0, 900:1000], want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name, first", [("attention_causal", "[960*j_b, S)"),
                                         ("attention_window", "[960*j_b, min(S, 960*j_b + ")])
def test_rows_that_see_no_key_of_a_block_are_left_out(name, first):
    o = library("attention", name)
    made = compile_op(o, contiguous(o), V4, ONE_PASS)
    assert made.rung == "tuned" and any(first in line for line in str(made.nest).splitlines() if "for i_o in" in line), made.nest


@pytest.mark.parametrize("room, name", [("softmax", "softmax"), ("softmax", "cross_entropy"), ("norm", "layernorm"),
                                        ("attention", "attention"), ("attention", "attention_causal")])
def test_one_pass_is_proved_on_the_first_rung_and_noted(room, name):
    o = library(room, name)
    made = compile_op(o, contiguous(o), V4, ONE_PASS)
    assert made.rung == "tuned" and any("computed in one pass, block by block" in n for n in made.notes)
    assert not any(n.startswith("not on rung") for n in made.notes)


def test_scores_of_attention_are_kept_for_a_tile_and_a_block():
    o = library("attention", "attention")
    nest = compile_op(o, contiguous(o), V4, ONE_PASS).nest
    scores = next(b for b in nest.buffers if b.name == "s")
    assert [str(e) for e, _ in scores.dims] == ["1", "1", "min(M, 192)", "1", "960"]


def test_results_in_the_order_of_the_text_are_not_taken_apart():
    o = library("softmax", "softmax")
    made = compile_op(o, contiguous(o), V4, Options(cascade=True, numerics="strict"))
    assert "not in one pass, since sums keep the order of the text" in made.notes and "part" not in str(made.nest)


def test_a_gpu_keeps_reductions_apart_and_says_why():
    o = library("softmax", "softmax")
    made = compile_op(o, contiguous(o), target("cuda:sm_80"), ONE_PASS)
    assert any("in one pass only where a block of threads has all of it" in n for n in made.notes)


def test_rows_are_taken_one_by_one_by_all_that_reads_them():
    o = library("softmax", "softmax")
    schedule = compile_op(o, contiguous(o), V4, ONE_PASS).trace["schedule"].splitlines()
    assert schedule[0] == "at0 around"
    assert schedule[1] == "  [c_b : top_part_init total_part_init c_p*(S0) S1 c_p*(S2)]"


def test_columns_that_lanes_run_along_are_not_taken_one_by_one():
    o = library("softmax", "softmax_first")
    assert "around" not in compile_op(o, contiguous(o), V4, ONE_PASS).trace["schedule"]


def test_blocks_of_keys_are_a_loop_around_all_of_attention():
    o = library("attention", "attention_causal")
    schedule = compile_op(o, contiguous(o), V4, ONE_PASS).trace["schedule"].splitlines()
    assert schedule[0].startswith("j_b!(") and "192 of i at a time around" in schedule[0]
    assert [line.split(" :")[0] for line in schedule[1:4]] == ["  [i j_p", "  [i", "  [i v"]


def test_rows_beyond_l2_are_done_in_one_pass():
    q = regimes_of(library("softmax", "softmax"))
    longest = V4.l2 // 4
    assert not regime(q, {"dim0": 4, "C": longest}, Options(), V4).cascade
    assert regime(q, {"dim0": 4, "C": longest + 1}, Options(), V4).cascade
    assert not regime(q, {"dim0": 4, "C": longest + 1}, Options(numerics="strict"), V4).cascade
    assert not regime(q, {"dim0": 4, "C": longest + 1}, Options(special=False), V4).cascade


@pytest.mark.parametrize(("name", "columns", "threads", "cascade"), [
    ("layernorm", 16384, 1, False), ("layernorm", 16385, 1, True), ("layernorm", 16385, 8, True), ("layernorm", 16385, 9, False),
    ("add_layernorm", 16385, 1, False), ("softmax", 16385, 1, False)])
def test_distances_from_a_mean_are_added_up_in_one_pass_where_l2_is_far(name, columns, threads, cascade):
    """Not if rows are kept on the way or their powers would be taken again, nor where threads are more than rows."""
    q, far = regimes_of(library("softmax" if name == "softmax" else "norm", name)), replace(V4, l2=2 << 20)
    sizes = {"dim0": 8, "C" if name == "softmax" else "D": columns}
    assert regime(q, sizes, Options(), far, threads).cascade is cascade
    assert not regime(q, sizes, Options(), V4, threads).cascade


def test_places_of_extremes_are_found_in_one_pass_where_rows_come_from_memory():
    q, row = regimes_of(op("op f(X: f32[N, C]) -> (Y: i64[N]) { Y[n] argmax= X[n, c] }")), V4.l2 // 2
    many = V4.l3 // 8 // row
    assert not regime(q, {"N": many, "C": row}, Options(), V4).cascade
    assert regime(q, {"N": many + 1, "C": row}, Options(), V4).cascade
    assert not regime(q, {"N": 8 * many * row, "C": 1}, Options(), V4).cascade


def test_attention_is_rolled_where_scores_of_a_tile_leave_half_of_l3():
    passes = find_passes(library("attention", "attention"))
    sizes = {"B": 1, "H": 1, "M": 8192, "N": 8192, "D": 64, "E": 64}
    assert not one_pass_pays(passes, sizes, V4) and one_pass_pays(passes, sizes | {"N": 16384}, V4)


def test_a_single_query_hands_over_a_row_and_stays_as_it_is():
    assert find_passes(library("attention", "attention_decode")) == ()
