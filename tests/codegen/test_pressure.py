"""What a register tile keeps alive: a value until its last read, what a loop touches through all of the loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyop.codegen.verify import pressure, verify
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.errors import UnsupportedError
from polyop.ir.loops import For, Kind, LoopNest, walk
from polyop.ir.options import Layout, Options
from polyop.ir.span import Source
from polyop.ir.target import target
from polyop.poly.middle import lower, scop_of

V4 = target("x86:x86-64-v4")


def made(text: str) -> LoopNest:
    op = instantiate(parse(Source("<test>", text)), "f")
    layout = Layout(tuple((t.name, len(t.shape) - 1 if t.shape else None) for t in op.tensors if t.role != "temp"))
    return lower(scop_of(op), layout, V4, Options(), "tuned").nest


def need(text: str) -> int:
    nest = made(text)
    tiles = [n for n in walk(nest.body) if isinstance(n, For) and n.kind == Kind.LANES]
    return max(pressure(nest, t, 16) for t in tiles)


HEAD = "op f(A: f32[M, K], B: f32[K, N], b: f32[N]) -> (Y: f32[M, N]) { c[m, n] += A[m, k] * B[k, n]"


def test_a_product_keeps_its_tile_a_row_of_operands_and_one_more():
    assert need(HEAD + "; Y[m, n] = c[m, n] }") == 6 * 4 + 4 + 1


def test_a_value_that_replaces_another_takes_its_registers():
    assert need(HEAD + "; y[m, n] = c[m, n] + b[n]; Y[m, n] = y[m, n] * y[m, n] }") == 6 * 4 + 4 + 1


def test_two_values_that_are_read_together_need_registers_for_both():
    assert need(HEAD + "; y[m, n] = c[m, n] + b[n]; Y[m, n] = y[m, n] * c[m, n] }") > V4.registers


def test_a_tile_that_fills_the_registers_is_taken_and_one_vector_more_refused():
    nest = made(HEAD + "; Y[m, n] = c[m, n] }")
    assert verify(nest, replace(V4, registers=29)) is nest
    with pytest.raises(UnsupportedError, match=r"keeps 29 vectors live; .* has 28"):
        verify(nest, replace(V4, registers=28))


def test_a_tile_for_more_registers_than_there_are_is_refused():
    with pytest.raises(UnsupportedError, match="vectors live; x86:x86-64-v4 has 32"):
        verify(made(HEAD + "; y[m, n] = c[m, n] + b[n]; Y[m, n] = y[m, n] * c[m, n] }"), V4)
