"""Only stores that nobody reads again may bypass the caches."""

from __future__ import annotations

from polyop.codegen.stream import stream_outputs
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.loops import LoopNest, stores
from polyop.ir.options import Layout, Options
from polyop.ir.span import Source
from polyop.ir.target import target
from polyop.poly.middle import lower, scop_of


def nest(text: str) -> LoopNest:
    op = instantiate(parse(Source("<test>", text)), "f")
    layout = Layout(tuple((t.name, len(t.shape) - 1 if t.shape else None) for t in op.tensors if t.role != "temp"))
    return lower(scop_of(op), layout, target("x86:x86-64-v4"), Options(), "tuned").nest


def streamed(text: str) -> set[str]:
    return {s.target.source for s in stores(stream_outputs(nest(text)).body) if s.stream}


def test_a_plain_output_is_streamed():
    assert streamed("op f(X: f32[M, N]) -> (Y: f32[M, N]) { Y[m, n] = X[m, n] * 2 }") == {"Y"}


def test_an_output_that_is_read_again_is_not():
    assert streamed("op f(X: f32[N]) -> (Y: f32[N], Z: f32[N]) { Y[n] = X[n] * 2; Z[n] = Y[n] + X[n] }") == {"Z"}
    assert streamed("op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }") == set()


def test_a_scalar_store_is_not():
    assert streamed("op f(X: f32[M, N]) -> (S: f32[M]) { S[m] += X[m, n] }") == set()


def test_rows_that_are_known_to_be_shorter_than_a_line_are_not():
    text = "op f(X: f32[M, {n}]) -> (Y: f32[M, {n}]) {{ Y[m, n] = X[m, n] * 2 }}"
    assert [streamed(text.format(n=n)) for n in (15, 16)] == [set(), {"Y"}]
