"""Products of f32 on matrix units that keep 11 bits of their operands: where it is asked for, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from test_instructions import ptx

import polyop
from polyop.compiler import Compiled, compile_op
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import evaluate
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import cxx, emulated, nvrtc
from polyop.runtime.layout import contiguous
from polyop.runtime.usage import usage

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

TEXTS = {
    "rows": ("op mm(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m,n] += A[m,k] * B[k,n] }", lambda a, b: a @ b),
    "columns": ("op mm(A: f32[K, M], B: f32[N, K]) -> (C: f32[M, N]) { C[m,n] += A[k,m] * B[n,k] }", lambda a, b: a.T @ b.T),
    "linear": ("op mm(A: f32[M, K], B: f32[N, K], b: f32[N]) -> (C: f32[M, N]) { t[m,n] += A[m,k] * B[n,k]\n"
               "  C[m,n] = relu(t[m,n] + b[n]) }", lambda a, b, bias: np.maximum(a @ b.T + bias, 0)),
}


def compiled(name: str, on: str = "cuda:sm_80", numerics: str = "tf32") -> Compiled:
    operator = polyop.op(TEXTS[name][0])
    op = operator._op(operator.choice())
    c = compile_op(op, contiguous(op), target(on), Options(numerics=numerics))
    assert c.rung == "tuned" and c.module is not None
    return c


def rounded(x: np.ndarray) -> np.ndarray:
    """To 10 bits behind the point, ties away from zero."""
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize("order", ["forward", "shuffled"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (140, 70, 130), (65, 8, 9), (128, 129, 64)])
@pytest.mark.parametrize("name", TEXTS)
def test_products_are_those_of_rounded_operands(name: str, sizes: tuple[int, int, int], order: str) -> None:
    c, g = compiled(name), np.random.default_rng(2)
    given = dict(zip("MKN", sizes, strict=True))
    arrays = {t.name: g.uniform(-1, 1, [evaluate(e, given) for e in t.shape]).astype(np.float32) for t in c.op.inputs}
    exact = [x.astype(np.float64) for x in arrays.values()]
    near = [rounded(x).astype(np.float64) if x.ndim == 2 else x.astype(np.float64) for x in arrays.values()]
    arrays["C"] = np.full(sizes[::2], np.nan, np.float32)
    assert c.module is not None
    assert str(emulated.run(c.module, given, {}, arrays, order=order)) == "no fault found"
    np.testing.assert_allclose(arrays["C"], TEXTS[name][1](*near), atol=2e-5)
    np.testing.assert_allclose(arrays["C"], TEXTS[name][1](*exact), atol=1e-3 * sizes[1] ** 0.5)


def test_infinities_and_nan_stay_what_they_are_and_large_numbers_become_infinite() -> None:
    module = compiled("rows").module
    assert module is not None
    last = np.nextafter(np.float32(np.inf), np.float32(0))
    payload = np.uint32(0x7F800001).view(np.float32)  # a NaN whose only bit is one of those that get lost
    a = np.array([[np.inf], [-np.inf], [payload], [last], [1e-40]], np.float32)
    arrays = {"A": a, "B": np.ones((1, 1), np.float32), "C": np.zeros((5, 1), np.float32)}
    assert str(emulated.run(module, {"M": 5, "K": 1, "N": 1}, {}, arrays)) == "no fault found"
    np.testing.assert_array_equal(arrays["C"][:4, 0], np.array([np.inf, -np.inf, np.nan, np.inf], np.float32))


@pytest.mark.parametrize("numerics", ["fast", "strict"])
def test_unasked_no_bit_is_lost(numerics: str) -> None:
    assert "tf32" not in compiled("rows", numerics=numerics).chosen[0]


@pytest.mark.parametrize(("on", "unit"), [("cuda:sm_80", "mma_m16n8k8_tf32"), ("cuda:sm_90a", "mma_m16n8k8_tf32"),
                                          ("hip:gfx942", "mfma_f32"), ("hip:gfx1100", "8 x 8")])
def test_each_target_takes_what_it_has(on: str, unit: str) -> None:
    assert unit in compiled("columns", on).chosen[0]


@pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable())
@pytest.mark.parametrize("name", TEXTS)
def test_nothing_is_spilled_and_operands_are_rounded_before_the_unit_takes_them(name: str) -> None:
    module = compiled(name).module
    assert module is not None
    (taken,) = usage(nvrtc.assemble(module))
    assert taken.local == 0
    code = ptx(module.text, "sm_80")
    assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in code and "cvt.rna.tf32.f32" in code


@pytest.mark.parametrize("name", TEXTS)
def test_no_two_lanes_meet_in_a_bank_when_operands_are_read(name: str) -> None:
    c = compiled(name)
    assert c.module is not None
    g = np.random.default_rng(2)
    given = {"M": 128, "K": 32, "N": 128}
    arrays = {t.name: g.uniform(-1, 1, [evaluate(e, given) for e in t.shape]).astype(np.float32) for t in c.op.inputs}
    arrays["C"] = np.zeros((128, 128), np.float32)
    report = emulated.run(c.module, given, {}, arrays, banks=True)
    reads = [t for t in report.traffic if "pop_tf32" in t.code and not t.write]
    assert reads and all(t.cycles == t.phases for t in reads), reads
