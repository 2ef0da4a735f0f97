"""Windows that overlap: a thread has results below each other, and what they share is read once."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_texts import Array, compiled, values

import polyop
from polyop.ir.errors import UnsupportedError
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.rewrite.regimes.block_regimes import in_blocks
from polyop.rewrite.regimes.questions import questions
from polyop.runtime import amdgcn, cxx, emulated, nvrtc

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

FILTERED = """op filtered(X: f32[B, C, H, W], F: f32[C, R, S]) -> (Y: f32[B, C, H + 2 - R + 1, W + 2 - S + 1]) {
    Y[b, c, p, q] += (X[b, c, p + r - 1, q + s - 1] else 0) * F[c, r, s] }"""
INSIDE = """op inside(X: f32[C, H, W], F: f32[C, 3, 3]) -> (Y: f32[C, H - 2, W - 2]) {
    Y[c, p, q] += X[c, p + r, q + s] * F[c, r, s] }"""
STEPS = """op steps(X: f16[C, H, W]) -> (Y: f16[C, (H + 2 - 3) / 2 + 1, (W + 2 - 3) / 2 + 1]) {
    Y[c, p, q] max= (X[c, 2*p + r - 1, 2*q + s - 1] else -inf)  where r in 0:3, s in 0:3 }"""
DILATED = """op dilated(X: f32[C, H, W], F: f32[C, 3, 2]) -> (Y: f32[C, H - 4, W - 1]) {
    t[c, p, q] += X[c, p + 2*r, q + s] * F[c, r, s]
    Y[c, p, q] = max(t[c, p, q], 0.0) }"""
SQUARES = """op squares(X: f32[H, W]) -> (Y: f32[H - 2, W]) {
    Y[p, q] += (X[p + r, q] - X[p + 1, q]) * (X[p + r, q] - X[p + 1, q])  where r in 0:3 }"""
SIZES = ((1, 7), (3, 5), (4, 1), (5, 33), (9, 40))  # rows of the result, and columns


def windows(x: Array, rows: int, columns: int, step: int = 1, apart: int = 1) -> Array:
    """[.., p, q, r, s] -> what lies at window (p, q), row r times `apart`, column s."""
    found = np.lib.stride_tricks.sliding_window_view(x, (apart * (rows - 1) + 1, columns), (-2, -1))
    return found[..., ::step, ::step, ::apart, :]


@pytest.mark.parametrize(("r", "s"), [(3, 3), (2, 5), (5, 1)])
@pytest.mark.parametrize(("h", "w"), SIZES)
def test_a_filter_for_each_channel_at_edges_and_ends(r: int, s: int, h: int, w: int) -> None:
    c = compiled(FILTERED, Options(fixed=(("R", r), ("S", s))))
    assert c.module is not None and "float pop_w0[" in c.module.text and c.rung == "tuned"
    sizes = {"B": 2, "C": 2, "H": h + r - 3, "W": w + s - 3, "R": r, "S": s}
    if min(sizes.values()) < 1:
        return
    a = values(c, sizes, emulated.ORDERS[(h + w) % 3])
    x = np.pad(a["X"].astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    np.testing.assert_allclose(a["Y"], np.einsum("bcpqrs,crs->bcpq", windows(x, r, s), a["F"]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("h", "w"), [(1, 7), (8, 33), (11, 3), (17, 40)])
def test_eight_results_below_each_other_where_there_are_many(h: int, w: int) -> None:
    c = compiled(FILTERED, Options(fixed=(("R", 3), ("S", 3)), height=8))
    assert c.module is not None and "float pop_w0[30]" in c.module.text and c.rung == "tuned"
    a = values(c, {"B": 2, "C": 2, "H": h, "W": w, "R": 3, "S": 3}, emulated.ORDERS[(h + w) % 3])
    x = np.pad(a["X"].astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    np.testing.assert_allclose(a["Y"], np.einsum("bcpqrs,crs->bcpq", windows(x, 3, 3), a["F"]), rtol=1e-5, atol=1e-5)


def test_as_many_results_as_leave_registers_and_all_multiprocessors_threads() -> None:
    op = polyop.op(FILTERED)
    op = op._op(op.choice())
    sizes = {"B": 32, "C": 256, "H": 56, "W": 56, "R": 3, "S": 3}
    for other, height in (({}, 8), ({"B": 1}, 0), ({"H": 14, "W": 70}, 0), ({"H": 71}, 8), ({"R": 9, "S": 9}, 0)):
        found = in_blocks(op, questions(op), sizes | other, Options(), target("cuda:sm_90a"))
        assert found.height == height
    c = compiled(FILTERED, Options(fixed=(("R", 5), ("S", 5)), height=8))
    assert c.module is not None and "float pop_w0[40]" in c.module.text  # 60 of eight rows would leave few threads registers


@pytest.mark.parametrize(("h", "w"), SIZES)
def test_windows_without_a_border_read_nothing_beyond_the_last_row(h: int, w: int) -> None:
    c = compiled(INSIDE)
    assert c.module is not None and "float pop_w0[18]" in c.module.text
    a = values(c, {"C": 3, "H": h + 2, "W": w + 2}, emulated.ORDERS[h % 3])
    np.testing.assert_allclose(a["Y"], np.einsum("cpqrs,crs->cpq", windows(a["X"].astype(np.float64), 3, 3), a["F"]),
                               rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("h", "w"), [(1, 1), (2, 9), (7, 64), (8, 5), (17, 66)])
def test_maxima_in_steps_of_two_take_what_is_said_of_the_border(h: int, w: int) -> None:
    c = compiled(STEPS)
    assert c.module is not None and "pop_w0[27]" in c.module.text and c.rung == "tuned"
    a = values(c, {"C": 2, "H": h, "W": w}, emulated.ORDERS[w % 3])
    x = np.pad(a["X"], ((0, 0), (1, 1), (1, 1)), constant_values=np.float16(-np.inf))
    np.testing.assert_array_equal(a["Y"], windows(x, 3, 3, 2).max((-2, -1))[:, :(h + 1) // 2, :(w + 1) // 2])


@pytest.mark.parametrize(("h", "w"), SIZES)
def test_rows_of_a_window_may_lie_apart_and_results_be_read_at_once(h: int, w: int) -> None:
    c = compiled(DILATED)
    assert c.module is not None and "pop_w0[16]" in c.module.text
    a = values(c, {"C": 2, "H": h + 4, "W": w + 1})
    want = np.einsum("cpqrs,crs->cpq", windows(a["X"].astype(np.float64), 3, 2, apart=2), a["F"])
    np.testing.assert_allclose(a["Y"], np.maximum(want, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("h", "w"), SIZES)
def test_what_a_row_of_results_reads_beside_its_window_stays_where_it_is(h: int, w: int) -> None:
    c = compiled(SQUARES)
    assert c.module is not None and "pop_w0[6]" in c.module.text
    a = values(c, {"H": h + 2, "W": w})
    x = a["X"].astype(np.float64)
    np.testing.assert_allclose(a["Y"], sum((x[r:h + r] - x[1:h + 1])**2 for r in range(3)), rtol=1e-5, atol=1e-5)


def test_windows_that_do_not_overlap_or_have_any_size_are_left_as_they_are() -> None:
    apart = STEPS.replace("0:3", "0:2")
    for text in (apart, FILTERED):
        c = compiled(text)
        assert c.module is not None and "pop_w0" not in c.module.text


@pytest.mark.parametrize("text", [INSIDE, STEPS, DILATED, SQUARES])
def test_compilers_accept_it_and_spill_nothing(text: str) -> None:
    for on, tool in (("cuda:sm_90a", nvrtc), ("hip:gfx942", amdgcn)):
        if tool.unavailable():
            continue
        c = compiled(text, on=on)
        assert c.module is not None and tool.assemble(c.module).code
