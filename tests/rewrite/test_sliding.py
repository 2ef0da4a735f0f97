"""Rows of a tile along which a window slides are more where L2 is far: fewer vectors of filters come from it for each product."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.ir.options import Options
from polyop.ir.registers import TALLEST_NARROW, fitting_height, register_tile, sliding_height
from polyop.ir.target import BY_NAME
from polyop.rewrite.regimes.questions import questions
from polyop.rewrite.regimes.regimes import regime, regimes_of
from polyop.rewrite.regimes.tile_regimes import STEPS
from tests.rewrite.ops import op

NEAR, FAR = BY_NAME["x86:x86-64-v4"], BY_NAME["x86:sapphirerapids"]
IMAGE = """op f(X: f32[H, W, C], F: f32[R, S, C, K]) -> (Y: f32[H, W, K]) where R >= 1, S >= 1 {
    Y[p, q, k] += (X[p + r - 1, q + s - 1, c] else 0) * F[r, s, c, k]  where p in 0:H, q in 0:W }"""
ROWS = """op f(X: f32[C, L], F: f32[K, C, R]) -> (Y: f32[K, L]) where R >= 1 {
    Y[k, q] += (X[c, q + r - 1] else 0) * F[k, c, r]  where q in 0:L }"""


def test_the_tile_has_two_vectors():
    assert register_tile(FAR, 16, height=TALLEST_NARROW) == (14, 2)


@pytest.mark.parametrize(("rows", "taller"), [(7, False), (13, False), (14, True), (15, False), (28, True), (29, False)])
def test_rows_that_it_fills_ask_for_it(rows, taller):
    assert sliding_height(NEAR, 16, rows, 128, 7) == 7
    plain = fitting_height(FAR, 16, rows, 128)
    assert sliding_height(FAR, 16, rows, 128, plain) == (TALLEST_NARROW if taller else plain)


def test_long_sums_under_a_window_ask_for_it():
    def height(text: str = IMAGE, target=FAR, **sizes: int) -> int:
        own = {"H": 28, "W": 28, "K": 128, "C": STEPS, "R": 3, "S": 3}
        return regime(regimes_of(op(text)), own | sizes, Options(), target).height

    image = questions(op(IMAGE))
    assert image.downs[0][-1].windows[0].name == "S" and [e.name for e in image.steps] == ["C"]
    assert height() == TALLEST_NARROW != height(target=NEAR)
    assert height(C=STEPS - 1) == height(S=1) == height(target=NEAR)  # brief sums, or no window along the rows
    sizes = {"L": 3000, "K": 384, "C": 384, "R": 3}
    assert questions(op(ROWS)).downs[0][-1].windows == ()
    assert regime(regimes_of(op(ROWS)), sizes, Options(), FAR).height != TALLEST_NARROW


@pytest.mark.parametrize(("filters", "width", "taller"), [(32, 28, True), (31, 28, False), (33, 28, False), (64, 28, False),
                                                          (32, 29, False), (32, 14, True)])
def test_two_whole_vectors_of_filters_ask_for_it_whatever_the_depth(filters, width, taller):
    """Channels first, too, where the image is copied to lie as it does with channels last."""
    sizes = {"H": 28, "W": width, "K": filters, "C": STEPS // 2, "R": 3, "S": 3}
    first = """op f(X: f32[C, H, W], F: f32[K, C, R, S]) -> (Y: f32[K, H, W]) where R >= 1, S >= 1 {
        Y[k, p, q] += (X[c, p + r - 1, q + s - 1] else 0) * F[k, c, r, s]  where p in 0:H, q in 0:W }"""
    for text in (IMAGE, first):
        far, near = (regime(regimes_of(op(text)), sizes, Options(), t) for t in (FAR, NEAR))
        assert (far.height == TALLEST_NARROW) is taller and near.height != TALLEST_NARROW
        assert bool(far.inward) or text == IMAGE or not taller


@pytest.mark.parametrize("width", [1, 13, 14, 15, 28, 29])
@pytest.mark.parametrize("filters", [1, 16, 31, 32, 33])
def test_images_of_all_widths(width, filters):
    rng = np.random.default_rng(width)
    x = rng.integers(-4, 4, (3, width, 17)).astype(np.float32)
    w = rng.integers(-4, 4, (3, 3, 17, filters)).astype(np.float32)
    f = polyop.op(IMAGE, options=Options(special=False, height=TALLEST_NARROW))
    around = np.pad(x, ((1, 1), (1, 1), (0, 0))).astype(np.float64)
    want = sum(np.einsum("pqc,ck->pqk", around[r : r + 3, s : s + width], w[r, s]) for r in range(3) for s in range(3))
    np.testing.assert_array_equal(f(x, w), want)  # sums of small integers are exact
