"""Windows under a condition, with lanes along them: what lies outside is no term, at all places where vectors and tiles end."""

from __future__ import annotations

import numpy as np
import pytest

import polyop

TEXT = """op f(X: f32[C, W], F: f32[C, K, R]) -> (O: f32[K, W + R - 1]) {
    O[k, p] += X[c, p - r] * F[c, k, r]  where 0 <= p - r < W }"""


@pytest.fixture(scope="module")
def full():
    return polyop.op(TEXT, options=polyop.Options(special=False))


@pytest.mark.parametrize("w", [1, 2, 15, 16, 17, 31, 47, 63, 64, 65, 127, 131, 330])
def test_each_place_has_its_own_terms_and_no_others(full, w):
    rng = np.random.default_rng(w)
    for channels, filters, taps in ((1, 1, 1), (3, 7, 2), (5, 13, 5), (2, 6, 70)):
        x, f = (rng.standard_normal(s).astype("f4") for s in ((channels, w), (channels, filters, taps)))
        f[:, 0, taps // 2] = np.inf  # times a 0 that was read instead of what lies outside it would be NaN
        want = np.zeros((filters, w + taps - 1))
        with np.errstate(invalid="ignore"):  # inf - inf
            for r in range(taps):
                want[:, r : r + w] += (f[:, :, r].astype(float)[..., None] * x[:, None]).sum(0)
        np.testing.assert_allclose(full(x, f), want, rtol=1e-4, atol=1e-4)
