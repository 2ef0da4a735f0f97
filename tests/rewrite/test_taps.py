"""Sums along the window that slides compute what sums over the image did: the same terms, whatever lies outside."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.ir.expr import expr_names, loads
from polyop.ir.reference import evaluate
from polyop.known import Known
from polyop.poly.wellformed import check
from polyop.rewrite.windows.taps import along_taps, find_taps, pays
from polyop.runtime.bind import bind
from tests.rewrite.ops import arguments, fits, op, shape_of

SPREAD = """op f(X: f32[C, W], F: f32[C, K, R]) -> (O: f32[K, 2*W + R]) {{
    O[k, p] += X[c, i] * F[c, k, {e}]  where 0 <= {e} < R }}"""
STRIDED = """op f(X: f32[C, W], F: f32[K, C, R]) -> (O: f32[K, W]) {
    O[k, p] += X[c, i] * F[k, c, i + 1 - 2*p]  where 0 <= i + 1 - 2*p < R }"""
BOTH = """op f(X: f32[H, W], F: f32[R, S]) -> (O: f32[2*H + R, W + S]) {
    O[p, q] += X[i, j] * F[p + 1 - 2*i, q + 1 - j]  where 0 <= p + 1 - 2*i < R, 0 <= q + 1 - j < S }"""
EQUAL = """op f(X: f32[C, W], F: f32[K, C, R]) -> (O: f32[K, W]) {
    O[k, p] += X[c, i] * F[k, c, r]  where i == p + r - 1 }"""
HALF = """op f(X: f32[C, W], F: f32[K, C, R]) -> (O: f32[K, 2*W]) {
    O[k, p] max= X[c, i] * F[k, c, r]  where 2*i + r == p + 1 }"""
PART = """op f(X: f32[W], F: f32[R]) -> (O: f32[W + R]) {
    t[p] += X[i] * F[p - i]  where p in 0:W + R, 0 <= p - i < R
    O[p] = t[p] + 1 }"""
FOUND = [SPREAD.format(e=e) for e in ("p + 1 - 2*i", "p - i", "p - 3*i + 2", "4*i + 1 - p", "i + 2 - p")]
FOUND += [STRIDED, BOTH, EQUAL, HALF, PART]

TIED = "op f(X: f32[W], F: f32[R]) -> (O: f32[W]) { O[p] += X[i] * F[p - i]  where i <= p, p - i < R, i in p/2:W }"
FAR = SPREAD.format(e="p - 5*i")
BANDED = "op f(A: f32[N, N], x: f32[N]) -> (y: f32[N]) { y[i] += A[i, j] * x[j]  where 0 <= i - j < 3 }"
TWICE = "op f(B: f32[N, M], x: f32[N]) -> (y: f32[N]) { y[i] += B[j, i - j] * x[j]  where 0 <= i - j < M }"
TOGETHER = """op f(X: f32[H, W], F: f32[R, S]) -> (O: f32[H, W]) {
    O[p, q] += X[i, j] * F[r, s]  where i == p + r, j == q + s - i }"""


@pytest.mark.parametrize("text", FOUND)
def test_the_sum_is_the_same_at_all_sizes(text):
    o = op(text)
    found = find_taps(o)
    assert found
    for part in {found, found[:1], found[-1:]}:
        new = along_taps(o, part)
        check(new)
        for n in range(24):
            sizes = {s: (n * k + n // 7 + 3 * k) % 5 for k, s in enumerate(o.sizes, 1)}
            if fits(o, sizes):
                values, arrays = arguments(o, sizes, n)
                want, got = (evaluate(x, sizes, values, arrays)["O"] for x in (o, new))
                np.testing.assert_allclose(got, want, atol=1e-5)


def test_both_indices_of_an_image_are_found():
    assert [t.index for t in find_taps(op(BOTH))] == ["i", "j"]
    assert [str(t.extent) for t in find_taps(op(BOTH))] == ["R", "S"]


@pytest.mark.parametrize("text", [TIED, FAR, BANDED, TWICE])
def test_what_has_no_window_that_slides_alone_stays(text):
    assert not find_taps(op(text))


def test_windows_that_go_by_each_other_are_not_taken_both():
    o = op(TOGETHER)
    assert len(find_taps(o)) == 1


def test_the_shorter_of_both_is_summed_over_and_in_order_if_that_matters():
    t, = find_taps(op(SPREAD.format(e="p + 1 - 2*i")))
    assert pays(t, {"W": 9, "R": 3}) and not pays(t, {"W": 3, "R": 3}) and not pays(t, {"W": 9, "R": 3}, strict=True)
    t, = find_taps(op(STRIDED))
    assert pays(t, {"W": 9, "R": 3}, strict=True)


@pytest.mark.parametrize(("w", "strict", "slides"), [(9, False, "X"), (9, True, "F"), (2, False, "F")])
def test_a_call_has_the_filter_stand_still_where_it_is_shorter(w, strict, slides):
    o = op(SPREAD.format(e="p - i"))
    x, f = np.ones((2, w), "f4"), np.ones((2, 4, 3), "f4")
    step = Known(o).merged(bind(o, {"X": x, "F": f}), strict=strict).flat.op.steps[0]
    read = {y.source: expr_names(y) for y in loads(step.expr)}
    assert [n for n in "XF" if "p" in read[n]] == [slides]


def test_calls_are_the_text_and_infinities_are_its():
    o = op(STRIDED)
    sizes = {"C": 5, "K": 7, "W": 67, "R": 4}
    x, f = (np.random.default_rng(k).standard_normal(shape_of(o.tensor(n), sizes)).astype("f4") for k, n in enumerate("XF"))
    f[..., 0] = np.inf  # meets no 0 at the border, which would be NaN
    got = polyop.op(STRIDED)(x, f)
    want = evaluate(o, sizes, {}, {"X": x, "F": f})["O"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert np.isfinite(want).any() and np.isinf(want).any() and not np.isnan(want).all()
