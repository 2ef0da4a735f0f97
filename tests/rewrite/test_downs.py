"""Along which of its rows a contraction's tiles have theirs: along another one than the last, where that is short."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop import Options
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.op import Op
from polyop.ir.options import TURNED
from polyop.ir.span import Source
from polyop.ir.target import BY_NAME
from polyop.rewrite.regimes.questions import questions
from polyop.rewrite.regimes.regimes import kinds, regime, regimes_of
from tests.poly.middles import middle

TARGET = BY_NAME["x86:x86-64-v4"]
LAST = """op f(X: f32[N, H, W, C], F: f32[R, S, C, K]) -> (Y: f32[N, H, W, K]) {
    Y[n, p, q, k] += (X[n, p + r - 1, q + s - 1, c] else 0) * F[r, s, c, k] }"""
VALID = """op f(X: f32[N, H, W, C], F: f32[R, S, C, K]) -> (Y: f32[N, H - R + 1, W - S + 1, K]) where H >= R, W >= S {
    Y[n, p, q, k] += X[n, p + r, q + s, c] * F[r, s, c, k] }"""
FIRST = """op f(X: f32[N, C, H, W], F: f32[K, C, R, S]) -> (Y: f32[N, K, H - R + 1, W - S + 1]) where H >= R, W >= S {
    Y[n, k, p, q] += X[n, c, p + r, q + s] * F[k, c, r, s] }"""
SPACED = FIRST.replace("p + r, q + s", "2*p + r, 2*q + s").replace("H - R", "(H - R)/2").replace("W - S", "(W - S)/2")
BORDERED = """op f(X: f32[N, C, H, W], F: f32[K, C, R, S]) -> (Y: f32[N, K, H, W]) {
    Y[n, k, p, q] += (X[n, c, p + r - 1, q + s - 1] else 0) * F[k, c, r, s] }"""
BOUND = """op f(X: f32[N, C, H, W], F: f32[K, C, R, S]) -> (Y: f32[N, K, H, W]) {
    Y[n, k, p, q] += X[n, c, p + r - 1, q + s - 1] * F[k, c, r, s]  where p + r - 1 in 0:H, q + s - 1 in 0:W }"""
PRODUCT = "op f(A: f32[P, M, K], B: f32[K, N]) -> (C: f32[M, P, N]) { C[m, p, n] += A[p, m, k] * B[k, n] }"


def op(text: str) -> Op:
    return instantiate(parse(Source("<test>", text)), "f")


def test_what_is_asked_of_them():
    (n, p, q), turned = questions(op(LAST)).downs
    assert [x.extent.name for x in (n, p, q)] == ["N", "H", "W"] and [e.name for e in q.windows] == ["S"] and not n.windows
    assert p.is_guarded and q.is_guarded and not n.is_guarded and not any(x.spaced or x.is_bound for x in (n, p, q))
    assert [x.extent.name for x in turned] == ["K"]
    (k,), (_, p, q) = questions(op(BOUND)).downs
    assert k.extent.name == "K" and p.is_bound and q.is_bound and not q.is_guarded
    assert [x.spaced for x in questions(op(SPACED)).downs[1]] == [False, True, True]
    assert any("rows along another index" in x for x in kinds(op(LAST)))


@pytest.mark.parametrize(("sizes", "down"), [
    ((1, 40, 1), 1), ((1, 40, 6), 1), ((1, 40, 7), 0), ((9, 5, 1), 2), ((9, 7, 1), 1), ((3, 5, 1), 1), ((5, 4, 4), 2),
    ((1, 1, 40), 0), ((4, 4, 4), 0), ((1, 2, 1), 1), ((1, 1, 1), 0), ((1, 2, 0), 1)])
def test_the_nearest_one_of_seven_or_the_longest(sizes, down):
    """Without a border."""
    own = dict(zip("NHW", sizes, strict=True)) | {"C": 32, "K": 100, "R": 3, "S": 3}
    own |= {"H": own["H"] + 2, "W": own["W"] + 2}
    assert regime(regimes_of(op(VALID)), own, Options(), TARGET).down == down


@pytest.mark.parametrize(("sizes", "window", "down"), [
    ((1, 40, 1), 3, 1), ((1, 40, 7), 3, 1), ((1, 21, 14), 3, 0), ((1, 40, 12), 7, 1), ((1, 7, 7), 3, 0), ((4, 7, 7), 3, 0),
    ((5, 7, 7), 3, 2), ((8, 14, 14), 3, 2), ((8, 28, 28), 3, 2), ((8, 56, 56), 3, 0), ((8, 14, 14), 1, 0), ((1, 1, 1), 3, 2),
    ((9, 7, 1), 3, 2), ((1, 2, 4), 3, 0)])
def test_away_from_borders(sizes, window, down):
    """Those of a tile's own rows stay within it: the same pixel of several images has none."""
    own = dict(zip("NHW", sizes, strict=True)) | {"C": 32, "K": 100, "R": window, "S": window}
    assert regime(regimes_of(op(LAST)), own, Options(), TARGET).down == down


