"""What work memory has beside the lanes that exist is not computed with: denormal numbers in it cost 100 cycles each on Intel."""

import ctypes

import numpy as np
import pytest

import polyop
from polyop.ir.dtypes import DTYPES
from polyop.ir.module import Module, Signature
from polyop.runtime import cpu
from polyop.runtime.kernel import arena

FLAGS = """
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare void @llvm.x86.sse.stmxcsr(ptr)
define i64 @flags(ptr %state) {
  %old = getelementptr i32, ptr %state, i64 1
  call void @llvm.x86.sse.stmxcsr(ptr %old)
  call void @llvm.x86.sse.ldmxcsr(ptr %state)
  ret i64 0
}
"""
CLEAR, DENORMAL = 0x1F80, 1 << 1
"""All exceptions masked, none raised; an operand was denormal. Intel's manual, volume 1, 10.2.3."""

PRODUCT = "op f(A: {0}[M, K], B: {0}[K, N]) -> (C: {1}[M, N]) {{ C[m, n] += {1}(A[m, k]) * {1}(B[k, n]) }}"
SIZES = ((24, 24, 24), (63, 63, 63), (7, 47, 70), (30, 65, 9))
CASES = {
    **{f"{t} {m} x {n} x {k}": (PRODUCT.format(t, "f64" if t == "f64" else "f32"), [(m, k), (k, n)], t)
       for t in ("f32", "f64", "f16", "bf16") for m, n, k in SIZES},
    "attention": (None, [(1, 2, 50, 24), (1, 2, 50, 24), (1, 2, 50, 24)], "f32"),
}


@pytest.fixture(scope="module")
def flags():
    """Clears MXCSR and returns what it was."""
    loaded = cpu.load(cpu.assemble(Module("flags", "x86:host", FLAGS, Signature("flags", (), (), (), ())), cpu.host()))
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(loaded.addresses["flags"])
    state = (ctypes.c_uint32 * 2)(CLEAR, 0)

    def call() -> int:
        function(ctypes.addressof(state))
        return state[1]

    yield call
    assert loaded


@pytest.mark.skipif(not cpu.host().masks, reason="masks are not free here")
@pytest.mark.parametrize("case", CASES)
def test_denormal_numbers_beside_the_lanes_that_exist_are_left_alone(case, flags):
    text, shapes, kind = CASES[case]
    f = polyop.op(text) if text else polyop.library(case)
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(1, 2, shape).astype(DTYPES[kind].numpy) for shape in shapes]
    scalars = {} if text else {"scale": 0.1}
    want = np.array(f(*arrays, **scalars))
    arena.memory.view(np.uint8)[:] = np.resize(np.array([1, 0], np.uint8), arena.memory.size)  # denormal in each float type
    flags()
    got = f(*arrays, **scalars)
    assert not flags() & DENORMAL
    np.testing.assert_array_equal(got, want)
