"""Layers of neural networks: attention, products with what follows them, normalisations, losses, recurrent networks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from polyop.bench.case import Case, Node, library, random, text


def _sdpa(causal: bool) -> Any:
    return lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _attend(xp: Any, q: Any, k: Any, v: Any) -> Any:
    """By its definition, for those who have no function for it."""
    s = q @ xp.swapaxes(k, -1, -2) * xp.asarray(1 / math.sqrt(q.shape[-1]), q.dtype)
    e = xp.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


def attention() -> Iterator[Case]:
    """Full and causal, short and long; a cache of keys with one query."""
    for s, h in ((128, 12), (256, 12), (512, 8), (1024, 4), (2048, 2), (4096, 1)):
        for d in (64, 128):
            extents, scale = {"B": 1, "H": h, "D": d, "E": d}, 1 / math.sqrt(d)
            flops = 4.0 * h * s * s * d
            quick = d == 64 and s in (128, 512)
            yield Case("attention", f"full {h}x{s}x{d}", *library("attention"), {**extents, "M": s, "N": s, "scale": scale},
                       torch=_sdpa(False), array=_attend if s <= 512 else None, flops=flops, quick=quick)
            yield Case("attention", f"causal {h}x{s}x{d}", *library("attention_causal"), {**extents, "S": s, "scale": scale},
                       torch=_sdpa(True), flops=flops / 2, quick=quick)
    yield Case("attention", "grouped 32/8 x512x128", *library("attention_gqa"),
               {"B": 1, "H": 32, "M": 512, "N": 512, "D": 128, "E": 128, "group": 4, "scale": 1 / math.sqrt(128)},
               torch=lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True),
               flops=4.0 * 32 * 512 * 512 * 128)
    for n in (512, 4096):
        yield Case("attention", f"decode 32x{n}x128", *library("attention_decode"),
                   {"B": 1, "H": 32, "N": n, "D": 128, "E": 128, "used": n, "scale": 1 / math.sqrt(128)},
                   flops=4.0 * 32 * n * 128,
                   torch=lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q[:, :, None], k, v)[:, :, 0])


def layers() -> Iterator[Case]:
    """Products and convolutions with what follows or comes before them."""
    for m, n, k in ((128, 768, 768), (128, 3072, 768), (128, 768, 3072), (1, 768, 768), (1024, 3072, 768), (384, 4096, 1024)):
        weights = {"W": random(n, k, scale=1 / math.sqrt(k))}
        sizes = {"dim0": m, "K": k, "N": n, **weights}
        for act in ("relu", "gelu", "silu"):
            def fused(t: Any, x: Any, w: Any, b: Any, act: str = act) -> Any:
                return getattr(t.nn.functional, act)(t.nn.functional.linear(x, w, b))
            if act == "gelu" or m == 128:
                yield Case("layers", f"linear+{act} {m}x{n}x{k}", *library(f"linear_{act}"), sizes, rank=1, torch=fused,
                           compiled=act == "gelu" and m in (1, 128) and n == 768 == k,
                           quick=act == "gelu" and (m, n) == (128, 3072))
        yield Case("layers", f"linear+residual {m}x{n}x{k}", *library("linear_residual"), sizes, rank=1,
                   torch=lambda t, x, w, b, r: t.nn.functional.linear(x, w, b) + r)
    for m, d, f in ((128, 768, 3072), (1, 768, 3072)):
        given = {"dim0": m, "D": d, "F": f, "W1": random(d, f, scale=1 / math.sqrt(d)),
                 "W2": random(f, d, scale=1 / math.sqrt(f))}
        yield Case("layers", f"mlp {m}x{d}x{f}", *library("mlp"), given, rank=1,
                   torch=lambda t, x, u, b, v, c: t.addmm(c, t.nn.functional.gelu(t.addmm(b, x, u)), v), quick=m == 128)
    for m, d, f in ((128, 1024, 2816), (1, 4096, 11008)):
        given = {"dim0": m, "D": d, "F": f, "W1": random(d, f, scale=1 / math.sqrt(d)),
                 "W2": random(f, d, scale=1 / math.sqrt(f)), "W3": random(d, f, scale=1 / math.sqrt(d), seed=2)}
        yield Case("layers", f"swiglu {m}x{d}x{f}", *library("swiglu"), given, rank=1,
                   torch=lambda t, x, u, w, v: (t.nn.functional.silu(x @ u) * (x @ w)) @ v, compiled=m == 128)
    for c, k, h, r, s in ((64, 64, 56, 3, 1), (256, 256, 14, 3, 1), (64, 256, 56, 1, 1)):
        def block(t: Any, x: Any, f: Any, g: Any, b: Any, s: int = s, r: int = r) -> Any:
            return t.relu(t.nn.functional.conv2d(x, f, stride=s, padding=r // 2) * g[:, None, None] + b[:, None, None])
        yield Case("layers", f"conv+bn+relu {r}x{r} {c}->{k} {h}x{h}", *library("conv2d_bn_relu"),
                   {"B": 1, "C": c, "K": k, "H": h, "W": h, "R": r, "S": r, "stride": s, "pad": r // 2}, torch=block,
                   compiled=c == 256, quick=c == 256)
    normed = text("op norm_linear(X: f32[M, K], g: f32[K], W: f32[N, K]) -> (Y: f32[M, N]) {\n"
                  "    n = rmsnorm(X, g)\n    Y[i, j] += n[i, k] * W[j, k]\n}")
    for m, n, k in ((128, 1024, 1024), (1, 4096, 4096)):
        yield Case("layers", f"rmsnorm+linear {m}x{n}x{k}", *normed, {"M": m, "N": n, "K": k}, quick=m == 128,
                   torch=lambda t, x, g, w: t.nn.functional.linear(t.nn.functional.rms_norm(x, x.shape[-1:], g, 1e-6), w))


ROWS = ((128, 768), (1024, 1024), (4096, 768), (512, 4096), (16384, 256), (8, 50257))


def rows() -> Iterator[Case]:
    """One result for each row from the whole row."""
    for r, c in ROWS:
        of, quick = f"{r}x{c}", (r, c) in ((1024, 1024), (8, 50257))
        compiled = (r, c) == (1024, 1024)
        yield Case("rows", f"softmax {of}", *library("softmax"), {"dim0": r, "C": c}, rank=1, torch=lambda t, x: t.softmax(x, -1),
                   array=_softmax, onnx=Node("Softmax"), quick=quick, compiled=compiled)
        yield Case("rows", f"log softmax {of}", *library("log_softmax"), {"dim0": r, "C": c}, rank=1, onnx=Node("LogSoftmax"),
                   torch=lambda t, x: t.log_softmax(x, -1))
        yield Case("rows", f"layernorm {of}", *library("layernorm"), {"dim0": r, "D": c}, rank=1, onnx=Node("LayerNormalization"),
                   torch=lambda t, x, g, b: t.nn.functional.layer_norm(x, x.shape[-1:], g, b), quick=quick, compiled=compiled)
        yield Case("rows", f"rmsnorm {of}", *library("rmsnorm"), {"dim0": r, "D": c}, rank=1, compiled=compiled,
                   torch=lambda t, x, g: t.nn.functional.rms_norm(x, x.shape[-1:], g, 1e-6))
        yield Case("rows", f"add+layernorm {of}", *library("add_layernorm"), {"dim0": r, "D": c}, rank=1, quick=quick,
                   torch=lambda t, x, r, g, b: (t.nn.functional.layer_norm(x + r, x.shape[-1:], g, b), x + r), compiled=compiled)
        yield Case("rows", f"cross entropy {of}", *library("cross_entropy"), {"N": r, "C": c}, quick=quick, compiled=compiled,
                   torch=lambda t, x, label: t.nn.functional.cross_entropy(x, label, reduction="none"))


def _softmax(xp: Any, x: Any) -> Any:
    e = xp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def recurrent() -> Iterator[Case]:
    """Recurrent networks, and scans over the state of a model."""
    for steps, b, d in ((128, 1, 128), (64, 16, 256), (32, 32, 512)):
        scale = 1 / math.sqrt(d)
        for name, gates in (("lstm", 4), ("gru", 3)):
            given = {"L": steps, "B": b, "D": d, "H": d, "W": random(gates * d, d, scale=scale),
                     "U": random(gates * d, d, scale=scale)}

            def lstm(t: Any, x: Any, w: Any, u: Any, bias: Any, h: Any, c: Any) -> Any:
                return t.lstm(x, (h[None], c[None]), [w, u, bias, t.zeros_like(bias)], True, 1, 0.0, False, False, False)[0]

            def gru(t: Any, x: Any, w: Any, u: Any, wb: Any, ub: Any, h: Any) -> Any:
                return t.gru(x, h[None], [w, u, wb, ub], True, 1, 0.0, False, False, False)[0]
            yield Case("recurrent", f"{name} {steps}x{b}x{d}", *library(name), given, torch=lstm if name == "lstm" else gru,
                       quick=name == "lstm" and b == 1, tolerance=1e-3)
