"""Operands that no iteration of a serial loop changes are packed once, before it."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.ir.loops import structure
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.poly.middle import Middle, lower, scop_of
from polyop.poly.verify import first_failure, prove
from polyop.runtime.layout import contiguous

from .middles import op_of

HEAD = "op f(U: f32[H, H], h: f32[B, H], X: f32[L, B, H]) -> (Y: f32[L, B, H]) {\n    z: f32[L, B, H]\n"
BY_COLUMNS = HEAD + """
    z[t, b, g] += (Y[t-1, b, k] else h[b, k]) * U[g, k]
    Y[t, b, g]  = z[t, b, g] + X[t, b, g] }"""
BY_ROWS = BY_COLUMNS.replace("U[g, k]", "U[k, g]")
BACKWARDS = BY_COLUMNS.replace("t-1", "t+1")
HEADS = """op f(U: f32[A, H, H], h: f32[A, B, H], X: f32[L, A, B, H]) -> (Y: f32[L, A, B, H]) {
    z: f32[L, A, B, H]
    z[t, a, b, g] += (Y[t-1, a, b, k] else h[a, b, k]) * U[a, g, k]
    Y[t, a, b, g]  = z[t, a, b, g] + X[t, a, b, g] }"""
CHANGING = """op f(U: f32[L, H, H], h: f32[B, H], X: f32[L, B, H]) -> (Y: f32[L, B, H]) {
    z: f32[L, B, H]
    z[t, b, g] += (Y[t-1, b, k] else h[b, k]) * U[t, g, k]
    Y[t, b, g]  = z[t, b, g] + X[t, b, g] }"""
MADE_INSIDE = """op f(X: f32[L, B, H], h: f32[B, H]) -> (Y: f32[L, B, H]) {
    z: f32[L, B, H]
    z[t, b, g] += (Y[t-1, b, k] else h[b, k]) * (Y[0, g, k] else 0)  where t >= 1, g < B
    Y[t, b, g]  = z[t, b, g] + X[t, b, g] }"""


def made(text: str, few: tuple[tuple[str, int], ...] = ()) -> Middle:
    op = op_of(text)
    out = lower(scop_of(op), contiguous(op), target("x86:x86-64-v4"), Options(few=few), "tuned")
    assert first_failure(prove(out.scop, out.nest, out.context)) is None
    return out


@pytest.mark.parametrize("few", [(), (("B", 1),), (("B", 4),), (("B", 16),)])
@pytest.mark.parametrize("text", [BY_COLUMNS, BY_ROWS, BACKWARDS, HEADS])
def test_what_no_step_changes_is_packed_before_the_first_one(text, few):
    m = made(text, few)
    assert any("right, ahead" in c for c in m.chosen)
    before, _, inside = structure(m.nest.body).partition("t(")
    assert "S0_right" in before and "S0_right" not in inside


@pytest.mark.parametrize("text", [CHANGING, MADE_INSIDE])
def test_what_a_step_reads_or_writes_of_its_own_is_not_packed_ahead(text):
    m = made(text)
    assert not any("ahead" in c for c in m.chosen)


def test_few_rows_have_a_tile_of_just_so_many():
    chosen = {few: made(BY_COLUMNS, (("B", few),)).chosen[0] for few in (1, 4, 8, 16)}
    assert "rows b x 1, lanes g x 128" in chosen[1]
    assert "rows b x 4, lanes g x 64" in chosen[4]
    assert "rows b x 8" in chosen[8] and "rows b x 8" in chosen[16]


def test_tiles_are_made_of_rows_that_are_not_few():
    m = made("""op f(X: f32[L, B, H], W: f32[H, H], U: f32[H, H], h: f32[B, H]) -> (Y: f32[L, B, H]) {
        z: f32[L, B, H]
        z[t, b, g] += X[t, b, d] * W[g, d]
        z[t, b, g] += (Y[t-1, b, k] else h[b, k]) * U[g, k]
        Y[t, b, g]  = z[t, b, g] }""", (("B", 1),))
    assert any("rows t x 6" in c for c in m.chosen) and any("rows b x 1" in c for c in m.chosen)


SIZES = [(1, 1, 1), (3, 1, 17), (5, 1, 200), (4, 3, 70), (3, 6, 33), (2, 13, 65), (3, 32, 48), (2, 40, 130)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("text", [BY_COLUMNS, BY_ROWS, BACKWARDS])
def test_results_at_every_border(text, sizes):
    steps, rows, wide = sizes
    rng = np.random.default_rng(wide)
    u = rng.standard_normal((wide, wide)) / wide
    h, x = rng.standard_normal((rows, wide)), rng.standard_normal((steps, rows, wide))
    expected, last = np.empty_like(x), h
    for t in range(steps)[:: -1 if text == BACKWARDS else 1]:
        last = expected[t] = last @ (u if text == BY_ROWS else u.T) + x[t]
    found = polyop.op(text)(*(a.astype(np.float32) for a in (u, h, x)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_panels_of_each_batch_are_packed():
    rng = np.random.default_rng(3)
    u = rng.standard_normal((3, 40, 40)).astype(np.float32) / 40
    h, x = rng.standard_normal((3, 5, 40)).astype(np.float32), rng.standard_normal((4, 3, 5, 40)).astype(np.float32)
    expected, last = np.empty_like(x), h
    for t in range(4):
        last = expected[t] = np.einsum("abk,agk->abg", last, u) + x[t]
    np.testing.assert_allclose(polyop.op(HEADS)(u, h, x), expected, rtol=1e-4, atol=1e-4)
