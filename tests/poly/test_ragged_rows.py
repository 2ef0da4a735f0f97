"""Rows of a tile that begin where a condition says: full rows with a test, so that the contraction is still packed."""

from __future__ import annotations

import numpy as np
import pytest

import polyop

TEXT = """
op attention(Q: f32[S, D], K: f32[S, D], V: f32[S, E]; scale: f32) -> (O: f32[S, E]) {{
    s[i, j]  += Q[i, d] * K[j, d]              where {0}
    top[i] max= scale * s[i, j]                where {0}
    e[i, j]   = exp(scale * s[i, j] - top[i])  where {0}
    z[i]     += e[i, j]                        where {0}
    o[i, v]  += e[i, j] * V[j, v]              where {0}
    O[i, v]   = o[i, v] / z[i]
}}"""

SEEN = {
    "j / 64 <= i / 64": lambda i, j: j // 64 <= i // 64,
    "j <= max(i, 9)": lambda i, j: (j <= i) | (j <= 9),
    "j <= i, (i - j) % 4 == 0": lambda i, j: (j <= i) & ((i - j) % 4 == 0),
}


def _attention(q, k, v, scale, seen):
    q, k, v = (x.astype(float) for x in (q, k, v))
    at = np.arange(len(q))
    see = seen(at[:, None], at)
    s = np.where(see, scale * q @ k.T, -np.inf)
    e = np.exp(s - s.max(1, keepdims=True))
    terms = np.where(see[..., None], e[..., None] * v, 0)  # what is not seen counts for nothing, whatever it is
    return terms.sum(1) / e.sum(1, keepdims=True)


@pytest.mark.parametrize("condition", SEEN)
def test_attention_over_what_a_condition_leaves_is_packed(condition, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path))
    f = polyop.op(TEXT.format(condition))
    notes = f.compile().notes
    assert not any("not on rung" in n for n in notes)
    assert any("packed: rows i" in n and "not packed" not in n for n in notes)
    for size in (7, 65, 131):
        rng = np.random.default_rng(size)
        q, k, v = (rng.standard_normal((size, 17)).astype(np.float32) for _ in range(3))
        v[size // 2] = np.inf
        with np.errstate(invalid="ignore"):
            want = _attention(q, k, v, 0.25, SEEN[condition])
        np.testing.assert_allclose(f(q, k, v, scale=0.25), want, rtol=1e-4, atol=1e-5)
