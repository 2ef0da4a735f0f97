"""Kernels that do not need each other are one: which ones join, that they are proved, and what the emulator says of them."""

from __future__ import annotations

import sys
from dataclasses import replace

import fake_gpu
import numpy as np
import pytest
from fake_gpu import CupyArray, FakeGpu
from gpu_texts import compiled, values

import polyop
from polyop.ir.abreast import abreast, parts
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import affine
from polyop.ir.loops import For, If, Kind, walk
from polyop.ir.module import HostLoop, Launch, launches
from polyop.ir.options import Options
from polyop.poly.blocks import beside
from polyop.poly.middle import lower, scop_of
from polyop.poly.verify import first_failure, prove
from polyop.runtime import cxx, emulated
from polyop.runtime.launching import grid

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

CONCAT = "op c(A: f32[R, M], B: f32[R, N]) -> (Y: f32[R, M + N]) { Y[r, i] = A[r, i]; Y[r, M + i] = B[r, i] }"
FRAME = "op p(X: f32[H, W]) -> (Y: f32[H, W]) { Y[i, j] = 1 <= i < H - 1 and 1 <= j < W - 1 ? X[i - 1, j] + X[i, j + 1] : 0 }"
MIXED = """
op m(x: f32[R, N], z: f32[Q, P], w: f32[R]) -> (s: f32[R], t: f32[Q], u: f32[P, Q], v: f32[R]) {
  s[r] += x[r, i]
  t[q] max= z[q, p]
  u[p, q] = z[q, p]
  v[r] = exp(w[r])
}
"""
CHAIN = """
op c(x: f32[A, B], w: f32[B]) -> (y: f32[B], z: f32[A], b: f32[B]) {
  y[j] += x[i, j]
  z[i] += y[j] * x[i, j]
  b[j] = exp(w[j])
}
"""
NEEDED = "op n(x: f32[A, B], w: f32[C, A]) -> (y: f32[A], z: f32[C]) { y[i] += x[i, j]; z[k] += y[i] * w[k, i] }"
PRODUCTS = """
op p(X: f16[S, D], A: f16[D, E], B: f16[D, E], C: f16[D, E], z: f32[S]) -> (Q: f16[S, E], K: f16[S, E], V: f16[S, E], y: f32[S]) {
  q[s, e] += f32(X[s, d]) * f32(A[d, e])
  Q[s, e]  = f16(q[s, e])
  k[s, e] += f32(X[s, d]) * f32(B[d, e])
  K[s, e]  = f16(k[s, e])
  v[s, e] += f32(X[s, d]) * f32(C[d, e])
  V[s, e]  = f16(v[s, e])
  y[s]     = exp(z[s])
}
"""
SHORT_ROWS = """
op s(x: f32[R, 100], w: f32[N]) -> (y: f32[R], v: f32[N]) {
  y[r] += x[r, i]
  v[i] = exp(w[i])
}
"""
ONE_THREAD = """
op s(x: f32[N, N], z: f32[L]) -> (y: f32[N], s: f32) {
  y[j] += x[j, i] * x[i, i]  where i >= j, i < 2, j >= 1
  s += z[i]
}
"""
TWO_KERNELS = """
op s(B: f32[M], z: f32[L], N: int) -> (at: i64[N], s: f32) {
  s += z[i]
  at[i] argmax= (B[j] else 0)  where j in 0:N, i < 2
}
"""
SUMS = "op s(X: f32[N], Z: f32[M], W: f32[N]) -> (s: f32, t: f32, u: f32) { s += X[i]; t max= W[i]; u += Z[j] }"
STEPS = """
op r(x: f32[N], z: f32[N]; T: int) -> (A: f32[T, N], B: f32[T, N]) {
  A[t, i] = t == 0 ? x[i] : A[t - 1, i] + B[t - 1, N - 1 - i]
  B[t, i] = t == 0 ? z[i] : B[t - 1, i] - A[t - 1, N - 1 - i]
}
"""


