"""Tiles of results whose text would be long are loops, in which registers move from turn to turn."""

from __future__ import annotations

import gpu_texts
import numpy as np
import pytest

from polyop.compiler import Compiled
from polyop.ir.dtypes import DTYPES
from polyop.ir.errors import UnsupportedError
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import cxx, emulated, nvrtc

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

TEXT = """
op product(A: {t}[M, K], B: {t}[K, N], b: f32[N]) -> (C: {t}[M, N]) {{
  t[m, n] += f32(A[m, k]) * f32(B[k, n])
  C[m, n] = {t}({f}(t[m, n] + b[n]))
}}
"""


def compiled(where: str, t: str, f: str, tile: tuple[int, ...] = ()) -> Compiled:
    return gpu_texts.compiled(TEXT.format(t=t, f=f), Options(tile=tile), where)


def halves(text: str) -> tuple[str, str]:
    """What is done with results: of tiles that lie inside as a whole, and of all others."""
    lines = text.splitlines()
    start = max(i for i, x in enumerate(lines) if "if (" in x and "C_s0 %" in x)
    depth = len(lines[start]) - len(lines[start].lstrip())
    middle = lines.index(" " * depth + "} else {", start)
    return "\n".join(lines[start:middle]), "\n".join(lines[middle:])


@pytest.mark.parametrize(("where", "t"), [("cuda:sm_80", "f32"), ("cuda:sm_80", "f16"), ("cuda:sm_90a", "bf16")])
def test_what_stores_whole_tiles_is_written_out_and_edges_are_loops(where: str, t: str) -> None:
    module = compiled(where, t, "relu").module
    assert module is not None
    whole, edge = halves(module.text)
    assert "pop_turn<" not in whole and "#pragma unroll 1" not in whole
    assert "pop_turn<" in edge and "#pragma unroll 1" in edge


@pytest.mark.parametrize(("where", "t"), [("cuda:sm_80", "f32"), ("cuda:sm_80", "f16"), ("cuda:sm_90a", "bf16")])
def test_functions_of_all_results_of_a_thread_are_loops_everywhere(where: str, t: str) -> None:
    module = compiled(where, t, "silu").module
    assert module is not None
    assert all("pop_turn<" in half for half in halves(module.text))


WAYS = [("cuda:sm_80", "f32", (64, 64)), ("cuda:sm_80", "f16", (128, 128)), ("cuda:sm_90a", "bf16", (128, 256)),
        ("cuda:sm_90a", "f16", (64, 64)), ("hip:gfx942", "f16", (128, 128)), ("hip:gfx1100", "bf16", (64, 64))]


@pytest.mark.parametrize(("where", "t", "tile"), WAYS)
def test_each_register_meets_its_own_place_in_every_turn(where: str, t: str, tile: tuple[int, int]) -> None:
    module = compiled(where, t, "silu", tile).module
    assert module is not None and "pop_turn<" in module.text
    rows, columns = tile
    for k, (m, n) in enumerate(((rows, columns), (rows + 3, columns + 6), (rows - 1, columns - 7), (17, 9))):
        g = np.random.default_rng(k)
        a, b = (g.integers(-3, 4, s).astype(DTYPES[t].numpy) for s in ((m, 20), (20, n)))
        bias = g.integers(-9, 9, n).astype(np.float32)
        x = a.astype(np.float64) @ b.astype(np.float64) + bias
        arrays = {"A": a, "B": b, "b": bias, "C": np.zeros((m, n), DTYPES[t].numpy)}
        report = emulated.run(module, {"M": m, "N": n, "K": 20}, {}, arrays, order=emulated.ORDERS[k % 2])
        assert str(report) == "no fault found", (m, n)
        np.testing.assert_allclose(arrays["C"].astype(np.float64), x / (1 + np.exp(-x)), rtol=1e-2, atol=1e-5)


@pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable())
@pytest.mark.parametrize(("where", "t"), [("cuda:sm_80", "f32"), ("cuda:sm_80", "f16"), ("cuda:sm_90a", "f16")])
def test_registers_that_move_stay_registers(where: str, t: str) -> None:
    module = compiled(where, t, "silu").module
    assert module is not None
    text = gpu_texts.ptx(module.text, target(where).arch)
    assert "local" not in text and text.count("ex2.approx") < 100  # 256 of them, where all results are written out twice
