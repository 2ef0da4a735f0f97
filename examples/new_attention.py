"""An attention that no library has: each position looks back at most `window` places, and far ones count less.

    python examples/new_attention.py

Seven lines of mathematics; polyop fuses, vectorises and proves. `explain` says what it made of them.
"""

from __future__ import annotations

import numpy as np

import polyop

fading = polyop.op("""
op fading(Q: f32[H, S, D], K: f32[H, S, D], V: f32[H, S, D], slope: f32[H]; scale: f32, window: int) -> (O: f32[H, S, D])
    where window >= 1 {
    s[h, i, j]  += Q[h, i, d] * K[h, j, d]                                  where i - window < j <= i
    a[h, i, j]   = scale * s[h, i, j] - slope[h] * (i - j)                  where i - window < j <= i
    top[h, i] max= a[h, i, j]                                               where i - window < j <= i
    e[h, i, j]   = exp(a[h, i, j] - top[h, i])                              where i - window < j <= i
    z[h, i]     += e[h, i, j]                                               where i - window < j <= i
    o[h, i, d]  += e[h, i, j] * V[h, j, d]                                  where i - window < j <= i
    O[h, i, d]   = o[h, i, d] / z[h, i]
}""")


def reference(q, k, v, slope, scale, window):
    """The same in float64, with a mask."""
    q, k, v, slope = (x.astype(np.float64) for x in (q, k, v, slope))
    i, j = np.indices((q.shape[1], q.shape[1]))
    a = scale * q @ k.swapaxes(1, 2) - slope[:, None, None] * (i - j)
    a = np.where((j <= i) & (j > i - window), a, -np.inf)
    e = np.exp(a - a.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


def main() -> None:
    rng = np.random.default_rng(0)
    for heads, length, width, window in ((2, 40, 16, 8), (4, 100, 64, 100), (1, 33, 7, 1)):
        q, k, v = rng.standard_normal((3, heads, length, width), np.float32)
        slope = np.linspace(0.1, 1, heads, dtype=np.float32)
        got = fading(q, k, v, slope, scale=width**-0.5, window=window)
        want = reference(q, k, v, slope, width**-0.5, window)
        print(f"{heads} heads of {length}, window {window}: largest difference from float64 {np.abs(got - want).max():.1e}")
    print()
    print(fading.compile().explain({"H": 4, "S": 100, "D": 64, "window": 100}))


if __name__ == "__main__":
    main()
