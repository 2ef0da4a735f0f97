"""The pipeline and its ladder: each rung is reached, reported, and computes the same."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

import polyop
from polyop import compiler, making
from polyop.compiler import compile_op
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.errors import InternalError, UserError
from polyop.ir.expr import Const
from polyop.ir.module import Proof
from polyop.ir.op import Op
from polyop.ir.options import Options
from polyop.ir.span import Source
from polyop.poly.verify import verdict
from polyop.runtime import cpu
from polyop.runtime.layout import contiguous
from polyop.trace import STAGES

MATMUL = "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }"
SKEWED = """op f(X: f32[N, N]) -> (A: f32[N, N]) {
    A[i, j] = X[i, j] + (A[i-1, j+1] else 0) + (A[i+1, j-2] else 0) }"""


def op_of(text: str) -> Op:
    return instantiate(parse(Source("<test>", text)), "f")


@pytest.fixture
def a_and_b():
    rng = np.random.default_rng(0)
    return rng.standard_normal((7, 70)).astype(np.float32), rng.standard_normal((70, 33)).astype(np.float32)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("rung", ["tuned", "default", "distributed"])
def test_each_rung_can_be_asked_for_and_computes_the_same(rung, a_and_b):
    a, b = a_and_b
    op = op_of(MATMUL)
    made = compile_op(op, contiguous(op), cpu.resolve("x86"), Options(rung=rung))
    assert made.rung == rung and made.binary is not None
    assert made.proofs and all(p.holds for p in made.proofs)
    matmul = polyop.op(MATMUL, options=Options(rung=rung))
    np.testing.assert_allclose(matmul(a, b), a @ b, rtol=1e-4, atol=1e-5)


def test_the_last_rung_evaluates_and_says_so(caplog):
    f = polyop.op(SKEWED)
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    with caplog.at_level(logging.WARNING, "polyop"):
        got = f(x)
    assert "interpreter" in caplog.text and "no order along single iterators" in caplog.text
    want = x.copy()
    for i, j in sorted(np.ndindex(4, 4), key=lambda p: 3 * p[0] + 2 * p[1]):
        want[i, j] = x[i, j] + (want[i-1, j+1] if i and j < 3 else 0) + (want[i+1, j-2] if i < 3 and j >= 2 else 0)
    np.testing.assert_allclose(got, want)


def test_a_target_with_few_registers_gets_a_simpler_schedule(a_and_b):
    op = op_of(MATMUL)
    poor = replace(cpu.resolve("x86"), registers=3)
    made = compile_op(op, contiguous(op), poor, Options())
    assert made.binary is not None and all(p.holds for p in made.proofs)
    assert made.rung == "tuned" and not any("packed:" in c for c in made.chosen)
    assert any("on rung tuned with some vectors in memory" in n for n in made.notes)


def test_a_schedule_that_is_not_proved_is_reported_as_a_bug_and_not_used(monkeypatch, caplog):
    op, real, seen = op_of(MATMUL), making.prove, []

    def doubtful(scop, nest, *given):
        seen.append(nest)
        return (Proof("made up", False, "M = 1"),) if len(seen) == 1 else real(scop, nest, *given)

    monkeypatch.setattr(making, "prove", doubtful)
    with caplog.at_level(logging.ERROR, "polyop"):
        made = compile_op(op, contiguous(op), cpu.resolve("x86"), Options())
    assert made.rung == "default" and "polyop bug" in caplog.text
    assert any("made up" in n for n in made.notes)


def undecided_once(text, monkeypatch, caplog):
    """The nests that were to be proved, the first of them in vain, and what was compiled; errors are logged in `caplog`."""
    op, real, seen = op_of(text), making.prove, []

    def slow(scop, nest, *given):
        seen.append(nest)
        return (Proof("made up", False, verdict.UNDECIDED),) if len(seen) == 1 else real(scop, nest, *given)

    monkeypatch.setattr(making, "prove", slow)
    with caplog.at_level(logging.ERROR, "polyop"):
        return seen, compile_op(op, contiguous(op), cpu.resolve("x86"), Options())


def test_a_schedule_whose_proof_takes_too_long_is_not_used_and_no_bug(monkeypatch, caplog):
    _, made = undecided_once(MATMUL, monkeypatch, caplog)
    assert made.rung == "default" and not caplog.text
    assert any("not decided within the quota" in n for n in made.notes)


def test_storage_is_folded_too_where_only_time_tiles_are_not_proved(monkeypatch, caplog):
    text = """op f(X: f32[N, M]; T: int) -> (Y: f32[N, M]) {
        A[0, i, j] = X[i, j]
        A[t, i, j] = A[t-1, i, j] + (A[t-1, i+1, j] else 0) + (A[t-1, i, j+1] else 0) where t in 1:T+1
        Y[i, j] = A[T, i, j] }"""
    seen, made = undecided_once(text, monkeypatch, caplog)
    assert "t_w" in str(seen[0]) and "t_w" not in str(made.nest) and not caplog.text
    assert made.rung == "tuned" and any("is kept for 2 steps" in n for n in made.notes)


def test_a_bug_in_a_strategy_is_reported_and_survived(monkeypatch, caplog):
    op, real = op_of(MATMUL), making.lower

    def broken(scop, layout, target, options, rung, *way):
        if rung == "tuned":
            raise InternalError("poly: made up")
        return real(scop, layout, target, options, rung, *way)

    monkeypatch.setattr(making, "lower", broken)
    with caplog.at_level(logging.ERROR, "polyop"):
        made = compile_op(op, contiguous(op), cpu.resolve("x86"), Options())
    assert made.rung == "default" and "made up" in caplog.text


def test_the_loops_that_are_emitted_are_proved_to_be_those_that_were_proved():
    op = op_of(MATMUL)
    made = compile_op(op, contiguous(op), cpu.resolve("x86"), Options())
    assert made.proofs[-1].claim == "the rewritten loops do what the proved loops do" and made.proofs[-1].holds
    assert made.trace["proofs"].splitlines()[-1] == str(made.proofs[-1])
    assert made.final != made.nest


@pytest.mark.parametrize("where", ["in parts", "in overlapped tiles", "in blocks"])
def test_a_bug_in_what_an_operator_is_taken_for_is_reported_and_survived(monkeypatch, caplog, where):
    def broken(*_):
        raise ValueError("no such thing")

    if where == "in parts":
        monkeypatch.setattr(compiler, "apart", broken)
    else:
        real = compiler.attempts
        monkeypatch.setattr(compiler, "attempts", lambda *a: tuple((w, broken if where == f"in {w}" else f) for w, f in real(*a)))
    op = op_of(MATMUL)
    made = compile_op(op, contiguous(op), cpu.resolve("x86"))
    assert made.rung == "tuned" and f"not {where}: ValueError: no such thing" in made.notes
    assert f"polyop bug: {op.name} {where}" in caplog.text


def test_rewrites_that_are_not_proved_are_left_out(monkeypatch, caplog, a_and_b):
    real = making.rewritten
    monkeypatch.setattr(making, "rewritten", lambda nest, *given: replace(real(nest, *given), body=nest.body[:-1]))
    a, b = a_and_b
    op = op_of(MATMUL)
    with caplog.at_level(logging.ERROR, "polyop"):
        made = compile_op(op, contiguous(op), cpu.resolve("x86"), Options())
    assert made.rung == "tuned" and made.final == made.nest and all(p.holds for p in made.proofs)
    assert "are not proved: FAILS  the rewritten loops do what the proved loops do  (K = 1, M = 1, N = 1" in caplog.text
    assert "emitted as they were proved" in made.notes[-1]
    np.testing.assert_allclose(polyop.op(MATMUL)(a, b), a @ b, rtol=1e-4, atol=1e-5)


def test_values_are_not_kept_in_registers_where_only_the_loops_without_that_are_proved(monkeypatch):
    real = making.kept

    def wrong(nest, *given):
        right = real(nest, *given)
        first = right.body[0].then[0]
        damaged = replace(first, expr=Const(1, first.expr.dtype))
        return replace(right, body=(replace(right.body[0], then=(damaged, *right.body[0].then[1:])), *right.body[1:]))

    scan = "op f(X: f32[N]) -> (Y: f32[N]) { Y[i] = X[i] + (Y[i - 1] else 0) }"
    op = op_of(scan)
    assert "Y_carried0" in str(compile_op(op, contiguous(op), cpu.resolve("x86"), Options()).nest)
    monkeypatch.setattr(making, "kept", wrong)
    made = compile_op(op, contiguous(op), cpu.resolve("x86"), Options())
    assert made.rung == "tuned" and "Y_carried0" not in str(made.nest) and all(p.holds for p in made.proofs)


def test_every_stage_leaves_its_text_and_time():
    op = op_of(MATMUL)
    made = compile_op(op, contiguous(op), cpu.resolve("x86"), Options())
    assert tuple(made.trace) == STAGES
    assert all(made.trace[stage] for stage in STAGES)
    assert made.trace.total_ms > 0


@pytest.mark.parametrize("wrong", [{"numerics": "exact"}, {"rung": "best"}, {"regime": "all"}])
def test_an_option_that_does_not_exist_is_refused(wrong):
    name, value = next(iter(wrong.items()))
    with pytest.raises(UserError, match=rf"error\[E902\]: the option `{name}` is '{value}'; expected '"):
        Options(**wrong)


@pytest.mark.parametrize("wrong", ["strict", {"numerics": "strict"}, {}])
def test_options_that_are_none_are_refused_where_they_are_given(wrong):
    for give in (lambda: polyop.op(MATMUL, options=wrong), lambda: polyop.op(MATMUL).compile(options=wrong)):
        with pytest.raises(UserError, match=r"error\[E902\]: `options` is a (str|dict); expected polyop.Options"):
            give()


def test_a_wrong_operator_is_refused_before_anything_is_scheduled():
    op = op_of("op f(X: f32[N]) -> (Y: f32[N]) { Y[i] = X[i] where i >= 1 }")
    with pytest.raises(UserError, match="not written in full"):
        compile_op(op, contiguous(op), cpu.resolve("x86"), Options())


@pytest.mark.parametrize("name", ["cuda:sm_80", "hip:gfx942"])
def test_a_gpu_needs_no_device_to_be_compiled_for(name):
    op = op_of(MATMUL)
    made = compile_op(op, contiguous(op), cpu.resolve(name), Options())
    assert made.module is not None and "__global__" in made.module.text
    assert all(p.holds for p in made.proofs)


def test_one_compile_serves_a_thousand_shapes(monkeypatch):
    count, real = [], compiler.compile_op

    def counted(*args):
        count.append(args)
        return real(*args)

    monkeypatch.setattr(compiler, "compile_op", counted)
    f = polyop.op("op f(X: f32[M, N], b: f32[N]) -> (Y: f32[M, N]) { Y[m, n] = X[m, n] + b[n] }")
    rng = np.random.default_rng(0)
    for _ in range(1000):
        m, n = rng.integers(2, (800, 40))  # few of which come again and again
        x, b = rng.standard_normal((m, n)).astype(np.float32), rng.standard_normal(n).astype(np.float32)
        np.testing.assert_array_equal(f(x, b), x + b)
    assert len(count) == 1
