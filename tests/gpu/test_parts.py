"""Lines of which a thread has some pieces of 16 bytes and not all: those that are there are asked for at once."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_texts import Array, compiled, values

from polyop.ir.errors import UnsupportedError
from polyop.runtime import cxx, emulated

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

NORM = """op norm(x: f32[R, K, N], g: f32[K]) -> (y: f32[R, K, N]) {
    t[r] += x[r, k, n]; y[r, k, n] = (x[r, k, n] - t[r]) * g[k] }"""
HALF = "op half(x: f16[R, K, N]) -> (y: f32[R]) { y[r] += f32(x[r, k, n]) }"
ROW = "op row(x: f32[R, N]) -> (y: f32[R]) { y[r] += x[r, n] }"


def norm(a: dict[str, Array]) -> Array:
    x = a["x"].astype(np.float64)
    return np.asarray((x - x.sum((1, 2), keepdims=True)) * a["g"][:, None])


@pytest.mark.parametrize("n", [1, 4, 1020, 1023, 1024, 1028, 3136, 4096, 4100, 5001])
def test_pieces_that_are_there_are_summed_and_written(n: int) -> None:
    c = compiled(NORM)
    assert c.module is not None and "pop_wide<4>(pop_h0 + 4 * " in c.module.text
    a = values(c, {"R": 2, "K": 2, "N": n}, emulated.ORDERS[n % 3])
    np.testing.assert_allclose(a["y"], norm(a), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("n", [8, 2040, 2047, 2056, 4104, 4107])
def test_pieces_of_two_bytes_are_summed(n: int) -> None:
    c = compiled(HALF)
    assert c.module is not None and "pop_wide<8>(pop_h0 + 8 * " in c.module.text
    a = values(c, {"R": 3, "K": 2, "N": n}, emulated.ORDERS[n % 3])
    np.testing.assert_allclose(a["y"], a["x"].astype(np.float64).sum((1, 2)), rtol=1e-3, atol=1e-2)


def test_blocks_of_one_line_each_keep_their_registers() -> None:
    c = compiled(ROW)
    assert c.module is not None and "pop_h0" not in c.module.text
