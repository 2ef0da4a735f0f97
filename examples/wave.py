"""A wave on a membrane: a recurrence in time over a stencil in space, with a reflecting rim.

    python examples/wave.py

`steps` is known only at the call. polyop finds that time runs in order and space in parallel, and keeps three grids, not `steps`.
"""

from __future__ import annotations

import numpy as np

import polyop

wave = polyop.op("""
op wave(X: f32[M, N]; steps: int, c: f32 = 0.25) -> (Y: f32[M, N]) {
    U: f32[steps + 2, M, N]
    U[0, i, j] = X[i, j]
    U[1, i, j] = X[i, j]
    U[t, i, j] = 2 * U[t-1, i, j] - U[t-2, i, j] + c * ((U[t-1, i-1, j] else 0) + (U[t-1, i+1, j] else 0)
               + (U[t-1, i, j-1] else 0) + (U[t-1, i, j+1] else 0) - 4 * U[t-1, i, j])  where t >= 2
    Y[i, j]    = U[steps + 1, i, j]
}""")


def reference(x, steps, c=0.25):
    """The same in float64."""
    before = now = x.astype(np.float64)
    for _ in range(steps):
        rim = np.pad(now, 1)
        around = rim[:-2, 1:-1] + rim[2:, 1:-1] + rim[1:-1, :-2] + rim[1:-1, 2:]
        before, now = now, 2 * now - before + c * (around - 4 * now)
    return now


def main() -> None:
    rng = np.random.default_rng(0)
    for m, n, steps in ((20, 30, 10), (64, 64, 0), (7, 129, 25)):
        x = rng.standard_normal((m, n), np.float32)
        got = wave(x, steps=steps)
        print(f"{m} x {n}, {steps} steps: largest difference from float64 {np.abs(got - reference(x, steps)).max():.1e}")


if __name__ == "__main__":
    main()
