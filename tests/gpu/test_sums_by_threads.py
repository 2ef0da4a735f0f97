"""Sums that threads add up without a unit: two blocks have registers."""

from __future__ import annotations

import pytest
from gpu_texts import compiled

from polyop.ir.options import Options
from polyop.runtime import nvrtc
from polyop.runtime.usage import usage

PRODUCT = "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m,n] += A[m,k] * B[k,n] }"
DISTANCES = "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m,n] += (A[m,k] - B[k,n]) * (A[m,k] - B[k,n]) }"
NEAREST = "op f(A: u8[M, K], B: u8[K, N]) -> (C: u8[M, N]) { C[m,n] min= A[m,k] + B[k,n] }"


@pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable())
@pytest.mark.parametrize(("text", "blocks"), [(PRODUCT, 1), (DISTANCES, 2), (NEAREST, 2)])
@pytest.mark.parametrize("on", ["cuda:sm_90a", "cuda:sm_80"])
def test_two_blocks_have_registers_for_what_they_add_up(on: str, text: str, blocks: int) -> None:
    module = compiled(text, Options(special=False), on).module
    assert module is not None and f"__launch_bounds__(256, {blocks})" in module.text
    (used,) = usage(nvrtc.assemble(module))
    assert used.registers <= 128 and used.local == 0
