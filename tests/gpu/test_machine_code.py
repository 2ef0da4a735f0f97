"""What machine code must have, asked of the code itself: matrix instructions, wide loads and reads, nothing spilled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gpu_assembly import LOADS, PRODUCTS, READS, WRITES, count, instructions
from gpu_contractions import TARGETS, assembly, compiled, staged, with_units
from test_instructions import amd
from test_resident import arrays, attention

import polyop
from polyop.compiler import compile_op
from polyop.ir.dtypes import F16, F64
from polyop.ir.interface import Choice
from polyop.ir.module import launches
from polyop.ir.options import Options
from polyop.ir.target import BY_NAME, target
from polyop.runtime import amdgcn, emulated, nvrtc
from polyop.runtime.layout import contiguous
from polyop.runtime.usage import usage

OPERATORS = (
    "linalg-matmul", "linalg-matmul_tn", "linalg-matmul_tt", "linalg-bmm", "linalg-gemm", "linalg-linear_relu",
    "linalg-lora,scale=0.5", "linalg-chain3", "mlp-mlp", "rnn-lstm_cell", "attention-attention,scale=0.25",
    "attention-attention_gqa,scale=0.25,group=2", "conv-conv2d,stride=2", "conv-conv2d_nhwc", "conv-conv2d_grouped",
    "conv-conv2d_separable")
"""One in four goes to each target: `python scripts/matrix_instructions.py` takes all operators of the library there."""

needs_amdgcn = pytest.mark.skipif(bool(amdgcn.unavailable()), reason=amdgcn.unavailable())


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("where", TARGETS)
def test_operators_that_multiply_matrices_have_matrix_instructions(where: str, dtype: str, tmp_path: Path) -> None:
    tool = nvrtc if where.startswith("cuda") else amdgcn
    if tool.unavailable():
        pytest.skip(tool.unavailable())
    first = 2 * TARGETS.index(where) + ("f16", "bf16").index(dtype)
    mine = {name: compiled(name, dtype, where) for name in OPERATORS[first::8]}
    assert all(" by " in x for made in mine.values() for x in staged(made))
    found = with_units(assembly("\n".join(x.module.text for x in mine.values() if x.module), where, tmp_path))
    for name, made in mine.items():
        assert made.module is not None
        own = {x.kernel for x in launches(made.module.launch)}
        assert len(own & found) == max(1, len(staged(made))), name


@pytest.mark.parametrize("channels", [64, 128])
@pytest.mark.parametrize("name", ["attention_causal", "attention_window", "attention_alibi"])
@pytest.mark.parametrize("where", ["hip:gfx90a", "hip:gfx942", "hip:gfx1100"])
def test_lanes_meet_in_no_bank_in_attention_whose_rows_see_some_keys(where: str, name: str, channels: int) -> None:
    """Of two blocks of rows: the diagonal cuts one block of keys of each, and the window's edge one of the second."""
    operator = polyop.library(name)
    op = operator._op(Choice((("T", F16),)))
    made = compile_op(op, contiguous(op), target(where), Options(held=(("D", channels), ("E", channels))))
    assert made.module is not None and len(launches(made.module.launch)) == 1
    assert len(staged(made)) == 2 and all(" by " in x for x in staged(made))
    rows = 100
    sizes = {"B": 1, "H": 1, "S": rows, "D": channels, "E": channels, "window": 70}
    g = np.random.default_rng(1)
    given = {n: g.standard_normal((1, 1, rows, channels)).astype(np.float16) for n in "QKV"}
    given |= {"slope": np.full(1, 0.25, np.float16)} if name.endswith("alibi") else {}
    given["O"] = np.zeros((1, 1, rows, channels), np.float16)
    report = emulated.run(made.module, {n: sizes[n] for n in made.op.sizes}, {"scale": 0.125}, given, banks=True)
    assert report.traffic and not report.findings and np.isfinite(given["O"].astype(np.float32)).all()
    assert not [str(t) for t in report.traffic if t.conflicts]
    i, j = np.arange(rows)[:, None], np.arange(rows)
    seen = (j <= i) & (j > i - (70 if name.endswith("window") else rows))
    q, k, v = (given[n].astype(np.float64)[0, 0] for n in "QKV")
    scores = 0.125 * q @ k.T - (0.25 * (i - j) if name.endswith("alibi") else 0)
    powers = np.exp(np.where(seen, scores, -np.inf) - np.where(seen, scores, -np.inf).max(1, keepdims=True))
    assert np.abs(powers @ v / powers.sum(1, keepdims=True) - given["O"][0, 0]).max() < 4e-3


