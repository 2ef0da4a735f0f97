"""Tiles of results that lie inside as a whole are stored as wide as memory allows, all others element by element."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gpu_texts import ptx

import polyop
from polyop.codegen.c.results import neighbours
from polyop.compiler import Compiled, compile_op
from polyop.ir.atoms import ROWS
from polyop.ir.dtypes import DTYPES
from polyop.ir.errors import UnsupportedError
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import cxx, emulated, nvrtc
from polyop.runtime.layout import contiguous

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

MIXED = """
op mixed(A: {t}[M, K], B: {t}[K, N], b: f32[N], R: f32[{shape}]) -> (C: {out}[{shape}]) {{
  t[m, n] += f32(A[m, k]) * f32(B[k, n])
  C[{at}] = {out}(relu(t[m, n] + b[n]) + R[{at}])
}}
"""


def compiled(where: str, t: str, out: str, turned: bool = False, **options: Any) -> Compiled:
    text = MIXED.format(t=t, out=out, shape="N, M" if turned else "M, N", at="n, m" if turned else "m, n")
    operator = polyop.op(text)
    op = operator._op(operator.choice())
    return compile_op(op, contiguous(op), target(where), Options(tile=(64, 64), **options))


def test_a_lane_holds_as_many_neighbours_as_its_map_says() -> None:
    held = {x.name: (neighbours(x.c_map, x.warp, 0), neighbours(x.c_map, x.warp, 1)) for x in ROWS}
    assert held["mma_m16n8k16_f16"] == held["mma_m8n8k4_f64"] == held["wgmma_m64n64k16_f16"] == (1, 2)
    assert held["mfma_f32_16x16x16_f16"] == (4, 1) and held["mfma_f64_16x16x4_f64"] == (1, 1)
    assert held["wmma_f32_16x16x16_f16"] == (1, 1)


WAYS = [("cuda:sm_80", "f16", "f32", False), ("cuda:sm_80", "f16", "f16", False), ("cuda:sm_80", "f32", "f32", False),
        ("cuda:sm_90a", "bf16", "bf16", False), ("hip:gfx942", "f16", "f32", True), ("hip:gfx1100", "f16", "f16", True)]


@pytest.mark.parametrize(("where", "t", "out", "turned"), WAYS)
def test_results_are_right_inside_at_borders_and_wherever_rows_begin(where: str, t: str, out: str, turned: bool) -> None:
    module = compiled(where, t, out, turned).module
    assert module is not None
    for k, (m, n) in enumerate(((64, 64), (130, 68), (63, 129), (65, 66), (128, 128), (16, 8))):
        g = np.random.default_rng(k)
        a, b = (g.integers(-3, 4, s).astype(DTYPES[t].numpy) for s in ((m, 20), (20, n)))
        bias = g.integers(-9, 9, n).astype(np.float32)
        rest = g.integers(-9, 9, (m, n)).astype(np.float32)
        want = np.maximum(a.astype(np.float32) @ b.astype(np.float32) + bias, 0) + rest
        arrays = {"A": a, "B": b, "b": bias, "R": np.ascontiguousarray(rest.T) if turned else rest,
                  "C": np.zeros((n, m) if turned else (m, n), DTYPES[out].numpy)}
        report = emulated.run(module, {"M": m, "N": n, "K": 20}, {}, arrays, order=emulated.ORDERS[k % 2])
        assert str(report) == "no fault found", (m, n)
        np.testing.assert_array_equal(arrays["C"].astype(np.float32).T if turned else arrays["C"].astype(np.float32), want)


@pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable())
def test_stores_of_whole_tiles_are_as_wide_as_a_lane_has_neighbours_and_fill_32_bytes() -> None:
    for (where, t, out, turned), wide in zip(WAYS[:4], ("v2.f32", "v4.u16", "v4.f32", "v4.u16"), strict=True):
        module = compiled(where, t, out, turned).module
        assert module is not None
        text = ptx(module.text, target(where).arch)
        assert f"st.global.{wide}" in text and "local" not in text, (where, t, out)


def test_a_tile_that_the_whole_block_holds_is_written_by_all_its_lanes() -> None:
    c = compiled("cuda:sm_90a", "f16", "f32")
    assert c.module is not None and "128 threads, groups of warps with 64 x 64" in c.chosen[0]
    last = c.module.text.split("pop_wgmma_hold")[1]
    assert "pop_s += 2" in last and "pop_n == 0" not in last


def test_lanes_exchange_results_of_16_bits_alone() -> None:
    for (where, t, out, turned), pairs in zip(WAYS, (False, True, False, True, False, False), strict=True):
        module = compiled(where, t, out, turned).module
        assert module is not None and ("pop_pairs(" in module.text) == pairs, (where, t, out)


@pytest.mark.parametrize("order", emulated.ORDERS)
def test_what_is_read_where_it_is_written_is_read_before_lanes_exchange_results(order: str) -> None:
    text = """
    op onto(A: f16[M, K], B: f16[K, N], inout C: f16[M, N]) {
      t[m, n] += f32(A[m, k]) * f32(B[k, n])
      C[m, n] = f16(f32(C[m, n]) + t[m, n])
    }
    """
    operator, g = polyop.op(text), np.random.default_rng(5)
    op = operator._op(operator.choice())
    module = compile_op(op, contiguous(op), target("cuda:sm_80"), Options(tile=(64, 64))).module
    assert module is not None and "pop_pairs(" in module.text
    arrays = {x: g.integers(-3, 4, s).astype(np.float16) for x, s in (("A", (70, 9)), ("B", (9, 136)), ("C", (70, 136)))}
    (result,) = (t.name for t in op.outputs)
    arrays |= {t.name: arrays["C"].copy() for t in op.tensors if t.role != "temp" and t.name not in arrays}
    want = arrays["A"].astype(np.float32) @ arrays["B"].astype(np.float32) + arrays["C"].astype(np.float32)
    assert str(emulated.run(module, {"M": 70, "N": 136, "K": 9}, {}, arrays, order=order)) == "no fault found"
    np.testing.assert_array_equal(arrays[result].astype(np.float32), want)


def test_a_lane_that_takes_the_wrong_half_of_its_neighbour_shows() -> None:
    module = compiled("cuda:sm_80", "f16", "f16").module
    assert module is not None
    g = np.random.default_rng(0)
    for old, new in (("pop_pairs(pop_o);", ""), ("pop_t + (int)pop_lane() % 2", "pop_t + (int)pop_lane() / 2 % 2")):
        assert old in module.text
        arrays = {"A": g.integers(-3, 4, (64, 20)).astype(np.float16), "B": g.integers(-3, 4, (20, 64)).astype(np.float16),
                  "b": np.zeros(64, np.float32), "R": np.zeros((64, 64), np.float32), "C": np.zeros((64, 64), np.float16)}
        wrong = replace(module, text=module.text.replace(old, new))
        emulated.run(wrong, {"M": 64, "N": 64, "K": 20}, {}, arrays, order="backward")
        want = np.maximum(arrays["A"].astype(np.float32) @ arrays["B"].astype(np.float32), 0)
        assert not np.array_equal(arrays["C"].astype(np.float32), want)


EPILOGUES = {  # text, and what it is of the product, U and b
    "functions, rolled up": ("C[m, n] = f32(silu(t[m, n]) * U[m, n] + b[n])", lambda t, u, b: t / (1 + np.exp(-t)) * u + b),
    "sums, written out": ("C[m, n] = t[m, n] * U[m, n] + b[n]", lambda t, u, b: t * u + b),
}


@pytest.mark.parametrize(("where", "tile"), [("cuda:sm_90a", (128, 256)), ("cuda:sm_90a", (64, 64)), ("hip:gfx942", (64, 64))])
@pytest.mark.parametrize("name", EPILOGUES)
def test_operands_of_a_turn_are_asked_for_before_the_results_in_front_of_them_are_stored(name: str, where: str,
                                                                                         tile: tuple[int, int]) -> None:
    text, of = EPILOGUES[name]
    operator = polyop.op("op after(A: bf16[M, K], B: bf16[K, N], U: f32[M, N], b: f32[N]) -> (C: f32[M, N]) { "
                         f"t[m, n] += f32(A[m, k]) * f32(B[k, n]); {text} }}")
    op = operator._op(operator.choice())
    module = compile_op(op, contiguous(op), target(where), Options(tile=tile)).module
    assert module is not None
    if where == "cuda:sm_90a":
        part = module.text.split("pop_wgmma_hold")[-1].split("} else {")[0]
        asked, stored = (part.index(x) for x in ("pop_a0_1[", "pop_wide<2>(pop_p2, pop_b)"))
        assert asked < stored < part.index("pop_a0_0[", stored) and ("pop_turn<" in part) == ("rolled" in name)
    for k, (m, n) in enumerate(((128, 256), (130, 260), (64, 64), (66, 62))):
        g = np.random.default_rng(k)
        a, b = (g.integers(-2, 3, s).astype(DTYPES["bf16"].numpy) for s in ((m, 8), (8, n)))
        u, bias = g.integers(-9, 9, (m, n)).astype(np.float32), g.integers(-9, 9, n).astype(np.float32)
        arrays = {"A": a, "B": b, "U": u, "b": bias, "C": np.full((m, n), np.nan, np.float32)}
        report = emulated.run(module, {"M": m, "N": n, "K": 8}, {}, arrays, order=emulated.ORDERS[k % 3])
        assert str(report) == "no fault found", (m, n)
        want = of(a.astype(np.float64) @ b.astype(np.float64), u, bias)
        np.testing.assert_allclose(arrays["C"], want, rtol=1e-5, atol=1e-5)


def test_what_is_read_where_it_is_written_is_read_once_though_it_is_asked_for_ahead() -> None:
    operator = polyop.op("op onto(A: bf16[M, K], B: bf16[K, N], inout C: f32[M, N]) { t[m, n] += f32(A[m, k]) * f32(B[k, n]); "
                         "C[m, n] = C[m, n] * 2 + t[m, n] }")
    op, g = operator._op(operator.choice()), np.random.default_rng(5)
    module = compile_op(op, contiguous(op), target("cuda:sm_90a"), Options(tile=(128, 256))).module
    assert module is not None and "pop_a0_1[" in module.text
    a, b = (g.integers(-2, 3, s).astype(DTYPES["bf16"].numpy) for s in ((130, 8), (8, 260)))
    arrays = {"A": a, "B": b, "C": g.integers(-9, 9, (130, 260)).astype(np.float32)}
    (result,) = (t.name for t in op.outputs)
    arrays |= {t.name: arrays["C"].copy() for t in op.tensors if t.role != "temp" and t.name not in arrays}
    want = a.astype(np.float32) @ b.astype(np.float32) + 2 * arrays["C"]
    assert str(emulated.run(module, {"M": 130, "N": 260, "K": 8}, {}, arrays, order="backward")) == "no fault found"
    np.testing.assert_array_equal(arrays[result], want)