@pytest.mark.parametrize(("text", "enough"), [(FIRST, 4), (SPACED, 3), (BORDERED, 5), (BOUND, 7)])
def test_fewer_will_do_where_rows_are_turned(text, enough):
    """Channels first and few filters: each pixel below the other is on lines of its own, for each channel."""
    for columns in (enough - 1, enough):
        width = 2 * columns + 1 if text == SPACED else columns + 2 if text == FIRST else columns
        found = regime(regimes_of(op(text)), {"N": 1, "H": 40, "W": width, "C": 32, "K": 8, "R": 3, "S": 3}, Options(), TARGET)
        assert found.short == TURNED and found.down == (columns < enough)


@pytest.mark.parametrize("few", [1, 2, 3])
def test_products_gain_for_one_or_two_that_are_not_turned(few):
    sizes = {"P": few, "M": 40, "K": 64, "N": 100}
    assert regime(regimes_of(op(PRODUCT)), sizes, Options(), TARGET).down == (few < 3)
    turned = PRODUCT.replace("C: f32[M, P, N]", "C: f32[M, N, P]").replace("C[m, p, n]", "C[m, n, p]")
    assert not regime(regimes_of(op(turned)), sizes, Options(), TARGET).down


def test_a_tile_has_its_rows_there():
    def text(down: int) -> str:
        return str(middle(LAST, "tuned", Options(down=down), t=TARGET).nest)

    assert "(rows" in text(0) and "for q_p in" in text(0) and "for p_p in" not in text(0)
    assert "for p_p in" in text(1) and "for q_p in" not in text(1)
    assert "for n_p in" in text(2) and text(3) == text(0)  # there is no such row


@pytest.mark.parametrize("options", [Options(special=False, down=down) for down in (1, 2)] + [Options()], ids=str)
@pytest.mark.parametrize("sizes", [(1, 40, 1), (9, 2, 1), (2, 17, 3), (1, 1, 1), (3, 0, 2)])
@pytest.mark.parametrize("filters", [1, 15, 33])
def test_narrow_images(options, sizes, filters):
    n, h, w = sizes
    rng = np.random.default_rng(h)
    x, g = rng.integers(-4, 4, (n, h, w, 5)).astype(np.float32), rng.integers(-4, 4, (3, 3, 5, filters)).astype(np.float32)
    around = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))).astype(np.float64)
    want = sum(np.einsum("npqc,ck->npqk", around[:, r : r + h, s : s + w], g[r, s]) for r in range(3) for s in range(3))
    np.testing.assert_array_equal(polyop.op(LAST, options=options)(x, g), want)  # sums of small integers are exact
    first, across = x.transpose(0, 3, 1, 2).copy(), g.transpose(3, 2, 0, 1).copy()
    for text in (BORDERED, BOUND):
        np.testing.assert_array_equal(polyop.op(text, options=options)(first, across), want.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("sizes", [(40, 1), (9, 2), (3, 5), (1, 1)])
def test_products_too(sizes):
    m, p = sizes
    rng = np.random.default_rng(m)
    a, b = rng.integers(-4, 4, (p, m, 21)).astype(np.float32), rng.integers(-4, 4, (21, 50)).astype(np.float32)
    f = polyop.op(PRODUCT)
    np.testing.assert_array_equal(f(a, b), np.einsum("pmk,kn->mpn", a.astype(np.float64), b))
