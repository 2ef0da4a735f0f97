"""Loops written part by part are the loops that isl writes in one go."""

from __future__ import annotations

import islpy as isl
import pytest

from polyop.ir.errors import UnsupportedError
from polyop.ir.loops import LoopNest
from polyop.ir.op import Op
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.poly import choice, middle
from polyop.poly.generate import generate
from polyop.poly.verify import first_failure, prove
from polyop.program import operator
from polyop.runtime.layout import contiguous
from polyop.standard import index, program

from .middles import op_of

NAMES = ("relu", "softmax", "matmul", "bmm", "conv2d", "attention_causal", "lstm", "cumsum", "jacobi2d", "pad_circular")
"""Chains, sequences with and without tests, packed tiles, recurrences, statements that never run."""


def library(name: str) -> Op:
    made = operator(program(index()[name]), name, Options())
    return made.compile("x86:x86-64-v4", options=Options(rung="interpreter")).op


def nest(op: Op, options: Options) -> LoopNest:
    return middle.lower(middle.scop_of(op), contiguous(op), target("x86:x86-64-v4"), options, "tuned").nest


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_loops_written_in_parts_are_those_written_in_one_go(name, threads, monkeypatch):
    op, options = library(name), Options(threads=threads)
    parts = str(nest(op, options))
    monkeypatch.setattr(generate._Writer, "sequence", generate._Writer.by_isl)
    assert parts == str(nest(op, options))


def test_a_size_may_have_the_name_of_any_iterator():
    op = op_of("op f(X: f32[t0, t1, t2]) -> (Y: f32[t0, t1]) { Y[i, j] += X[i, j, k] }")
    made = middle.lower(middle.scop_of(op), contiguous(op), target("x86:x86-64-v4"), Options(), "tuned")
    assert first_failure(prove(made.scop, made.nest, made.context)) is None


def test_loops_in_a_recurrence_that_cannot_be_written_together_are_tried_alone(monkeypatch):
    op, tried = library("lstm"), list[int]()
    whole = nest(op, Options())
    real = generate.generate

    def refuse_the_first(p, head):
        tried.append(len(p.stmts))
        if len(tried) == 3:      # two clusters before the recurrence, then all of the recurrence at once
            raise UnsupportedError("once")
        return real(p, head)

    for maker in (middle, choice):
        monkeypatch.setattr(maker, "generate", refuse_the_first)
    assert nest(op, Options()) == whole
    assert tried[2] == tried[-1] == sum(tried[3:-1])


def test_an_item_that_may_not_run_is_written_with_its_neighbours():
    context = isl.Set("[N] -> { : N >= 0 }")
    maps = {"A": isl.Map("[N] -> { A[i] -> [0, i] : 0 <= i < N }"), "B": isl.Map("[N] -> { B[] -> [1, 0] }")}
    part = generate.Part(maps, ("A", "B"), 0, context)
    assert [part.only((s,)).runs_always for s in ("A", "B")] == [False, True]
    assert not part.only(()).runs_always


def test_a_loop_around_others_of_which_isl_knows_the_value_is_that_value():
    """{ i = floor(k / 2) } is no loop of isl's, and the loops over j stand in it: they are asked for apart."""
    op = op_of("op f(A: i64[M, N]) -> (T: i64[M, M]) { T[k, i] += A[i, j]  where i in 0:M, j in 0:N, k in 0:M, k / 2 == i }")
    for rung in ("default", "distributed"):
        made = middle.lower(middle.scop_of(op), contiguous(op), target("x86:x86-64-v4"), Options(), rung)
        assert first_failure(prove(made.scop, made.nest, made.context)) is None
        if rung == "distributed":
            assert "floor((k)/2)" in str(made.nest) or "floor((k2)/2)" in str(made.nest)
        else:
            assert "4*floor((i)/2) + k_p" in str(made.nest)  # rows of k, of which i leaves two


def test_a_value_that_isl_chooses_by_a_condition_is_a_sum_with_that_condition():
    """{ i = j div 2, j - i < 2 } has the points i = 0 for j <= 1, and i = 1 for j = 2."""
    op = op_of("op f(X: i64[N]) -> (T: i64[N]) { T[j] += X[i]  where i in 0:N, j in 0:N, j / 2 == i, j - i < 2 }")
    made = middle.lower(middle.scop_of(op), contiguous(op), target("x86:x86-64-v4"), Options(), "distributed")
    assert first_failure(prove(made.scop, made.nest, made.context)) is None
