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
from polyop.rewrite.blocks import cut_into_blocks
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


def chosen_for(text):
    """The plan of `text` as x86 gets it: triangular recurrences in blocks."""
    op = cut_into_blocks(instantiate(parse(Source("t.pop", text)), "f"))
    made = lower(scop_of(op), contiguous(op), target("x86:x86-64-v4"), Options(regime="positive"), "tuned")
    assert first_failure(prove(made.scop, made.nest, made.context)) is None
    return made


def test_columns_that_do_not_wait_stand_around_the_turns_of_a_block():
    """A turn inside a block multiplies a row by a matrix, and has no rows to tile: columns of a block stay in L1 instead."""
    loops = str(chosen_for(SOLVE).nest).splitlines()
    turns = next(k for k, line in enumerate(loops) if "for i_p2 in" in line)
    assert "lanes" in loops[turns - 1] and "(parallel)" in loops[turns - 2]


def test_a_sum_that_is_not_cut_has_narrow_blocks_of_columns():
    """A block's product has as many terms as there are rows before it, and all of them for one tile's columns stay in L2."""
    found = chosen_for(SOLVE).chosen
    assert any("packs right" in c and "kc None, nc 24," in c for c in found), found
