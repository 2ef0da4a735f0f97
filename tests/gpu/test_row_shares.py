"""Reductions that need another one's result, over so few rows that shares of these run side by side: on the emulator."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from fake_gpu import FakeGpu, Interface
from gpu_texts import Array, compiled, values

import polyop
from polyop.ir.errors import UnsupportedError
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.rewrite.regimes.block_regimes import in_blocks, row_shares
from polyop.rewrite.regimes.blocktiles import BLOCKS
from polyop.rewrite.regimes.questions import questions
from polyop.runtime import cxx, emulated

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

DECODE = """
op decode(Q: f16[H, D], K: f16[H, N, D], V: f16[H, N, E]; used: int) -> (O: f32[H, E]) where 1 <= used <= N {
  s[h, j] += f32(Q[h, d]) * f32(K[h, j, d])   where j < used
  m[h] max= s[h, j]                           where j < used
  e[h, j] = exp(s[h, j] - m[h])               where j < used
  z[h] += e[h, j]                             where j < used
  o[h, v] += e[h, j] * f32(V[h, j, v])        where j < used
  O[h, v] = o[h, v] / z[h]
}
"""
SOFTMAX = """
op softmax(X: f32[M, N]) -> (Y: f32[M, N]) {
  t[m] max= X[m, n]; e[m, n] = exp(X[m, n] - t[m]); s[m] += e[m, n]; Y[m, n] = e[m, n] / s[m]
}
"""
NORM = """
op norm(X: f32[M, N]) -> (Y: f32[M, N]) {
  s[m] += X[m, n]; q[m] += (X[m, n] - s[m] / f32(N)) * (X[m, n] - s[m] / f32(N))
  Y[m, n] = (X[m, n] - s[m] / f32(N)) / sqrt(q[m] / f32(N) + 0.01)
}
"""
LOSS = "op loss(X: f32[M, N]) -> (L: f32[M]) { t[m] max= X[m, n]; s[m] += exp(X[m, n] - t[m]); L[m] = log(s[m]) + t[m] }"


def decode(v: dict[str, Array], used: int) -> Array:
    q, k, x = (v[n].astype(np.float64) for n in "QKV")
    s = np.einsum("hd,hjd->hj", q, k[:, :used])
    e = np.exp(s - s.max(1, keepdims=True))
    return np.einsum("hj,hjv->hv", e, x[:, :used]) / e.sum(1, keepdims=True)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("where", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942", "hip:gfx1100"])
def test_a_single_query_meets_shares_of_its_keys_in_one_launch_and_joins_them_in_another(where: str) -> None:
    c = compiled(DECODE, Options(split=64, hints=(("D", 64), ("E", 64))), where)
    assert c.rung == "tuned" and c.proofs and all(p.holds for p in c.proofs)
    assert c.module is not None and len(c.module.launch) == 2
    sizes = ((1, 1, 1, 1), (64, 63, 64, 64), (200, 65, 33, 40), (200, 200, 70, 65), (131, 128, 8, 3))
    for k, (n, used, d, e) in enumerate(sizes):
        v = values(c, {"H": 2, "N": n, "D": d, "E": e, "used": used}, emulated.ORDERS[k % len(emulated.ORDERS)])
        np.testing.assert_allclose(v["O"], decode(v, used), rtol=2e-3, atol=2e-3)


def test_a_thread_asks_once_whether_four_keys_are_there_and_then_loads_them_without_a_test() -> None:
    c = compiled(DECODE, Options(split=256, hints=(("D", 64), ("E", 64))))
    assert c.module is not None
    found = re.search(r"if \((used >= [^\n]*)\) \{\n(.*?)\n *\} else \{", c.module.text, re.DOTALL)
    assert found and "pop_is_wide<16>(K)" in found[1]
    assert "for (int j_p_q32 = 0; j_p_q32 < 4; ++j_p_q32)" in found[2] and "if (" not in found[2]


PLACE = "op place(X: f32[M, N]) -> (A: i64[M]) { A[m] argmax= X[m, n] }"


@pytest.mark.parametrize(("text", "want", "kernels"), [
    (SOFTMAX, softmax, 3),
    (NORM, lambda x: (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 0.01), 3),
    (LOSS, lambda x: np.log(np.exp(x).sum(1)), 2),
    (PLACE, lambda x: x.argmax(1), 2),
], ids=["softmax", "norm", "loss", "place"])
def test_long_rows_are_read_once_for_all_their_reductions(text: str, want: Callable[[Array], Array], kernels: int) -> None:
    for where in ("cuda:sm_80", "hip:gfx942"):
        c = compiled(text, Options(split=64), where)
        assert c.rung == "tuned" and all(p.holds for p in c.proofs)
        assert c.module is not None and len(c.module.launch) == kernels
        for k, n in enumerate((1, 63, 64, 65, 200)):
            v = values(c, {"M": 3, "N": n}, emulated.ORDERS[k % len(emulated.ORDERS)])
            result = v[c.op.outputs[0].name]
            np.testing.assert_allclose(result, want(v["X"].astype(np.float64)), rtol=1e-4, atol=1e-4)


def test_what_is_infinite_stays_what_the_text_says() -> None:
    c = compiled(SOFTMAX, Options(split=64))
    assert c.module is not None
    x = np.zeros((3, 200), np.float32)
    x[0, :64], x[1], x[2, 100] = -np.inf, -np.inf, np.inf
    with np.errstate(invalid="ignore"):
        want = softmax(x)
    arrays = {"X": x, "Y": np.zeros_like(x)}
    assert str(emulated.run(c.module, {"M": 3, "N": 200}, {}, arrays)) == "no fault found"
    np.testing.assert_allclose(arrays["Y"], want, rtol=1e-5)


def share(text: str, **sizes: int) -> int:
    return row_shares(questions(compiled(text).op).splits, sizes)


def test_calls_with_few_long_rows_get_shares_and_others_none() -> None:
    assert BLOCKS == 128
    assert share(DECODE, H=32, D=128, E=128, N=4096, used=4096) == 64
    assert share(DECODE, H=32, D=128, E=128, N=300, used=300) == 128
    assert share(DECODE, H=32, D=128, E=128, N=60, used=60) == 0
    assert share(DECODE, H=128, D=64, E=64, N=1024, used=1024) == 64  # a row is long enough, whatever their number
    assert share(DECODE, H=128, D=64, E=64, N=256, used=256) == 0
    assert share(SOFTMAX, M=256, N=65536) == 8192 and share(SOFTMAX, M=256, N=32768) == 0
    assert share(SOFTMAX, M=2, N=1 << 20) == 8192
    assert share(SOFTMAX, M=2, N=1000) == share(SOFTMAX, M=4096, N=1 << 20) == 0


ATTENTION = """
op attention(Q: f32[H, S, D], K: f32[H, N, D], V: f32[H, N, E]) -> (O: f32[H, S, E]) {
  s[h, i, j] += Q[h, i, d] * K[h, j, d]; m[h, i] max= s[h, i, j]; e[h, i, j] = exp(s[h, i, j] - m[h, i])
  z[h, i] += e[h, i, j]; o[h, i, v] += e[h, i, j] * V[h, j, v]; O[h, i, v] = o[h, i, v] / z[h, i]
}
"""


def asked(text: str, **sizes: int) -> Options:
    op = compiled(text).op
    return in_blocks(op, questions(op), sizes, Options(), target("cuda:sm_90a"))


def test_attention_of_one_row_has_none_and_so_gets_shares_and_of_many_it_stays_one_kernel() -> None:
    one = asked(ATTENTION, H=32, S=1, N=4096, D=128, E=128)
    assert (one.ones, one.split, one.held, one.shares) == (("S",), 64, (), ())
    many = asked(ATTENTION, H=32, S=128, N=4096, D=128, E=128)
    assert (many.ones, many.split, many.shares) == ((), 0, ()) and dict(many.held) == {"D": 128, "E": 128}
    few = asked(ATTENTION, H=32, S=2, N=4096, D=128, E=128)
    assert few.split == 0 and [t for t, _ in few.shares] == ["o"]  # one kernel would leave three quarters of a device idle


def test_attention_of_one_row_computes_what_the_text_says() -> None:
    for where in ("cuda:sm_80", "hip:gfx1100"):
        c = compiled(ATTENTION, Options(ones=("S",), split=64, hints=(("D", 32), ("E", 32))), where)
        assert c.rung == "tuned" and c.module is not None and len(c.module.launch) == 2
        for n in (1, 64, 131):
            v = values(c, {"H": 2, "S": 1, "N": n, "D": 20, "E": 24}, "shuffled")
            q, k, x = (v[t].astype(np.float64) for t in "QKV")
            want = softmax(np.einsum("hid,hjd->hij", q, k).reshape(2, n)).reshape(2, 1, n) @ x
            np.testing.assert_allclose(v["O"], want, rtol=1e-4, atol=1e-4)


def test_a_call_with_few_long_rows_is_in_shares(cuda: FakeGpu) -> None:
    g = np.random.default_rng(0)
    f = polyop.op(SOFTMAX)
    for m, n, kernels in ((1, 40_000, 3), (2, 300, 1)):
        x = g.standard_normal((m, n)).astype(np.float32)
        before = len(cuda.launches)
        np.testing.assert_allclose(f(Interface(x)).numpy(), softmax(x), rtol=1e-4, atol=1e-6)
        assert len(cuda.launches) - before == kernels


def test_strict_numerics_keep_the_order_of_sums() -> None:
    c = compiled(SOFTMAX, Options(split=64, numerics="strict"))
    assert not any("in shares" in n for n in c.notes)
