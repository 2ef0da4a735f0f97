"""Cutting a step into pieces keeps what it computes, and takes the guards out of the interior."""

from __future__ import annotations

import numpy as np
import pytest

from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.expr import loads
from polyop.ir.op import Op
from polyop.ir.reference import evaluate
from polyop.ir.span import Source
from polyop.poly.wellformed import check
from polyop.rewrite.windows.pieces import cut_into_pieces

SMOOTH = """op f(X: f32[M, N]) -> (Y: f32[M, N]) {
    Y[i, j] = 1 <= i < M - 1 and 1 <= j < N - 1 ? X[i-1, j] + X[i+1, j] + X[i, j-1] + X[i, j+1] : X[i, j] }"""
ENDS = "op f(X: f32[N]) -> (Y: f32[N]) { Y[i] = (X[i-1] else X[0]) - (X[i+1] else X[N-1]) }"
FIRST = "op f(X: f32[N]) -> (Y: f32[N]) { Y[i] = (X[i-1] else X[0]) }"
MASK = "op f(X: f32[N, N]) -> (Y: f32[N, N]) { Y[i, j] = j <= i ? X[i, j] : 0 }"


def op_of(text: str) -> Op:
    return instantiate(parse(Source("<test>", text)), "f")


@pytest.mark.parametrize("text", [SMOOTH, ENDS, FIRST, MASK])
@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_the_pieces_compute_what_the_whole_does(text, n):
    op = op_of(text)
    cut = cut_into_pieces(op)
    check(cut)  # still written in full and exactly once
    sizes = dict.fromkeys(op.sizes, n)
    x = np.random.default_rng(0).standard_normal((n,) * len(op.inputs[0].shape)).astype(np.float32)
    np.testing.assert_array_equal(evaluate(cut, sizes, {}, {"X": x})["Y"], evaluate(op, sizes, {}, {"X": x})["Y"])


def test_the_interior_of_a_stencil_has_no_guards():
    cut = cut_into_pieces(op_of(SMOOTH))
    assert len(cut.steps) == 5
    assert not any(x.guard for s in cut.steps for x in loads(s.expr))


def test_a_condition_on_two_indices_leaves_the_row_whole():
    assert len(cut_into_pieces(op_of(MASK)).steps) == 1
