"""Neighbours that one thread reads and writes at once: where they lie so, and one by one where they do not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from gpu_texts import Array, compiled, values

from polyop.ir.errors import UnsupportedError
from polyop.runtime import amdgcn, cxx, emulated, nvrtc

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

BIAS = "op bias(x: f32[R, N], b: f32[N]) -> (y: f32[R, N]) { y[r,c] = max(x[r,c] + b[c], 0.0) }"
HALF = "op half(x: f16[R, N], s: f16[R]) -> (y: f32[R, N]) { y[r,c] = f32(x[r,c]) * f32(s[r]) }"
SHIFT = "op shift(x: f32[R, N]) -> (y: f32[R, N]) { y[r,c] = x[r,c] - (x[r,c - 1] else 0) }"
SOFTMAX = """op softmax(x: f32[R, N]) -> (y: f32[R, N]) {
    t[r] max= x[r,c]; e[r,c] = exp(x[r,c] - t[r]); s[r] += e[r,c]; y[r,c] = e[r,c] / s[r] }"""


def softmax(a: dict[str, Array]) -> Array:
    e = np.exp(a["x"].astype(np.float64) - a["x"].max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


# rows of the emulator's memory are one element longer than they need to be: those of 31 start at multiples of 128 bytes
@pytest.mark.parametrize(("text", "want"), [
    (BIAS, lambda a: np.maximum(a["x"] + a["b"], 0)),
    (HALF, lambda a: a["x"].astype(np.float32) * a["s"][:, None].astype(np.float32)),
    (SHIFT, lambda a: np.diff(a["x"], axis=1, prepend=np.float32(0))),
    (SOFTMAX, softmax),
])
def test_rows_that_begin_anywhere_and_end_anywhere_are_right(text: str, want: Callable[[dict[str, Array]], Array]) -> None:
    c = compiled(text)
    assert c.rung == "tuned" and c.module is not None and "pop_wide<" in c.module.text
    for k, (r, n) in enumerate(((1, 1), (3, 31), (2, 32), (3, 33), (2, 7), (1, 1039))):
        a = values(c, {"R": r, "N": n}, emulated.ORDERS[k % 3])
        np.testing.assert_allclose(a["y"], want(a), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [1, 7, 8, 9, 31])
def test_rows_at_places_from_data_are_read_at_once_unless_they_are_outside(width: int) -> None:
    c = compiled("op rows(at: i64[B], E: f16[V, D]) -> (Y: f16[B, D]) { Y[b, d] = E[at[b], d] }")
    assert c.module is not None and "pop_wide<8>(pop_a0, pop_p0)" in c.module.text
    e, at = np.arange(5 * width).reshape(5, width).astype(np.float16), np.array([4, 0, 3])
    y = np.zeros((3, width), np.float16)
    report = emulated.run(c.module, {"B": 3, "V": 5, "D": width}, {}, {"at": at, "E": e, "Y": y})
    assert str(report) == "no fault found"
    np.testing.assert_array_equal(y, e[at])
    report = emulated.run(c.module, {"B": 3, "V": 5, "D": width}, {}, {"at": np.array([4, 5, 3]), "E": e, "Y": y})
    assert report.site is not None and not report.findings


def test_what_is_guarded_or_jumps_is_read_one_by_one() -> None:
    text = compiled(SHIFT).module
    assert text is not None and text.text.count("pop_wide<4>(pop_a") == 1
    jumps = compiled("op odd(x: f32[R, N]) -> (y: f32[R, N / 2]) where N % 2 == 0 { y[r,c] = x[r, 2*c + 1] }")
    assert jumps.module is not None and "pop_wide<" not in jumps.module.text


@pytest.mark.parametrize("text", [BIAS, HALF, SOFTMAX])
def test_compilers_accept_it_and_spill_nothing(text: str) -> None:
    for target, tool in (("cuda:sm_90a", nvrtc), ("hip:gfx942", amdgcn)):
        if tool.unavailable():
            continue
        c = compiled(text, on=target)
        assert c.module is not None and tool.assemble(c.module).code


def test_a_single_number_in_memory_lies_beside_no_other() -> None:
    """Of one row the maximum and the sum are such, which a second kernel reads beside the neighbours that it moves at once."""
    text = SOFTMAX.replace("R, ", "").replace("r,", "").replace("[r]", "")
    c = compiled(text)
    assert c.rung == "tuned" and c.module is not None and "pop_wide<" in c.module.text
    for n in (1, 33, 5000):
        a = values(c, {"N": n})
        e = np.exp(a["x"].astype(np.float64) - a["x"].max())
        np.testing.assert_allclose(a["y"], e / e.sum(), rtol=1e-5, atol=1e-7)
