"""Which results are asked for while the pass before the one that writes them computes."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyop
from polyop.codegen.cpu.lower import lower as lowered
from polyop.compiler import compile_op
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.loops import For, Kind, Prefetch, stores, walk
from polyop.ir.options import Layout, Options
from polyop.ir.span import Source
from polyop.ir.target import target
from polyop.poly.middle import lower, scop_of
from polyop.runtime.layout import contiguous

TARGET = target("x86:x86-64-v4")
LOG_SOFTMAX = """op f(X: f32[M, N]) -> (Y: f32[M, N]) {
    top[m] max= X[m, n]
    total[m] += exp(X[m, n] - top[m])
    Y[m, n] = X[m, n] - top[m] - log(total[m])
}"""


def asked(text: str) -> set[tuple[str, str]]:
    """(statement in whose lanes, what is asked for), of results."""
    op = instantiate(parse(Source("<test>", text)), "f")
    layout = Layout(tuple((t.name, len(t.shape) - 1 if t.shape else None) for t in op.tensors if t.role != "temp"))
    nest = lowered(lower(scop_of(op), layout, TARGET, Options(), "tuned").nest, TARGET, Options())
    lanes = [f for f in walk(nest.body) if isinstance(f, For) and f.kind == Kind.LANES]
    return {(stores(f.body)[0].stmt, x.place.source) for f in lanes for x in f.body if isinstance(x, Prefetch) and x.written}


def test_a_result_is_asked_for_where_powers_of_its_row_are_added_up():
    assert asked(LOG_SOFTMAX) == {("S1", "Y")}


@pytest.mark.parametrize("text", [
    "op f(X: f32[M, N]) -> (Y: f32[M, N]) { s[m] += X[m, n] * X[m, n]; Y[m, n] = X[m, n] / sqrt(s[m]) }",  # memory has no time
    "op f(X: f32[M, N]) -> (Y: f32[M]) { top[m] max= X[m, n]; Y[m] += exp(X[m, n] - top[m]) }",  # one element a row
    "op f(X: f32[M, N]) -> (Y: f32[N, M]) { s[m] += exp(X[m, n]); Y[n, m] = X[m, n] / s[m] }",  # not along the row
    "op f(X: f32[M, N]) -> (Y: f32[M, N]) { s[n] += exp(X[m, n]); Y[m, n] = X[m, n] / s[n] }",  # after all rows
    "op f(X: f32[M, N], inout Y: f32[M, N]) { s[m] += exp(Y[m, n]); Y[m, n] = X[m, n] / s[m] }",  # it has been read
])
def test_other_results_are_not(text: str) -> None:
    assert not {x for x in asked(text) if x[1] == "Y"}


def test_what_bypasses_the_caches_is_not_fetched_into_them() -> None:
    op = instantiate(parse(Source("<test>", LOG_SOFTMAX)), "f")
    text = compile_op(op, contiguous(op), TARGET, Options()).module.text
    hints = re.findall(r"call void @llvm.prefetch.p0\(ptr (%\w+), i32 0", text)
    chosen = set(re.findall(r"(%\w+) = select i1 %\w+, ptr %args, ptr %\w+", text))
    assert chosen and chosen < set(hints)
    assert f", {2 * TARGET.stream_bytes // 4}" in text  # elements from which results that are asked for do


@pytest.mark.parametrize("shape", [(1, 1), (3, 15), (3, 63), (2, 64), (2, 65), (5, 509), (0, 7), (33, 1000)])
def test_values_stay(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    wide = x.astype(np.float64)
    top = wide.max(1, keepdims=True, initial=-np.inf) if shape[0] else wide[:, :1]
    want = wide - top - np.log(np.exp(wide - top).sum(1, keepdims=True))
    np.testing.assert_allclose(polyop.op(LOG_SOFTMAX)(x), want, rtol=2e-6, atol=2e-6)
