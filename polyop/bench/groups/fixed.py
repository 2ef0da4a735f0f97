"""Kernels for all sizes beside kernels for one: the same text with its sizes as numbers. Measured only when it is named."""

from __future__ import annotations

from collections.abc import Iterator

from polyop.bench.case import Case, text

_TEXTS = {
    "product": "op f(A: f32[{M}, {K}], B: f32[{K}, {N}]) -> (C: f32[{M}, {N}]) {{ C[m, n] += A[m, k] * B[k, n] }}",
    "nt": "op f(A: f32[{M}, {K}], B: f32[{N}, {K}]) -> (C: f32[{M}, {N}]) {{ C[m, n] += A[m, k] * B[n, k] }}",
    "batched": "op f(A: f32[{B}, {M}, {K}], X: f32[{B}, {K}, {N}]) -> (C: f32[{B}, {M}, {N}]) {{ "
               "C[b, m, n] += A[b, m, k] * X[b, k, n] }}",
    "linear": "op f(X: f32[{M}, {K}], W: f32[{N}, {K}], b: f32[{N}]) -> (Y: f32[{M}, {N}]) {{ Y = linear_gelu(X, W, b) }}",
    "nhwc 3x3": "op f(X: f32[{B}, {H}, {W}, {C}], F: f32[3, 3, {C}, {K}]) -> (Y: f32[{B}, {H}, {W}, {K}]) {{ "
                "Y = conv2d_nhwc(X, F, pad=1) }}",
    "attention": "op f(Q: f32[{B}, {H}, {M}, {D}], K: f32[{B}, {H}, {N}, {D}], V: f32[{B}, {H}, {N}, {D}]) -> "
                 "(O: f32[{B}, {H}, {M}, {D}]) {{ O = attention(Q, K, V, scale=0.125) }}",
    "softmax": "op f(X: f32[{M}, {N}]) -> (Y: f32[{M}, {N}]) {{ Y = softmax(X) }}",
    "layernorm": "op f(X: f32[{M}, {D}], g: f32[{D}], b: f32[{D}]) -> (Y: f32[{M}, {D}]) {{ Y = layernorm(X, g, b) }}",
    "gelu": "op f(X: f32[{N}]) -> (Y: f32[{N}]) {{ Y[i] = gelu(X[i]) }}",
    "sum of columns": "op f(X: f32[{M}, {N}]) -> (Y: f32[{N}]) {{ Y[n] += X[m, n] }}",
    "sum of rows": "op f(X: f32[{M}, {N}]) -> (Y: f32[{M}]) {{ Y[m] += X[m, n] }}",
    "transpose": "op f(X: f32[{M}, {N}]) -> (Y: f32[{N}, {M}]) {{ Y[n, m] = X[m, n] }}",
}

_CASES = (
    ("product", {"M": 64, "N": 64, "K": 64}), ("product", {"M": 512, "N": 512, "K": 512}),
    ("product", {"M": 100, "N": 77, "K": 333}), ("nt", {"M": 100, "N": 77, "K": 333}), ("nt", {"M": 8, "N": 768, "K": 768}),
    ("batched", {"B": 1000, "M": 16, "N": 16, "K": 16}), ("batched", {"B": 64, "M": 64, "N": 64, "K": 64}),
    ("linear", {"M": 128, "N": 768, "K": 768}), ("nhwc 3x3", {"B": 1, "H": 56, "W": 56, "C": 64, "K": 64}),
    ("nhwc 3x3", {"B": 8, "H": 14, "W": 14, "C": 256, "K": 256}), ("attention", {"B": 1, "H": 12, "M": 512, "N": 512, "D": 64}),
    ("softmax", {"M": 1024, "N": 1000}), ("layernorm", {"M": 512, "D": 768}), ("gelu", {"N": 65536}),
    ("sum of columns", {"M": 2048, "N": 2048}), ("sum of rows", {"M": 512, "N": 512}), ("transpose", {"M": 1000, "N": 3001}))


def fixed() -> Iterator[Case]:
    """What a kernel loses that does not know the sizes it is called with."""
    for number, (name, sizes) in enumerate(_CASES):
        label = f"{name} {'x'.join(map(str, sizes.values()))}"
        dynamic = text(_TEXTS[name].format(**{n: n for n in sizes}))
        yield Case("fixed", label, *dynamic, sizes, fixed=_TEXTS[name].format(**sizes), quick=number == 0)
