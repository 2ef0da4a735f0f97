"""Cutting a reduction into residue classes keeps what it computes, bit for bit, and leaves no remainder in its conditions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from polyop.ir.deep import with_room
from polyop.ir.expr import Quasi, Test, affine
from polyop.ir.op import Range
from polyop.poly.wellformed import check
from polyop.rewrite.windows.residues import cut_into_residues
from tests.rewrite.ops import assert_same, fits, library, op

SPREAD = """op f(X: f32[L], F: f32[R]) -> (Y: f32[{s}*L + R + 2]) {{
    Y[p] += (X[({a}*p + {c} - {b}*r) / {s}] else 0) * F[r]  where ({a}*p + {c} - {b}*r) % {s} == 0 }}"""
BIAS = """op f(X: f32[C, L], F: f32[C, R], z: f32) -> (Y: f32[2*L + R]) {
    Y[p] += (X[c, (p - r) / 2] else 0) * F[c, r]  where (p - r) % 2 == 0
    Y[p] += z }"""
BIAS_FIRST = """op f(X: f32[C, L], F: f32[C, R], z: f32) -> (Y: f32[2*L + R]) {
    Y[p] += z
    Y[p] += (X[c, (p - r) / 2] else 0) * F[c, r]  where (p - r) % 2 == 0 }"""
LATER = """op f(X: f32[L], F: f32[R]) -> (Y: f32[2*L + R]) {
    y[p] += (X[(p - r) / 2] else 0) * F[r]  where (p - r) % 2 == 0
    Y[p] = (y[p - 1] else 0) + 2 * y[p] }"""
PARTLY = """op f(X: f32[L], F: f32[R]) -> (Y: f32[2*L + R]) {
    Y[p] += (X[(p - r) / 2] else 0) * F[r]  where (p - r) % 2 == 0, p >= 3, p % 4 != 1 }"""
PARITY = "op f(X: f32[N]) -> (Y: f32[N, N]) { Y[i, j] max= X[k] - X[i]  where k <= i + j, (i + j + k) % 2 == 1 }"
EVEN = "op f(X: f32[N]) -> (Y: f32[N]) { Y[i] += X[k]  where (i + 2*k) % 4 == 0 }"
TRIANGLE = "op f(X: f32[N]) -> (Y: f32[N]) { Y[i] += X[k] * (i - k)  where k in i/2:i + 1, (i - k) % 3 == 0 }"
NEVER = "op f(X: f32[N]) -> (Y: f32[N]) { Y[i] += X[k]  where (2*i + 2*k + 1) % 4 == 0 }"
PLACES = """op f(X: f32[N]) -> (Y: f32[N]) {
    Y[i] += (X[(i + k) % 3] else 0) + f32(i / 2 + k)  where k in 0:N + 1, (i + k) % 2 == 0 }"""
ODD = "op f(X: f32[N]) -> (Y: f32[N]) { Y[i] += X[k]  where (i + k) % 2 == 0, k % 2 == 1 }"
ONE = """op f(X: f32[L], F: f32[R]) -> (Y: f32[1, 2*L + R]) {
    Y[0, p] += (X[(p - r) / 2] else 0) * F[r]  where (p - r) % 2 == 0 }"""
TEXTS = [ODD, BIAS, BIAS_FIRST, LATER, PARTLY, PARITY, EVEN, TRIANGLE, PLACES, ONE]

RECURRENCE = "op f(X: f32[N]) -> (Y: f32[N]) { Y[i] += (Y[k] else X[i])  where k in 0:i + 1, (i - k) % 2 == 1 }"
SEVERAL = "op f(X: f32[N]) -> (Y: f32[N]) { Y[i] += X[k]  where (i + k) % 3 <= 1 }"
WITH_A_SIZE = "op f(X: f32[N]) -> (Y: f32[N]) { Y[i] += X[k]  where (i + k) % 2 == 0, (k + N) % 2 == 0 }"
A_SIZE = "op f(X: f32[N], M: int) -> (Y: f32[N]) { Y[i] += X[k]  where (i + k + M) % 2 == 0 }"
KEPT_ALONE = "op f(X: f32[N]) -> (Y: f32[N]) { Y[i] += X[k]  where i % 2 == 0 }"
LARGE = "op f(X: f32[N]) -> (Y: f32[N]) { Y[i] += X[k]  where (i + k) % 5 == 0 }"
MANY = "op f(X: f32[N]) -> (Y: f32[N, N, N]) { Y[h, i, j] += X[k] where (h + k) % 4 == 0, (i + k) % 4 == 0, (j + k) % 4 == 0 }"
DIAGONAL = "op f(X: f32[N]) -> (Y: f32[2*N]) { Y[i + 1] += X[k] where i in 0:2*N - 1, k in 0:N, (i + k) % 2 == 0 }"


def remainders(o):
    """The remainders in conditions of the reductions of `o`."""
    return [a for s in o.steps if s.reduce for w in s.where if isinstance(w, Test) for t in w.tests for a, _ in t.terms
            if isinstance(a, Quasi)]


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 4), st.sampled_from([1, -1]), st.sampled_from([1, -1]), st.integers(-5, 5), st.integers(0, 9),
       st.integers(0, 9))
def test_a_strided_sum_is_the_same_for_every_stride_sign_offset_and_size(s, a, b, c, length, taps):
    o = op(SPREAD.format(s=s, a=a, b=b, c=c))
    cut = cut_into_residues(o)
    assert len(cut.steps) == 2 * s and not remainders(cut)
    assert_same(o, cut, {"L": length, "R": taps})


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["conv1d_transposed", "conv2d_transposed"]), st.integers(1, 4), st.integers(0, 3), st.data())
def test_transposed_convolutions_of_the_library_stay_the_same(name, stride, pad, data):
    o = library("conv", name, consts={"stride": stride, "pad": pad})
    sizes = {n: data.draw(st.integers(0, 2 if n in "BCK" else 4)) for n in o.sizes}
    assume(fits(o, sizes))
    cut = cut_into_residues(o)
    assert not remainders(cut)
    assert_same(o, cut, sizes)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("n", range(8))
def test_any_reduction_stays_the_same(text, n):
    o = op(text)
    sizes = {size: n if size != "C" else 2 for size in o.sizes}
    cut = cut_into_residues(o)
    assert len(cut.steps) > len(o.steps)
    if text != BIAS_FIRST:
        assert_same(o, cut, sizes)


@pytest.mark.parametrize("text", [*TEXTS, SPREAD.format(s=3, a=1, b=1, c=1)])
def test_the_classes_are_well_formed_for_all_sizes(text):
    check(cut_into_residues(op(text)))


@pytest.mark.parametrize("pad", range(3))
@pytest.mark.parametrize("stride", [2, 3, 4])
def test_transposed_convolutions_are_well_formed_when_cut(stride, pad):
    check(cut_into_residues(library("conv", "conv2d_transposed", consts={"stride": stride, "pad": pad})))


@pytest.mark.parametrize("stride", [2, 3, 4])
def test_every_position_of_a_class_is_plain(stride):
    cut = cut_into_residues(library("conv", "conv2d_transposed", consts={"stride": stride, "pad": 1}))
    sums = [s for s in cut.steps if s.reduce]
    assert len(sums) == stride * stride
    assert not any("floor" in str(s.expr) or "mod" in str(s.expr) or s.where for s in sums)


@pytest.mark.parametrize(("text", "assigned"), [(LATER, True), (BIAS, False), (PARTLY, False)])
def test_a_class_is_assigned_where_nothing_else_is_added_and_every_element_is_written(text, assigned):
    o = op(text)
    cut = cut_into_residues(o)
    puts = [s for s in cut.steps if s.target.source == o.steps[0].target.source and "_class_" in str(s.expr)]
    assert puts and all((s.reduce is None) == assigned for s in puts)


def test_a_residue_without_terms_has_the_identity():
    cut = cut_into_residues(op(EVEN))
    assert [str(s.expr) for s in cut.steps if s.reduce is None] == ["Y_class_0[i]", "f32(0.0)", "Y_class_2[i]", "f32(0.0)"]
    assert_same(op(EVEN), cut, {"N": 6})


@pytest.mark.parametrize("text", [RECURRENCE, SEVERAL, A_SIZE, WITH_A_SIZE, KEPT_ALONE, LARGE, MANY, DIAGONAL, NEVER])
def test_what_no_single_residue_answers_stays_as_it_is(text):
    o = op(text)
    assert cut_into_residues(o) is o


def test_a_range_that_leaves_the_tensor_is_not_cut():
    o = op(LATER)
    first = o.steps[0]
    wide = replace(first, ranges=(Range("p", affine(-1), first.ranges[0].upper), *first.ranges[1:]))
    o = replace(o, steps=(wide, *o.steps[1:]))
    assert cut_into_residues(o) is o


def test_an_expression_deeper_than_the_stack_is_cut():
    deep = "op f(X: f32[N]) -> (Y: f32[N]) { Y[i] += " + "+".join(["X[k]"] * 1500) + "  where (i + k) % 2 == 0 }"
    assert len(cut_into_residues(with_room(lambda: op(deep))).steps) == 4


def test_in_order_only_the_first_step_of_a_tensor_is_cut():
    assert cut_into_residues(op(BIAS_FIRST), in_order=True) == op(BIAS_FIRST)
    assert len(cut_into_residues(op(BIAS), in_order=True).steps) == 5


def test_a_temporary_is_as_long_as_its_class():
    cut = cut_into_residues(op("op f(X: f32[N], F: f32[3]) -> (Y: f32[N]) { Y[i] += F[k] * X[i]  where (i + k) % 3 == 0 }"))
    assert [str(t.shape[0]) for t in cut.temporaries] == ["floor((N + 2)/3)", "floor((N + 1)/3)", "floor((N)/3)"]
