"""Lines, parameters, sizes."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from .programs import body, f32, make, normal, report, run

X = f32(3, 1, 2, 5)


# --- lines -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [
    "Y[i] = X[i]\n  + 1",
    "Y[i] = X[i] +\n  1",
    "Y[i] = (X[i]\n\n  + 1)",
    "Y[i] = X[\ni\n] + 1  # why",
    "Y[i] = true\n ? X[i] + 1\n : X[i]",
    "Y[i] = max(X[i] + 1\n , X[i])",
    "Y[i] = X[i] + 1\n  where i >= 0",
    "Y[i] = 1 + (X[i]\n  else 7)",
    "a[i] = X[i]; Y[i] = a[i] + 1",
    "\ufeffY[i] = X[i] + 1".replace("\ufeff", ""),
])
def test_a_statement_ends_with_its_line_unless_it_plainly_goes_on(text):
    assert_array_equal(run(body(text), X), X + 1)


def test_line_ends_count_only_inside_a_body_and_a_byte_order_mark_is_skipped():
    assert_array_equal(run("\ufeffop f\n(\nX: f32[\nN])\n->\n(Y: f32[N])\n{ Y[i] = X[i] }", X), X)


def test_the_comments_above_an_operator_and_a_parameter_travel_into_docstrings_and_explain():
    made = make("""