@pytest.mark.parametrize("on", ["cuda:sm_80", "hip:gfx942"])
def test_a_block_has_the_threads_that_share_its_points_though_others_join_it(on: str) -> None:
    c = compiled(SHORT_ROWS, on=on)
    assert c.rung == "tuned" and c.module
    (launch,) = launches(c.module.launch)
    assert "8 of r in a block" in c.chosen[0] + c.chosen[1] and launch.more and launch.block == 128
    for r, n in ((1, 1), (8, 128), (9, 129), (33, 257)):
        a = values(c, {"R": r, "N": n})
        np.testing.assert_allclose(a["y"], a["x"].sum(1), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(a["v"], np.exp(a["w"]), rtol=1e-6)


@pytest.mark.parametrize("text", [ONE_THREAD, TWO_KERNELS])
def test_what_has_no_loop_over_blocks_stays_a_kernel_of_its_own(text: str) -> None:
    c = compiled(text, Options(hints=(("N", 8),)), "hip:gfx942")
    assert c.rung == "tuned" and c.proofs
    for n in (1, 2, 9):
        a = values(c, {"N": n, "L": 70, "M": 5} if text == TWO_KERNELS else {"N": n, "L": 70})
        np.testing.assert_allclose(a["s"], a["z"].sum(), rtol=1e-4, atol=1e-4)
        if text == ONE_THREAD:
            want = [a["x"][1, 1] ** 2 if j == 1 else 0 for j in range(n)]
            np.testing.assert_allclose(a["y"], want, rtol=1e-5)
        else:
            row = np.append(a["B"], np.zeros(n))[:n]
            assert a["at"].tolist() == [row.argmax()] * min(n, 2) + [-1] * max(0, n - 2)


def counts(text: str, on: str = "cuda:sm_80", options: Options | None = None) -> list[int]:
    """How many parts each launch has."""
    c = compiled(text, options, on)
    assert c.rung == "tuned" and c.proofs and c.module
    return [1 + len(x.more) for x in launches(c.module.launch)]


@pytest.mark.parametrize("on", ["cuda:sm_80", "hip:gfx942"])
@pytest.mark.parametrize(("text", "want"), [(CONCAT, [2]), (FRAME, [5]), (MIXED, [4]), (SUMS, [3, 3])])
def test_kernels_that_do_not_need_each_other_are_one(text: str, want: list[int], on: str) -> None:
    assert counts(text, on) == want


def test_a_kernel_joins_those_before_the_one_that_waits_for_them() -> None:
    assert counts(CHAIN) == [2, 1]


def test_kernels_that_need_each_other_are_started_one_after_the_other() -> None:
    assert counts(NEEDED) == [1, 1]


@pytest.mark.parametrize(("on", "want"), [("cuda:sm_80", [3, 1]), ("hip:gfx942", [3, 1]), ("cuda:sm_90a", [1, 1, 1, 1])])
def test_products_of_one_shape_are_one_kernel_where_no_engine_copies_their_tiles(on: str, want: list[int]) -> None:
    assert counts(PRODUCTS, on) == want


@pytest.mark.parametrize(("on", "order"), [("cuda:sm_80", "backward"), ("hip:gfx942", "shuffled")])
def test_products_side_by_side_have_the_same_shared_memory_in_turn(on: str, order: str) -> None:
    a = {k: v.astype(float) for k, v in values(compiled(PRODUCTS, on=on), {"S": 131, "D": 70, "E": 129}, order).items()}
    for x, w in zip("QKV", "ABC", strict=True):
        np.testing.assert_allclose(a[x], a["X"] @ a[w], rtol=2e-3, atol=2e-2)
    np.testing.assert_allclose(a["y"], np.exp(a["z"]), rtol=1e-5)


def test_a_host_starts_what_is_independent_in_a_turn_at_once() -> None:
    c = compiled(STEPS)
    assert c.module
    loop = next(x for x in c.module.launch if isinstance(x, HostLoop))
    assert [len(x.more) for x in loop.body if isinstance(x, Launch)] == [1]


@pytest.mark.parametrize("order", emulated.ORDERS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 1, 130), (3, 129, 7), (5, 4, 300)])
def test_the_pieces_of_a_concatenation_are_all_there(sizes: tuple[int, int, int], order: str) -> None:
    c = compiled(CONCAT)
    a = values(c, dict(zip("RMN", sizes, strict=True)), order)
    np.testing.assert_array_equal(a["Y"], np.concatenate([a["A"], a["B"]], axis=1))


