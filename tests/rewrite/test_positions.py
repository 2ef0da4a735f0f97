"""Positions are looked for in 32 bits where they fit, and mean the same."""

from dataclasses import replace

import numpy as np
import pytest

from polyop.compiler import compile_op
from polyop.ir.dtypes import I32, I64
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.target import BY_NAME
from polyop.rewrite.regimes.positions import BOUND, bounding, narrowed
from polyop.rewrite.regimes.regimes import kinds, regime, regimes_of
from polyop.runtime.layout import contiguous
from tests.rewrite.ops import op

FIRST = op("op f(X: f32[R, N]) -> (Y: i64[R]) { Y[r] argmax= X[r, n] }")
LATE = op("op f(X: f32[R, N], M: bool[N]) -> (Y: i64[R]) { Y[r] argmin= X[r, n] where M[n] and n >= r }")
AVX512 = BY_NAME["x86:x86-64-v4"]


def dtypes(o):
    return {t.name: t.dtype for t in o.temporaries}


def test_a_position_is_bounded_by_the_size_that_its_index_runs_to():
    assert bounding(FIRST) == ("N",) and bounding(LATE) == ("N",)


def test_what_holds_positions_alone_is_narrowed_and_nothing_else():
    assert dtypes(narrowed(FIRST))["Y_at"] == I32 and narrowed(FIRST).tensor("Y").dtype == I64
    least = op("op f(I: i64[R, N]) -> (Y: i64[R]) { t[r] min= I[r, n]; Y[r] = t[r] + 1 }")
    assert bounding(least) == () and narrowed(least) == least


def test_a_position_that_leads_to_another_place_stays_wide():
    there = op("""op f(X: f32[R, N], Z: f32[N]) -> (Y: f32[R]) {
        at[r] min= X[r, n] > 0 ? i64(n) : 9223372036854775807
        Y[r]    = at[r] < N ? Z[at[r]] : 0
    }""")
    assert bounding(there) == ()


def test_a_size_that_no_argument_shows_by_itself_narrows_nothing():
    hidden = replace(FIRST, tensors=tuple(replace(t, shape=tuple(e * 3 for e in t.shape)) for t in FIRST.tensors))
    assert bounding(hidden) == ()


@pytest.mark.parametrize("o", [FIRST, LATE], ids=["argmax", "argmin"])
@pytest.mark.parametrize("n", [0, 1, 5, 40])
def test_positions_in_32_bits_are_the_same(o, n):
    rng = np.random.default_rng(n)
    arrays = {"X": rng.integers(0, 4, (6, n)).astype(np.float32), "M": rng.integers(0, 2, n).astype(bool)}
    if n > 2:
        arrays["X"][2, 1] = arrays["X"][2, 2] = np.nan
        arrays["X"][3] = np.inf
        arrays["X"][4] = -np.inf
    given = {t.name: arrays[t.name] for t in o.tensors if t.role == "in"}
    want = evaluate(o, {"R": 6, "N": n}, {}, given)["Y"]
    np.testing.assert_array_equal(evaluate(narrowed(o), {"R": 6, "N": n}, {}, given)["Y"], want)


def test_only_calls_whose_positions_fit_get_the_narrow_kernel():
    q = regimes_of(FIRST)
    assert regime(q, {"R": 5, "N": BOUND}, Options(), AVX512).near
    assert not regime(q, {"R": 5, "N": BOUND + 1}, Options(), AVX512).near
    assert regime(q, {"R": BOUND + 1, "N": 5}, Options(), AVX512).near
    assert f"where N is more than {BOUND}" in kinds(FIRST)


def test_operators_that_look_for_no_position_have_one_kernel():
    total = op("op f(X: f32[R, N]) -> (Y: f32[R]) { Y[r] += X[r, n] }")
    assert not regime(regimes_of(total), {"R": 5, "N": 5}, Options(), AVX512).near


@pytest.mark.parametrize("o", [FIRST, LATE], ids=["argmax", "argmin"])
def test_narrow_kernels_are_proved(o):
    made = compile_op(o, contiguous(o), AVX512, Options(near=True))
    assert made.rung == "tuned" and made.proofs and all(p.holds for p in made.proofs)
    assert "i32" in made.trace["loops"]


def test_positions_below_a_known_number_are_always_narrow():
    for n, is_narrow in (("5", True), (str(BOUND), True), (str(BOUND + 1), False)):
        o = op(f"op f(X: f32[R, {n}]) -> (Y: i64[R]) {{ Y[r] argmax= X[r, n] }}")
        assert bounding(o) == () and (dtypes(narrowed(o))["Y_at"] == I32) is is_narrow
        assert ("i32" in compile_op(o, contiguous(o), AVX512, Options()).trace["loops"]) is is_narrow
