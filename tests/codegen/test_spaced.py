"""Stores to every second, third or fourth place are vectors that a mask chooses the places of."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.codegen.cpu.passes import split_full_tiles
from polyop.codegen.x86 import emit
from polyop.ir.dtypes import BF16, F32, F64, I32, U8
from polyop.ir.loops import LoopNest
from polyop.ir.options import Options
from tests.codegen.harness import RUNNABLE, V4, check, load, random_array
from tests.codegen.nests import A, lanes, ld, least, loop, nest, st, tensor
from tests.poly.middles import middle, proved

each_target = pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)

WOVEN = """op f(A: f32[R, N], B: f32[R, N]) -> (Y: f32[R, 2*N]) {
    Y[q, 2*i] = A[q, i] * B[q, i]; Y[r, 2*j + 1] = B[r, j] - A[r, j] }"""
TURNED = """op f(X: f32[R, 2*N], C: f32[R, N], S: f32[R, N]) -> (Y: f32[R, 2*N]) {
    Y[r, 2*i] = X[r, 2*i] * C[r, i] - X[r, 2*i + 1] * S[r, i]; Y[r, 2*i + 1] = X[r, 2*i] * S[r, i] + X[r, 2*i + 1] * C[r, i] }"""
THIRDS = """op f(A: f32[N], B: f32[N], C: f32[N]) -> (Y: f32[3*N]) { Y[3*i] = A[i]; Y[3*i + 1] = B[i]; Y[3*i + 2] = C[i] }"""
UNLIKE = "op f(A: f32[R, N], B: f32[R, N - 1]) -> (Y: f32[R, 2*N - 1]) { Y[r, 2*i] = A[r, i]; Y[r, 2*i + 1] = B[r, i] }"


def spaced(step: int, t=F32, width: int = 16, adds: bool = False) -> LoopNest:
    """Y[step * i] = X[i], or with that added to it."""
    copy = st(ld("Y", A((step, "i_t"), (step, "i_v")), t=t), ld("X", A("i_t", "i_v"), t=t), "add" if adds else None)
    body = loop("i_t", "N", lanes("i_v", 2 * width, least(2 * width, A("N", (-1, "i_t"))), copy), step=2 * width)
    return nest([tensor("X", "N", t=t), tensor("Y", A((step, "N")), t=t)], [body], ("N",))


@each_target
@pytest.mark.parametrize("step", [2, 3, 4, 5])
@pytest.mark.parametrize("t", [F32, F64, I32, U8, BF16], ids=lambda t: t.name)
def test_what_lies_between_is_not_written(target, t, step):
    width = target.lanes(max(4, t.bytes_))
    for adds in (False, True):
        n = split_full_tiles(spaced(step, t, width, adds), width)
        kernel = load(emit(n, target, Options()), target)
        rng = np.random.default_rng(3)
        for size in (0, 1, width - 1, width, width + 1, 2 * width, 4 * width + 3):
            y = random_array(rng, t, (step * size + 9,))
            check(n, {"N": size}, target, kernel=kernel, arrays={"X": random_array(rng, t, (size,)), "Y": y[:step * size]})


def test_only_far_places_are_scattered():
    assert "llvm.masked.scatter" not in emit(spaced(4), V4, Options()).text
    assert "llvm.masked.scatter" in emit(spaced(5), V4, Options()).text


@pytest.mark.parametrize("text, loops", [(WOVEN, 1), (TURNED, 1), (THIRDS, 1), (UNLIKE, 2)],
                         ids=["woven", "turned", "thirds", "unlike"])
def test_what_is_written_between_each_other_shares_loops(text, loops):
    m = middle(text, "tuned")
    assert proved(m) and len(m.chosen) == loops
    f = polyop.op(text)
    rng = np.random.default_rng(5)
    for r, n in ((1, 1), (3, 15), (2, 16), (5, 67), (1, 193)):
        a, b, c = rng.standard_normal((3, r, n)).astype(np.float32)
        a64, b64 = a.astype(np.float64), b.astype(np.float64)
        if text == WOVEN:
            got, want = f(a, b), np.stack([a64 * b64, b64 - a64], -1)
        elif text == TURNED:
            x = rng.standard_normal((r, 2 * n)).astype(np.float32)
            even, odd = x[:, ::2].astype(np.float64), x[:, 1::2].astype(np.float64)
            got, want = f(x, a, b), np.stack([even * a64 - odd * b64, even * b64 + odd * a64], -1)
        elif text == THIRDS:
            got, want = f(a[0], b[0], c[0]), np.stack([a[0], b[0], c[0]], -1)
        else:
            want = np.zeros((r, 2 * n - 1))
            want[:, ::2], want[:, 1::2] = a, b[:, 1:]
            got = f(a, b[:, 1:])
        np.testing.assert_allclose(got, want.reshape(got.shape), rtol=1e-5, atol=1e-5)
