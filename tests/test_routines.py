"""Steps that differ in numbers alone: compiled once, called with the numbers of each, and the same as one by one."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

import polyop
from polyop import compiler, making
from polyop.codegen.x86 import emit
from polyop.compiler import Compiled, compile_op
from polyop.ir.dtypes import I64
from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.interpret import interpret
from polyop.ir.loops import Space
from polyop.ir.module import Proof
from polyop.ir.op import Op
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.routine import Routine, Use, buffers_of
from polyop.runtime import cpu
from polyop.runtime.layout import contiguous
from tests.codegen.nests import ld, loop, nest, st, tensor
from tests.rewrite.ops import arguments, library, op, shape_of

SCALED = """op f(X: f32[C, L], F: f32[C, K, R], z: f32) -> (Y: f32[K, 2*L + R]) {
    y[k, p] += z * (X[c, (p - r) / 2] else 0) * F[c, k, r]  where (p - r) % 2 == 0
    Y[k, p] = max(y[k, p], 0) }"""
ADDED = """op f(X: f32[C, L], F: f32[C, K, R], inout Y: f32[K, 2*L + R]) {
    Y[k, p] += (X[c, (p - r) / 2] else 0) * F[c, k, r]  where (p - r) % 2 == 0 }"""


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path))


def spread(stride: int = 2, name: str = "conv1d_transposed") -> Op:
    return library("conv", name, consts={"stride": stride, "pad": 1})


def compiled(o: Op, **options) -> Compiled:
    return compile_op(o, contiguous(o), cpu.resolve("x86"), Options(**options))


@pytest.mark.parametrize("which", ["nest", "final"])
@pytest.mark.parametrize("stride", [2, 3])
def test_the_nest_of_the_whole_computes_what_the_operator_says(which, stride):
    o = spread(stride)
    made = compiled(o)
    for length, window in ((1, 2), (2, 3), (4, 5)):
        sizes = {"B": 2, "C": 2, "K": 3, "L": length, "R": window}
        values, arrays = arguments(o, sizes)
        out = np.full(shape_of(o.tensor("Y"), sizes), np.nan, np.float32)
        interpret(getattr(made, which), sizes, values, {**arrays, "Y": out})
        np.testing.assert_allclose(out, evaluate(o, sizes, values, arrays)["Y"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("text", [SCALED, ADDED])
def test_scalars_in_place_results_and_threads_reach_a_routine(text, threads):
    before = polyop.get_num_threads()
    polyop.set_num_threads(threads)
    try:
        call, o = polyop.op(text), op(text)
        for length, window in ((1, 1), (3, 2), (40, 3)):
            sizes = {"C": 5, "K": 9, "L": length, "R": window}
            values, arrays = arguments(o, sizes)
            want = evaluate(o, sizes, values, arrays)
            got = call(**{n: a.copy() for n, a in arrays.items()}, **values)
            np.testing.assert_allclose(got, next(iter(want.values())), rtol=1e-4, atol=1e-5)
    finally:
        polyop.set_num_threads(before)
    assert "one routine" in "\n".join(call.compile().notes)


def test_all_claims_are_proved_of_the_routine_and_of_what_is_left():
    made = compiled(spread())
    assert len(made.proofs) == 11 and all(p.holds for p in made.proofs)
    assert made.trace["proofs"].splitlines() == [str(p) for p in made.proofs]


def test_each_member_has_work_space_and_registers_of_its_own():
    made = compiled(spread(3))
    names = [b.name for b in made.final.buffers]
    assert len(set(names)) == len(names)
    assert sum(n.endswith("acc") for n in names) == 3
    assert [b.name for b in made.module.signature.tensors] == ["X", "F", "Y"]


def test_a_routine_takes_what_its_numbers_say(monkeypatch):
    seen = []
    real = compiler.routines
    monkeypatch.setattr(compiler, "routines", lambda made, nests: seen.append(real(made, nests)) or seen[-1])
    made = compiled(spread())
    (routine,) = seen[-1]
    assert len(routine.uses) == 2 and {n for u in routine.uses for n, _ in u.numbers} <= set(routine.nest.sizes)
    own = {b.name: b for u in routine.uses for b in buffers_of(routine, u)}
    assert {n: b for n, b in own.items() if b.space == Space.WORK}.items() <= {b.name: b for b in made.final.buffers}.items()


def test_a_routine_with_computed_positions_is_refused():
    row = loop("n", "N", st(ld("Y", "n"), ld("X", ld("at", "n", t=I64))))
    n = nest([tensor("X", "N"), tensor("at", "N", t=I64), tensor("Y", "N")], [row])
    with pytest.raises(InternalError, match="computed positions"):
        emit(n, cpu.resolve("x86"), Options(), (Routine(n, (Use((), ()),)),), ())


def test_what_is_light_is_not_taken_apart():
    made = compiled(op("op f(X: f32[L], F: f32[R]) -> (Y: f32[2*L + R]) {"
                       " Y[p] += (X[(p - r) / 2] else 0) * F[r]  where (p - r) % 2 == 0 }"))
    assert ".r0(" not in made.module.text


@pytest.mark.parametrize("options", [{"regime": "any"}, {"rung": "default"}])
def test_only_the_tuned_rung_for_sizes_of_at_least_one_has_routines(options):
    assert ".r0(" not in compiled(spread(), **options).module.text


def test_a_routine_that_cannot_be_built_is_noted_and_each_member_stands_alone(monkeypatch, caplog):
    real = making.lower

    def picky(scop, *rest):
        if "n0" in scop.op.sizes:
            raise UnsupportedError("made up")
        return real(scop, *rest)

    monkeypatch.setattr(making, "lower", picky)
    with caplog.at_level(logging.WARNING, "polyop"):
        made = compiled(spread())
    assert made.rung == "tuned" and ".r0(" not in made.module.text and not caplog.text
    assert any("made up" in n for n in made.notes) and any("one by one" in n for n in made.notes)


def test_a_routine_that_is_not_proved_is_reported_as_a_bug_and_not_used(monkeypatch, caplog):
    real = making.prove

    def doubtful(scop, nest, *given):
        return (Proof("made up", False, "n0 = 1"),) if "n0" in scop.op.sizes else real(scop, nest, *given)

    monkeypatch.setattr(making, "prove", doubtful)
    with caplog.at_level(logging.ERROR, "polyop"):
        made = compiled(spread())
    assert made.rung == "tuned" and ".r0(" not in made.module.text and all(p.holds for p in made.proofs)
    assert "polyop bug" in caplog.text


def test_a_claim_that_one_of_the_nests_lacks_is_none_of_the_kernel(monkeypatch):
    real = making.rewritten

    def wrong(nest, *given):
        right = real(nest, *given)
        return replace(right, body=right.body[:-1]) if "n0" in nest.sizes else right

    monkeypatch.setattr(making, "rewritten", wrong)
    made = compiled(spread())
    assert len(made.proofs) == 10 and any("emitted as they were proved" in n for n in made.notes)
    o, sizes = spread(), {"B": 1, "C": 3, "K": 2, "L": 5, "R": 3}
    values, arrays = arguments(o, sizes)
    out = np.full(shape_of(o.tensor("Y"), sizes), np.nan, np.float32)
    interpret(made.final, sizes, values, {**arrays, "Y": out})
    np.testing.assert_allclose(out, evaluate(o, sizes, values, arrays)["Y"], rtol=1e-5, atol=1e-5)
