"""Reductions to few results are cut into shares, whose results another kernel joins: on the emulator, by the sizes of a call."""

from __future__ import annotations

import numpy as np
import pytest
from fake_gpu import FakeGpu, Interface
from gpu_texts import compiled, values

import polyop
from polyop.ir.errors import UnsupportedError
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.rewrite.regimes.block_regimes import in_blocks
from polyop.rewrite.regimes.blocktiles import BLOCKS, block_shares, block_tiles
from polyop.rewrite.regimes.questions import questions
from polyop.runtime import cxx

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

PRODUCT = "op mm(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }"
HALF = """
op half(A: f16[M, K], B: f16[N, K], b: f32[N]) -> (C: f16[M, N]) {
  t[m, n] += f32(A[m, k]) * f32(B[n, k])
  C[m, n] = f16(relu(t[m, n] + b[n]))
}
"""
ROW = "op row(A: f32[M, K], x: f32[K]) -> (y: f32[M]) { y[m] += A[m, k] * x[k] }"
LINE = "op line(A: f32[K, N], x: f32[K]) -> (y: f32[N]) { y[n] += A[k, n] * x[k] }"
BATCH = "op batch(A: f32[B, M, K], x: f32[B, K, N]) -> (C: f32[B, M, N]) { C[b, m, n] += A[b, m, k] * x[b, k, n] }"
IMAGE = """
op image(X: f32[B, C, H, W], F: f32[O, C, R, S]) -> (Y: f32[B, O, H - R + 1, W - S + 1]) {
  Y[b, o, p, q] += X[b, c, p + r, q + s] * F[o, c, r, s]
}
"""
SOFTMAX = """
op softmax(X: f32[M, N]) -> (Y: f32[M, N]) {
  t[m] max= X[m, n]
  e[m, n] = exp(X[m, n] - t[m])
  s[m] += e[m, n]
  Y[m, n] = e[m, n] / s[m]
}
"""


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def image(x: np.ndarray, f: np.ndarray) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x, f.shape[2:], (2, 3))
    return np.einsum("bcpqrs,ocrs->bopq", windows, f)


