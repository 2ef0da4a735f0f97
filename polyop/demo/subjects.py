"""The operators of the demo: text, shapes of real layers, and the same thing in NumPy and in PyTorch.

The NumPy functions are the reference too: on float64 they say what is right.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any
Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Subject:
    """One operator.

    text      its definition; empty if `name` is of the standard library
    sizes     at least five calls, each a value for every name of `inputs` and `scalars`
    inputs    (parameter, shape, kind): a shape is names and numbers; kind "f32", or "i64 < V" for positions below V
    scalars   numbers passed by name; a text is the name of a size
    numpy     the same on NumPy arrays of any float dtype, torch: on tensors, or None
    """

    title: str
    origin: str
    name: str
    sizes: tuple[Sizes, ...]
    inputs: tuple[tuple[str, tuple[str | int, ...], str], ...]
    numpy: Callable[..., Array]
    torch: Callable[..., Array] | None = None
    scalars: tuple[tuple[str, float | int | str], ...] = ()
    text: str = ""

    def keywords(self, sizes: Sizes) -> dict[str, float | int]:
        return {n: sizes[v] if isinstance(v, str) else v for n, v in self.scalars}

    def arguments(self, rng: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
        """Random inputs; weights are scaled so that results stay near 1."""
        out: dict[str, Array] = {}
        for name, shape, kind in self.inputs:
            extents = [sizes[n] if isinstance(n, str) else n for n in shape]
            if kind.startswith("i64"):
                out[name] = rng.integers(0, sizes[kind.split("< ")[1]], extents)
            else:
                wide = math.sqrt(extents[-1]) if name.isupper() and name[0] in "WUF" and len(extents) > 1 else 1.0
                out[name] = rng.standard_normal(extents, np.float32) / np.float32(wide)
        return out


def _rows(names: str, *rows: tuple[int, ...]) -> tuple[Sizes, ...]:
    return tuple(dict(zip(names.split(), r, strict=True)) for r in rows)


# --- the mathematics ---------------------------------------------------------------------------------------------------


def _torch() -> Any:
    return importlib.import_module("torch")  # only where the user has it


def _gelu(x: Array) -> Array:
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def _linear_gelu(X: Array, W: Array, b: Array) -> Array:
    return _gelu(X @ W.T + b)


def _softmax(X: Array) -> Array:
    e = np.exp(X - X.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _layernorm(X: Array, g: Array, b: Array) -> Array:
    m = X.mean(-1, keepdims=True)
    return (X - m) / np.sqrt(((X - m) ** 2).mean(-1, keepdims=True) + 1e-5) * g + b


def _rmsnorm(X: Array, g: Array) -> Array:
    return X / np.sqrt((X * X).mean(-1, keepdims=True) + 1e-6) * g


def _attention(Q: Array, K: Array, V: Array, scale: float) -> Array:
    return _softmax(scale * (Q @ K.swapaxes(-1, -2))) @ V


def _conv(X: Array, F: Array, pad: int) -> Array:
    X = np.pad(X, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(X, F.shape[:2], (1, 2))
    return np.einsum("bpqcrs,rsck->bpqk", windows, F, optimize=True)


def _swiglu(gate: Array, up: Array) -> Array:
    return gate / (1 + np.exp(-gate)) * up


def _rotary(X: Array, cosine: Array, sine: Array) -> Array:
    half = X.shape[-1] // 2
    a, b, c, s = X[..., :half], X[..., half:], cosine[:, None], sine[:, None]
    return np.concatenate([a * c - b * s, b * c + a * s], -1)


def _jacobi(X: Array, steps: int) -> Array:
    A = X.copy()
    for _ in range(steps):
        B = A.copy()
        B[1:-1, 1:-1] = (A[1:-1, 1:-1] + A[:-2, 1:-1] + A[2:, 1:-1] + A[1:-1, :-2] + A[1:-1, 2:]) / 5
        A = B
    return A


def _lstm(X: Array, W: Array, U: Array, bias: Array, h0: Array, c0: Array) -> tuple[Array, Array]:
    n, h, c = h0.shape[-1], h0, c0
    ys, cs = [], []
    for x in X @ W.T + bias:
        z = x + h @ U.T
        i, f, o = (1 / (1 + np.exp(-z[:, k * n : (k + 1) * n])) for k in (0, 1, 3))
        c = f * c + i * np.tanh(z[:, 2 * n : 3 * n])
        h = o * np.tanh(c)
        ys.append(h)
        cs.append(c)
    return np.stack(ys), np.stack(cs)


# --- the same in PyTorch -----------------------------------------------------------------------------------------------


def _torch_linear_gelu(X: Array, W: Array, b: Array) -> Array:
    f = _torch().nn.functional
    return f.gelu(f.linear(X, W, b), approximate="tanh")


def _torch_softmax(X: Array) -> Array:
    return _torch().softmax(X, -1)


def _torch_layernorm(X: Array, g: Array, b: Array) -> Array:
    return _torch().nn.functional.layer_norm(X, (X.shape[-1],), g, b)


def _torch_rmsnorm(X: Array, g: Array) -> Array:
    return _torch().nn.functional.rms_norm(X, (X.shape[-1],), g, 1e-6)


def _torch_attention(Q: Array, K: Array, V: Array, scale: float) -> Array:
    return _torch().nn.functional.scaled_dot_product_attention(Q, K, V, scale=scale)


def _torch_conv(X: Array, F: Array, pad: int) -> Array:
    return _torch().nn.functional.conv2d(X.permute(0, 3, 1, 2), F.permute(3, 2, 0, 1), padding=pad).permute(0, 2, 3, 1)


def _torch_swiglu(gate: Array, up: Array) -> Array:
    return _torch().nn.functional.silu(gate) * up


def _torch_rotary(X: Array, cosine: Array, sine: Array) -> Array:
    half = X.shape[-1] // 2
    a, b, c, s = X[..., :half], X[..., half:], cosine[:, None], sine[:, None]
    return _torch().cat([a * c - b * s, b * c + a * s], -1)


def _torch_lstm(X: Array, W: Array, U: Array, bias: Array, h0: Array, c0: Array) -> Array:
    zero = _torch().zeros_like(bias)
    return _torch().lstm(X, (h0[None], c0[None]), [W, U, bias, zero], True, 1, 0.0, False, False, False)[0]


def _torch_embedding(ids: Array, E: Array) -> Array:
    return _torch().nn.functional.embedding(ids, E)


LINEAR_GELU = """
op linear_gelu(X: f32[S, I], W: f32[O, I], b: f32[O]) -> (Y: f32[S, O]) {
    z[s, o] += X[s, i] * W[o, i]
    y[s, o]  = z[s, o] + b[o]
    Y[s, o]  = y[s, o] * (1 + tanh(0.7978845608 * (y[s, o] + 0.044715 * y[s, o] * y[s, o] * y[s, o]))) / 2
}
"""

CONTRACTION = "op abj_bka_kj(A: f32[I, K, B], M: f32[J, K]) -> (C: f32[J, B, I]) { C[j, b, a] += A[a, k, b] * M[j, k] }"

SUBJECTS = (
    Subject("linear + GELU", "BERT-base, first layer of the MLP", "linear_gelu",
            _rows("S I O", (9, 768, 3072), (17, 768, 3072), (64, 768, 3072), (128, 768, 3072), (200, 768, 3072)),
            (("X", ("S", "I"), "f32"), ("W", ("O", "I"), "f32"), ("b", ("O",), "f32")),
            _linear_gelu, _torch_linear_gelu, text=LINEAR_GELU),
    Subject("softmax", "BERT-base, attention weights", "softmax",
            _rows("H S", (12, 33), (12, 64), (12, 128), (12, 200), (12, 384)),
            (("X", ("H", "S", "S"), "f32"),), _softmax, _torch_softmax),
    Subject("layer norm", "BERT-base, hidden states", "layernorm",
            _rows("S D", (1, 768), (77, 768), (128, 768), (384, 768), (512, 768)),
            (("X", ("S", "D"), "f32"), ("g", ("D",), "f32"), ("b", ("D",), "f32")), _layernorm, _torch_layernorm),
    Subject("attention", "BERT-base, 12 heads of 64", "attention",
            _rows("S", (16,), (50,), (128,), (197,), (256,)),
            (("Q", (1, 12, "S", 64), "f32"), ("K", (1, 12, "S", 64), "f32"), ("V", (1, 12, "S", 64), "f32")),
            _attention, _torch_attention, (("scale", 0.125),)),
    Subject("convolution 3x3", "ResNet-50, all four stages, channels last", "conv2d_nhwc",
            _rows("B C N", (1, 64, 56), (1, 128, 28), (1, 256, 14), (1, 512, 7), (1, 96, 27)),
            (("X", ("B", "N", "N", "C"), "f32"), ("F", (3, 3, "C", "C"), "f32")), _conv, _torch_conv, (("pad", 1),)),
    Subject("RMS norm", "Llama-2 7B, hidden states", "rmsnorm",
            _rows("S D", (1, 4096), (7, 4096), (64, 4096), (128, 4096), (512, 4096)),
            (("X", ("S", "D"), "f32"), ("g", ("D",), "f32")), _rmsnorm, _torch_rmsnorm),
    Subject("SwiGLU", "Llama-2 7B, inside the MLP", "silu_mul",
            _rows("S D", (1, 11008), (7, 11008), (33, 11008), (64, 11008), (256, 11008)),
            (("gate", ("S", "D"), "f32"), ("up", ("S", "D"), "f32")), _swiglu, _torch_swiglu),
    Subject("rotary embedding", "Llama-2 7B, 32 heads of 128", "rotary",
            _rows("S P", (1, 64), (31, 64), (64, 64), (128, 64), (333, 64)),
            (("X", (1, "S", 32, 128), "f32"), ("cosine", ("S", "P"), "f32"), ("sine", ("S", "P"), "f32")),
            _rotary, _torch_rotary),
    Subject("Jacobi stencil", "five points, marching in time", "jacobi2d",
            _rows("M N steps", (64, 64, 5), (101, 99, 20), (256, 256, 10), (500, 300, 8), (512, 512, 10)),
            (("X", ("M", "N"), "f32"),), _jacobi, None, (("steps", "steps"),)),
    Subject("LSTM over time", "a recurrence, as PyTorch defines it", "lstm",
            _rows("L B D H G", (1, 10, 64, 64, 256), (20, 16, 64, 64, 256), (33, 17, 100, 65, 260), (16, 32, 256, 256, 1024),
                  (40, 16, 128, 128, 512)),
            (("X", ("L", "B", "D"), "f32"), ("W", ("G", "D"), "f32"), ("U", ("G", "H"), "f32"), ("bias", ("G",), "f32"),
             ("h0", ("B", "H"), "f32"), ("c0", ("B", "H"), "f32")), _lstm, _torch_lstm),
    Subject("contraction abj-bka-kj", "coupled cluster, from the TCCG benchmark", "abj_bka_kj",
            _rows("I B J K", (24, 24, 24, 24), (50, 70, 24, 90), (96, 96, 24, 96), (101, 99, 23, 97), (192, 192, 24, 192)),
            (("A", ("I", "K", "B"), "f32"), ("M", ("J", "K"), "f32")),
            lambda A, M: np.einsum("akb,jk->jba", A, M, optimize=True),
            lambda A, M: _torch().einsum("akb,jk->jba", A, M), text=CONTRACTION),
    Subject("gather", "BERT-base, token embedding", "embedding",
            _rows("B S V", (1, 1, 30522), (1, 128, 30522), (8, 50, 30522), (4, 384, 30522), (8, 512, 30522)),
            (("ids", ("B", "S"), "i64 < V"), ("E", ("V", 768), "f32")), lambda ids, E: E[ids], _torch_embedding),
)
