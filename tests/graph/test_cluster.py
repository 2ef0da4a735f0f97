"""Clustering: what shares a kernel, what does not and why, and that values never change."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyop
from polyop.graph import f32
from polyop.graph.symbolic import input
from polyop.graph.traits import Kind, traits
from tests.graph.helpers import (
    ADD,
    BLUR,
    BOTH,
    DOUBLE,
    FLIP,
    LINEAR,
    MATMUL,
    SCAN,
    SPREAD,
    SQUARE,
    TOTAL,
    assert_merging_keeps_values,
    kernels,
    square,
)
from tests.rewrite.ops import library

EXP = polyop.op("op exponential(X: f32[N, N]) -> (Y: f32[N, N]) { Y[i, j] = exp(X[i, j]) }")
X, Y = square("x"), square("y")


@pytest.mark.parametrize("room, name, kind", [
    ("activation", "gelu", Kind.POINTWISE), ("elementwise", "bias_add", Kind.POINTWISE),
    ("movement", "transpose", Kind.POINTWISE),
    ("norm", "batchnorm", Kind.POINTWISE), ("movement", "concat", Kind.STENCIL), ("linalg", "matmul", Kind.CONTRACTION),
    ("linalg", "matvec", Kind.REDUCTION), ("softmax", "softmax", Kind.REDUCTION), ("norm", "layernorm", Kind.REDUCTION),
    ("conv", "conv2d", Kind.CONTRACTION), ("attention", "attention", Kind.CONTRACTION), ("rnn", "rnn", Kind.RECURRENCE),
])
def test_operators_of_the_library_are_of_their_sort(room, name, kind):
    assert traits(library(room, name)).kind is kind


def test_a_pointwise_operator_after_a_contraction_is_its_epilogue():
    made = assert_merging_keeps_values([EXP(ADD(MATMUL(X, Y), X))])
    assert kernels(made) == "matmul+add+exponential"
    assert "add is an epilogue of matmul" in str(made)
    assert [t.name for t in made.steps[0].op.temporaries] == ["matmul_Y"]


def test_a_cheap_operator_before_a_contraction_is_computed_as_it_loads():
    made = assert_merging_keeps_values([MATMUL(DOUBLE(X), Y)])
    assert kernels(made) == "double+matmul"


def test_an_expensive_operator_before_a_contraction_has_a_kernel_of_its_own():
    made = assert_merging_keeps_values([MATMUL(EXP(X), Y)])
    assert kernels(made) == "exponential | matmul"
    assert "exponential and matmul are apart: exponential would be computed again for every j" in str(made)


def test_an_expensive_operator_before_a_sum_is_part_of_it():
    assert kernels(assert_merging_keeps_values([TOTAL(EXP(X))])) == "exponential+total"


def test_two_contractions_never_share_a_kernel():
    made = assert_merging_keeps_values([MATMUL(MATMUL(X, Y), X)])
    assert kernels(made) == "matmul | matmul_2"
    assert "matmul and matmul_2 are apart: matmul is a contraction, and matmul_2 a contraction" in str(made)


def test_a_pointwise_operator_between_two_contractions_goes_with_the_first():
    made = assert_merging_keeps_values([MATMUL(EXP(MATMUL(X, Y)), X)])
    assert kernels(made) == "matmul+exponential | matmul_2"


def test_what_two_contractions_meet_in_goes_with_the_later_one():
    made = assert_merging_keeps_values([ADD(MATMUL(X, Y), MATMUL(Y, X))])
    assert kernels(made) == "matmul | matmul_2+add"
    assert "matmul and matmul_2 each need a kernel of their own" in str(made)


def test_a_result_inside_a_kernel_is_written_by_it():
    m = MATMUL(X, Y)
    made = assert_merging_keeps_values([EXP(m), m])
    assert kernels(made) == "matmul+exponential"
    assert [t.name for t in made.steps[0].op.outputs] == ["matmul_Y", "exponential_Y"]


def test_a_residual_never_closes_a_circle_through_another_kernel():
    e = EXP(MATMUL(X, Y))
    made = assert_merging_keeps_values([ADD(MATMUL(e, X), e)])
    assert kernels(made) == "matmul+exponential | matmul_2+add"


def test_kernels_do_not_merge_around_one_that_runs_between_them():
    a = EXP(X)
    made = assert_merging_keeps_values([ADD(BLUR(MATMUL(a, Y)), a)])
    assert kernels(made) == "exponential | matmul | blur+add"
    assert "exponential and add are apart: matmul has to run between them" in str(made)


def test_neighbours_merge_only_if_all_that_is_between_their_kernels_allows_it():
    e = EXP(X)
    made = assert_merging_keeps_values([ADD(MATMUL(e, Y), e)])
    assert kernels(made) == "exponential | matmul+add"
    assert "exponential and add are apart: exponential would be computed again for every j" in str(made)


def test_what_is_cheap_is_computed_wherever_it_is_needed():
    d = DOUBLE(X)
    made = assert_merging_keeps_values([MATMUL(d, Y), TOTAL(d)])
    assert kernels(made) == "double+matmul | double+total"
    assert not made.slots.of


def test_what_is_cheap_but_a_result_is_stored():
    d = DOUBLE(X)
    made = assert_merging_keeps_values([MATMUL(d, Y), d])
    assert kernels(made) == "double+matmul"


def test_a_stencil_does_not_recompute_what_it_reads():
    made = assert_merging_keeps_values([BLUR(EXP(X))])
    assert kernels(made) == "exponential | blur"
    assert "exponential would be computed again for every place around it" in str(made)


def test_a_sum_is_used_for_its_whole_row_in_one_kernel():
    assert kernels(assert_merging_keeps_values([SPREAD(X, TOTAL(X))])) == "total+spread"


def test_an_operator_that_uses_a_product_turned_around_is_still_its_epilogue():
    made = assert_merging_keeps_values([FLIP(MATMUL(X, Y))])
    assert kernels(made) == "matmul+flip"


def test_a_recurrence_takes_its_input_and_its_epilogue_along():
    assert kernels(assert_merging_keeps_values([EXP(SCAN(EXP(X)))])) == "exponential+scan+exponential_2"


OPERATORS = [ADD, BLUR, BOTH, DOUBLE, EXP, FLIP, MATMUL, SCAN, SPREAD, SQUARE, TOTAL]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_merging_never_changes_a_value(data):
    squares, rows, every = [X, Y], [TOTAL(X)], []
    for _ in range(data.draw(st.integers(1, 7))):
        operator = data.draw(st.sampled_from(OPERATORS))
        args = [data.draw(st.sampled_from(squares if len(p.dims) == 2 else rows)) for p in operator.interface.tensors]
        results = operator(*args)
        for r in results if isinstance(results, tuple) else (results,):
            (squares if len(r.shape) == 2 else rows).append(r)
            every.append(r)
    outputs = data.draw(st.lists(st.sampled_from(every), min_size=1, max_size=3, unique_by=id))
    assert_merging_keeps_values([*outputs, every[-1]] if every[-1] not in outputs else outputs, size=2)


def test_a_linear_layer_of_any_rank_is_one_kernel_with_its_activation():
    x, w, b = input("x", f32["B", "S", "D"]), input("w", f32["D", "F"]), input("b", f32["F"])
    made = assert_merging_keeps_values([polyop.library("gelu")(polyop.library("bias_add")(LINEAR(x, w), b))], size=2)
    assert kernels(made) == "linear+bias_add+gelu"