CASES = {
    "product": (PRODUCT, ("C",), {"M": 33, "N": 20}, "K", lambda v: v["A"] @ v["B"]),
    "half": (HALF, ("t",), {"M": 20, "N": 33}, "K",
             lambda v: np.maximum(v["A"].astype(np.float32) @ v["B"].astype(np.float32).T + v["b"], 0)),
    "row": (ROW, ("y",), {"M": 3}, "K", lambda v: v["A"] @ v["x"]),
    "line": (LINE, ("y",), {"N": 37}, "K", lambda v: v["x"] @ v["A"]),
    "batch": (BATCH, ("C",), {"B": 2, "M": 5, "N": 6}, "K", lambda v: v["A"] @ v["x"]),
    "image": (IMAGE, ("Y",), {"B": 1, "O": 5, "R": 3, "S": 2, "H": 5, "W": 6}, "C", lambda v: image(v["X"], v["F"])),
    "softmax": (SOFTMAX, ("t", "s"), {"M": 3}, "N", lambda v: softmax(v["X"])),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("where", ["cuda:sm_80", "hip:gfx942"])
def test_shares_add_up_to_the_same_whatever_is_left_for_the_last_one(name: str, where: str) -> None:
    text, cut, sizes, deep, want = CASES[name]
    c = compiled(text, Options(shares=tuple((t, 64) for t in cut)), where)
    assert c.rung == "tuned" and all(p.holds for p in c.proofs)
    for k, n in enumerate((1, 63, 64, 65, 200)):
        v = values(c, {**sizes, deep: n}, ("forward", "backward")[k % 2])
        loose = 2e-2 if name == "half" else 1e-4
        np.testing.assert_allclose(v[c.op.outputs[0].name].astype(np.float64), want(v), rtol=loose, atol=loose)


def test_matrix_units_multiply_shares_too() -> None:
    for where, unit in (("cuda:sm_80", "mma_m16n8k16_f16"), ("cuda:sm_90a", "wgmma"), ("hip:gfx942", "mfma_f32_16x16x32_f16")):
        c = compiled(HALF, Options(shares=(("t", 1024),), tile=(64, 64)), where)
        assert unit in c.chosen[0], c.chosen


def picked(text: str, **sizes: int) -> tuple[tuple[int, ...], tuple[tuple[str, int], ...]]:
    q = questions(compiled(text).op)
    tiles = block_tiles(q, sizes, target("cuda:sm_80"))
    return tiles.sides, block_shares(q.sums, sizes, tiles)


def test_calls_with_few_results_and_a_long_sum_get_shares() -> None:
    assert picked(PRODUCT, M=64, N=64, K=100_000) == ((64, 64), (("C", 1024),))
    assert picked(PRODUCT, M=256, N=256, K=8192) == ((64, 64), (("C", 1024),))
    assert picked(ROW, M=4, K=1_000_000) == ((), (("y", 8192),))
    assert picked(LINE, N=1024, K=65536) == ((), (("y", 16384),))
    assert picked(SOFTMAX, M=1, N=1 << 20) == ((), (("t", 4096), ("s", 4096)))
    assert picked(PRODUCT, M=8, N=16384, K=4096) == ((16, 128), (("C", 1024),))  # few rows wait for memory: four blocks each


def test_the_few_shares_of_a_result_are_joined_by_one_thread() -> None:
    q = compiled(PRODUCT).op
    options = in_blocks(q, questions(q), {"M": 8, "N": 16384, "K": 4096}, Options(), target("cuda:sm_80"))
    assert options.hints == (("K", 4096),)
    c = compiled(PRODUCT, options)
    assert "rows:" in c.chosen[1], c.chosen
    for k in (1, 1024, 1025, 4096):
        v = values(c, {"M": 8, "N": 130, "K": k}, "shuffled")
        np.testing.assert_allclose(v["C"], v["A"].astype(np.float64) @ v["B"], rtol=1e-3, atol=1e-3)


def test_calls_with_results_enough_or_a_short_sum_get_none() -> None:
    for text, sizes in ((PRODUCT, {"M": 4096, "N": 4096, "K": 4096}), (PRODUCT, {"M": 512, "N": 512, "K": 512}),
                        (ROW, {"M": 4096, "K": 4096}), (ROW, {"M": 4, "K": 4096}), (LINE, {"N": 4096, "K": 4096}),
                        (BATCH, {"B": 128, "M": 64, "N": 64, "K": 100_000}), (SOFTMAX, {"M": 4096, "N": 65536})):
        assert picked(text, **sizes)[1] == (), (text, sizes)
    assert BLOCKS == 128


def test_a_call_on_a_gpu_gets_the_shares_that_its_sizes_want(cuda: FakeGpu) -> None:
    product, g = polyop.op(PRODUCT), np.random.default_rng(0)
    for m, n, k, kernels in ((5, 7, 4096, 2), (5, 7, 100, 1), (5, 7, 4000, 2), (1, 9, 4096, 2), (1, 40, 100, 1), (9, 1, 200, 1)):
        a, b = (g.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
        before = len(cuda.launches)
        np.testing.assert_allclose(product(Interface(a), Interface(b)).numpy(), a @ b, rtol=1e-3, atol=1e-3)
        assert len(cuda.launches) - before == kernels


def test_what_ties_results_or_feeds_itself_is_not_cut() -> None:
    for text in ("op tri(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] where n <= m }",
                 "op window(X: f32[N, K]) -> (Y: f32[N - K + 1]) { Y[i] += X[i + k, k] }"):
        assert questions(compiled(text).op).sums == (), text
    at = "op at(X: f32[N], ids: i64[N]; M: int) -> (Y: f32[M]) { Y[ids[i]] += X[i] }"  # a thread for each element as it is
    assert picked(at, N=1 << 20, M=4)[1] == ()
