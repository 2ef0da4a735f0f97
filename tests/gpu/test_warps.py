"""Lanes that exchange values are all there, and all come to the place where they do: else the text is not printed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gpu_nests import at, buffer, nest, parallel, store
from gpu_texts import compiled

from polyop.codegen import cuda, hip
from polyop.ir.dtypes import F32
from polyop.ir.errors import InternalError
from polyop.ir.expr import Affine, Const, affine
from polyop.ir.loops import For, Kind, LoopNest, Node, Space, rebuild, walk
from polyop.ir.module import Module
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import nvrtc


def printed(made: LoopNest, on: str = "cuda:sm_80") -> Module:
    return {"cuda": cuda, "hip": hip}[target(on).family].emit(made, target(on), Options())


def threads(index: str, extent: int, *body: Node, weight: int = 1) -> For:
    return For(index, Affine(), affine(extent), body, kind=Kind.THREADS, extent=extent, weight=weight)


def total(extent: int, beside: int) -> LoopNest:
    """y[i] = sum of x[i, t] over `extent` threads, in a block that has `beside` groups of them."""
    part, result = at("part", "t"), at("y", "i")
    fill = threads("u", beside, threads("t", extent, store("S0", part, at("x", "i", "t"))), weight=extent)
    fold = threads("t", extent, store("S2", result, part, "add"))
    buffers = (buffer("x", "M", extent, unit=1), buffer("y", "M", unit=0), buffer("part", extent, space=Space.REG))
    return nest("total", "M", buffers, parallel("i", "M", fill, store("S1", result, Const(0.0, F32)), fold))


@pytest.mark.parametrize(("on", "extent", "beside", "is_whole"), [
    ("cuda:sm_80", 32, 1, True), ("cuda:sm_80", 16, 2, True), ("cuda:sm_80", 16, 3, False), ("cuda:sm_80", 8, 1, False),
    ("hip:gfx942", 32, 2, True), ("hip:gfx942", 32, 1, False), ("hip:gfx1100", 32, 1, True),
])
def test_threads_that_fold_are_whole_warps_of_the_target(on: str, extent: int, beside: int, is_whole: bool) -> None:
    if is_whole:
        assert "pop_fold" in printed(total(extent, beside), on).text
        return
    with pytest.raises(InternalError, match="no whole number of warps"):
        printed(total(extent, beside), on)


@pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable())
@pytest.mark.parametrize(("extent", "beside"), [(2, 16), (16, 2), (32, 1), (128, 1)])
def test_a_fold_of_any_number_of_threads_compiles_without_a_word(extent: int, beside: int) -> None:
    assert nvrtc.compiled(printed(total(extent, beside), "cuda:sm_80"))[1] == ""


PRODUCT = "op mm(A: f16[M, K], B: f16[K, N]) -> (C: f32[M, N]) { C[m,n] += f32(A[m,k]) * f32(B[k,n]) }"


@pytest.mark.parametrize("on", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_all_lanes_that_hold_a_tile_have_the_same_digits(on: str) -> None:
    made = compiled(PRODUCT, on=on).nest
    assert made is not None and "pop_" in printed(made, on).text

    def halved(n: Node) -> Node:
        """The digits of whole warps, or groups of them, moved into one."""
        atoms = isinstance(n, For) and any(isinstance(x, For) and x.kind == Kind.ATOM for x in walk(n.body))
        if isinstance(n, For) and n.kind == Kind.THREADS and atoms:
            n = replace(n, weight=n.weight // 2)
        return rebuild(n, lambda body: tuple(map(halved, body)))

    with pytest.raises(InternalError, match="lanes of one tile"):
        printed(replace(made, body=tuple(map(halved, made.body))), on)
