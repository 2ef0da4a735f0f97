"""Loops of recurrences: which iterators of different statements run in order together."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.options import Options
from polyop.ir.span import Source
from polyop.ir.target import target
from polyop.poly.middle import lower, scop_of
from polyop.poly.verify import first_failure, prove
from polyop.rewrite.sums.blocks import cut_into_blocks
from polyop.runtime.layout import contiguous

CHOLESKY = """op f(A: f64[N, N]) -> (L: f64[N, N]) {
    s: f64[N, N]
    s[i, j] += L[i, k] * L[j, k]  where k < j, j <= i
    L[i, j]  = i > j ? (A[i, j] - s[i, j]) / L[j, j] : i == j ? sqrt(A[i, i] - s[i, i]) : 0
}"""


def test_an_iterator_whose_loop_is_around_is_not_matched_again():
    """L[j, k] would match j of the sum with i of L, which runs already; s[i, j] matches it with j of L, and k stays a sum."""
    op = instantiate(parse(Source("t.pop", CHOLESKY)), "f")
    made = lower(scop_of(op), contiguous(op), target("x86:x86-64-v4"), Options(regime="positive"), "tuned")
    assert any("k*(S1)" in c and "lanes k" in c for c in made.chosen)
    assert first_failure(prove(made.scop, made.nest, made.context)) is None


@pytest.mark.parametrize("size", [0, 1, 2, 15, 16, 17, 64, 65, 130])
def test_results_at_every_border(size):
    x = np.random.default_rng(size).standard_normal((size, size))
    a = x @ x.T + size * np.eye(size)
    np.testing.assert_allclose(polyop.op(CHOLESKY)(a), np.linalg.cholesky(a), rtol=1e-9, atol=1e-9)


SOLVE = """op f(L: f64[M, M], B: f64[M, N]) -> (X: f64[M, N]) {
    s: f64[M, N]
    s[i, n] += L[i, k] * X[k, n]  where k < i
    X[i, n]  = (B[i, n] - s[i, n]) / L[i, i]
}"""


def chosen_for(text, **options):
    """The plan of `text` as x86 gets it: triangular recurrences in blocks."""
    op = cut_into_blocks(instantiate(parse(Source("t.pop", text)), "f"))
    made = lower(scop_of(op), contiguous(op), target("x86:x86-64-v4"), Options(regime="positive", **options), "tuned")
    assert first_failure(prove(made.scop, made.nest, made.context)) is None
    return made


def test_columns_that_do_not_wait_stand_around_the_turns_of_a_block():
    """A turn inside a block multiplies a row by a matrix, and has no rows to tile: columns of a block stay in L1 instead."""
    loops = str(chosen_for(SOLVE, threads=True).nest).splitlines()
    turns = next(k for k, line in enumerate(loops) if "for i_p2 in" in line)
    assert "lanes" in loops[turns - 1] and "(parallel)" in loops[turns - 2]


def test_a_sum_that_is_not_cut_has_narrow_blocks_of_columns():
    """A block's product has as many terms as there are rows before it, and all of them for one tile's columns stay in L2."""
    found = chosen_for(SOLVE).chosen
    assert any("packs right" in c and "kc None, nc 24," in c for c in found), found


WRAPPING = """op f(L: i32[M, M], B: i32[M, N]) -> (X: i32[M, N]) {
    s: i32[M, N]
    s[i, n] += L[i, k] * X[k, n]  where k < i
    X[i, n]  = B[i, n] - s[i, n]
}"""
BATCHED = """op f(L: i32[P, M, M], B: i32[P, M, N]) -> (X: i32[P, M, N]) {
    s: i32[P, M, N]
    s[p, i, n] += L[p, i, k] * X[p, k, n]  where k < i
    X[p, i, n]  = B[p, i, n] - s[p, i, n]
}"""
POWERS = """op f(A: i32[M, M], B: i32[M, N]; steps: int) -> (Y: i32[M, N]) {
    X: i32[steps + 1, M, N]; s: i32[steps + 1, M, N]
    X[0, i, n] = B[i, n]
    s[t, i, n] += A[i, k] * X[t - 1, k, n]  where t >= 1
    X[t, i, n] = s[t, i, n] - B[i, n]  where t >= 1
    Y[i, n] = X[steps, i, n]
}"""


@pytest.mark.parametrize("text", [WRAPPING, WRAPPING.replace("k < i", "k > i"), POWERS], ids=["forwards", "backwards", "powers"])
@pytest.mark.parametrize("options", [{}, {"threads": True, "columns": True}], ids=["one", "two"])
def test_columns_that_do_not_wait_go_through_all_turns(text, options):
    """The loop over columns is the outermost one, which is shared out; and what a turn read of the ones before is copied once."""
    loops = str(chosen_for(text, **options).nest).splitlines()
    assert any(line.startswith("  for") and "_o in [0, N) by" in line and "(parallel)" in line for line in loops)
    again = [line for line in loops if "in [32*s_far_0 - 32, 32*s_far_0)" in line]
    assert len(again) == (text is WRAPPING)


def test_few_columns_are_shared_out_in_each_turn_by_several_threads():
    assert "_o in [0, N) by" not in str(chosen_for(WRAPPING, threads=True).nest)


def solved(lower, b, back):
    """By rows, in integers that wrap."""
    x = np.zeros_like(b)
    for i in reversed(range(len(b))) if back else range(len(b)):
        past = slice(i + 1, None) if back else slice(i)
        x[i] = b[i] - lower[i, past] @ x[past]
    return x


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("back", [False, True])
def test_systems_of_as_many_columns_as_blocks_end_at_are_solved(count, back):
    before = polyop.get_num_threads()
    polyop.set_num_threads(count)
    try:
        f = polyop.op(WRAPPING.replace("k < i", "k > i") if back else WRAPPING, options=Options(columns=True))
        for m, n in ((0, 3), (1, 1), (31, 47), (32, 48), (33, 49), (64, 96), (65, 97), (97, 193), (129, 400)):
            rng = np.random.default_rng(m * n)
            lower, b = rng.integers(-9, 9, (m, m), dtype=np.int32), rng.integers(-9, 9, (m, n), dtype=np.int32)
            np.testing.assert_array_equal(f(lower, b), solved(lower, b, back))
    finally:
        polyop.set_num_threads(before)


def test_systems_in_a_batch_and_powers_of_a_matrix():
    rng = np.random.default_rng(1)
    lower, b = rng.integers(-9, 9, (3, 70, 70), dtype=np.int32), rng.integers(-9, 9, (3, 70, 101), dtype=np.int32)
    np.testing.assert_array_equal(polyop.op(BATCHED)(lower, b), [solved(x, y, False) for x, y in zip(lower, b, strict=True)])
    x = b[0]
    for _ in range(5):
        x = lower[0] @ x - b[0]
    np.testing.assert_array_equal(polyop.op(POWERS)(lower[0], b[0], steps=5), x)
