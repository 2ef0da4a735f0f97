"""Operators that meet two hundred shapes, one after the other, as a server meets requests of any length."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from polyop.bench.case import Sweep

SHAPES = 200


def dynamic() -> Iterator[Sweep]:
    """Extents at random, 1 among them now and then."""
    rng = np.random.default_rng(0)

    def sizes(count: int = SHAPES, least: int = 1, **most: int) -> tuple[dict[str, int], ...]:
        return tuple({n: int(rng.integers(least, m)) for n, m in most.items()} for _ in range(count))
    yield Sweep("dynamic", "softmax, 20 shapes", "op dynamic_softmax_20(X: f32[R, C]) -> (Y: f32[R, C]) { Y = softmax(X) }",
                sizes(20, R=500, C=500), lambda t, x: t.softmax(x, -1), quick=True)
    yield Sweep("dynamic", "matmul, 200 shapes",
                "op dynamic_matmul(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }",
                sizes(M=300, N=300, K=300), lambda t, a, b: a @ b)
    yield Sweep("dynamic", "softmax, 200 shapes", "op dynamic_softmax(X: f32[R, C]) -> (Y: f32[R, C]) { Y = softmax(X) }",
                sizes(R=500, C=500), lambda t, x: t.softmax(x, -1))
    yield Sweep("dynamic", "add+layernorm, 200 shapes",
                "op dynamic_norm(X: f32[R, C], Z: f32[R, C], g: f32[C], b: f32[C]) -> (Y: f32[R, C]) "
                "{\n s[r, c] = X[r, c] + Z[r, c]\n Y = layernorm(s, g, b)\n}",
                sizes(R=500, C=500), lambda t, x, z, g, b: t.nn.functional.layer_norm(x + z, x.shape[-1:], g, b), tolerance=1e-3)
    yield Sweep("dynamic", "linear+gelu, 200 shapes",
                "op dynamic_linear(X: f32[M, K], W: f32[N, K], b: f32[N]) -> (Y: f32[M, N]) { Y = linear_gelu(X, W, b) }",
                sizes(M=300, N=300, K=300), lambda t, x, w, b: t.nn.functional.gelu(t.nn.functional.linear(x, w, b)))
    yield Sweep("dynamic", "attention, 200 shapes",
                "op dynamic_attention(Q: f32[B, H, S, D], K: f32[B, H, S, D], V: f32[B, H, S, D]) -> (O: f32[B, H, S, D]) "
                "{ O = attention(Q, K, V, scale=0.125) }",
                tuple({"B": 1, "H": 4, **s, "D": 64} for s in sizes(S=300)),
                lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.125))
    yield Sweep("dynamic", "convolution 3x3, 200 shapes",
                "op dynamic_conv(X: f32[B, C, H, W], F: f32[K, C, 3, 3]) -> (Y: f32[B, K, H, W]) { Y = conv2d(X, F, pad=1) }",
                tuple({"B": 1, **s} for s in sizes(least=3, C=40, K=40, H=60, W=60)),
                lambda t, x, f: t.nn.functional.conv2d(x, f, padding=1))
