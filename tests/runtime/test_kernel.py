"""Kernels from hand-written modules: assembled, loaded, called."""

import numpy as np
import pytest

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
