"""What a register tile keeps alive: a value until its last read, what a loop touches through all of the loop."""

from __future__ import annotations

import re
from dataclasses import replace

import llvmlite.binding as llvm
import pytest

from polyop.codegen.cpu.verify import pressure, verify
from polyop.compiler import compile_op
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.errors import UnsupportedError
from polyop.ir.loops import For, Kind, LoopNest, walk
from polyop.ir.module import Module
from polyop.ir.options import SHORT, TURNED, Layout, Options
from polyop.ir.registers import on_the_way
from polyop.ir.span import Source
from polyop.ir.target import Target, target
from polyop.poly.middle import lower, scop_of
from polyop.runtime.cpu_passes import quick
from polyop.runtime.layout import contiguous

V4, V3 = target("x86:x86-64-v4"), target("x86:x86-64-v3")


def made(text: str, to: Target = V4) -> LoopNest:
    op = instantiate(parse(Source("<test>", text)), "f")
    layout = Layout(tuple((t.name, len(t.shape) - 1 if t.shape else None) for t in op.tensors if t.role != "temp"))
    return lower(scop_of(op), layout, to, Options(), "tuned").nest


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


DISTANCE = "op f(A: f32[M, K], B: f32[K, N]) -> (Y: f32[M, N]) { Y[m, n] += (A[m, k] - B[k, n]) * (A[m, k] - B[k, n]) }"


@pytest.mark.parametrize(("text", "more"), [
    ("A[m, k] * B[k, n]", 0), ("A[m, k] * f32(h[k, n])", 0), ("B[k, n]", 0), ("A[m, k] - B[k, n]", 1),
    ("(A[m, k] - B[k, n]) * (A[m, k] - B[k, n])", 1), ("(A[m, k] - B[k, n]) * (A[m, k] + B[k, n])", 2),
    ("abs(A[m, k] - B[k, n])", 2), ("A[m, k] * B[k, n] * 3", 2), ("i32(i[m, k]) * i32(j[k, n])", 1)])
def test_what_a_sum_computes_on_its_way_takes_registers(text, more):
    head = "op f(A: f32[M, K], B: f32[K, N], h: f16[K, N], i: i32[M, K], j: i32[K, N]) -> (Y: f32[M, N]) "
    op = instantiate(parse(Source("<test>", head.replace("Y: f32", f"Y: {'i32' if 'i32' in text else 'f32'}")
                                  + "{ Y[m, n] += " + text + " }")), "f")
    s = op.steps[-1]
    assert s.reduce is not None and on_the_way(s.expr, s.reduce) == more


def test_a_least_number_keeps_itself_the_lesser_one_and_whether_it_is_none():
    text = "op f(A: f32[M, K], B: f32[K, N]) -> (Y: f32[M, N]) { Y[m, n] min= A[m, k] + B[k, n] }"
    op = instantiate(parse(Source("<test>", text)), "f")
    s = op.steps[-1]
    assert s.reduce is not None and on_the_way(s.expr, s.reduce) == 3


def test_sixteen_registers_hold_the_tile_of_a_distance_and_its_differences():
    """Of 4 x 3 one sum went to memory and back in each step, and waited for itself there."""
    nest = made(DISTANCE, V3)
    tile = next(n for n in walk(nest.body) if isinstance(n, For) and n.kind == Kind.LANES and n.extent == 16)
    assert pressure(nest, tile, 8) == 6 * 2 + 2 + 1 + 1 == V3.registers
    with pytest.raises(UnsupportedError, match="keeps 16 vectors live"):
        verify(nest, replace(V3, registers=15))


ZEN3 = replace(V3, arch="znver3")
IMAGE = """op f(X: f32[B, H, W, C], F: f32[R, S, C, K]) -> (Y: f32[B, H + 3 - R, W + 3 - S, K]) {
    Y[b, p, q, k] += (X[b, p + r - 1, q + s - 1, c] else 0) * F[r, s, c, k] }"""

