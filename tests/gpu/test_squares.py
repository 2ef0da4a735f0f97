"""Transposes in squares of shared memory: chosen by strides, proved, and right on the emulator at boundary sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from gpu_texts import Array, compiled, values

from polyop.ir.errors import UnsupportedError
from polyop.runtime import cxx, emulated

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)


@pytest.mark.parametrize(("text", "strategy", "want", "lengths"), [
    ("op t(x: f32[A, B]) -> (y: f32[B, A]) { y[j,i] = x[i,j] }", "of j and i x 32", lambda a: a["x"].T,
     ((1, 1), (31, 33), (32, 64), (101, 7))),
    ("op t(x: f16[A, B]) -> (y: f16[B, A]) { y[j,i] = x[i,j] }", "of j and i x 64", lambda a: a["x"].T, ((1, 1), (65, 130))),
    ("op t(x: f32[2, A, B]) -> (y: f32[B, 2, A]) { y[k,i,j] = x[i,j,k] }", "of k and j x 32", lambda a: a["x"].transpose(2, 0, 1),
     ((31, 33), (3, 40))),
    ("op t(x: f32[A, B], z: f32[B, A]) -> (y: f32[B, A]) { y[j,i] = x[i,j] * z[j,i] }", "of j and i x 32",
     lambda a: a["x"].T * a["z"], ((5, 33), (33, 31))),
    ("op t(x: f32[A, B]) -> (y: f32[B, A]) { y[j,i] = x[A - 1 - i,j] + (x[i - 1,j] else 0) }", "of j and i x 32",
     lambda a: a["x"][::-1].T + np.pad(a["x"], ((1, 0), (0, 0)))[:-1].T, ((1, 1), (33, 34))),
])
def test_what_is_read_along_another_loop_than_written_goes_through_a_square(
        text: str, strategy: str, want: Callable[[dict[str, Array]], Array], lengths: tuple[tuple[int, int], ...]) -> None:
    c = compiled(text)
    assert c.rung == "tuned" and c.proofs and strategy in c.chosen[0]
    for (m, n), order in zip(lengths, emulated.ORDERS * 2, strict=False):
        a = values(c, {"A": m, "B": n}, order)
        np.testing.assert_array_equal(a["y"], want(a))


@pytest.mark.parametrize("text", [
    "op heads(x: f32[A, B, C, D]) -> (y: f32[A, C, B, D]) { y[a,c,b,d] = x[a,b,c,d] }",
    "op colours(x: f32[N, 3]) -> (y: f32[3, N]) { y[c,i] = x[i,c] }",
])
def test_rows_that_stay_whole_and_short_loops_need_no_square(text: str) -> None:
    c = compiled(text)
    assert c.rung == "tuned" and "squares" not in c.chosen[0] and any("not squares" in n for n in c.notes)


def test_neighbours_in_a_square_lie_in_different_banks() -> None:
    c = compiled("op t(x: f32[A, B]) -> (y: f32[B, A]) { y[j,i] = x[i,j] }")
    assert c.module is not None and "33 * " in c.module.text
