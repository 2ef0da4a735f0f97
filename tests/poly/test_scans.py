"""Scans in chunks: what they are cut into computes the same, their nests are proved, and nests that are not right are refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import polyop
from polyop.compiler import compile_op
from polyop.ir.dtypes import F32, I32
from polyop.ir.expr import Apply, Const, Expr, Load, affine
from polyop.ir.expr import evaluate as number
from polyop.ir.interpret import interpret
from polyop.ir.loops import For, If, Kind, LoopNest, Node, Space, Store, rebuild, stores
from polyop.ir.op import Op
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.scans import scan_of, step_of
from polyop.ir.target import target
from polyop.poly.middle import regime
from polyop.poly.scop import extract
from polyop.poly.verify import first_failure, prove
from polyop.poly.wellformed import check
from polyop.rewrite.sums.scans import cut_scans
from polyop.runtime.layout import contiguous

SCANS = ("cumsum", "cumsum_exclusive", "cumsum_reverse", "cumsum_columns", "cumprod", "cummax", "cummin",
         "linear_recurrence", "ema", "discounted_returns")


@cache
def op_of(name: str) -> Op:
    o = polyop.library(name)
    return o._op(o.choice())


def cut_of(op: Op) -> Op:
    found = cut_scans(op)
    assert found is not None
    return found.op


@cache
def made(name: str) -> tuple[Op, LoopNest]:
    op = op_of(name)
    c = compile_op(op, contiguous(op), target("cuda:sm_80"), Options(check=False))
    assert c.nest is not None and "scanned" in str(c.chosen)
    return cut_of(op), c.nest


def failure(op: Op, nest: LoopNest) -> str:
    scop = extract(op)
    failed = first_failure(prove(scop, nest, regime(scop, Options()), contiguous(op)))
    return failed.claim if failed else ""


def arguments(op: Op, extent: int) -> tuple[dict[str, int], dict[str, float], dict[str, np.ndarray]]:
    g = np.random.default_rng(extent)
    sizes = dict.fromkeys(op.sizes, 3) | {n: extent for n in ("N", "L") if n in op.sizes}
    arrays = {t.name: g.integers(-2, 3, [number(e, sizes) for e in t.shape]).astype(np.float32) for t in op.inputs}
    return sizes, {p.name: 0.5 for p in op.params}, arrays


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("extent", [1, 7, 8, 9, 33])
def test_chunks_compute_what_the_scan_does(name: str, extent: int) -> None:
    op, cut = op_of(name), cut_of(op_of(name))
    sizes, scalars, arrays = arguments(op, extent)
    out = op.outputs[0].name
    one, two = (evaluate(x, sizes, scalars, arrays)[out] for x in (op, cut))
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SCANS)
def test_what_is_cut_is_well_formed_for_all_sizes(name: str) -> None:
    check(cut_of(op_of(name)))


@pytest.mark.parametrize("name", ["cumsum", "cumsum_columns", "linear_recurrence"])
def test_the_nest_is_proved_and_means_what_its_loops_mean(name: str) -> None:
    cut, nest = made(name)
    assert failure(cut, nest) == ""
    for extent in (1, 9, 130):
        sizes, scalars, arrays = arguments(op_of(name), extent)
        out = op_of(name).outputs[0].name
        want = evaluate(op_of(name), sizes, scalars, arrays)[out]
        arrays[out] = np.zeros_like(want)
        interpret(nest, sizes, scalars, arrays)
        np.testing.assert_allclose(arrays[out], want, rtol=1e-5, atol=1e-5)


def threads(nest: LoopNest, name: str) -> For:
    """The loop over threads with the statement `name`."""
    found: list[For] = []

    def go(n: Node) -> None:
        if isinstance(n, For) and n.kind == Kind.THREADS and any(s.stmt == name for s in stores(n.body)):
            found.append(n)
        rebuild(n, lambda body: ([go(x) for x in body] and body) or body)

    for n in nest.body:
        go(n)
    return found[0]


def with_body(nest: LoopNest, name: str, body: tuple[Node, ...]) -> LoopNest:
    old = threads(nest, name)

    def one(n: Node) -> Node:
        return replace(old, body=body) if n is old else rebuild(n, lambda inside: tuple(map(one, inside)))

    return replace(nest, body=tuple(map(one, nest.body)))


def test_what_is_before_a_chunk_is_kept_before_its_step() -> None:
    cut, nest = made("cumsum")
    (step,) = (s.stmt for s in stores(nest.body) if step_of(s.expr, s.target) and nest.buffer(s.target.source).space == Space.REG
               and not s.target.index)
    inside = threads(nest, step).body
    assert isinstance(inside[0], Store) and isinstance(inside[1], If)
    assert failure(cut, with_body(nest, step, inside[::-1])) != ""


def test_a_step_that_reads_another_chunk_is_refused() -> None:
    cut, nest = made("cumsum")
    (step,) = (s for s in stores(nest.body) if step_of(s.expr, s.target) and nest.buffer(s.target.source).space == Space.REG
               and not s.target.index)
    inside = threads(nest, step.stmt).body
    assert isinstance(step.expr, Apply) and isinstance(inside[1], If)
    (part,) = (x for x in step.expr.args if isinstance(x, Load) and x.index)
    late = replace(step, expr=replace(step.expr, args=tuple(replace(x, index=(affine(6), x.index[1])) if x == part and
                                                            isinstance(x, Load) else x for x in step.expr.args)))
    assert failure(cut, with_body(nest, step.stmt, (inside[0], replace(inside[1], then=(late,))))) != ""


def test_threads_may_hand_on_nothing_but_a_scan() -> None:
    cut, nest = made("cumsum")
    (step,) = (s for s in stores(nest.body) if step_of(s.expr, s.target) and nest.buffer(s.target.source).space == Space.REG
               and not s.target.index)
    inside = threads(nest, step.stmt).body
    kept = inside[0]
    assert isinstance(kept, Store) and isinstance(kept.expr, Load)
    twice = replace(kept, expr=Apply("add", (kept.expr, Const(0.0, F32)), F32))  # it computes with what it should only move
    assert failure(cut, with_body(nest, step.stmt, (twice, *inside[1:]))) != ""


C, X, A = Load("c", (), F32), Load("x", (affine("v"),), F32), Load("a", (affine("v"),), F32)


def of(fn: str, *args: Expr) -> Expr:
    return Apply(fn, args, F32)


@pytest.mark.parametrize("step", [of("add", C, X), of("add", X, C), of("max", C, X), of("add", of("mul", A, C), X),
                                  of("add", X, of("mul", C, A)), of("add", of("add", X, C), A),
                                  of("add", of("add", of("mul", A, C), X), A)], ids=str)
def test_steps_that_follow_each_other_as_one_are_scans(step: Expr) -> None:
    assert step_of(step, C) is not None


@pytest.mark.parametrize("step", [of("sub", C, X), of("sub", X, C), of("add", C, C), of("add", of("mul", C, C), X),
                                  of("mul", of("add", C, A), X), of("add", of("mul", A, C), C), X, C], ids=str)
def test_all_others_are_none(step: Expr) -> None:
    assert step_of(step, C) is None


def test_a_step_that_rounds_to_another_type_is_none() -> None:
    assert scan_of(Apply("add", (C, X), I32), C) is None
