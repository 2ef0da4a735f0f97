"""Sums that threads add up without a unit: two blocks have registers, and where there is room turns are deep."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_texts import compiled, values

from polyop.ir.errors import UnsupportedError
from polyop.ir.options import Options
from polyop.runtime import cxx, emulated, nvrtc
from polyop.runtime.usage import usage

PRODUCT = "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m,n] += A[m,k] * B[k,n] }"
WHOLE = PRODUCT.replace("f32", "i32")
TURNED = "op f(A: f32[Z, K, M], B: f32[Z, N, K]) -> (C: f32[Z, M, N]) { C[z,m,n] += A[z,k,m] * B[z,n,k] }"
WINDOWS = "op f(X: f32[B, C, H, W], F: f32[O, C, 2, 2]) -> (Y: f32[B, O, H-1, W-1]) { Y[b,o,p,q] += X[b,c,p+r,q+s] * F[o,c,r,s] }"
DISTANCES = "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m,n] += (A[m,k] - B[k,n]) * (A[m,k] - B[k,n]) }"
NEAREST = "op f(A: u8[M, K], B: u8[K, N]) -> (C: u8[M, N]) { C[m,n] min= A[m,k] + B[k,n] }"
LONG = PRODUCT.replace("f32", "i64")
BELOW = PRODUCT.replace("* B[k,n]", "* B[k,n]  where k <= m")
SHORT = PRODUCT.replace("K", "24")
SIZES = ((1, 1, 1), (3, 129, 31), (128, 128, 32), (129, 130, 33), (256, 4, 64), (127, 260, 97), (128, 128, 161))  # M, N and K


@pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable())
@pytest.mark.parametrize(("on", "text"), [
    *(("cuda:sm_90a", x) for x in (PRODUCT, WHOLE, TURNED, DISTANCES, NEAREST)), ("cuda:sm_80", DISTANCES),
    ("cuda:sm_80", NEAREST)])
def test_two_blocks_have_registers_for_what_they_add_up(on: str, text: str) -> None:
    module = compiled(text, Options(special=False), on).module
    assert module is not None and "__launch_bounds__(256, 2)" in module.text
    (used,) = usage(nvrtc.assemble(module))
    assert used.registers <= 128 and used.local == 0


@pytest.mark.parametrize(("on", "text", "deep"), [
    ("cuda:sm_90a", PRODUCT, 32), ("cuda:sm_90a", WHOLE, 32), ("cuda:sm_90a", DISTANCES, 32), ("cuda:sm_90a", SHORT, 16),
    ("cuda:sm_90a", WINDOWS, 16),
    ("cuda:sm_90a", BELOW, 16), ("cuda:sm_90a", NEAREST, 16), ("cuda:sm_90a", LONG, 8), ("cuda:sm_80", PRODUCT, 16),
    ("hip:gfx1100", PRODUCT, 16)])
def test_turns_are_deep_where_threads_have_all_results_that_they_may_and_there_is_room(on: str, text: str, deep: int) -> None:
    module = compiled(text, Options(special=False), on).module
    assert module is not None and f" x {deep}, 256 threads with 8 x " in module.text
    assert ("__launch_bounds__(256, 2)" in module.text) == (deep == 32 or text == NEAREST)
    assert deep < 32 or "#pragma unroll 4\n" not in module.text


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_deep_turns_add_up_all_there_is_and_nothing_else(m: int, n: int, k: int) -> None:
    try:
        cxx.compiler()
    except UnsupportedError as e:
        pytest.skip(str(e))
    order = emulated.ORDERS[(m + n + k) % 3]
    a = values(compiled(PRODUCT, on="cuda:sm_90a"), {"M": m, "N": n, "K": k}, order)
    np.testing.assert_allclose(a["C"], a["A"].astype(np.float64) @ a["B"], rtol=1e-5, atol=1e-4)
    a = values(compiled(TURNED, on="cuda:sm_90a"), {"Z": 2, "M": m, "N": n, "K": k}, order)
    np.testing.assert_allclose(a["C"], np.einsum("zkm,znk->zmn", a["A"].astype(np.float64), a["B"]), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("c", "o", "h", "w"), [(1, 1, 2, 2), (33, 129, 6, 30), (64, 128, 5, 34)])
def test_turns_go_on_from_one_place_of_a_window_to_the_next(c: int, o: int, h: int, w: int) -> None:
    try:
        cxx.compiler()
    except UnsupportedError as e:
        pytest.skip(str(e))
    a = values(compiled(WINDOWS, on="cuda:sm_90a"), {"B": 2, "C": c, "O": o, "H": h, "W": w})
    x = np.lib.stride_tricks.sliding_window_view(a["X"].astype(np.float64), (2, 2), (2, 3))
    np.testing.assert_allclose(a["Y"], np.einsum("bcpqrs,ocrs->bopq", x, a["F"]), rtol=1e-5, atol=1e-4)
