"""Copies to shared memory that go on by themselves: asked once where a tile is whole, and as wide as rows of tensors begin."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_texts import compiled, ptx, values

from polyop.ir.errors import UnsupportedError
from polyop.ir.options import Options
from polyop.runtime import cxx, emulated, nvrtc

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

PRODUCT = "op mm(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m,n] += A[m,k] * B[k,n] }"
NARROW = "op mm(X: f16[B, K, N], F: f16[M, K]) -> (Y: f32[B, M, N]) { Y[b,m,n] += f32(F[m,k]) * f32(X[b,k,n]) }"


def test_the_copies_of_a_whole_tile_ask_nothing() -> None:
    c = compiled(PRODUCT, Options(special=False), "cuda:sm_90a")
    assert c.module is not None
    loop = c.module.text.split("for (int k_c = 0")[1]
    whole, edges = (sum("pop_copy" in x and (", true);" in x) is w for x in loop.splitlines()) for w in (True, False))
    assert whole == edges == 2
    assert "if (K >= k_c + k_x0 + 89 && M >= m_c + m_x0 + 97) {" in loop


@pytest.mark.parametrize("order", emulated.ORDERS)
def test_whole_tiles_and_edges_have_the_same_sums(order: str) -> None:
    c = compiled(PRODUCT, Options(special=False), "cuda:sm_90a")
    for m, k, n in ((128, 80, 128), (129, 65, 132), (127, 64, 131), (5, 3, 2)):
        a = values(c, {"M": m, "K": k, "N": n}, order)
        np.testing.assert_allclose(a["C"], a["A"].astype(np.float64) @ a["B"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", emulated.ORDERS)
@pytest.mark.parametrize("on", ["cuda:sm_80", "cuda:sm_90a"])
def test_rows_that_begin_at_multiples_of_2_4_and_8_bytes_are_copied_whole(on: str, order: str) -> None:
    c = compiled(NARROW, Options(special=False, tile=(64, 64), lines=((), (2, 32))), on)
    for n in (36, 34, 33, 40):
        a = values(c, {"B": 3, "M": 65, "K": 70, "N": n}, order)
        want = np.einsum("mk,bkn->bmn", a["F"].astype(np.float64), a["X"].astype(np.float64))
        np.testing.assert_allclose(a["Y"], want, rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable())
def test_rows_that_do_not_begin_at_16_bytes_have_copies_of_8_and_4_that_go_on_by_themselves() -> None:
    module = compiled(NARROW, Options(special=False), "cuda:sm_90a").module
    assert module is not None
    code = ptx(module.text, "sm_90a")
    assert all(f"cp.async.{x}" in code for x in ("cg.shared.global", "ca.shared.global"))
    assert {code.count(f", {n}, %r") > 0 for n in (16, 8, 4)} == {True}


def test_neighbours_that_a_window_moves_are_copied_one_by_one_in_whole_tiles_too() -> None:
    text = ("op c(X: f32[B, C, W], F: f32[K, C, R]) -> (Y: f32[B, K, W]) where R >= 1 "
            "{ Y[b,k,p] += (X[b,c,p+r-1] else 0) * F[k,c,r]  where p in 0:W }")
    c = compiled(text, Options(special=False, tile=(64, 128)), "cuda:sm_90a")
    a = values(c, {"B": 1, "C": 64, "W": 256, "K": 64, "R": 3}, "backward")
    x = np.pad(a["X"].astype(np.float64), ((0, 0), (0, 0), (1, 1)))
    want = sum(np.einsum("bcw,kc->bkw", x[:, :, r:r + 256], a["F"][:, :, r].astype(np.float64)) for r in range(3))
    np.testing.assert_allclose(a["Y"], want, rtol=1e-3, atol=1e-3)