@pytest.mark.parametrize("options", [Options(), Options(huge=True), Options(regime="any")])
@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (2, 2), (3, 3), (70, 5)])
def test_a_part_without_points_has_no_blocks(size: tuple[int, int], options: Options) -> None:
    h, w = size
    a = values(compiled(FRAME, options), {"H": h, "W": w}, "backward")
    want = np.zeros(size, np.float32)
    want[1:-1, 1:-1] = a["X"][:-2, 1:-1] + a["X"][1:-1, 2:]
    np.testing.assert_array_equal(a["Y"], want)


def test_an_empty_size_leaves_the_other_parts() -> None:
    a = values(compiled(CONCAT, Options(regime="any")), {"R": 3, "M": 0, "N": 5})
    np.testing.assert_array_equal(a["Y"], a["B"])


@pytest.mark.parametrize("order", emulated.ORDERS)
def test_blocks_of_threads_and_threads_with_a_point_each_share_a_kernel(order: str) -> None:
    a = values(compiled(MIXED), {"R": 300, "N": 70, "Q": 33, "P": 65}, order)
    np.testing.assert_allclose(a["s"], a["x"].sum(1), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(a["t"], a["z"].max(1))
    np.testing.assert_array_equal(a["u"], a["z"].T)
    np.testing.assert_allclose(a["v"], np.exp(a["w"]), rtol=1e-5)


def test_blocks_without_points_of_their_own_are_one_each() -> None:
    a = values(compiled(SUMS), {"N": 40_000, "M": 300})
    want = [a["X"].sum(dtype=float), a["W"].max(), a["Z"].sum(dtype=float)]
    np.testing.assert_allclose([a["s"], a["t"], a["u"]], want, rtol=1e-3)


def test_turns_of_a_host_are_right_with_parts() -> None:
    a = values(compiled(STEPS), {"T": 4, "N": 150})
    x, z = a["x"], a["z"]
    for t in range(4):
        np.testing.assert_allclose(a["A"][t], x, rtol=1e-6)
        np.testing.assert_allclose(a["B"][t], z, rtol=1e-6)
        x, z = x + z[::-1], z - x[::-1]


def test_a_loop_over_kernels_that_need_each_other_is_refused_by_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside._Kernel, "needs", lambda self, other: False)
    c = compiled(NEEDED)
    assert c.rung != "tuned" and any("parallel loops" in n or "is read" in n or "value" in n for n in c.notes)


def test_parts_that_write_one_element_are_refused_by_the_proof() -> None:
    c = compiled(CONCAT)
    made = lower(scop_of(c.op), c.layout, c.target, Options(), "tuned")
    (loop,) = made.nest.body
    first, second = parts(loop)
    worse = abreast([first, second, second], "part")
    assert first_failure(prove(made.scop, made.nest, made.context, c.layout)) is None
    assert first_failure(prove(made.scop, replace(made.nest, body=(worse,)), made.context, c.layout)) is not None


def test_a_loop_over_kernels_is_known_by_its_tests() -> None:
    nest = compiled(CONCAT).nest
    assert nest
    (loop,) = nest.body
    assert len(parts(loop)) == 2 and all(isinstance(p[0], For) for p in parts(loop))
    inside = next(n for n in walk(parts(loop)[0]) if isinstance(n, For))
    assert parts(inside) == ()
    assert parts(For("i", affine(0), affine(1), (If((affine("i"),), ()),), kind=Kind.PARALLEL)) == ()


def test_a_grid_has_the_blocks_of_all_parts() -> None:
    module = compiled(CONCAT).module
    assert module
    (launch,) = launches(module.launch)
    sizes = ((1, 1, 1), (128, 4, 8), (128, 0, 9), (0, 4, 4))
    assert [grid(launch, {"R": r, "M": m, "N": n}, lambda: 1, "cuda") for r, m, n in sizes] == [2, 3, 3, 0]


def test_a_call_starts_all_parts_at_once(cuda: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", fake_gpu.cupy())
    a, b = (np.arange(3 * n, dtype=np.float32).reshape(3, n) for n in (5, 600))
    y = polyop.op(CONCAT)(CupyArray(a), CupyArray(b))
    np.testing.assert_array_equal(y.array, np.concatenate([a, b], axis=1))
    assert [x.grid for x in cuda.launches] == [1 + 4]
