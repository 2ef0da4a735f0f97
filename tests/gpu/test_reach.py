"""Indices of 32 bits: a kernel says for which sizes and strides they do, and calls beyond that get one with 64."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest
from fake_gpu import FakeGpu, Interface
from numpy.lib.stride_tricks import as_strided

import polyop
from polyop.codegen.gpu.reach import Range, extent
from polyop.compiler import Compiled, compile_op
from polyop.ir import reach
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import affine, quasi
from polyop.ir.options import Options
from polyop.ir.reach import MOST
from polyop.ir.target import target
from polyop.runtime import emulated
from polyop.runtime.launching import fits
from polyop.runtime.layout import contiguous

ROWS = "op rows(X: f32[M, N]) -> (Y: f32[M, N]) { Y[m, n] = X[m, n] + 1 }"
MATMUL = "op matmul(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }"
CHAIN = """
op chain(X: f32[M, N]) -> (Y: f32[N, M]) {
  t[m, n] = exp(exp(exp(exp(exp(exp(X[m, n]))))))
  Y[n, m] = t[m, n] + t[M - 1 - m, n]
}
"""
GATHER = "op gather(E: u8[V, D], at: i64[N]) -> (Y: u8[N, D]) { Y[i, d] = E[at[i], d] }"
NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux
SLACK = 4096
"""More than any of these kernels counts beyond its sizes."""


def compiled(text: str, **options: Any) -> Compiled:
    operator = polyop.op(text)
    op = operator._op(operator.choice())
    return compile_op(op, contiguous(op), target("cuda:sm_80"), Options(**options))


def does(c: Compiled, sizes: dict[str, int], **strides: tuple[int, ...]) -> bool:
    assert c.module is not None
    dense = {t.name: (sizes[str(t.shape[-1].name)], 1) for t in c.op.tensors}
    return fits(c.module.launch, sizes, {**dense, **strides})


@pytest.mark.parametrize(("text", "above", "below"), [
    (ROWS, {"M": 2**16, "N": 2**15}, {"M": 2**16 - 300, "N": 2**15 - 4096}),
    (MATMUL, {"M": 2**16, "N": 2**15, "K": 3}, {"M": 2**16 - 900, "N": 2**15 - 900, "K": 3}),
    (MATMUL, {"M": 2**14, "N": 3, "K": 2**17}, {"M": 2**14 - 900, "N": 3, "K": 2**17 - 900}),
    (CHAIN, {"M": 2**16, "N": 2**15}, {"M": 2**15 - 300, "N": 2**15 - 4096})])
def test_32_bits_do_until_a_tensor_has_as_many_elements(text: str, above: dict[str, int], below: dict[str, int]) -> None:
    c = compiled(text)
    assert does(c, below) and not does(c, above)


def test_strides_count_whichever_way_they_go() -> None:
    c = compiled(ROWS)
    far = (MOST - SLACK) // 1000
    for sign in (1, -1):
        assert does(c, {"M": 1000 - 128, "N": 5}, X=(sign * far, 1))
        assert not does(c, {"M": 1001, "N": 5}, X=(sign * (MOST // 1000), 1))


def test_a_kernel_for_huge_calls_has_no_bound_and_counts_in_64_bits() -> None:
    c = compiled(MATMUL, huge=True)
    assert does(c, {"M": 2**38, "N": 2**38, "K": 2**38})
    assert c.module is not None and "const pop_i64 m_c" in c.module.text and "32 bits" not in c.module.text


def test_where_an_index_lies_is_bounded_in_sizes_that_count_upwards() -> None:
    i, m, n = affine("i"), affine("M"), affine("N")
    around = {"i": Range(m + 3, affine(2))}
    for x, up, down in ((i * 4 - n, m * 4 + 12, n + 8), (quasi("div", i + 5, affine(8)) * 16, (m + 8) * 2, affine(4 + 16)),
                        (quasi("mod", i, affine(8)) * 3, affine(21), affine(0)),
                        (quasi("min", i, affine(7)), affine(7), affine(2)),
                        (quasi("max", i, n) - 1, m + n + 3, affine(1))):
        assert extent(x, around) == Range(up, down), str(x)


@pytest.mark.parametrize("text", [ROWS, MATMUL])
def test_a_bound_that_is_wrong_is_caught_on_the_emulator(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # memory is where it was: only what the kernel is told of it is huge
    monkeypatch.setattr(emulated._Placed, "strides", property(lambda p: (2**31 // 8, 1)))
    sizes = {"M": 20, "N": 6, "K": 5}
    c = compiled(text)
    assert c.module is not None
    arrays = {t.name: np.zeros([sizes[str(e.name)] for e in t.shape], np.float32) for t in c.op.tensors}
    with pytest.raises(UnsupportedError, match="has indices of 32 bits"):
        emulated.run(c.module, sizes, {}, arrays)
    monkeypatch.setattr(reach, "MOST", 2**60)
    report = emulated.run(c.module, sizes, {}, arrays, order="backward")
    assert {f.what for f in report.findings} == {"overflow of an index"}, str(report)


def far_apart(rows: int, columns: int, stride: int) -> np.ndarray:
    """Rows of bytes that lie `stride` apart, in memory of which only these rows take room."""
    room = mmap.mmap(-1, (rows - 1) * stride + columns, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    return as_strided(np.frombuffer(room, np.uint8), (rows, columns), (stride, 1))


@pytest.mark.parametrize(("stride", "kernels"), [((MOST - SLACK) // 4, 1), (2**31 // 2, 2), (2**31 + 77, 2)])
def test_a_call_gets_the_kernel_whose_indices_do(stride: int, kernels: int, cuda: FakeGpu) -> None:
    x = far_apart(3, 1000, stride)
    x[...] = np.random.default_rng(0).integers(0, 255, x.shape)
    at = np.array([2, 0, 1, 2])
    scale = polyop.op("op scale(X: u8[M, N]) -> (Y: u8[M, N]) { Y[m, n] = X[m, n] / 2 + X[m, N - 1 - n] / 2 }")
    for _ in range(3):
        np.testing.assert_array_equal(scale(Interface(x)).numpy(), x // 2 + x[:, ::-1] // 2)
    np.testing.assert_array_equal(scale(Interface(x[:, :7].copy())).numpy(), x[:, :7] // 2 + x[:, 6::-1] // 2)
    assert cuda.calls("cuModuleLoadData") == kernels
    np.testing.assert_array_equal(polyop.op(GATHER)(Interface(x), Interface(at)).numpy(), x[at])
