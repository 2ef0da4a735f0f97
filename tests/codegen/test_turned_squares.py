"""Squares that are transposed in registers, also where only some of their lanes or rows exist."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.codegen.cpu.passes import split_full_tiles
from polyop.codegen.x86 import emit
from polyop.ir.dtypes import F32, F64, I32
from polyop.ir.loops import LoopNest, structure
from polyop.ir.options import Options
from tests.codegen.harness import RUNNABLE, check, load, random_array
from tests.codegen.nests import A, lanes, ld, least, loop, nest, rows, st, tensor

each_target = pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)


def turned(t=F32, width: int = 16) -> LoopNest:
    """Y[p, c] = X[c, p], in squares whose lanes run along c."""
    copy = st(ld("Y", A("p_s", "p_p"), A("c_t", "c_v"), t=t), ld("X", A("c_t", "c_v"), A("p_s", "p_p"), t=t))
    square = lanes("c_v", width, least(width, A("C", (-1, "c_t"))), rows("p_p", width, least(width, A("P", (-1, "p_s"))), copy))
    body = loop("p_s", "P", loop("c_t", "C", square, step=width), step=width)
    return nest([tensor("X", "C", "P", t=t), tensor("Y", "P", "C", t=t)], [body], ("C", "P"))


@each_target
@pytest.mark.parametrize("t", [F32, F64, I32], ids=lambda t: t.name)
def test_few_lanes_and_few_rows_are_copied_and_nothing_beside_them(target, t):
    width = target.lanes(max(4, t.bytes_))
    n = split_full_tiles(turned(t, width), width)
    kernel = load(emit(n, target, Options()), target)
    rng = np.random.default_rng(3)
    for few in (1, 2, 3, 4, 5):
        for many in (1, width - 1, width, 2 * width + 3):
            for c, p in ((few, many), (many, few)):
                check(n, {"C": c, "P": p}, target, kernel=kernel)
                x, room = random_array(rng, t, (c, p + 2))[:, :p], random_array(rng, t, (p, c + 3))
                check(n, {"C": c, "P": p}, target, kernel=kernel, arrays={"X": x, "Y": room[:, :c]})


def test_squares_are_asked_for_missing_rows_first_so_that_the_loop_around_can_be_cut():
    edge = "c_v:lanes(p_p:rows(s))"
    assert structure(split_full_tiles(turned(), 16).body) == f"p_s(c_t(if(if({edge} | {edge}) | {edge})))"


def test_squares_whose_rows_lie_in_a_packed_buffer_are_transposed_as_ever():
    made = polyop.library("matmul_nt").compile(), polyop.library("linear_gelu").compile()
    assert not [n for m in made for n in m.notes if "not on rung" in n]
