"""`where`, `else`, `?:`, positions from data."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from .programs import body, f32, i64, normal, report, run, strict

X = f32(3, 1, 2, 5)
SCATTER = "op f(P: i64[S], X: f32[S]; lo: f32, hi: f32, n: int) -> (Y: f32[n]) {{\nY[P[i]] {}= X[i] where lo <= X[i] <= hi\n}}"


# --- where -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 7])
def test_where_takes_conditions_separated_by_commas_and_comparisons_chain(n):
    a = normal(n, n)
    i, j = np.indices((n, n))
    want = (a * ((j <= i) & (i < j + 3) & ((i + j) % 2 == 0))).sum(1)
    got = run(body("Y[i] += A[i, j] where 0 <= j <= i < j + 3, (i + j) % 2 == 0", "A: f32[N, N]"), a)
    assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_where_joins_conditions_with_or_and_not():
    a = normal(5, 5)
    i, j = np.indices((5, 5))
    got = run(body("Y[i] += A[i, j] where j == i or not (j < 3)", "A: f32[N, N]"), a)
    assert_allclose(got, (a * ((i == j) | (j >= 3))).sum(1), rtol=1e-5)


def test_no_memory_is_read_where_a_condition_on_indices_fails():
    assert_allclose(run(body("Y[i] += X[i - j] where j <= i, j in 0:N"), X), np.cumsum(X))
    assert_array_equal(run(body("Y[i] += X[i + j] where i + j < N, j in 0:2"), X), [4, 3, 7, 5])


@pytest.mark.parametrize("how", [run, strict])
def test_on_a_reduction_conditions_may_read_data_and_choose_terms(how):
    a = normal(3, 7)
    assert_allclose(how(body("Y[r] += A[r, c] where A[r, c] > 0", "A: f32[R, C]", "Y: f32[R]"), a), np.maximum(a, 0).sum(1),
                    rtol=1e-5)
    assert_array_equal(how(body("Y[r] max= A[r, c] where A[r, c] < 0", "A: f32[R, C]", "Y: f32[R]"), a),
                       np.where(a < 0, a, -np.inf).max(1))


def test_on_an_assignment_conditions_are_affine():
    assert "E235" in report(body("Y[i] = X[i] where X[i] > 0"))


@pytest.mark.parametrize("sign, at", [("+", np.add), ("max", np.maximum), ("min", np.minimum), ("*", np.multiply)])
@pytest.mark.parametrize("how", [run, strict])
def test_a_term_that_where_excludes_has_no_position(how, sign, at):
    p, x = i64(0, 99, 2, -7, 2), f32(1, 50, 2, -50, 3)
    want = np.full(4, {"+": 0, "max": -np.inf, "min": np.inf, "*": 1}[sign], np.float32)
    at.at(want, p[[0, 2, 4]], x[[0, 2, 4]])
    assert_array_equal(how(SCATTER.format(sign), p, x, lo=0, hi=9, n=4), want)


def test_a_term_that_where_chooses_must_lie_inside():
    assert "E610" in report(SCATTER.format("+"), i64(0, 99), f32(1, 2), lo=0, hi=9, n=4)


def test_where_may_exclude_every_term_of_an_empty_tensor():
    assert run(SCATTER.format("+"), i64(0, 99), f32(50, 60), lo=0, hi=9, n=0).shape == (0,)


def test_the_conditions_of_where_hold_for_the_positions_read_after_them():
    text = body("Y[T[Q[i]]] += 1 where 0 <= Q[i] < M, T[Q[i]] >= 0", "Q: i64[N], T: i64[M]", "Y: i64[3]")
    assert_array_equal(run(text, i64(0, 1, 9, -1, 2, 2), i64(1, -5, 2)), [0, 1, 2])


# --- else, ?: and what is not needed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_else_is_the_value_outside_and_chains(n):
    a, b = normal(n), normal(3)
    want = [a[i - 1] if 0 <= i - 1 < n else b[i] if i < 3 else 7 for i in range(n + 1)]
    got = run("op f(A: f32[N], B: f32[3]) -> (Y: f32[N + 1]) {\nY[i] = (A[i-1] else B[i] else 7)\n}", a, b)
    assert_array_equal(got, np.array(want, np.float32))


def test_else_stands_in_parentheses_or_as_the_whole_right_side():
    assert_array_equal(run(body("Y[i] = X[i - 1] else 9"), X), [9, 3, 1, 2])
    assert_array_equal(run(body("Y[i] = 1 + (X[i - 1] else 9)"), X), [10, 4, 2, 3])
    assert "error[E1" in report(body("Y[i] = 1 + X[i - 1] else 9"))


def test_else_may_be_a_tensor_of_data_positions():
    assert_array_equal(run(body("Y[i] = (E[P[i]] else -1)", "P: i64[N], E: f32[V]"), i64(0, -1, 3, 1, 7), f32(10, 11, 12)),
                       [10, -1, -1, 11, -1])


@pytest.mark.parametrize("n", [0, 1, 7])
def test_what_a_choice_and_or_do_not_need_is_not_read(n):
    x = normal(n)
    assert_array_equal(run(body("Y[i] = i > 0 ? X[i - 1] : 0"), x), [0, *x[:-1]][:n])
    assert_array_equal(run(body("Y[i] = i > 0 and X[i - 1] > 0", result="Y: bool[N]"), x), [False, *(x[:-1] > 0)][:n])
    assert_array_equal(run(body("Y[i] = i == N - 1 or X[i + 1] > 0", result="Y: bool[N]"), x), [*(x[1:] > 0), True][:n])


@pytest.mark.parametrize("how", [run, strict])
def test_a_choice_by_data_does_not_need_the_position_it_leaves_out(how):
    text = body("Y[i] = P[i] >= 0 ? E[P[i]] : 0", "P: i64[N], E: f32[V]")
    assert_array_equal(how(text, i64(1, -1, 0, -9), f32(10, 11)), [11, 0, 10, 0])
    assert "outside `E`" in report(text, i64(1, 2), f32(10, 11))


def test_an_inferred_temporary_takes_its_else_where_it_is_not_written():
    assert_array_equal(run(body("T[i] = X[i] where i > 0\nY[i] = (T[i] else 9)"), X), [9, 1, 2, 5])
    assert_array_equal(run(body("T[i] = X[i] where i in 1:N-1\nY[i] = (T[i - 1] else 9)"), X), [9, 9, 1, 2])
    header, ones = "A: f32[N, N]", np.ones((3, 3), np.float32)
    got = run(body("T[i, j] = A[i, j] where j <= i\nY[i] += (T[i, j] else 100) where j in 0:N", header), ones)
    assert_array_equal(got, [201, 102, 3])
    got = run(body("T[i] += A[i, j] where j <= i, i >= 1\nY[i] = (T[i] else -1)", header), ones)
    assert_array_equal(got, [-1, 2, 3])


# --- positions from data -----------------------------------------------------------------------------------------------


def test_positions_are_computed_and_checked_while_running():
    text = body("Y[i] = E[P[i]]", "P: i64[N], E: f32[V]")
    assert_array_equal(run(text, i64(1, 0, 1), f32(10, 11)), [11, 10, 11])
    assert "P[2] = 2 reads outside `E`, which has V = 2 rows" in report(text, i64(1, 0, 2), f32(10, 11))
    assert "P[1] = -1 reads outside `E`" in report(text, i64(1, -1, 2), f32(10, 11))


def test_a_scatter_outside_raises():
    text = "op f(P: i64[N], X: f32[N]) -> (Y: f32[3]) {\nY[P[i]] += X[i]\n}"
    assert "P[1] = 3 writes outside `Y`, which has 3 rows" in report(text, i64(0, 3), f32(1, 2))


def test_a_position_may_divide_by_a_run_time_value():
    got = run(body("Y[i] = X[i % c]", "X: f32[N], c: i64"), X, 3)
    assert_array_equal(got, [3, 1, 2, 3])


def test_gathers_of_nothing():
    text = body("Y[i] = E[P[i]]", "P: i64[N], E: f32[V]")
    assert run(text, i64(), f32()).shape == (0,)
    assert "V = 0" in report(text, i64(0), f32())


def test_the_places_of_a_scatter_may_take_an_else():
    got = run("op f(P: i64[N]) -> (Y: i64[3]) {\nY[(P[i - 1] else 2)] += 1 where i in 0:N\n}", i64(0, 1, 9))
    assert_array_equal(got, [1, 1, 1])


PARTS = {  # how a temporary is written, and what a read with `else -1` gives for X = 3 1 2 5
    "T[i] = X[i] where i == 0 or i > 2": [3, -1, -1, 5],
    "T[i] = X[i] where i % 2 == 0": [3, -1, 2, -1],
    "T[i] = X[i] where i >= 2\nT[0] = 7 where N > 0": [7, -1, 2, 5],
    "T[i + 1] = X[i] where i in 1:N - 1": [-1, -1, 1, 2],
    "T[i] = X[i] + (T[i - 1] else 10) where i >= 1": [-1, 11, 13, 18],
    "T[i] = 1 where i < N / 2\nT[i] = 2 where i in N / 2:N": [1, 1, 2, 2],
}


@pytest.mark.parametrize("how", [run, strict])
@pytest.mark.parametrize("text", PARTS)
def test_a_temporary_written_in_parts_takes_its_else_between_them(text, how):
    assert_array_equal(how(body(f"{text}\nY[i] = (T[i] else -1)"), X), PARTS[text])


def test_a_position_that_is_a_scalar_is_named_in_the_report():
    assert "k = -1 reads outside `X`, which has N = 4 rows" in report(body("Y = X[k]", "X: f32[N], k: i64", "Y: f32"), X, -1)


def test_a_large_scatter_outside_says_what_the_user_wrote():
    p, x = np.zeros(30_000, np.int64), np.ones(30_000, np.float32)
    p[7], x[8], p[8] = 4, 50, 99
    said = report(SCATTER.format("+"), p, x, lo=0, hi=9, n=4)
    assert "`Y[P[i]]` writes outside `Y`, which has n = 4 rows; `P` has values from 0 to 99" in said
