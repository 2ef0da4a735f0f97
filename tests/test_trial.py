"""Made-up calls: every operator of the library can be tried, and a wrong result would be seen."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest

from polyop import program, standard
from polyop.dsl.check import instantiate
from polyop.dsl.interface import interface as interface_of
from polyop.dsl.parse import parse
from polyop.ir import reference, samples
from polyop.ir.dtypes import BF16, DTYPES, F16, F32, F64, I64
from polyop.ir.errors import UserError
from polyop.ir.options import Options
from polyop.ir.span import Source
from polyop.outcome import compared, difference, hands_on_16_bits, tolerance
from polyop.runtime import room
from polyop.runtime.estimate import work
from polyop.trial import sample, trial


def maker(text, name):
    return lambda dtypes, consts, rank: instantiate(text, name, dtypes=dtypes, consts=consts, rank=rank, library=standard.LIBRARY)


@pytest.mark.parametrize("file", sorted(standard.texts()))
def test_every_operator_of_the_library_can_be_tried(file):
    text = standard.program(file)
    for op in text.ops:
        interface = interface_of(text, op.name)
        given = {p.name: 1 for p in interface.consts if p.required}
        call = trial(interface, maker(text, op.name), given, size=4)
        assert set(call.sizes) >= set(call.op.sizes)
        for t in call.op.inputs:
            assert call.inputs[t.name].dtype == t.dtype.numpy


def test_positions_stay_inside_what_they_point_into():
    text = standard.program("embedding.pop")
    call = trial(interface_of(text, "embedding"), maker(text, "embedding"), {"V": 3, "D": 2}, size=500)
    assert set(np.unique(call.arguments["ids"])) == {0, 1, 2}


def test_the_same_seed_makes_the_same_inputs():
    a, b, c = (sample(np.random.default_rng(seed), BF16, (5, 7)) for seed in (1, 1, 2))
    assert a.dtype == BF16.numpy
    assert (a == b).all() and not (a == c).all()


def test_arrays_say_how_many_dimensions_the_dots_are():
    text = standard.program("softmax.pop")
    interface = interface_of(text, "softmax")
    call = trial(interface, maker(text, "softmax"), {"X": np.zeros((2, 3, 5))})
    assert len(call.op.tensor("X").shape) == 3 and call.op.tensor("X").dtype == F64
    assert not call.assumed


def test_sizes_that_disagree_with_an_array_are_refused():
    text = standard.program("linalg.pop")
    with pytest.raises(UserError, match="`M` is 3, but dimension 0 of `A` has 2"):
        trial(interface_of(text, "matmul"), maker(text, "matmul"), {"A": np.zeros((2, 5), np.float32), "M": 3})


def test_a_wrong_kernel_is_seen_at_any_size():
    text = parse(Source("<test>", "op f(X: f32[M, N]) -> (Y: f32[M, N]) { Y[m, n] = X[m, n] * 2 }"))
    right = program.operator(text, "f", Options())

    class Wrong:
        interface = right.interface

        def __call__(self, X):
            return right(X) + np.float32(0.001) * (X > 1)

    for sizes in ({"M": 9, "N": 20}, {"M": 1000, "N": 1000}):
        assert compared(right, maker(text, "f"), sizes).right
        outcome = compared(Wrong(), maker(text, "f"), sizes)
        assert not outcome.right and "WRONG" in str(outcome)


def test_a_check_that_cannot_be_made_says_so():
    text = parse(Source("<test>", "op f(X: f32[N]) -> (Y: f32[N]) where N >= 1000000 { Y[n] = X[n] }\n"
                        "op g(at: i32[N]) -> (Y: f32[N]) where N >= 1000000 { Y[at[n]] += 1.0 }"))
    outcome = compared(program.operator(text, "g", Options()), maker(text, "g"), {"N": 1000000})
    assert "not checked" in str(outcome)
    outcome = compared(program.operator(text, "f", Options()), maker(text, "f"), {"N": 1000000})
    assert str(outcome).startswith("right in 200 of 1,000,000 elements: off by ") and ";" not in str(outcome)


def test_what_is_wrong_at_large_sizes_alone_is_seen_there():
    text = parse(Source("<test>", "op f(X: f32[M, K], B: f32[K, N]) -> (Y: f32[M, N]) { Y[m, n] += X[m, k] * B[k, n] }"))
    right = program.operator(text, "f", Options())

    class Wrong:
        interface = right.interface

        def __call__(self, X, B):
            y = right(X, B)
            y[32:, -1] += 1  # beyond a tile
            return y

    sizes = {"M": 60, "N": 70, "K": 80}
    said, wrong = (str(compared(f, maker(text, "f"), sizes)) for f in (right, Wrong()))
    assert re.fullmatch(r"right in 19\d of 4,200 elements: off by .*; right at M = 11, .*", said)
    assert re.match(r"WRONG in 19\d of 4,200 elements: `Y` is off", wrong)


@pytest.mark.parametrize("name", [
    "matmul", "softmax", "attention_causal", "conv2d", "conv1d_transposed", "gemm_update", "lstm", "cumsum", "interleave",
    "concat", "tril", "argmax_rows", "jacobi2d", "cholesky", "max_pool2d", "rotary"])
def test_single_elements_are_what_they_are_among_all(name):
    text = standard.program(standard.index()[name])
    interface = interface_of(text, name)
    call = trial(interface, maker(text, name), {p.name: 1 for p in interface.consts if p.required}, size=4)
    all_of = reference.evaluate(call.op, call.sizes, call.scalars, call.inputs, wide=True)
    rng = np.random.default_rng(1)
    wanted = [(n, at) for n, a in all_of.items() for at in samples.places(rng, a.shape, 20)]
    found = samples.evaluate(call.op, call.sizes, call.scalars, call.inputs, wanted, 1_000_000, wide=True)
    assert len(found) == len(wanted) >= 1
    np.testing.assert_array_equal(found, [all_of[n][at] for n, at in wanted])
    few = samples.evaluate(call.op, call.sizes, call.scalars, call.inputs, wanted, 30, wide=True)
    assert len(few) < len(wanted) and few == found[:len(few)]


def test_places_are_corners_first_and_within_the_shape():
    found = samples.places(np.random.default_rng(0), (3, 4), 30)
    assert found[:4] == [(0, 0), (2, 0), (0, 3), (2, 3)] and len(found) == len(set(found)) <= 12
    assert all(0 <= i < 3 and 0 <= j < 4 for i, j in found)
    assert samples.places(np.random.default_rng(0), (3, 0), 5) == [] and samples.places(np.random.default_rng(0), (), 5) == [()]


def test_differences_count_special_values_and_shapes():
    want = np.array([1.0, np.nan, np.inf])
    assert difference(want.astype(np.float32), want) == 0
    assert difference(np.array([1, 0, np.inf], np.float32), want) == np.inf
    assert difference(np.array([np.nan, np.nan, np.inf], np.float32), want) == np.inf
    assert difference(np.zeros(2), np.zeros(3)) == np.inf
    assert difference(np.array([1, 2]), np.array([1, 3])) == np.inf
    assert difference(np.float32([2, 4]), np.array([2.0, 5.0])) == pytest.approx(0.2)


def test_where_the_working_dtype_overflows_any_overflow_is_right_and_a_finite_value_must_be_near_the_exact_one():
    want, working = np.array([1e39, 1e39, 1e39, 2.0]), np.array([np.inf, np.nan, np.inf, 2.0], np.float32)
    assert difference(np.array([np.inf, -np.inf, 1e39, 2.0]), want, working) == 0
    assert difference(np.array([np.inf, np.nan, 1e38, 2.0]), want, working) > 0.1
    assert difference(np.array([np.inf, np.nan, np.inf, np.inf]), want, working) == np.inf
    assert difference(np.array([np.inf, np.nan, np.inf, 2.5]), want, working) == 0.25
    assert difference(np.array([3, 4]), np.array([3, 5]), np.array([2, 4])) == 0
    assert difference(np.array([3, 4]), np.array([3, 5]), np.array([4, 5])) == np.inf


@pytest.mark.parametrize(("text", "values"), [
    ("op f(X: f32[N]) -> (Y: f32[N]) { Y[n] = X[n] * X[n] }", [1e20, 2.0, -3e38, 1e19]),
    ("op f(X: f16[N]) -> (Y: f16[N]) { Y[n] = X[n] + X[n] }", [60000, 3]),
    ("op f(X: f32[N]) -> (y: f32) { y += X[n] }", [3e38, 3e38, 3e38]),
    ("op f(X: f32[N]) -> (Y: f32[N]) { Y[n] = X[n] * X[n] - X[n] * X[n] * X[n] }", [1e20, 1.5]),
    ("op f(X: f32[N]) -> (Y: bool[N]) { Y[n] = isinf(X[n] * X[n]) }", [1e20, 2.0]),
    ("op f(X: f32[N]) -> (y: i64) { y argmax= X[n] + 1e9 }", [1.0, 2.0, 3.0]),
    ("op f(X: f32[N]) -> (Y: f32[N]) { Y[n] = floor(X[n] * 10.0) }", np.arange(50) / 10),
])
def test_what_overflows_ties_or_jumps_in_the_working_dtype_is_no_wrong_result(text, values):
    parsed = parse(Source("<test>", text))
    operator = program.operator(parsed, "f", Options())
    dtype = operator.interface.tensors[0].dtype
    outcome = compared(operator, maker(parsed, "f"), {"X": np.array(values, {"f32": np.float32, "f16": np.float16}[dtype])})
    assert outcome.right, outcome


@pytest.mark.parametrize(("dtype", "fault"), [("f16", 0.005), ("bf16", 0.04)])
def test_a_fault_of_a_few_units_in_16_bits_is_no_rounding(dtype, fault):
    kind = DTYPES[dtype].numpy
    want = np.random.default_rng(0).uniform(1, 2, 1000)
    allowed = tolerance(DTYPES[dtype], 100)
    assert difference(want.astype(kind), want) < allowed / 4
    want[17], got = 2.0, want.astype(kind)
    got[17] = 2 * (1 + fault)
    assert difference(got, want) > allowed


def test_what_steps_hand_on_in_16_bits_is_rounded_more_often():
    def handed(text):
        o = program.op(text)
        return hands_on_16_bits(o._op(o.choice()))

    assert handed("op a(X: f16[N]) -> (Y: f16[N]) { Y[i] = X[i] + (Y[i-1] else 0) }")
    assert handed("op b(X: f16[N]) -> (Y: f16[N]) { Z[i] = X[i] * X[i]\n Y[i] = Z[i] + 1 }")
    assert not handed("op c(X: f16[N]) -> (Y: f16[N]) { Z[i] = f32(X[i])\n Y[i] = f16(Z[i] + 1) }")
    assert tolerance(F16, 10, narrow=True) > 3 * tolerance(F16, 10) and tolerance(F32, 10, narrow=True) == tolerance(F32, 10)


def test_tolerances_are_zero_for_integers_and_grow_with_the_terms():
    assert tolerance(I64, 100) == 0
    assert tolerance(F64, 10) < tolerance(F32, 10) < tolerance(F32, 1000) < 1e-3


def test_sizes_that_nobody_gave_leave_a_call_of_bearable_length():
    text = standard.program("conv.pop")
    interface, make = interface_of(text, "conv3d"), maker(text, "conv3d")
    call = trial(interface, make, {"C": 40}, points=1 << 20)  # 64 for each size would be 2^60 points, and arrays of gigabytes
    assert call.sizes["C"] == 40 and "C" not in call.assumed
    assert work(call.op, call.sizes) <= 1 << 20 < work(call.op, call.sizes | {n: 2 * v for n, v in call.assumed.items()})


def test_arrays_that_do_not_fit_into_memory_are_refused_before_they_are_made(monkeypatch):
    text = standard.program("softmax.pop")
    given = (interface_of(text, "softmax"), maker(text, "softmax"), {"C": 100, "dim0": 5})
    monkeypatch.setattr(room, "free", lambda: 2 * 4 * 500)
    assert trial(*given).sizes == {"C": 100, "dim0": 5}
    monkeypatch.setattr(room, "free", lambda: 2 * 4 * 500 - 1)
    with pytest.raises(UserError, match=r"the arrays of `softmax` would take 3\.73e-06 GiB; 3\.72e-06 GiB of memory are free"):
        trial(*given)


def test_what_is_free_is_less_than_there_is():
    assert 1 << 20 < room.free() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
