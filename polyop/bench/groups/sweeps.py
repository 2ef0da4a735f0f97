"""Operators that meet two hundred shapes, one after the other, as a server meets requests of any length."""

from __future__ import annotations

from collections.abc import Iterator

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
    long_heads = tuple({"B": 1, "H": 8, **s, "D": 64} for s in sizes(S=1024))
    small, large = "200 shapes", "200 shapes of up to"
    yield from _matmul(small, sizes(M=300, N=300, K=300))
    yield from _softmax(small, sizes(R=500, C=500))
    yield from _norm(small, sizes(R=500, C=500))
    yield from _linear(small, sizes(M=300, N=300, K=300))
    yield from _attention(small, heads)
    yield from _convolution(small, tuple({"B": 1, **s} for s in sizes(least=3, C=40, K=40, H=60, W=60)))
    yield from _matmul(f"{large} 1024", sizes(M=1025, N=1025, K=1025))
    yield from _softmax(f"{large} 2048 x 4096", sizes(R=2049, C=4097))
    yield from _norm(f"{large} 2048 x 4096", sizes(R=2049, C=4097))
    yield from _linear(f"{large} 512 x 2048", sizes(M=513, N=2049, K=2049))
    yield from _attention(f"{large} 1024, 8 heads", long_heads)
    yield from _convolution(f"{large} 128 channels of 112 x 112",
                            tuple({"B": 1, **s} for s in sizes(least=3, C=129, K=129, H=113, W=113)))


Sizes = tuple[dict[str, int], ...]


def _name(what: str, label: str) -> str:
    """An operator of its own for each sweep: a process compiles each once."""
    return f"dynamic_{what}" + ("_large" if "up to" in label else "")


def _matmul(label: str, sizes: Sizes) -> Iterator[Sweep]:
    yield Sweep("dynamic", f"matmul, {label}", f"op {_name('matmul', label)}(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) "
                "{ C[m, n] += A[m, k] * B[k, n] }", sizes, lambda t, a, b: a @ b)


def _softmax(label: str, sizes: Sizes) -> Iterator[Sweep]:
    yield Sweep("dynamic", f"softmax, {label}", f"op {_name('softmax', label)}(X: f32[R, C]) -> (Y: f32[R, C]) {{ Y = softmax(X) }}",
                sizes, lambda t, x: t.softmax(x, -1))


def _norm(label: str, sizes: Sizes) -> Iterator[Sweep]:
    yield Sweep("dynamic", f"add+layernorm, {label}",
                f"op {_name('norm', label)}(X: f32[R, C], Z: f32[R, C], g: f32[C], b: f32[C]) -> (Y: f32[R, C]) "
                "{\n s[r, c] = X[r, c] + Z[r, c]\n Y = layernorm(s, g, b)\n}",
                sizes, lambda t, x, z, g, b: t.nn.functional.layer_norm(x + z, x.shape[-1:], g, b), tolerance=1e-3)


def _linear(label: str, sizes: Sizes) -> Iterator[Sweep]:
    yield Sweep("dynamic", f"linear+gelu, {label}",
                f"op {_name('linear', label)}(X: f32[M, K], W: f32[N, K], b: f32[N]) -> (Y: f32[M, N]) {{ Y = linear_gelu(X, W, b) }}",
                sizes, lambda t, x, w, b: t.nn.functional.gelu(t.nn.functional.linear(x, w, b)))


def _attention(label: str, sizes: Sizes) -> Iterator[Sweep]:
    yield Sweep("dynamic", f"attention, {label}",
                f"op {_name('attention', label)}(Q: f32[B, H, S, D], K: f32[B, H, S, D], V: f32[B, H, S, D]) -> (O: f32[B, H, S, D]) "
                "{ O = attention(Q, K, V, scale=0.125) }", sizes,
                lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.125))


def _convolution(label: str, sizes: Sizes) -> Iterator[Sweep]:
    yield Sweep("dynamic", f"convolution 3x3, {label}",
                f"op {_name('conv', label)}(X: f32[B, C, H, W], F: f32[K, C, 3, 3]) -> (Y: f32[B, K, H, W]) {{ Y = conv2d(X, F, pad=1) }}",
                sizes, lambda t, x, f: t.nn.functional.conv2d(x, f, padding=1))
