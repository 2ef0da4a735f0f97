"""Products whose sums land at places of several indices: contractions over what lands there."""

from __future__ import annotations

import numpy as np
import pytest

import polyop


def _landed(x, f, step, apart):
    """What lands in [b, k, step * l + apart * r], in f64."""
    out = np.zeros((len(x), f.shape[1], step * (x.shape[2] - 1) + apart * (f.shape[2] - 1) + 1))
    for i in range(x.shape[2]):
        for r in range(f.shape[2]):
            out[:, :, step * i + apart * r] += x[:, :, i].astype(float) @ f[:, :, r].astype(float)
    return out


@pytest.mark.parametrize(("step", "apart"), [(1, 1), (2, 1), (2, 3), (5, 1)])
def test_what_lands_along_lines_is_summed_in_registers(step, apart, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path))
    extent = f"{step}*L + {apart}*R - {step + apart - 1}"
    f = polyop.op(f"op f(X: f32[B, C, L], F: f32[C, K, R]) -> (Y: f32[B, K, {extent}]) where L >= 1, R >= 1 {{ "
                  f"Y[b, k, {step}*l + {apart}*r] += X[b, c, l] * F[c, k, r] }}")
    for size in (2, 17, 33):
        rng = np.random.default_rng(size)
        x, w = rng.standard_normal((2, 3, size), np.float32), rng.standard_normal((3, 5, 4), np.float32)
        np.testing.assert_allclose(f(x, w), _landed(x, w, step, apart), rtol=1e-4, atol=1e-4)
    statements = f.compile().explain().split("order and fusion")[0].split("statements of the kernel")[-1]
    assert ("X[b, c, l]" in statements) == (step > 4)


def test_what_is_read_once_is_added_where_it_lands():
    f = polyop.op("op f(X: f32[N, K]) -> (Y: f32[2*N + K]) { Y[2*n + k] += X[n, k] }")
    x = np.random.default_rng(0).standard_normal((9, 5), np.float32)
    want = np.zeros(23)
    np.add.at(want, 2 * np.arange(9)[:, None] + np.arange(5), x)
    np.testing.assert_allclose(f(x), want, atol=1e-5)
    assert "statements of the kernel" not in f.compile().explain()
