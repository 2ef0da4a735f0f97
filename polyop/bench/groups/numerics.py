"""What is no network: other semirings and distances, tensors and triangles, stencils and dynamic programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from polyop.bench.case import Case, library
from polyop.bench.groups import loops


def semirings() -> Iterator[Case]:
    """Products whose sum and product are others, and distances between all rows of two matrices."""
    for n in (128, 512):
        size, quick = {"M": n, "N": n, "K": n}, n == 128
        yield Case("semirings", f"min plus {n}", *library("min_plus"), size, torch=lambda t, a, b: (a[:, :, None] + b).amin(1),
                   loops=loops.min_plus, quick=quick)
        yield Case("semirings", f"max min {n}", *library("max_min"), size,
                   torch=lambda t, a, b: t.minimum(a[:, :, None], b).amax(1))
        yield Case("semirings", f"or and {n}", *library("or_and"), size, torch=lambda t, a, b: a.float() @ b.float() > 0,
                   array=lambda xp, a, b: xp.matmul(a.astype(xp.float32), b.astype(xp.float32)) > 0)
    for m, n, d in ((512, 512, 64), (1000, 1000, 128)):
        size, quick = {"M": m, "N": n, "D": d}, m == 512
        yield Case("semirings", f"L1 distance {m}x{n}x{d}", *library("distance_l1"), size, torch=lambda t, a, b: t.cdist(a, b, 1),
                   loops=loops.distance_l1, quick=quick)
        yield Case("semirings", f"L2 distance {m}x{n}x{d}", *library("distance_l2"), size, quick=quick, tolerance=1e-3,
                   flops=3.0 * m * n * d, torch=lambda t, a, b: t.cdist(a, b, compute_mode="use_mm_for_euclid_dist"))
        yield Case("semirings", f"greatest distance {m}x{n}x{d}", *library("distance_chebyshev"), size,
                   torch=lambda t, a, b: t.cdist(a, b, float("inf")))
        yield Case("semirings", f"cosine {m}x{n}x{d}", *library("cosine_similarity"), size,
                   torch=lambda t, a, b: t.nn.functional.normalize(a) @ t.nn.functional.normalize(b).T)
        yield Case("semirings", f"Gaussian kernel {m}x{n}x{d}", *library("rbf_kernel"), {**size, "gamma": 0.01}, tolerance=1e-3,
                   flops=3.0 * m * n * d, torch=lambda t, a, b: t.exp(-0.01 * t.cdist(a, b) ** 2))


def algebra() -> Iterator[Case]:
    """Tensor decompositions, and matrices of which half is not there."""
    for i, j, k, r in ((128, 128, 128, 32), (256, 200, 100, 16)):
        sizes = {"I": i, "J": j, "K": k, "R": r}
        yield Case("algebra", f"mttkrp {i}x{j}x{k} {r}", *library("mttkrp"), sizes, einsum="ijk,jr,kr->ir", tolerance=1e-3,
                   quick=i == 128)
        yield Case("algebra", f"ttm middle {i}x{j}x{k} {r}", *library("ttm_middle"), sizes, einsum="ijk,jr->irk")
    for n in (256, 1000):
        cube = 1.0 * n**3
        yield Case("algebra", f"trmm {n}", *library("trmm"), {"M": n, "N": n}, flops=cube, quick=n == 256, tolerance=1e-3,
                   torch=lambda t, a, b: t.tril(a) @ b, array=lambda xp, a, b: xp.tril(a) @ b)
        yield Case("algebra", f"symm {n}", *library("symm"), {"M": n, "N": n}, flops=2 * cube, tolerance=1e-3,
                   torch=lambda t, a, b: (t.tril(a) + t.tril(a, -1).T) @ b)
        yield Case("algebra", f"syrk {n}", *library("syrk"), {"N": n, "K": n}, flops=cube, tolerance=1e-3,
                   torch=lambda t, a: t.tril(a @ a.T), array=lambda xp, a: xp.tril(a @ a.T))
        lower = (np.tril(np.random.default_rng(1).standard_normal((n, n))) / n + 2 * np.eye(n)).astype(np.float32)
        yield Case("algebra", f"trsm {n}", *library("trsm"), {"L": lower, "N": n}, flops=cube, tolerance=1e-3,
                   torch=lambda t, a, b: t.linalg.solve_triangular(a, b, upper=False))
        yield Case("algebra", f"cholesky {n}", *library("cholesky"), {"A": lower @ lower.T}, flops=cube / 3, tolerance=1e-3,
                   torch=lambda t, a: t.linalg.cholesky(a), numpy=lambda xp, a: xp.linalg.cholesky(a))
    yield Case("algebra", "A'(Ax) 4096x4096", *library("atax"), {"M": 4096, "N": 4096}, torch=lambda t, a, x: a.T @ (a @ x),
               array=lambda xp, a, x: a.T @ (a @ x))
    yield Case("algebra", "matrix chain 64x512x64x512", *library("chain3"), {"M": 64, "K": 512, "L": 64, "N": 512},
               tolerance=1e-3, torch=lambda t, a, b, c: a @ b @ c, array=lambda xp, a, b, c: a @ b @ c)


def stencils() -> Iterator[Case]:
    """Neighbours on a grid, once and for some steps, and tables in which each entry follows from earlier ones."""
    for n in (256, 1024, 4096):
        yield Case("stencils", f"laplacian {n}", *library("laplacian2d"), {"M": n, "N": n}, torch=_laplace, loops=loops.laplacian,
                   quick=n == 1024, compiled=n == 1024)
        if n <= 1024:
            yield Case("stencils", f"jacobi, 10 steps {n}", *library("jacobi2d"), {"M": n, "N": n, "steps": 10}, torch=jacobi(10),
                       quick=n == 256)
    yield Case("stencils", "heat in space 64, 10 steps", *library("jacobi3d"), {"L": 64, "M": 64, "N": 64, "steps": 10},
               torch=jacobi3(10))
    yield Case("stencils", "max pool 3x3 /2 64x112x112", *library("max_pool2d"),
               {"B": 1, "C": 64, "H": 112, "W": 112, "window": 3, "stride": 2, "pad": 1},
               torch=lambda t, x: t.nn.functional.max_pool2d(x, 3, 2, 1), quick=True)
    yield Case("stencils", "average pool 2x2 64x112x112", *library("avg_pool2d"), {"B": 1, "C": 64, "H": 112, "W": 112},
               torch=lambda t, x: t.nn.functional.avg_pool2d(x, 2))
    words = np.random.default_rng(4).integers(0, 4, (2, 1000)).astype(np.uint8)
    yield Case("stencils", "edit distance 1000", *library("levenshtein"), {"A": words[0], "B": words[1]}, loops=loops.levenshtein)


def _laplace(t: Any, x: Any) -> Any:
    weights = t.tensor([[[[0.0, 1, 0], [1, -4, 1], [0, 1, 0]]]])
    return t.nn.functional.conv2d(x[None, None], weights, padding=1)[0, 0]


def jacobi(steps: int) -> Any:
    """So many steps of the mean of a point and its neighbours in the plane."""
    def torch(t: Any, x: Any) -> Any:
        del t
        for _ in range(steps):
            y = x.clone()
            y[1:-1, 1:-1] = (x[1:-1, 1:-1] + x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]) / 5
            x = y
        return x
    return torch


def jacobi3(steps: int) -> Any:
    """The same in space."""
    def torch(t: Any, x: Any) -> Any:
        del t
        for _ in range(steps):
            y, c = x.clone(), slice(1, -1)
            y[c, c, c] = (x[c, c, c] + x[:-2, c, c] + x[2:, c, c] + x[c, :-2, c] + x[c, 2:, c] + x[c, c, :-2] + x[c, c, 2:]) / 7
            x = y
        return x
    return torch
