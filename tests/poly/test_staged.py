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


@pytest.mark.parametrize("condition", ["k % 4 <= 1", "m % 3 == 2", "n % 2 == 1"])
def test_loops_that_remainders_thin_out_are_not_staged(condition: str) -> None:
    c = compiled("op f(A: i8[M, K], B: i8[N, K]) -> (C: i32[M, N]) "
                 f"{{ C[m,n] += i32(A[m,k]) * i32(B[n,k]) where {condition} }}", "cuda:sm_80", (64, 32))
    assert c.rung == "tuned"


def test_a_sum_that_ends_by_what_one_operand_alone_has_goes_to_no_matrix_unit() -> None:
    c = compiled("op f(A: f16[M, Q, K], B: f16[K, N]) -> (C: f32[M, N]) "
                 "{ C[m,n] += f32(A[m,q,k]) * f32(B[k,n]) where k + q <= 20 }", "cuda:sm_90a", (64, 256))
    assert c.rung == "tuned" and "warps" not in "".join(c.chosen)


def test_products_of_the_only_group_of_warps_are_fenced_and_waited_for() -> None:
    """Its loop runs once and is gone, so no nest of threads is around them."""
    c = compiled("op f(A: f16[M, K]) -> (C: f16[M, M]) { t[m,n] += f32(A[m,k]) * f32(A[n,k]); C[m,n] = f16(max(t[m,n], 0)) }",
                 "cuda:sm_90a", (64, 256))
    assert c.module and "wgmma_m64n256k16" in c.chosen[0] and c.module.launch
    at = [c.module.text.find(x) for x in ("pop_wgmma_fence();", "pop_wgmma_m64", "pop_wgmma_commit();", "pop_wgmma_wait<0>();")]
    assert -1 < at[0] < at[1] < at[2] < at[3]
