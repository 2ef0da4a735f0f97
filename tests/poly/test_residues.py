"""Reductions that are cut into residue classes: dense contractions on the tuned rung, which compute what the text says."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import polyop
from polyop.compiler import Compiled, compile_op
from polyop.ir.op import Op
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.runtime import cpu
from polyop.runtime.layout import contiguous
from tests.rewrite.ops import arguments, library, op
from tests.rewrite.test_residues import BIAS, BIAS_FIRST, EVEN, LATER, PARITY, PARTLY, PLACES, TRIANGLE


def compiled(o: Op, **options) -> Compiled:
    return compile_op(o, contiguous(o), cpu.resolve("x86"), Options(**options))


@pytest.mark.parametrize(("name", "stride"), [("conv1d_transposed", 2), ("conv1d_transposed", 3), ("conv2d_transposed", 2)])
def test_each_class_of_a_strided_transposed_convolution_is_packed(name, stride, caplog):
    made = compiled(library("conv", name, consts={"stride": stride, "pad": 1}))
    assert made.rung == "tuned" and all(p.holds for p in made.proofs)
    assert sum("packed" in c for c in made.chosen) == 1
    assert made.module.text.count(f"call i64 @{name}.r0(") == stride ** (1 if "1d" in name else 2)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("numerics", ["fast", "strict"])
@pytest.mark.parametrize("text", [BIAS, BIAS_FIRST, LATER, PARTLY, PARITY, EVEN, TRIANGLE, PLACES])
def test_the_kernel_computes_what_the_text_says(text, numerics, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path))
    call, o = polyop.op(text, options=Options(numerics=numerics)), op(text)
    for n in (0, 1, 2, 5, 19):
        sizes = {size: n if size != "C" else 2 for size in o.sizes}
        values, arrays = arguments(o, sizes)
        want = evaluate(o, sizes, values, arrays)["Y"]
        np.testing.assert_allclose(call(**arrays, **values), want, rtol=1e-5, atol=1e-5)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
