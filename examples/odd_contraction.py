"""A contraction that no BLAS call covers, without transposing anything first.

    python examples/odd_contraction.py

C[j, b, a] = sum over k of A[a, k, b] * M[j, k], from coupled-cluster codes. One compile serves all shapes.
"""

from __future__ import annotations

import numpy as np

import polyop


def main() -> None:
    rng = np.random.default_rng(0)
    for a, k, b, j in ((24, 24, 24, 24), (50, 31, 17, 9), (1, 96, 64, 33)):
        x, m = rng.standard_normal((a, k, b), np.float32), rng.standard_normal((j, k), np.float32)
        got = polyop.einsum("akb,jk->jba", x, m)
        want = np.einsum("akb,jk->jba", x.astype(np.float64), m.astype(np.float64))
        print(f"{got.shape}: largest difference from float64 {np.abs(got - want).max():.1e}")


if __name__ == "__main__":
    main()