# Twice the input.
# Second line.
op f(
    # what is doubled
    X: f32[N],
    # the factor
    alpha: f32 = 2
) -> (
    # the result
    Y: f32[N]
) {
    Y[i] = alpha * X[i]
}""")
    assert "Twice the input." in made.__doc__ and "Second line." in made.__doc__
    assert "what is doubled" in made.__doc__ and "the factor" in made.__doc__ and "the result" in made.__doc__
    text = made.compile().explain()
    assert "Twice the input." in text and "what is doubled" in text and "the result" in text


# --- parameters ------------------------------------------------------------------------------------------------------


def test_tensors_scalars_integers_and_consts_stand_in_any_order_and_have_defaults():
    made = make("op f(const n: int = 1, alpha: f32, X: f32[N], steps: int; beta: f32 = 1, const m: int = 2) -> (Y: f32[N]) {\n"
                "Y[i] = i < steps ? alpha * X[i] + beta : n + m\n}")
    assert_array_equal(made(5, 2.0, X, 2), [7, 3, 7, 7])
    assert_array_equal(made(5, 2.0, X, 2, beta=0, m=3), [6, 2, 8, 8])
    assert_array_equal(made(alpha=2.0, X=X, steps=9), 2 * X + 1)


def test_what_stands_after_the_semicolon_is_passed_by_name():
    assert "E601" in report("op f(X: f32[N]; a: f32) -> (Y: f32[N]) {\nY[i] = a * X[i]\n}", X, 2.0)


def test_a_const_may_multiply_and_divide_an_index():
    assert_array_equal(run("op f(X: f32[N]; const s: int = 2) -> (Y: f32[N / s]) {\nY[i] = X[s*i] + X[s*i / s]\n}", X), [6, 3])


@pytest.mark.parametrize("n", [0, 1, 7])
def test_inout_reads_what_the_caller_passed_and_writes_what_he_gets_back(n):
    x = normal(n)
    old = x.copy()
    got = run("op f(inout X: f32[N]) {\nX[i] = X[N - 1 - i] + 1\n}", x)
    assert_array_equal(got, old[::-1] + 1)
    assert_array_equal(x, got)


def test_an_assignment_may_write_part_of_an_inout():
    cache = normal(5, 2)
    old, new = cache.copy(), normal(2, 2, seed=1)
    run("op f(inout K: f32[S, D], New: f32[L, D]; at: int) where at + L <= S {\nK[at + l, d] = New[l, d]\n}", cache, new, at=3)
    assert_array_equal(cache, np.concatenate([old[:3], new]))


def test_a_reduction_onto_an_inout_starts_from_the_callers_values():
    x = f32(1, 2, 3)
    run("op f(inout X: f32[N], A: f32[N, M]) {\nX[i] += A[i, j]\n}", x, np.ones((3, 4), np.float32))
    assert_array_equal(x, [5, 6, 7])


def test_results_are_the_outputs_then_the_inouts():
    x = f32(1, 2)
    y, z = run("op f(inout X: f32[N]) -> (Y: f32[N]) {\nX[i] = X[i] + 1\nY[i] = 10 * X[i]\n}", x)
    assert_array_equal(y, [10, 20])
    assert_array_equal(z, [2, 3])


@pytest.mark.parametrize("n", [0, 1, 7])
def test_rank_zero_has_no_brackets(n):
    x = normal(n)
    got = run("op f(X: f32[N]) -> (O: f32) {\nO += X[i]\n}", x)
    assert np.shape(got) == ()
    assert_allclose(got, x.sum(), rtol=1e-5)


def test_a_scalar_tensor_may_be_read_without_brackets():
    assert_array_equal(run("op f(X: f32[N]) -> (Y: f32[N]) {\ns += X[i]\nY[i] = X[i] + s\n}", X), X + 11)


def test_in_one_operator_a_name_means_one_thing():
    assert "E202" in report("op f(X: f32[N], N: f32[M]) -> (Y: f32[N]) {\nY[i] = X[i]\n}")
    assert "error[E2" in report("op f(X: f32[N]) -> (Y: f32[N]) {\nN[i] = X[i]\nY[i] = X[i]\n}")


# --- sizes -----------------------------------------------------------------------------------------------------------


def test_tensors_that_name_one_size_must_agree():
    assert "`N` is 4 in `A`" in report("op f(A: f32[N], B: f32[N]) -> (Y: f32[N]) {\nY[i] = A[i] + B[i]\n}", X, f32(1))


def test_other_input_extents_are_checked():
    text = "op f(n: int, X: f32[3*n], Z: f32[2]) -> (Y: f32[n]) {\nY[i] = X[3*i + 1] + Z[1]\n}"
    assert_array_equal(run(text, 2, np.arange(6, dtype=np.float32), f32(0, 10)), [11, 14])
    assert "E60" in report(text, 2, np.arange(5, dtype=np.float32), f32(0, 10))
    assert "E60" in report(text, 2, np.arange(6, dtype=np.float32), f32(0, 10, 2))


@pytest.mark.parametrize("n", [0, 1, 7])
def test_extents_are_quasi_affine(n):
    x = normal(n)
    text = "op f(X: f32[N]) -> (Y: f32[max(min(2*N, 9) - 1, 0) + N % 3 + N / 2]) {\nY[i] = i\n}"
    assert run(text, x).shape == (max(min(2 * n, 9) - 1, 0) + n % 3 + n // 2,)


def test_an_extent_that_comes_out_negative_refuses_the_call():
    text = "op f(X: f32[N]) -> (Y: f32[N - 3]) {\nY[i] = X[i]\n}"
    assert_array_equal(run(text, X), X[:1])
    assert run(text, X[:3]).shape == (0,)
    assert "error[E6" in report(text, X[:2])


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 0, 3), (1, 2, 1, 3)])
def test_dots_stand_for_the_same_dimensions_throughout(shape):
    x, b = normal(*shape), normal(*shape[:-1])
    got = run("op f(X: f32[..., D], B: f32[...]) -> (Y: f32[D, ...]) {\nY[d, ...] = X[..., d] * B[...]\n}", x, b)
    assert_array_equal(got, np.moveaxis(x * b[..., None], -1, 0))


def test_dots_must_agree():
    assert "error[E6" in report("op f(X: f32[..., D], B: f32[...]) -> (Y: f32[...]) {\nY[...] += X[..., d] * B[...]\n}",
                                normal(2, 3, 4), normal(2, 5))


def test_a_fact_about_sizes_is_checked_on_every_call_and_used_by_the_compiler():
    text = "op f(X: f32[D]) -> (Y: f32[D / 8]) where D % 8 == 0, D >= 8 {\nY[i] = X[8*i + 7] + X[0]\n}"
    assert run(text, normal(16)).shape == (2,)
    assert "`f` needs D % 8 == 0, and D = 12 (from `X`)" in report(text, normal(12))
    assert "D >= 8" in report(text, normal(0))
