"""The middle as a whole: on every rung each operator's nest is proved, and the interpreter computes what NumPy says."""

from __future__ import annotations

import islpy as isl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.loops import Kind, structure, walk
from polyop.ir.options import Options
from polyop.poly.sets import quota

from .middles import CASES, RUNGS, TIED, middle, proved, run


@pytest.mark.parametrize("name", TIED)
def test_lanes_stay_where_a_condition_ties_them_to_a_sum_inside(name):
    body, expected = TIED[name]
    m = middle(f"op f(A: f32[N, N], x: f32[N]) -> (y: f32[N]) {{ {body} }}", "default")
    assert "i_v:lanes" in structure(m.nest.body) and proved(m)
    for n in (1, 2, 17, 63, 64, 65, 130):
        arrays, got = run(m, {"N": n})
        np.testing.assert_allclose(got, expected(arrays["A"], arrays["x"]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("name", CASES)
def test_every_rung_is_proved_and_computes_what_numpy_says(name, rung):
    text, expected, many = CASES[name]
    m = middle(text, rung)
    assert proved(m)
    for sizes in many:
        arrays, got = run(m, sizes)
        np.testing.assert_allclose(got, expected(arrays, sizes), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("name", ["matmul", "softmax", "conv", "triangle"])
def test_the_regime_any_serves_sizes_of_zero(name, rung):
    text, expected, _ = CASES[name]
    m = middle(text, rung, Options(regime="any"))
    assert proved(m)
    for zero in m.scop.op.sizes:
        sizes = {s: 0 if s == zero else 3 for s in m.scop.op.sizes}
        if name == "softmax" and zero == "C":
            continue  # NumPy has no maximum of nothing
        arrays, got = run(m, sizes)
        np.testing.assert_allclose(got, expected(arrays, sizes), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["matmul", "conv", "elman", "apart", "apart inside"])
def test_loops_cut_for_threads_are_proved_too(name):
    m = middle(CASES[name][0], "tuned", Options(threads=True))
    assert proved(m)
    assert any(getattr(n, "kind", None) == Kind.PARALLEL for n in walk(m.nest.body))


def test_strict_numerics_never_splits_a_sum_over_lanes():
    strict = middle("op f(X: f32[R, C]) -> (S: f32[R]) { S[r] += X[r, c] }", "tuned", Options(numerics="strict"))
    assert "c_v" not in structure(strict.nest.body) and proved(strict)


def test_lanes_run_along_a_read_that_is_held_inside():
    many = " + ".join(f"X[max(i - {d}, 0)] + X[min(i + {d}, N - 1)]" for d in range(1, 5))
    m = middle(f"op f(X: f32[N]) -> (Y: f32[N]) {{ Y[i] = {many} }}", "tuned")
    assert "i_v:lanes" in structure(m.nest.body) and proved(m)


def test_a_recurrence_without_an_order_along_single_loops_is_refused_with_a_reason():
    text = """op f(X: f32[N, N]) -> (A: f32[N, N]) {
        A[i, j] = X[i, j] + (A[i-1, j+1] else 0) + (A[i+1, j-2] else 0) }"""
    for rung in RUNGS:
        with pytest.raises(UnsupportedError, match="no order along single iterators"):
            middle(text, rung)


def test_a_text_that_isl_cannot_read_is_no_quota_that_ran_out():
    with pytest.raises(InternalError, match="syntax error"), quota(1000, "reading"):
        isl.Set("{ [i] : i < j }")
    with pytest.raises(UnsupportedError, match="more than 3 isl operations"), quota(3, "reading"):
        isl.Set("[N] -> { [i, j] : 0 <= i, j < N and exists k : j = 2k }")


def test_a_quota_that_runs_out_is_reported_and_isl_goes_on():
    m = isl.Map("[N] -> { S[i, j] -> T[i + j] : 0 <= i, j < N and exists k : j = 2k }")
    with pytest.raises(UnsupportedError, match="isl operations"), quota(20, "closure"):
        for _ in range(50):
            m = m.apply_range(m.reverse()).coalesce()
    assert not isl.Set("{ [i] : 0 <= i < 3 }").is_empty()


LETTERS = "abcd"


@st.composite
def contractions(draw):
    """Two operands over few letters, and a result over some of them: any product-sum, in any order of dimensions."""
    left = draw(st.permutations(LETTERS).map(lambda p: p[: draw(st.integers(1, 3))]))
    right = draw(st.permutations(LETTERS).map(lambda p: p[: draw(st.integers(1, 3))]))
    every = sorted(set(left) | set(right))
    out = draw(st.permutations(every).map(lambda p: p[: draw(st.integers(0, len(every)))]))
    return "".join(left), "".join(right), "".join(out)


@settings(max_examples=25, deadline=None)
@given(contractions(), st.integers(0, 1))
def test_any_contraction_is_proved_and_right(equation, which):
    left, right, out = equation

    def at(labels):
        return f"[{', '.join(labels)}]" if labels else ""

    def dims(labels):
        return at(labels).upper()

    head = f"op f(X: f32{dims(left)}, Y: f32{dims(right)}) -> (Z: f32{dims(out)})"
    m = middle(f"{head} {{ Z{at(out)} += X{at(left)} * Y{at(right)} }}", RUNGS[which])
    assert proved(m)
    sizes = {x.upper(): n for x, n in zip(LETTERS, (3, 17, 2, 7), strict=True)}
    arrays, got = run(m, {s: sizes[s] for s in m.scop.op.sizes})
    np.testing.assert_allclose(got, np.einsum(f"{left},{right}->{out}", arrays["X"], arrays["Y"]), rtol=1e-4, atol=1e-4)
