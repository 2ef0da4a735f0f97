"""Contractions whose operands a block of threads stages: which of them are, and that their proofs hold."""

from __future__ import annotations

import pytest

import polyop
from polyop.compiler import Compiled, compile_op
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime.layout import contiguous


def compiled(text: str, where: str, tile: tuple[int, ...] = ()) -> Compiled:
    o = polyop.op(text)
    op = o._op(o.choice())
    return compile_op(op, contiguous(op), target(where), Options(tile=tile))


@pytest.mark.parametrize("where", ["cuda:sm_80", "hip:gfx1100"])
def test_matrix_units_may_take_windows_in_steps(where: str) -> None:
    c = compiled("op f(X: f16[C, L], F: f16[K, C, 5]) -> (Y: f32[K, (L-5)/2+1]) where L >= 5 "
                 "{ Y[k,p] += f32(X[c,2*p+r]) * f32(F[k,c,r]) }", where, (64, 32))
    assert c.rung == "tuned" and "warps with" in c.chosen[-1]


@pytest.mark.parametrize("where", ["cuda:sm_80", "hip:gfx942"])
def test_an_operand_that_is_one_along_the_sum_goes_to_no_matrix_unit(where: str) -> None:
    c = compiled("op f(A: f16[M], B: f16[N, K]) -> (C: f32[M, N]) { C[m,n] += f32(A[m]) * f32(B[n,k]) }", where)
    assert c.rung == "tuned" and "warps" not in "".join(c.chosen)


@pytest.mark.parametrize("condition", ["k % 4 == 1", "m % 3 == 2", "n % 2 == 1"])
def test_loops_that_remainders_thin_out_are_not_staged(condition: str) -> None:
    c = compiled("op f(A: i8[M, K], B: i8[N, K]) -> (C: i32[M, N]) "
                 f"{{ C[m,n] += i32(A[m,k]) * i32(B[n,k]) where {condition} }}", "cuda:sm_80", (64, 32))
    assert c.rung == "tuned"