FIRST = """op f(X: f32[B, C, H, W], F: f32[K, C, R, S], a: f32[K]) -> (Y: f32[B, K, H + 3 - R, W + 3 - S]) {
    y[b, k, p, q] += (X[b, c, p + r - 1, q + s - 1] else 0) * F[k, c, r, s]
    Y[b, k, p, q] = relu(y[b, k, p, q] * a[k]) }"""


STEPS = """op f(X: f32[B, H, W, C], F: f32[R, S, C, K]) -> (Y: f32[B, (H + 2 - R) / 2 + 1, (W + 2 - S) / 2 + 1, K]) {
    Y[b, p, q, k] += (X[b, 2*p + r - 1, 2*q + s - 1, c] else 0) * F[r, s, c, k] }"""


def steps(module: Module, t: Target) -> list[str]:
    """The blocks of machine code that multiply and add as often as a tile has sums, without masks."""
    machine = llvm.Target.from_triple("x86_64-linux-gnu").create_target_machine(cpu=t.arch, opt=2, reloc="pic")
    with quick(module.text.count("\n"), module.is_full):
        blocks = re.split(r"\n(?=\.LBB\w+:)", machine.emit_assembly(llvm.parse_assembly(module.text)))
    return [x for x in blocks if x.count("vfmadd") >= t.fma_chains and "vmaskmov" not in x]


def loops(module: Module, t: Target) -> list[str]:
    """Those that go round by themselves."""
    return [x for x in steps(module, t) if (name := x.split(":")[0]) and re.search(rf"\tj\w+\t{re.escape(name)}\b", x)]


@pytest.mark.parametrize("text,options", [(IMAGE, Options()), (IMAGE, Options(slim=True)), (IMAGE, Options(height=5)),
                                          (FIRST, Options(short=SHORT)), (FIRST, Options(short=TURNED, height=5)),
                                          (FIRST, Options(short=TURNED)), (FIRST, Options())])
def test_sums_that_fill_the_registers_stay_in_them_where_masks_are_vectors_too(text, options):
    op = instantiate(parse(Source("<test>", text)), "f")
    found = loops(compile_op(op, contiguous(op), ZEN3, options).module, ZEN3)
    assert len(found) >= 2 and not [x for x in found if re.search(r"ymm\d+, -?\w*\(%rsp\)", x)]


@pytest.mark.parametrize("options", [Options(height=8), Options(height=6), Options(height=12)])
def test_sums_stay_in_registers_where_a_step_copies_what_it_reads(options):
    """3 x 3 in 16 filters of 100 columns, 3 vectors for 8 rows: 957 us with a sum that waited for itself in memory, 560 now."""
    op = instantiate(parse(Source("<test>", FIRST)), "f")
    zen4 = replace(V4, arch="znver4")
    found = loops(compile_op(op, contiguous(op), zen4, options).module, zen4)
    assert any(x.count("vfmadd") == 24 for x in found) and not [x for x in found if re.search(r"zmm\d+, -?\w*\(%rsp\)", x)]


def test_what_fills_the_registers_is_counted_where_there_are_few_or_a_step_copies():
    def full(text: str, t: Target) -> bool:
        op = instantiate(parse(Source("<test>", text)), "f")
        return compile_op(op, contiguous(op), t).module.is_full
    total = "op f(A: f32[M, N]) -> (y: f32[M]) { y[m] += exp(A[m, n]) }"
    assert full(IMAGE, ZEN3) and not full(total, ZEN3)
    assert full(FIRST, V4) and not full(total, V4)


def test_whether_a_tile_has_rows_is_not_asked_in_each_step_of_its_sum():
    op = instantiate(parse(Source("<test>", STEPS)), "f")
    module = compile_op(op, contiguous(op), ZEN3).module
    assert loops(module, ZEN3) == steps(module, ZEN3)
