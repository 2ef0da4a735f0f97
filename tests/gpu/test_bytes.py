"""Products of bytes on the matrix units of all targets: exact, with sums that go round, and nothing spilled."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import polyop
from polyop.compiler import Compiled, compile_op
from polyop.ir.errors import UnsupportedError
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import cxx, emulated
from polyop.runtime.device import assembled
from polyop.runtime.layout import contiguous
from polyop.runtime.usage import usage

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

TEXT = ("op mm(A: {a}[M, K], B: {b}[N, K], s: f32[N]) -> (C: i32[M, N], Y: f32[M, N]) {{\n"
        "  C[m,n] += i32(A[m,k]) * i32(B[n,k])\n  Y[m,n] = s[n] * f32(C[m,n]) }}")
UNITS = [("cuda:sm_80", "i8", "i8", "mma_m16n8k32_s8"), ("cuda:sm_80", "u8", "i8", "mma_m16n8k32_u8s8"),
         ("hip:gfx90a", "i8", "i8", "mfma_i32_16x16x64_i8_in_4"), ("hip:gfx942", "i8", "i8", "mfma_i32_16x16x64_i8_in_2"),
         ("hip:gfx1100", "i8", "i8", "wmma_i32_16x16x16_i8"), ("hip:gfx1100", "u8", "i8", "wmma_i32_16x16x16_u8i8"),
         ("hip:gfx1100", "i8", "u8", "wmma_i32_16x16x16_i8u8"), ("hip:gfx1100", "u8", "u8", "wmma_i32_16x16x16_u8")]
DTYPES = {"i8": np.int8, "u8": np.uint8}
each_unit = pytest.mark.parametrize(("on", "a", "b", "unit"), UNITS)


@cache
def compiled(on: str, a: str, b: str) -> Compiled:
    operator = polyop.op(TEXT.format(a=a, b=b))
    op = operator._op(operator.choice())
    c = compile_op(op, contiguous(op), target(on), Options())
    assert c.rung == "tuned" and c.module is not None
    return c


@each_unit
def test_bytes_go_to_the_unit_and_sums_are_exact(on: str, a: str, b: str, unit: str) -> None:
    c, g = compiled(on, a, b), np.random.default_rng(3)
    assert c.module is not None and c.chosen[0].endswith(f" by {unit}")
    for m, k, n in ((1, 1, 1), (65, 200, 17), (129, 64, 130)):
        both = (DTYPES[a], (m, k)), (DTYPES[b], (n, k))
        x, y = (g.integers(np.iinfo(t).min, np.iinfo(t).max + 1, s).astype(t) for t, s in both)
        results = {"C": np.zeros((m, n), np.int32), "Y": np.zeros((m, n), np.float32)}
        arrays = {"A": x, "B": y, "s": np.full(n, 0.5, np.float32), **results}
        assert str(emulated.run(c.module, {"M": m, "K": k, "N": n}, {}, arrays, order="shuffled")) == "no fault found"
        want = x.astype(np.int64) @ y.astype(np.int64).T
        np.testing.assert_array_equal(arrays["C"], want)
        np.testing.assert_array_equal(arrays["Y"], (want * 0.5).astype(np.float32))


@each_unit
def test_nothing_of_them_is_spilled(on: str, a: str, b: str, unit: str) -> None:
    module = compiled(on, a, b).module
    assert module is not None
    binary, missing = assembled(module)
    if binary is None:
        pytest.skip(missing)
    assert all(x.local == 0 for x in usage(binary))
