"""Operators that meet two hundred shapes, one after the other, as a server meets requests of any length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from polyop.bench.case import Sweep

SHAPES = 200


def dynamic() -> Iterator[Sweep]:
    """Extents at random, 1 among them now and then: small ones, of which eager PyTorch does two hundred in less than any compiler
    takes for one kernel, and those that the other groups have.
    """
    rng = np.random.default_rng(0)

    def sizes(count: int = SHAPES, least: int = 1, **most: int) -> tuple[dict[str, int], ...]:
        return tuple({n: int(rng.integers(least, m)) for n, m in most.items()} for _ in range(count))
    yield Sweep("dynamic", "softmax, 20 shapes", "op dynamic_softmax_20(X: f32[R, C]) -> (Y: f32[R, C]) { Y = softmax(X) }",
                sizes(20, R=500, C=500), lambda t, x: t.softmax(x, -1), quick=True)
    heads = tuple({"B": 1, "H": 4, **s, "D": 64} for s in sizes(S=300))
    many_heads = tuple({"B": 1, "H": 8, **s, "D": 64} for s in sizes(S=1024))
    images = tuple({"B": 1, **s} for s in sizes(least=3, C=40, K=40, H=60, W=60))
    large_images = tuple({"B": 1, **s} for s in sizes(least=3, C=129, K=129, H=113, W=113))
    for name, small, large, most in (
            ("matmul", sizes(M=300, N=300, K=300), sizes(M=1025, N=1025, K=1025), "1024"),
            ("softmax", sizes(R=500, C=500), sizes(R=2049, C=4097), "2048 x 4096"),
            ("add+layernorm", sizes(R=500, C=500), sizes(R=2049, C=4097), "2048 x 4096"),
            ("linear+gelu", sizes(M=300, N=300, K=300), sizes(M=513, N=2049, K=2049), "512 x 2048"),
            ("attention", heads, many_heads, "1024, 8 heads"),
            ("convolution 3x3", images, large_images, "128 channels of 112 x 112")):
        text, torch = _OPERATORS[name]
        for which, shapes, label in (("small", small, "small shapes"), ("large", large, f"shapes of up to {most}")):
            own = f"op dynamic_{which}{text}"  # what has been compiled under a name is not compiled again
            yield Sweep("dynamic", f"{name}, {SHAPES} {label}", own, shapes, torch, tolerance=1e-3 if "norm" in name else 1e-4)


def cached() -> Iterator[Sweep]:
    """The same with the kernels on disk: what a program finds that ran before on this machine."""
    for s in dynamic():
        yield replace(s, group="cached", definition=s.definition.replace("op dynamic_", "op cached_"), kept=True)


_OPERATORS: dict[str, tuple[str, Callable[..., Any]]] = {
    "matmul": ("_matmul(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }", lambda t, a, b: a @ b),
    "softmax": ("_softmax(X: f32[R, C]) -> (Y: f32[R, C]) { Y = softmax(X) }", lambda t, x: t.softmax(x, -1)),
    "add+layernorm": ("_norm(X: f32[R, C], Z: f32[R, C], g: f32[C], b: f32[C]) -> (Y: f32[R, C]) "
                      "{\n s[r, c] = X[r, c] + Z[r, c]\n Y = layernorm(s, g, b)\n}",
                      lambda t, x, z, g, b: t.nn.functional.layer_norm(x + z, x.shape[-1:], g, b)),
    "linear+gelu": ("_linear(X: f32[M, K], W: f32[N, K], b: f32[N]) -> (Y: f32[M, N]) { Y = linear_gelu(X, W, b) }",
                    lambda t, x, w, b: t.nn.functional.gelu(t.nn.functional.linear(x, w, b))),
    "attention": ("_attention(Q: f32[B, H, S, D], K: f32[B, H, S, D], V: f32[B, H, S, D]) -> (O: f32[B, H, S, D]) "
                  "{ O = attention(Q, K, V, scale=0.125) }",
                  lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.125)),
    "convolution 3x3": ("_conv(X: f32[B, C, H, W], F: f32[K, C, 3, 3]) -> (Y: f32[B, K, H, W]) { Y = conv2d(X, F, pad=1) }",
                        lambda t, x, f: t.nn.functional.conv2d(x, f, padding=1)),
}
