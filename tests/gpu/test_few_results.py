"""Contractions with few results or short sums, as constants of the text: warps without results, blocks of one warp, odd tiles."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.compiler import Compiled, compile_op
from polyop.ir.dtypes import DTYPES
from polyop.ir.errors import UnsupportedError
from polyop.ir.module import launches
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import cxx, emulated
from polyop.runtime.layout import contiguous

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

PRODUCT = "op product(A: T[{m}, K], B: T[{n}, K]) -> (C: f32[{m}, {n}]) {{ C[m, n] += f32(A[m, k]) * f32(B[n, k]) }}"
TWICE = """op twice(X: f32[L, B, H], W: f32[H, H], U: f32[H, H]) -> (Y: f32[L, B, H]) {
    a[t, b, j] += (Y[t-1, b, k] else 0) * U[j, k]
    g[t, b, j]  = tanh(a[t, b, j] + X[t, b, j])
    c[t, b, j] += g[t, b, k] * W[j, k]
    Y[t, b, j]  = tanh(c[t, b, j])
}"""
ATTENTION = """op attention(Q: f32[S, 40], K: f32[N, 40], V: f32[N, 5]) -> (O: f32[S, 5]) {
    s[i, j]  += Q[i, d] * K[j, d]
    m[i]    max= s[i, j]
    p[i, j]   = exp(s[i, j] - m[i])
    z[i]     += p[i, j]
    o[i, v]  += p[i, j] * V[j, v]
    O[i, v]   = o[i, v] / z[i]
}"""
MACHINES = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942", "hip:gfx1100")


def compiled(text: str, where: str, options: Options | None = None) -> Compiled:
    operator = polyop.op(text)
    op = operator._op(operator.choice())
    made = compile_op(op, contiguous(op), target(where), options or Options())
    assert made.rung == "tuned" and all(p.holds for p in made.proofs), made.notes
    return made


def values(made: Compiled, sizes: dict[str, int], given: dict[str, np.ndarray], out: str, order: str) -> np.ndarray:
    report = emulated.run(made.module, sizes, {}, given, order=order)
    assert str(report) == "no fault found"
    return given[out]


@pytest.mark.parametrize("where", MACHINES)
@pytest.mark.parametrize(("m", "n", "dtype"), [("M", 5, "f16"), ("M", 16, "f32"), (10, "N", "bf16"), (16, 16, "f16")])
def test_a_product_of_few_rows_or_columns_has_no_warp_without_results(where, m, n, dtype):
    made = compiled(PRODUCT.format(m=m, n=n).replace("T[", f"{dtype}["), where)
    for rows, columns, deep in ((1, 1, 1), (65, 33, 70), (128, 17, 64)):
        shape = (m if isinstance(m, int) else rows, n if isinstance(n, int) else columns)
        g = np.random.default_rng(deep)
        a, b = (g.standard_normal((e, deep)).astype(DTYPES[dtype].numpy) for e in shape)
        sizes = {k: v for k, v in {"M": rows, "N": columns, "K": deep}.items() if k in made.op.sizes}
        got = values(made, sizes, {"A": a, "B": b, "C": np.zeros(shape, np.float32)}, "C", "backward")
        np.testing.assert_allclose(got, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("where", MACHINES)
@pytest.mark.parametrize("fact", ["N <= 32", "M <= 1"])
def test_a_product_of_which_is_known_that_it_has_few_results_keeps_its_tiles(where, fact):
    made = compiled(PRODUCT.format(m="M", n="N").replace("T[", "f16[").replace(" {", f" where {fact} {{"), where)
    assert "warps" in made.chosen[0]
    for m, n, k in ((1, 1, 1), (1, 31, 70), (65, 32, 33)):
        if m == 1 or fact == "N <= 32":
            g = np.random.default_rng(k)
            a, b = (g.standard_normal((e, k)).astype(np.float16) for e in (m, n))
            got = values(made, {"M": m, "N": n, "K": k}, {"A": a, "B": b, "C": np.zeros((m, n), np.float32)}, "C", "shuffled")
            np.testing.assert_allclose(got, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("where", ["hip:gfx90a", "hip:gfx942"])
def test_a_tile_has_all_its_lanes_where_copies_to_it_need_fewer_threads(where):
    made = compiled("op across(A: f16[K, M], B: f16[K, N]) -> (C: f32[M, N]) { C[m, n] += f32(A[k, m]) * f32(B[k, n]) }", where,
                    Options(tile=(16, 16)))
    assert [launch.block for launch in launches(made.module.launch)] == [64]
    for (m, n, k), order in zip(((1, 1, 1), (16, 15, 65), (17, 16, 130)), emulated.ORDERS, strict=True):
        g = np.random.default_rng(k)
        a, b = g.standard_normal((k, m)).astype(np.float16), g.standard_normal((k, n)).astype(np.float16)
        got = values(made, {"M": m, "N": n, "K": k}, {"A": a, "B": b, "C": np.zeros((m, n), np.float32)}, "C", order)
        np.testing.assert_allclose(got, a.T.astype(np.float64) @ b.astype(np.float64), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("where", MACHINES)
def test_a_block_of_one_warp_waits_before_it_writes_what_it_read(where):
    made = compiled(PRODUCT.format(m="M", n="N").replace("T[", "f16["), where, Options(tile=(16, 16)))
    g = np.random.default_rng(0)
    a, b = g.standard_normal((17, 200)).astype(np.float16), g.standard_normal((16, 200)).astype(np.float16)
    for order in emulated.ORDERS:
        got = values(made, {"M": 17, "N": 16, "K": 200}, {"A": a, "B": b, "C": np.zeros((17, 16), np.float32)}, "C", order)
        np.testing.assert_allclose(got, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("where", MACHINES)
@pytest.mark.parametrize("hidden", [3, 5, 16, 48])
def test_a_recurrence_of_any_constant_width_stays_in_a_block(where, hidden):
    made = compiled(TWICE.replace("H", str(hidden)), where)
    assert len(launches(made.module.launch)) == 1
    g = np.random.default_rng(hidden)
    x, w, u = (g.standard_normal(s).astype(np.float32) for s in ((3, 65, hidden), (hidden, hidden), (hidden, hidden)))
    want, y = [], np.zeros((65, hidden))
    for t in range(3):
        y = np.tanh(np.tanh(y @ u.T + x[t]) @ w.T)
        want.append(y)
    given = {"X": x, "W": w, "U": u, "Y": np.zeros_like(x)}
    np.testing.assert_allclose(values(made, {"L": 3, "B": 65}, given, "Y", "shuffled"), np.array(want), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("where", MACHINES)
def test_a_depth_that_is_no_power_of_two_is_staged_at_once(where):
    made = compiled(ATTENTION, where)
    assert len(launches(made.module.launch)) == 1
    g = np.random.default_rng(0)
    q, k, v = (g.standard_normal(s).astype(np.float32) for s in ((65, 40), (67, 40), (67, 5)))
    p = np.exp((s := q @ k.T) - s.max(1, keepdims=True))
    given = {"Q": q, "K": k, "V": v, "O": np.zeros((65, 5), np.float32)}
    got = values(made, {"S": 65, "N": 67}, given, "O", "backward")
    np.testing.assert_allclose(got, p @ v / p.sum(1, keepdims=True), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("where", ["cuda:sm_80", "hip:gfx942"])
@pytest.mark.parametrize("condition", ["b < k", "2*k >= N", "b <= 3*k + 4"])
def test_sums_that_begin_within_a_turn_are_not_staged_and_keep_the_tuned_rung(condition, where):
    made = compiled(f"""op late(A: f16[B, M, K], C: f16[B, K, N]) -> (Y: f32[B, M, N]) {{
        Y[b, m, n] += f32(A[b, m, k]) * f32(C[b, k, n]) where {condition} }}""", where)
    for (b, m, n, k), order in zip(((1, 1, 1, 1), (5, 3, 17, 7), (2, 2, 33, 40)), emulated.ORDERS, strict=True):
        g = np.random.default_rng(k)
        x, y = g.integers(-2, 3, (b, m, k)).astype(np.float16), g.integers(-2, 3, (b, k, n)).astype(np.float16)
        inside = eval(condition, {"b": np.arange(b)[:, None], "k": np.arange(k), "N": n}) * np.ones((b, k), bool)
        got = values(made, {"B": b, "M": m, "N": n, "K": k}, {"A": x, "C": y, "Y": np.zeros((b, m, n), np.float32)}, "Y", order)
        np.testing.assert_array_equal(got, np.where(inside[:, None], x, 0).astype(np.float64) @ y)
