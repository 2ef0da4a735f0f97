"""Stencils, as NumPy slices in a loop over time."""

import numpy as np
from scipy import ndimage

from tests.library.case import case

LINE = "N T: 1 3; 2 3; 3 3; 17 5; 64 4; 65 9; 5 0; 0 2"
PLANE = "M N T: 1 1 2; 3 3 3; 5 17 4; 16 15 5; 33 18 3; 4 4 0; 2 0 3"
SPACE = "L M N T: 1 1 1 2; 3 3 3 3; 5 6 17 3; 9 8 7 2; 3 4 5 0"
SPACE_TINY = "L M N T: 1 1 1 1; 3 4 3 2"
STAR = ndimage.generate_binary_structure


def march(step):
    """`steps` times `step`, which changes the grid in place from a copy of itself."""
    def run(x, steps, **kw):
        for _ in range(steps):
            step(x, x.copy(), **kw)
        return x
    return run


def mean_of_star(x, old):
    inside = (slice(1, -1),) * x.ndim
    if min(x.shape) > 2:
        x[inside] = ndimage.convolve(old, STAR(x.ndim, 1) / (2 * x.ndim + 1))[inside]


def laplace(x, mode, rank):
    weights = STAR(rank, 1).astype(float)
    weights[(1,) * rank] = -2 * rank
    return ndimage.correlate(x, weights, mode=mode, cval=0.0) if x.size else x


def heat1d(x, old, r=0.25):
    x[:] = old + r * laplace(old, "constant", 1)


def heat2d(x, old, r=0.125):
    x[:] = old + r * laplace(old, "nearest", 2)


def heat3d(x, old):
    if min(x.shape) > 2:
        x[1:-1, 1:-1, 1:-1] = (old + 0.125 * laplace(old, "constant", 3))[1:-1, 1:-1, 1:-1]


def seidel(x, old):
    for i in range(1, x.shape[0] - 1):
        for j in range(1, x.shape[1] - 1):
            x[i, j] = (x[i - 1, j] + x[i, j - 1] + x[i, j] + x[i + 1, j] + x[i, j + 1]) / 5


def wave2d(x, steps, c=0.25):
    before = x
    for _ in range(steps):
        before, x = x, 2 * x - before + c * laplace(x, "constant", 2)
    return x


def fdtd2d(ex, ey, hz, source):
    for s in source:
        ey[1:] -= 0.5 * (hz[1:] - hz[:-1])
        ey[0] = s
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])
    return ex, ey, hz


def life(x, steps):
    for _ in range(steps):
        n = ndimage.convolve(x.astype(int), np.ones((3, 3), int), mode="constant")
        x = ((n == 3) | ((n == 4) & (x == 1))).astype(np.uint8)
    return x


CASES = [
    case("jacobi1d", "N", march(mean_of_star), LINE, terms="9 * T", steps="T"),
    case("jacobi2d", "M,N", march(mean_of_star), PLANE, terms="9 * T", steps="T"),
    case("jacobi3d", "L,M,N", march(mean_of_star), SPACE, tiny=SPACE_TINY, terms="9 * T", steps="T"),
    case("heat1d", "N", march(heat1d), LINE, terms="9 * T", steps="T"),
    case("heat1d", "N", march(heat1d), LINE, terms="9 * T", steps="T", r=0.5),
    case("heat2d", "M,N", march(heat2d), PLANE, terms="9 * T", steps="T"),
    case("heat3d", "L,M,N", march(heat3d), SPACE, tiny=SPACE_TINY, terms="9 * T", steps="T"),
    case("seidel2d", "M,N", march(seidel), PLANE, terms="9 * T", steps="T"),
    case("wave2d", "M,N", wave2d, PLANE, terms="64 * T", steps="T"),
    case("fdtd2d", "M,N | M,N | M,N | T", fdtd2d, "M N T: 1 1 2; 3 4 3; 9 17 5; 16 8 4; 3 3 0", terms="64 * T"),
    case("laplacian2d", "M,N", lambda x: laplace(x, "constant", 2), PLANE),
    case("laplacian3d", "L,M,N", lambda x: laplace(x, "constant", 3), SPACE, tiny=SPACE_TINY),
    case("gradient2d", "M,N", lambda x: tuple((np.roll(x, -1, a) - np.roll(x, 1, a)) / 2 for a in (0, 1)), PLANE),
    case("life", "u8<0,2: M,N", life, "M N T: 1 1 2; 3 3 3; 5 17 4; 33 18 3; 4 4 0", dtypes=("f32",), steps="T"),
]
