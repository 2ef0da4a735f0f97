"""Tiles of results that lie inside as a whole are stored as wide as memory allows, all others element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_texts import ptx

import polyop
from polyop.codegen.cresults import neighbours
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
def test_stores_of_whole_tiles_are_as_wide_as_a_lane_has_neighbours() -> None:
    for (where, t, out, turned), wide in zip(WAYS[:4], ("v2.f32", "v2.u16", "v4.f32", "v2.u16"), strict=True):
        module = compiled(where, t, out, turned).module
        assert module is not None
        text = ptx(module.text, target(where).arch)
        assert f"st.global.{wide}" in text and "local" not in text, (where, t, out)


def test_a_tile_that_the_whole_block_holds_is_written_by_all_its_lanes() -> None:
    c = compiled("cuda:sm_90a", "f16", "f32")
    assert c.module is not None and "128 threads, groups of warps with 64 x 64" in c.chosen[0]
    last = c.module.text.split("pop_wgmma_hold")[1]
    assert "pop_s += 2" in last and "pop_n == 0" not in last
