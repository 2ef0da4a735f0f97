"""What docs/design.md quotes of steps that run together: reductions in one pass over rows, and chains in overlapped tiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from polyop.bench.case import Case, Random, library, text

IMAGES = ("NCHW", "NHWC")
BLUR = text("""op blur_twice(X: f32[H, W]) -> (Y: f32[H - 2, W - 2]) where H >= 3, W >= 3 {
    T: f32[H, W - 2]
    T[i, j] = X[i, j] + 2*X[i, j + 1] + X[i, j + 2]
    Y[i, j] = T[i, j] + 2*T[i + 1, j] + T[i + 2, j]
}""")
THREE = text("""op three_stencils(X: f32[H, W]) -> (Y: f32[H - 6, W - 6]) where H >= 7, W >= 7 {
    S: f32[H - 2, W - 2]
    T: f32[H - 4, W - 4]
    S[i, j] = X[i, j + 1] + X[i + 1, j] + X[i + 1, j + 1] + X[i + 1, j + 2] + X[i + 2, j + 1]
    T[i, j] = S[i, j + 1] + S[i + 1, j] + S[i + 1, j + 1] + S[i + 1, j + 2] + S[i + 2, j + 1]
    Y[i, j] = T[i, j + 1] + T[i + 1, j] + T[i + 1, j + 1] + T[i + 1, j + 2] + T[i + 2, j + 1]
}""")
POOLED = text("""op conv_pool(X: f32[B, C, H, W], F: f32[K, C, 3, 3]) -> (Y: f32[B, K, (H - 1)/2, (W - 1)/2])
        where H >= 3, W >= 3 {
    T: f32[B, K, H, W]
    R: f32[B, K, H, W]
    T[b, k, p, q] += (X[b, c, p + r - 1, q + s - 1] else 0) * F[k, c, r, s]
    R[b, k, p, q] = relu(T[b, k, p, q])
    Y[b, k, p, q] max= R[b, k, 2*p + r, 2*q + s]  where r in 0:3, s in 0:3
}""")
TWICE = {
    "NCHW": text("""op conv_conv(X: f32[B, C, H, W], F: f32[K, C, 3, 3], G: f32[L, K, 3, 3]) -> (Y: f32[B, L, H, W]) {
        T: f32[B, K, H, W]
        R: f32[B, K, H, W]
        T[b, k, p, q] += (X[b, c, p + r - 1, q + s - 1] else 0) * F[k, c, r, s]
        R[b, k, p, q] = relu(T[b, k, p, q])
        Y[b, l, p, q] += (R[b, k, p + r - 1, q + s - 1] else 0) * G[l, k, r, s]
    }"""),
    "NHWC": text("""op conv_conv_last(X: f32[B, H, W, C], F: f32[3, 3, C, K], G: f32[3, 3, K, L]) -> (Y: f32[B, H, W, L]) {
        T: f32[B, H, W, K]
        R: f32[B, H, W, K]
        T[b, p, q, k] += (X[b, p + r - 1, q + s - 1, c] else 0) * F[r, s, c, k]
        R[b, p, q, k] = relu(T[b, p, q, k])
        Y[b, p, q, l] += (R[b, p + r - 1, q + s - 1, k] else 0) * G[r, s, k, l]
    }"""),
}


def one_pass(group: str) -> Iterator[Case]:
    """Rows longer than a cache."""
    def each(label: str, name: str, row: str, shapes: tuple[tuple[int, int], ...], torch: Any) -> Iterator[Case]:
        for r, c in shapes:
            yield Case(group, f"{label} {r}x{c}", *library(name), {"dim0": r, row: c}, rank=1, torch=torch, tolerance=1e-3)

    yield from each("variance", "var_rows", "N", ((1, 1 << 24), (32, 270_000)), lambda t, x: t.var(x, -1, correction=0))
    yield from each("softmax", "softmax", "C", ((1, 1 << 24), (4, 1 << 20), (32, 270_000)), lambda t, x: t.softmax(x, -1))
    yield from each("log sum exp", "logsumexp", "C", ((1, 1 << 24),), lambda t, x: t.logsumexp(x, -1))
    yield from each("layernorm", "layernorm", "D", ((1, 1 << 24),),
                    lambda t, x, g, b: t.nn.functional.layer_norm(x, x.shape[-1:], g, b))
    yield Case(group, "cross entropy 4x1048576", *library("cross_entropy"), {"N": 4, "C": 1 << 20}, tolerance=1e-3,
               torch=lambda t, x, label: t.nn.functional.cross_entropy(x, label, reduction="none"))


def overlapped(group: str) -> Iterator[Case]:
    """Chains that hand over more than a cache holds."""
    yield Case(group, "blur along rows, then columns 4000", *BLUR, {"H": 4000, "W": 4000}, array=_blur)
    yield Case(group, "three stencils of 5 points 4000", *THREE, {"H": 4000, "W": 4000},
               array=lambda xp, x: _star(_star(_star(x))))
    yield Case(group, "Harris' corners 4000", *library("harris"), {"H": 4000, "W": 4000})
    for b, c, k, n in ((1, 3, 16, 512), (8, 64, 64, 56)):
        yield Case(group, f"NCHW 3x3, relu, pooling {c}->{k} {n}x{n} b{b}", *POOLED, tolerance=1e-3, torch=_pooled,
                   given={"X": Random((b, c, n, n), 1.0, 1), "F": Random((k, c, 3, 3), 0.1, 2)})
    for b, c, k, n in ((1, 3, 16, 512), (8, 64, 64, 56)):
        for order in IMAGES:
            shape = (b, c, n, n) if order == "NCHW" else (b, n, n, c)
            filters = [(k, x, 3, 3) if order == "NCHW" else (3, 3, x, k) for x in (c, k)]
            given = {"X": Random(shape, 1.0, 1), "F": Random(filters[0], 0.1, 2), "G": Random(filters[1], 0.1, 3)}
            yield Case(group, f"{order} 3x3, relu, 3x3 {c}->{k}->{k} {n}x{n} b{b}", *TWICE[order], given, tolerance=1e-3,
                       torch=_first if order == "NCHW" else _last)


def _blur(xp: Any, x: Any) -> Any:
    y = x[:, :-2] + 2 * x[:, 1:-1] + x[:, 2:]
    return y[:-2] + 2 * y[1:-1] + y[2:]


def _star(x: Any) -> Any:
    return x[:-2, 1:-1] + x[1:-1, :-2] + x[1:-1, 1:-1] + x[1:-1, 2:] + x[2:, 1:-1]


def _pooled(t: Any, x: Any, f: Any) -> Any:
    return t.nn.functional.max_pool2d(t.nn.functional.conv2d(x, f, padding=1).relu(), 3, 2)


def _first(t: Any, x: Any, f: Any, g: Any) -> Any:
    conv = t.nn.functional.conv2d
    return conv(conv(x, f, padding=1).relu(), g, padding=1)


def _last(t: Any, x: Any, f: Any, g: Any) -> Any:
    return _first(t, x.permute(0, 3, 1, 2), f.permute(3, 2, 0, 1), g.permute(3, 2, 0, 1)).permute(0, 2, 3, 1)
