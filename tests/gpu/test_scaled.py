"""Sums in place, missing elements asked about once, and maxima of what a number scales: attention, whatever the scale is."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import polyop
from polyop.compiler import Compiled, compile_op
from polyop.ir.dtypes import DTYPES
from polyop.ir.errors import UnsupportedError
from polyop.ir.target import target
from polyop.runtime import cxx, emulated, nvrtc
from polyop.runtime.layout import contiguous
from polyop.runtime.usage import usage

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

TEXT = """op attention(Q: T[B, S, D], K: T[B, S, D], V: T[B, S, E]; scale: f32) -> (O: T[B, S, E]) {
    s[b, i, j]   += Q[b, i, d] * K[b, j, d]                       WHERE
    top[b, i]  max= scale * s[b, i, j]                            WHERE
    e[b, i, j]    = exp(scale * s[b, i, j] - top[b, i])           WHERE
    z[b, i]      += e[b, i, j]                                    WHERE
    o[b, i, v]   += T(e[b, i, j]) * V[b, j, v]                    WHERE
    O[b, i, v]    = T(o[b, i, v] / z[b, i])
}"""


@cache
def attention(dtype: str, channels: int, seen: str) -> Compiled:
    text = TEXT.replace("T[", f"{dtype}[").replace("T(", f"{dtype}(").replace("D]", f"{channels}]").replace("E]", f"{channels}]")
    operator = polyop.op(text.replace("WHERE", f"where {seen}" if seen else ""))
    op = operator._op(operator.choice())
    return compile_op(op, contiguous(op), target("cuda:sm_90a"))


def error(made: Compiled, dtype: str, rows: int, channels: int, scale: float, seen: str, order: str, grow: float = 1.0) -> float:
    """How far results are off, in which the emulator found no fault. Scores of later keys are `grow` times as large."""
    g = np.random.default_rng(rows)
    q, k, v = (g.standard_normal((2, rows, channels)).astype(np.float32) for _ in range(3))
    k *= (grow ** (np.arange(rows) // 64))[None, :, None].astype(np.float32)
    given = {n: x.astype(DTYPES[dtype].numpy) for n, x in (("Q", q), ("K", k), ("V", v))}
    given["O"] = np.zeros((2, rows, channels), DTYPES[dtype].numpy)
    x = {n: a.astype(np.float64) for n, a in given.items()}
    s = scale * np.einsum("bid,bjd->bij", x["Q"], x["K"])
    s = np.where(np.tri(rows, dtype=bool), s, -np.inf) if seen else s
    with np.errstate(invalid="ignore"):
        p = np.exp(s - s.max(-1, keepdims=True))
    want = np.einsum("bij,bjv->biv", p / p.sum(-1, keepdims=True), x["V"])
    report = emulated.run(made.module, {"B": 2, "S": rows}, {"scale": scale}, given, order=order)
    assert not report.findings, report
    return float(np.abs(given["O"].astype(np.float64) - want).max())


@pytest.mark.parametrize("seen", ["", "j <= i"])
@pytest.mark.parametrize("scale", [0.125, -0.125, 0.0, 1e-30])
def test_rows_are_right_whatever_they_are_scaled_by(scale, seen):
    made = attention("bf16", 64, seen)
    assert all(p.holds for p in made.proofs) and made.module.text.count("__global__") == 1
    for rows, order in ((1, "forward"), (64, "backward"), (65, "shuffled"), (129, "forward")):
        assert error(made, "bf16", rows, 64, scale, seen, order) < 3e-2, rows


@pytest.mark.parametrize("grow", [2.0, 0.5])
@pytest.mark.parametrize(("dtype", "channels"), [("f16", 64), ("bf16", 128)])
def test_turns_that_find_greater_scores_and_turns_that_do_not_are_right(dtype, channels, grow):
    for seen in ("", "j <= i"):
        made = attention(dtype, channels, seen)
        assert error(made, dtype, 200, channels, 0.2, seen, "shuffled", grow) < 3e-2


@pytest.mark.parametrize("seen", ["", "j <= i"])
def test_what_is_asked_of_elements_is_asked_once_and_sums_lie_where_they_stay(seen):
    text = attention("bf16", 64, seen).module.text
    assert "o_part_S9_acc" not in text and text.count("pop_some<32>(top_repair_reg") == 1
    turn = text[text.index("pop_wgmma_wait<0>"):]
    assert turn.index("0.0f < scale") < turn.index("top_part_S1_part[0][pop_r] = s_S0_acc[0][pop_r];") < turn.index("pop_fma(")
    assert turn.count("// S5:") == turn.count("// S8:") == 1


@pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable())
@pytest.mark.parametrize(("channels", "blocks"), [(64, 5), (128, 4)])
@pytest.mark.parametrize("seen", ["", "j <= i"])
def test_a_multiprocessor_has_a_block_more_and_nothing_is_spilled(channels, blocks, seen):
    made = attention("bf16", channels, seen)
    (u,) = usage(nvrtc.assemble(made.module))
    assert not u.local and u.occupancy and u.occupancy[0] == 4 * blocks
