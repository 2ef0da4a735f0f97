"""Statements, left sides, temporaries, ranges."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from .programs import body, f32, i64, normal, report, run, strict

X = f32(3, 1, 2, 5)
R = "Y: f32[R]"
A = "A: f32[R, C]"


# --- reductions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("c", [0, 1, 7])
@pytest.mark.parametrize("sign, reduce", [("+", np.sum), ("*", np.prod), ("max", lambda a, axis: a.max(axis, initial=-np.inf)),
                                          ("min", lambda a, axis: a.min(axis, initial=np.inf))])
@pytest.mark.parametrize("how", [run, strict])
def test_a_reduction_starts_from_its_identity(sign, reduce, c, how):
    a = normal(3, c)
    assert_allclose(how(body(f"Y[r] {sign}= A[r, c]", A, R), a), reduce(a, axis=1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("c", [0, 1, 7])
@pytest.mark.parametrize("sign, reduce", [("&", np.bitwise_and), ("|", np.bitwise_or), ("^", np.bitwise_xor)])
def test_bits_reduce(sign, reduce, c):
    a = np.random.default_rng(0).integers(-99, 99, (3, c))
    assert_array_equal(run(body(f"Y[r] {sign}= A[r, c]", "A: i64[R, C]", "Y: i64[R]"), a), reduce.reduce(a, axis=1))


@pytest.mark.parametrize("c", [0, 1, 7])
@pytest.mark.parametrize("sign, reduce", [("and", np.all), ("or", np.any)])
def test_conditions_reduce(sign, reduce, c):
    a = normal(5, c)
    assert_array_equal(run(body(f"Y[r] {sign}= A[r, c] > 0", A, "Y: bool[R]"), a), reduce(a > 0, axis=1))


def test_argmax_takes_the_first_on_a_tie_and_nan_wins():
    a = f32([1, 3, 3, 0], [1, np.nan, 9, np.nan], [-np.inf, -np.inf, -np.inf, -np.inf])
    assert_array_equal(run(body("Y[r] argmax= A[r, c]", A, "Y: i64[R]"), a), [1, 1, 0])
    assert_array_equal(run(body("Y[r] argmin= A[r, c]", A, "Y: i64[R]"), a), [3, 1, 0])


@pytest.mark.parametrize("which", ["argmax", "argmin"])
def test_an_empty_argmax_is_minus_one(which):
    got = run(body(f"Y[r] {which}= A[r, c]", A, "Y: i64[R]"), normal(3, 0))
    assert got.dtype == np.int64
    assert_array_equal(got, [-1, -1, -1])


def test_argmax_reduces_exactly_one_index():
    assert "exactly one index" in report(body("Y argmax= A[r, c]", A, "Y: i64"))


@pytest.mark.parametrize("declared", ["T: f64", "T: f64[]"])
def test_a_declaration_of_rank_0_stands_with_or_without_brackets(declared):
    text = body(f"{declared}\nT += X[i]\nY = f32(T / 3)", result="Y: f32")
    assert_allclose(run(text, f32(1e8, 1, -1e8)), 1 / 3, rtol=1e-6)
    assert_allclose(run(text.replace(f"{declared}\n", f"{declared}; "), f32(1e8, 1, -1e8)), 1 / 3, rtol=1e-6)
    assert "E203]: `T` has 0 dimensions but 1 index" in report(text.replace("T +=", "T[i] +="))


def test_all_updates_of_one_tensor_are_one_reduction():
    a, b = normal(3, 5), normal(3, 2)
    got = run(body("Y[r] += A[r, c]\nY[r] += B[r, d]\nY[r] += 1", "A: f32[R, C], B: f32[R, D]", R), a, b)
    assert_allclose(got, a.sum(1) + b.sum(1) + 1, rtol=1e-5)


def test_assignment_and_reduction_do_not_mix():
    assert "E216" in report(body("Y[r] += A[r, c]\nY[r] = 1", A, R))
    assert "E216" in report(body("Y[r] += A[r, c]\nY[r] max= A[r, c]", A, R))


@pytest.mark.parametrize("c", [0, 1, 7])
def test_reductions_stand_inside_expressions(c):
    a = normal(3, c)
    got = run(body("Y[r] = sum[k](A[r, k]) + prod[k](A[r, k]) + max(max[k](A[r, k]), 0) + min(min[k](A[r, k]), 0)", A, R), a)
    want = a.sum(1) + a.prod(1) + np.maximum(a.max(1, initial=-np.inf), 0) + np.minimum(a.min(1, initial=np.inf), 0)
    assert_allclose(got, want, rtol=1e-4)


def test_a_reduction_inside_takes_an_index_list_and_nests():
    a, b = normal(3, 5), normal(5, 2)
    got = run(body("Y[r] = sum[c, d](A[r, c] * B[c, d]) + max[c](sum[d](B[c, d]))", "A: f32[R, C], B: f32[C, D]", R), a, b)
    assert_allclose(got, (a @ b).sum(1) + b.sum(1).max(), rtol=1e-4)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_the_where_of_a_statement_bounds_the_reductions_inside_it(n):
    a = normal(n, n)
    want = np.tril(a, -1).sum(1)
    header = "A: f32[N, N]"
    assert_allclose(run(body("Y[i] = sum[k](A[i, k]) where k < i", header), a), want, rtol=1e-4, atol=1e-5)
    assert_allclose(run(body("Y[i] = sum[k](k < i ? A[i, k] : 0) where k in 0:N", header), a), want, rtol=1e-4, atol=1e-5)


def test_a_branch_bounds_no_index_of_its_condition_and_the_report_says_what_to_write():
    text = report(body("Y[i] = sum[k](k < i ? A[i, k] : 0)", "A: f32[N, N]"))
    assert "E307" in text and "`where k in 0:N`" in text


def test_an_output_is_written_in_full_and_exactly_once():
    assert "not written in full" in report(body("Y[i] = X[i] where i > 0"))
    assert "written twice" in report(body("Y[i] = X[i]\nY[i] = 1 where i in 0:min(N, 1)"))
    got = run(body("Y[i] = X[i] where i < N / 2\nY[i] = -X[i] where i >= N / 2"), X)
    assert_array_equal(got, [3, 1, -2, -5])


# --- left sides ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 5])
def test_left_sides_are_quasi_affine(n):
    a, b = normal(n), normal(n, seed=1)
    got = run(body("Y[2*i] = A[i]\nY[2*i + 1] = B[i]", "A: f32[N], B: f32[N]", "Y: f32[2*N]"), a, b)
    assert_array_equal(got, np.stack([a, b], 1).ravel())


@pytest.mark.parametrize("n", [0, 1, 7])
def test_a_left_side_may_divide_and_take_remainders(n):
    x = normal(2 * n)
    got = run(body("Y[i / 2, i % 2] = X[i]", "n: int, X: f32[2*n]", "Y: f32[n, 2]"), n, x)
    assert_array_equal(got, x.reshape(n, 2))


@pytest.mark.parametrize("how", [run, strict])
def test_scatter_reduces(how):
    idx, x = i64(1, 1, 0, 3), normal(4, 2)
    want = np.zeros((5, 2), np.float32)
    np.add.at(want, idx, x)
    got = how("op f(idx: i64[S], X: f32[S, D], n: int) -> (Y: f32[n, D]) {\nY[idx[i], d] += X[i, d]\n}", idx, x, 5)
    assert_allclose(got, want, rtol=1e-6)


def test_a_scatter_of_nothing_holds_the_identity():
    got = run("op f(idx: i64[S], X: f32[S]) -> (Y: f32[3]) {\nY[idx[i]] max= X[i]\n}", i64(), f32())
    assert_array_equal(got, [-np.inf] * 3)


# --- temporaries -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 7])
def test_a_declared_temporary_holds_the_identity_where_no_term_reaches(n):
    x = normal(n)
    for text in ("T: f32[N + 1]\nT[i] += X[i] where i in 0:N", "T: f32[N + 1][i] += X[i] where i in 0:N"):
        got = run(body(text + "\nY[i] = T[i] + T[N]"), x)
        assert_array_equal(got, x)


def test_a_dtype_on_a_temporary_rounds_to_it():
    assert_array_equal(run(body("T: f16 [i] = f16(X[i])\nY[i] = T[i]"), f32(0.1)), np.float32(np.float16(0.1)))
    wide = run(body("T: f64 += X[i]\nY = T", result="Y: f64"), f32(0.1, 0.2))
    assert wide == np.float64(np.float32(0.1)) + np.float64(np.float32(0.2))


def test_a_dtype_on_an_output_is_the_accumulators():
    x = np.full(5000, 0.1, np.float32)
    got = run(body("Y: f64 += X[i]", result="Y: f32"), x)
    assert got == np.float32(x.astype(np.float64).sum())


def test_an_inferred_temporary_exists_exactly_where_it_is_written():
    text = "T[i] = X[i] where i > 0\nY[i] = {}"
    assert_array_equal(run(body(text.format("(T[i] else 9)"), "X: f32[N]"), X)[1:], X[1:])
    assert "E324" in report(body(text.format("T[i]")))


# --- ranges ----------------------------------------------------------------------------------------------------------


def test_ranges_come_first_from_where_in():
    assert_array_equal(run(body("Y += X[i] where i in 1:min(N, 3)", result="Y: f32"), X), 3)
    assert_array_equal(run(body("Y += X[2*i] where i in 0:N/2", result="Y: f32"), X), 5)
    assert_array_equal(run(body("Y += i where i in 3:N", result="Y: i64"), X), 3)
    assert_array_equal(run(body("Y += i where i in 3:N", result="Y: i64"), X[:1]), 0)


def test_ranges_come_from_the_left_side_if_its_shape_is_declared():
    assert_array_equal(run(body("Y[i] = i", result="Y: i64[N + 2]"), X), range(6))
    assert_array_equal(run(body("Y[i] = X[i]", result="Y: f32[N / 2]"), X), X[:2])


def test_ranges_come_from_reads_with_one_index_alone_then_with_one_still_open():
    x, w = normal(7), normal(3)
    got = run(body("T[p] += X[p + r] * W[r]\nY[p] = T[p]", "X: f32[N], W: f32[K]", "Y: f32[N - K + 1]"), x, w)
    assert_allclose(got, np.correlate(x, w, "valid"), rtol=1e-5)


def test_ranges_come_from_comparisons():
    assert_array_equal(run(body("Y += i where 2 <= i < N", result="Y: i64"), X), 5)


def test_the_range_of_a_temporary_comes_from_its_readers():
    assert_array_equal(run(body("T[i] = 2*i\nY[i] = T[i] + X[i]"), X), X + 2 * np.arange(4))


def test_a_read_with_else_bounds_nothing():
    assert_array_equal(run(body("Y[i] = (X[i] else 7)", result="Y: f32[N + 2]"), X), [*X, 7, 7])
    assert "E307" in report(body("Y += (X[i] else 7)", result="Y: f32"))
    both = report(body("Y += (A[i, j] else 7)", "A: f32[N, M]", result="Y: f32"))
    assert "nothing gives `i` or `j` a range" in both and "`where i in 0:N, j in 0:N`" in both


def test_an_index_alone_in_dimensions_of_different_sizes_is_an_error():
    assert "`k` runs over K in `A` and over L in `B`" in report(body("Y += A[k] * B[k]", "A: f32[K], B: f32[L]", "Y: f32"))
    got = run(body("Y += A[k] * B[k] where k in 0:min(K, L)", "A: f32[K], B: f32[L]", "Y: f32"), X, f32(1, 10))
    assert got == 13


def test_of_several_pieces_reads_cut_each_ones_range():
    got = run(body("Y[i] = A[i]\nY[i] = B[i - M]", "A: f32[M], B: f32[N]", "Y: f32[M + N]"), f32(1, 2), f32(3))
    assert_array_equal(got, [1, 2, 3])
