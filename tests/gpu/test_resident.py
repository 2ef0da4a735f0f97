"""Recurrences in one block of threads: attention as one kernel, its scores in nobody's memory but the block's."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import polyop
from polyop.compiler import Compiled, compile_op
from polyop.ir.dtypes import DTYPES
from polyop.ir.errors import UnsupportedError
from polyop.ir.loops import Space
from polyop.ir.module import launches
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.rewrite.questions import questions
from polyop.rewrite.regimes import in_blocks
from polyop.runtime import amdgcn, cxx, emulated, nvrtc
from polyop.runtime.layout import contiguous
from polyop.runtime.usage import usage
from tests.library.catalog import CASES, IDS, instance

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

TEXT = """op attention(Q: T[B, S, D], K: T[B, N, D], V: T[B, N, E]) -> (O: T[B, S, E]) {
    s[b, i, j]  += f32(Q[b, i, d]) * f32(K[b, j, d])
    m[b, i]    max= s[b, i, j]
    p[b, i, j]   = exp(s[b, i, j] - m[b, i])
    z[b, i]     += p[b, i, j]
    o[b, i, v]  += f32(T(p[b, i, j])) * f32(V[b, j, v])
    O[b, i, v]   = T(o[b, i, v] / z[b, i])
}"""
SIZES = ((1, 1, 1), (63, 64, 3), (65, 129, 40), (5, 7, 70))  # rows, keys, depth
UNITS = {"cuda:sm_80": "pop_mma_m16n8k16_f16", "hip:gfx942": "pop_mfma_f32_16x16x32_f16",
         "hip:gfx1100": "pop_wmma_f32_16x16x16_f16"}


@cache
def attention(where: str, dtype: str, channels: int, options: Options | None = None) -> Compiled:
    text = TEXT.replace("T[", f"{dtype}[").replace("T(", f"{dtype}(").replace("E]", f"{channels}]" if channels else "E]")
    operator = polyop.op(text)
    op = operator._op(operator.choice())
    return compile_op(op, contiguous(op), target(where), options or Options())


def arrays(dtype: str, channels: int, sizes: tuple[int, int, int]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rows, keys, depth = sizes
    g = np.random.default_rng(rows + keys)
    shapes = {"Q": (2, rows, depth), "K": (2, keys, depth), "V": (2, keys, channels)}
    given = {n: g.standard_normal(s).astype(DTYPES[dtype].numpy) for n, s in shapes.items()}
    q, k, v = (given[n].astype(np.float64) for n in "QKV")
    s = q @ k.transpose(0, 2, 1)
    p = np.exp(s - s.max(-1, keepdims=True))
    return given | {"O": np.zeros((2, rows, channels), DTYPES[dtype].numpy)}, p @ v / p.sum(-1, keepdims=True)


def run(made: Compiled, dtype: str, channels: int, sizes: tuple[int, int, int], **how) -> tuple[emulated.Report, float]:
    given, want = arrays(dtype, channels, sizes)
    named = {"B": 2, "S": sizes[0], "N": sizes[1], "D": sizes[2], "E": channels}
    report = emulated.run(made.module, {n: named[n] for n in made.op.sizes}, {}, given, **how)
    return report, float(np.abs(given["O"].astype(np.float64) - want).max())


@pytest.mark.parametrize(("where", "dtype", "channels"), [
    ("cuda:sm_80", "f16", 64), ("cuda:sm_80", "f32", 32), ("cuda:sm_90a", "f16", 128), ("hip:gfx90a", "f32", 128),
    ("hip:gfx942", "f16", 128), ("hip:gfx1100", "f16", 64)])
def test_attention_is_one_proved_kernel_whose_values_are_right(where, dtype, channels):
    made = attention(where, dtype, channels)
    assert made.rung == "tuned" and len(launches(made.module.launch)) == 1
    assert not [b for b in made.nest.buffers if b.space == Space.WORK]
    assert all(p.holds for p in made.proofs)
    if dtype == "f16" and where in UNITS:
        assert made.module.text.count(UNITS[where]) == 2
    for sizes in SIZES:
        for order in ("forward", "backward"):
            report, error = run(made, dtype, channels, sizes, order=order)
            assert not report.findings, report
            assert error < (4e-3 if dtype == "f16" else 2e-5), (sizes, order)


def test_channels_are_kept_for_as_many_as_a_call_has():
    made = attention("cuda:sm_80", "f32", 0, Options(held=(("E", 32),)))
    assert len(launches(made.module.launch)) == 1
    for channels in (1, 31, 32):
        report, error = run(made, "f32", channels, (33, 65, 5), order="shuffled")
        assert not report.findings and error < 2e-5
    assert len(launches(attention("cuda:sm_80", "f32", 0).module.launch)) == 3  # of any number of channels


@pytest.mark.parametrize("where", ["cuda:sm_80", "hip:gfx1100"])
def test_fewer_rows_than_a_block_has_are_one_kernel_too(where):
    operator = polyop.op(TEXT.replace("T[", "f16[").replace("T(", "f16(").replace("S,", "5,").replace("E]", "24]"))
    op = operator._op(operator.choice())
    made = compile_op(op, contiguous(op), target(where))
    assert len(launches(made.module.launch)) == 1
    report, error = run(made, "f16", 24, (5, 70, 9))
    assert not report.findings and error < 4e-3


def test_strict_numerics_keep_the_sums_of_the_text():
    assert len(launches(attention("cuda:sm_80", "f32", 64, Options(numerics="strict")).module.launch)) > 1


@pytest.mark.parametrize("name", ["attention", "attention_causal", "attention_window", "attention_masked", "attention_padded",
                                  "attention_alibi", "attention_gqa", "attention_mqa"])
def test_each_attention_of_the_library_is_one_kernel(name):
    at = next(k for k, x in enumerate(IDS) if x.startswith(f"attention-{name},"))
    file, case = CASES[at]
    given = case.sizes[0]
    op = instance(file, case, "f16", case.arguments("f16", given), case.keywords(given))
    options = in_blocks(op, questions(op), dict.fromkeys(op.sizes, 64), Options(special=False), target("cuda:sm_80"))
    made = compile_op(op, contiguous(op), target("cuda:sm_80"), options)
    large = [b.name for b in made.nest.buffers if b.space == Space.WORK and len(b.dims) > 2]
    assert not large and any("64 rows in a block" in c for c in made.chosen), made.notes


BARRIER = "pop_copies_barrier<0>();"
BARRIERS = 6
SAFE = 3  # between powers, and zeros where there are none: by their names they could meet


def test_there_are_as_few_barriers_as_there_are_dependences():
    assert attention("cuda:sm_80", "f16", 64).module.text.count(BARRIER) == BARRIERS


@pytest.mark.parametrize("at", sorted({*range(BARRIERS)} - {SAFE}))
def test_each_barrier_left_out_is_found(at):
    made = attention("cuda:sm_80", "f16", 64)
    parts = made.module.text.split(BARRIER)
    text = BARRIER.join(parts[: at + 1]) + ";" + BARRIER.join(parts[at + 1:])
    broken = replace(made, module=replace(made.module, text=text))
    found = [run(broken, "f16", 64, (65, 129, 40), order=order)[0].findings for order in ("forward", "backward", "shuffled")]
    assert any(found)


@pytest.mark.parametrize("where", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx90a", "hip:gfx942", "hip:gfx1100"])
def test_nothing_is_spilled_to_memory(where):
    tool = nvrtc if where.startswith("cuda") else amdgcn
    if tool.unavailable():
        pytest.skip(tool.unavailable())
    for dtype, channels in (("f16", 128), ("f32", 64)):
        (kernel,) = usage(tool.assemble(attention(where, dtype, channels).module))
        assert kernel.local == 0, kernel