def test_doubles_under_a_window_spill_nothing_and_terms_of_cut_atoms_meet_in_no_bank() -> None:
    """A tile of V lies along the sum: its unit reads four neighbouring lines at once, single terms are two apart."""
    operator = polyop.library("attention_window")
    op = operator._op(Choice((("T", F64),)))
    made = compile_op(op, contiguous(op), target("cuda:sm_80"), Options(held=(("D", 64), ("E", 64))))
    assert made.module is not None and len(launches(made.module.launch)) == 1 and "256 threads" in made.chosen[0]
    g = np.random.default_rng(1)
    given = {n: g.standard_normal((1, 1, 70, 64)) for n in "QKV"} | {"O": np.zeros((1, 1, 70, 64))}
    sizes = {"B": 1, "H": 1, "S": 70, "D": 64, "E": 64, "window": 66}
    own = {n: sizes[n] for n in made.op.sizes}
    report = emulated.run(made.module, own, {"scale": 0.125}, given, order="backward", banks=True)
    tiles = [t for t in report.traffic if "_tile" in t.code]
    assert tiles and not report.findings and not [str(t) for t in tiles if t.conflicts]
    i, j = np.arange(70)[:, None], np.arange(70)
    powers = np.exp(np.where((j <= i) & (j > i - 66), 0.125 * given["Q"][0, 0] @ given["K"][0, 0].T, -np.inf))
    assert np.abs(powers @ given["V"][0, 0] / powers.sum(1, keepdims=True) - given["O"][0, 0]).max() < 1e-13
    if not nvrtc.unavailable():
        (taken,) = usage(nvrtc.assemble(made.module))
        assert taken.local == 0 and taken.registers < 200


@needs_amdgcn
@pytest.mark.parametrize(("where", "products"), [("hip:gfx90a", 16), ("hip:gfx942", 16), ("hip:gfx1100", 8)])
def test_attention_reads_and_loads_16_bytes_and_multiplies_by_units(where: str, products: int, tmp_path: Path) -> None:
    module = attention(where, "f16", 64).module
    assert module is not None
    lines = instructions(amd(module.text, BY_NAME[where].arch, tmp_path))
    assert count(lines, PRODUCTS) >= products and count(lines, READS) >= 12
    assert count(lines, WRITES) >= 16 and count(lines, LOADS) >= 12
    assert not count(lines, "scratch_|buffer_store")
    (taken,) = usage(amdgcn.assemble(module))
    assert taken.local == 0


@pytest.mark.parametrize(("where", "dtype"), [("hip:gfx90a", "f32"), ("hip:gfx942", "f16"), ("hip:gfx1100", "f16")])
def test_lanes_meet_in_no_bank_in_attention(where: str, dtype: str) -> None:
    made = attention(where, dtype, 64)
    given, _ = arrays(dtype, 64, (64, 128, 64))
    sizes = {"B": 2, "S": 64, "N": 128, "D": 64}
    assert made.module is not None
    report = emulated.run(made.module, {n: sizes[n] for n in made.op.sizes}, {}, given, banks=True)
    assert report.traffic and not report.findings and np.isfinite(given["O"].astype(np.float32)).all()
    assert not [t for t in report.traffic if t.conflicts]
