"""Kernels from hand-written modules: assembled, loaded, called."""

import numpy as np
import pytest

from polyop.ir.dtypes import F32
from polyop.ir.errors import CallError
from polyop.ir.expr import affine
from polyop.ir.loops import Buffer, Space
from polyop.runtime import cpu
from polyop.runtime.bind import bind
from polyop.runtime.kernel import kernel
from tests.runtime import modules


@pytest.fixture(scope="module")
def saxpy():
    return kernel(cpu.assemble(modules.saxpy(), cpu.host()))


@pytest.fixture(scope="module")
def total():
    return kernel(cpu.assemble(modules.total(), cpu.host()))


@pytest.mark.parametrize("n", [0, 1, 7, 1000])
def test_a_kernel_computes_on_numpy_arrays(saxpy, n):
    x, y = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
    z = saxpy(bind(modules.SAXPY, {"X": x, "Y": y, "a": 2.5}))
    np.testing.assert_array_equal(z, np.float32(2.5) * x + y)


def test_an_empty_reduction_gives_its_identity(total):
    assert total(bind(modules.SUM, {"X": np.empty(0, np.float32)})) == 0


def test_a_parallel_loop_visits_every_trip_on_any_number_of_threads(saxpy):
    x, y = np.arange(1001, dtype=np.float32), np.ones(1001, np.float32)
    for n in (1, 2, 3, 8):
        np.testing.assert_array_equal(saxpy(bind(modules.SAXPY, {"X": x, "Y": y, "a": 1}), n), x + y)


def test_strided_reversed_and_broadcast_inputs_are_read_in_place(saxpy):
    x = np.arange(40, dtype=np.float32).reshape(4, 10)
    for a, b in ((x[1, ::-1], x[:, 3].repeat(3)[:10]), (x[:, 2], x[::-1, 5]), (np.broadcast_to(np.float32(3), 10), x[0])):
        np.testing.assert_array_equal(saxpy(bind(modules.SAXPY, {"X": a, "Y": b, "a": 2})), 2 * a + b)


def test_work_space_that_no_memory_can_hold_is_an_error():
    huge = Buffer("w", F32, ((affine("N") * (1 << 50), 1),), Space.WORK)
    k = kernel(cpu.assemble(modules.module(modules.SUM, modules.total().text, work=(huge,)), cpu.host()))
    with pytest.raises(CallError, match="no memory for 4503599627370496 bytes of work space"):
        k(bind(modules.SUM, {"X": np.ones(1, np.float32)}))


# slots: 0 parallel, 1 threads, 2 N, 3 X, 4 stride, 5 S, 6 shared work, 7 private work
_SPACES = """
define void @body(ptr %args, i64 %lo, i64 %hi, i64 %thread) {
entry:
  %np = getelementptr i64, ptr %args, i64 2
  %n = load i64, ptr %np
  %bytes = mul i64 %n, 4
  %more = add i64 %bytes, 63
  %lines = and i64 %more, -64
  %distance = add i64 %lines, 4096
  %o = mul i64 %thread, %distance
  %wp = getelementptr i64, ptr %args, i64 7
  %w = load ptr, ptr %wp
  %own = getelementptr i8, ptr %w, i64 %o
  %last = sub i64 %n, 1
  %place = getelementptr float, ptr %own, i64 %last
  store float 1.0, ptr %place
  %low = ptrtoint ptr %own to i64
  %offset = and i64 %low, 63
  %aligned = icmp eq i64 %offset, 0
  br i1 %aligned, label %fine, label %out
fine:
  %sp = getelementptr i64, ptr %args, i64 5
  %s = load ptr, ptr %sp
  %count = sub i64 %hi, %lo
  %cf = sitofp i64 %count to float
  %old = atomicrmw fadd ptr %s, float %cf seq_cst
  br label %out
out:
  ret void
}
define i64 @total(ptr %args) {
entry:
  %p = load ptr, ptr %args
  %tp = getelementptr i64, ptr %args, i64 1
  %t = load i64, ptr %tp
  %sp = getelementptr i64, ptr %args, i64 5
  %s = load ptr, ptr %sp
  store float 0.0, ptr %s
  call void %p(ptr @body, ptr %args, i64 0, i64 1000, i64 1, i64 %t, i64 4611686018427387904, i64 1)
  ret i64 0
}
"""


def test_every_thread_has_a_private_work_space_aligned_to_a_cache_line():
    def space(name, private):
        return Buffer(name, F32, ((affine("N"), 1),), Space.WORK, private=private)
    k = kernel(cpu.assemble(modules.module(modules.SUM, _SPACES, work=(space("w", False), space("v", True))), cpu.host()))
    for n in (1, 17, 1000):
        assert k(bind(modules.SUM, {"X": np.ones(n, np.float32)}), 3) == 1000
        row = k.prepare(bind(modules.SUM, {"X": np.ones(n, np.float32)}), 3)
        lines = -(-4 * n // 64) * 64
        assert row.bytes_ == lines + 3 * (lines + 4096)
