"""Explanations: counts of work are right, reasons fit the loops, nothing is claimed that was not proved."""

from __future__ import annotations

import itertools
import re

import pytest

import polyop
from polyop import standard
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.op import Op
from polyop.ir.options import Options
from polyop.ir.reference import points as walked
from polyop.ir.span import Source
from polyop.report.work import points, work


def op_of(text: str) -> Op:
    return instantiate(parse(Source("<test>", text)), "f")


MATMUL = "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }"
CONV = "op f(X: f64[N], F: f64[R]) -> (Y: f64[N - R + 1]) { Y[i] += X[i + r] * F[r] }"
TRIANGLE = "op f(X: f32[N, N]) -> (Y: f32[N]) { Y[i] += exp(X[i, j])  where j <= i }"


def test_a_matmul_counts_two_operations_for_each_product():
    w = work(op_of(MATMUL))
    assert str(w.operations) == "2*K*M*N"
    assert str(w.reads) == "4*K*M + 4*K*N" and str(w.writes) == "4*M*N"
    assert w.operations.exact


def test_an_extent_that_is_a_sum_stays_one_factor():
    assert str(work(op_of(CONV)).operations) == "2*(N - R + 1)*R"


def test_a_condition_makes_the_count_a_bound_and_says_so():
    w = work(op_of(TRIANGLE))
    assert str(w.operations) == "at most N*N"
    assert dict(w.functions)["exp"].value({"N": 4}) == 16


def test_an_update_costs_its_reduction_and_an_assignment_does_not():
    assert str(work(op_of("op f(X: f32[N]) -> (Y: f32[N]) { Y[i] = X[i] * 2 + 1 }")).operations) == "2*N"
    assert str(work(op_of("op f(X: f32[N]) -> (y: f32) { y += X[i] }")).operations) == "N"


@pytest.mark.parametrize("name", ["matmul", "conv2d", "softmax", "attention_causal", "jacobi2d", "lstm", "rotary", "cumsum",
                                  "max_pool2d", "tril"])
def test_points_are_never_fewer_than_there_are_and_exact_where_it_says_so(name):
    op = instantiate(standard.program(standard.index()[name]), name, library=standard.LIBRARY)
    for values in itertools.islice(itertools.product((1, 4, 6), repeat=len(op.sizes)), 0, 400, 37):
        sizes = dict(zip(op.sizes, values, strict=True))
        for step in op.steps:
            count, real = points(step), sum(1 for _ in walked(step, sizes))
            assert count.value(sizes) >= real
            assert not count.exact or count.value(sizes) == real


def test_an_explanation_has_every_section_and_every_proof():
    made = polyop.library("softmax").compile()
    text = made.explain({"C": 1000, "dim0": 1000})
    for title in ("operator", "work", "statements", "order and fusion", "strategies", "loops", "temporaries", "proofs"):
        assert f"\n{title}\n" in f"\n{text}"
    for proof in made.proofs:
        assert f"  holds  {proof.claim}" in text
    assert "arithmetic: 4*C*dim0 operations  = 4 M" in text


def test_a_recurrence_is_said_to_run_in_order():
    text = polyop.library("jacobi2d").compile("x86:x86-64-v4").explain()
    assert all(f"for {t} in " in text for t in ("t_c", "t_w", "t_p"))
    assert text.count("- serial: each iteration needs the one before") == 3
    assert "16 steps of t go over i2 together, 1 behind each other" in text
    assert "for j6_t in [0, N) by 64   - serial inside a serial loop" in text
    assert "(parallel)   - iterations share nothing" in text
    assert "A is kept in memory as" in text


def test_what_is_not_fused_comes_with_its_reason():
    text = polyop.library("attention").compile().explain()
    assert "is not fused with" in text


def test_without_checks_nothing_is_claimed():
    text = polyop.library("relu").compile(options=Options(check=False)).explain()
    assert "nothing was proved" in text and "holds" not in text


def test_an_operator_that_is_interpreted_says_so():
    text = polyop.library("relu").compile(options=Options(rung="interpreter")).explain()
    assert "evaluated element by element" in text


def test_the_same_operator_explains_itself_for_a_gpu():
    text = polyop.library("softmax").compile(target="cuda:sm_80").explain()
    assert "target cuda:sm_80" in text


@pytest.mark.parametrize(("name", "target", "rewritten"), [
    ("matmul", "cuda:sm_80", False), ("softmax", "x86:x86-64-v3", False), ("attention", "cuda:sm_80", True)])
def test_every_statement_that_is_named_is_told_as_the_kernel_has_it(name, target, rewritten):
    sizes = dict(B=2, H=2, M=64, N=64, D=64, E=64) if rewritten else None
    said = polyop.library(name).compile(target, sizes=sizes).explain()
    sections = {part.split("\n")[0]: part for part in said.split("\n\n")}
    assert ("statements of the kernel" in sections) == rewritten
    told = sections["statements of the kernel" if rewritten else "statements"]
    named = set(re.findall(r"\bS\d+\b", sections["order and fusion"] + sections["strategies"]))
    assert named and named <= set(re.findall(r"^  (S\d+)  ", told, re.MULTILINE))
