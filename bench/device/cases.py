"""What is measured on a device: an operator, its arrays, what torch does, and how much of each resource it needs at least."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod, sqrt
from typing import Any

Array = tuple[tuple[int, ...], str]
"""Shape and dtype, as torch calls it."""


@dataclass(frozen=True, eq=False)
class Case:
    """One operator at one size.

    op       of the library; inputs: (shape, dtype) of each tensor; also: its other arguments
    peer     what torch does: of torch and the tensors; others: other ways in which it does that on some devices
    flops    operations, and `bytes_` read and written at least
    matrix   whether the operations are ones of matrix units
    fused    whether torch.compile is asked too
    target   what the kernel is made for, where that is not the device's own row: it is measured where that runs, and nowhere else
    """

    group: str
    name: str
    op: str
    inputs: tuple[Array, ...]
    peer: Callable[..., Any]
    flops: float
    bytes_: float
    also: Mapping[str, Any] = field(default_factory=dict)
    matrix: bool = False
    fused: bool = True
    others: tuple[Callable[..., Any], ...] = ()
    target: str = ""


SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}


def _bytes(*arrays: Array) -> float:
    return float(sum(prod(shape) * SIZES[t] for shape, t in arrays))


def _matmul(m: int, n: int, k: int, t: str, group: str = "gemm") -> Case:
    a, b, c = ((m, k), t), ((k, n), t), ((m, n), t)
    return Case(group, f"{m}x{n}x{k} {t}", "matmul", (a, b), lambda torch, a, b: a @ b, 2.0 * m * n * k, _bytes(a, b, c),
                matrix=t != "float32", fused=False)


def _batched(b: int, m: int, n: int, k: int, t: str) -> Case:
    x, y, z = ((b, m, k), t), ((b, k, n), t), ((b, m, n), t)
    return Case("batched", f"{b} x {m}x{n}x{k} {t}", "bmm", (x, y), lambda torch, x, y: x @ y, 2.0 * b * m * n * k,
                _bytes(x, y, z), matrix=t != "float32", fused=False)


def _attention(b: int, h: int, s: int, d: int, t: str, causal: bool) -> Case:
    q, scale = ((b, h, s, d), t), 1 / sqrt(d)
    op, flops = ("attention_causal", 2.0) if causal else ("attention", 4.0)

    def peer(torch: Any, q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)

    return Case("attention", f"{b}x{h}x{s}x{d} {t}{' causal' if causal else ''}", op, (q, q, q), peer, flops * b * h * s * s * d,
                _bytes(q, q, q, q), {"scale": scale}, True, False, _of_libraries(causal, scale))


def _of_libraries(causal: bool, scale: float) -> tuple[Callable[..., Any], ...]:
    """FlashAttention and cuDNN's attention; which of them torch takes by itself depends on its version, and may be the slower."""
    def flash(torch: Any, q: Any, k: Any, v: Any) -> Any:
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)[0]

    def cudnn(torch: Any, q: Any, k: Any, v: Any) -> Any:
        return torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, False, 0.0, causal, scale=scale)[0]

    return flash, cudnn


def _decode(b: int, h: int, n: int, d: int, t: str) -> Case:
    q, k, scale = ((b, h, d), t), ((b, h, n, d), t), d**-0.5

    def peer(torch: Any, q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q[:, :, None], k, v, scale=scale)[:, :, 0]

    return Case("attention", f"decode {b}x{h}x{n}x{d} {t}", "attention_decode", (q, k, k), peer, 4.0 * b * h * n * d,
                _bytes(q, k, k, q), {"scale": scale, "used": n}, True, False)


def _conv(b: int, c: int, w: int, k: int, r: int, t: str) -> Case:
    x, f, y = ((b, c, w, w), t), ((k, c, r, r), t), ((b, k, w, w), t)
    pad = r // 2
    return Case("conv", f"{b}x{c}x{w}x{w} -> {k}, {r}x{r} {t}", "conv2d", (x, f),
                lambda torch, x, f: torch.nn.functional.conv2d(x, f, padding=pad), 2.0 * b * k * w * w * c * r * r,
                _bytes(x, f, y), {"pad": pad}, t != "float32", False)


def _rows(group: str, op: str, m: int, n: int, t: str, peer: Callable[..., Any], also: tuple[Array, ...] = (),
          flops: float = 8.0, reads: int = 1, **more: Any) -> Case:
    x = ((m, n), t)
    return Case(group, f"{op} {m}x{n} {t}", op, (*(x,) * reads, *also), peer, flops * m * n, _bytes(*(x,) * (reads + 1), *also),
                more)


def _sums(op: str, m: int, n: int, t: str, peer: Callable[..., Any]) -> Case:
    left = m if op.endswith("rows") else n
    return Case("reductions", f"{op} {m}x{n} {t}", op, (((m, n), t),), peer, float(m * n), _bytes(((m, n), t), ((left,), t)))


def _functional(name: str) -> Callable[..., Any]:
    return lambda torch, x: getattr(torch.nn.functional, name)(x)


def _layernorm(torch: Any, x: Any, g: Any, b: Any) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[1:], g, b, 1e-5)


def _rmsnorm(torch: Any, x: Any, g: Any) -> Any:
    return torch.nn.functional.rms_norm(x, x.shape[1:], g, 1e-6)


def _cumsum(torch: Any, x: Any) -> Any:
    return torch.cumsum(x, -1)


def _softmax(torch: Any, x: Any) -> Any:
    return torch.softmax(x, -1)


def cases(small: bool = False) -> list[Case]:
    """All of them; `small`: of sizes that any machine does at once."""
    k = 8 if small else 1
    n, v = 8192 // k // k, 4096 // k
    square = [(4096 // k // k, "float32"), (8192 // k // k, "bfloat16"), (2048 // k, "bfloat16")]
    out = [_matmul(s, s, s, t) for s, t in square]
    if not small:  # what units of Ampere do on a Hopper, whose own ones are asked above
        out.append(replace(out[1], name=f"{out[1].name} mma.sync", target="cuda:sm_90"))
    out += [_matmul(1, v, v, "bfloat16", "decode"), _matmul(8, 4 * v, v, "bfloat16", "decode")]
    out += [_batched(64 // k, 512 // k, 512 // k, 64, t) for t in ("float32", "bfloat16")]
    out += [_attention(4 // (k // 4 or 1), 16 // k, 2048 // k // k, 64, "bfloat16", c) for c in (False, True)]
    out += [_attention(1, 16 // k, 4096 // k // k, 128, "bfloat16", c) for c in (False, True)]
    out += [_decode(b, 32 // k, v, 128, "bfloat16") for b in (1, 16)]
    out += [_conv(32 // k, 64 // k, 56 // k, 64 // k, 3, t) for t in ("float32", "bfloat16")]
    out += [_conv(32 // k, 256 // k, 14, 256 // k, 1, "bfloat16")]
    g = ((v,), "float32")
    out += [_rows("norms", "layernorm", v, v, "float32", _layernorm, (g, g)),
            _rows("norms", "rmsnorm", v, v, "float32", _rmsnorm, (g,)),
            _rows("softmax", "softmax", v, v, "float32", _softmax),
            _rows("softmax", "softmax", 256 // k, 65536 // k, "float32", _softmax),
            _rows("softmax", "softmax", 4, n * v // 8, "float32", _softmax),
            _rows("softmax", "softmax", v, v, "bfloat16", _softmax),
            _rows("elementwise", "add", n, n, "float32", lambda torch, x, y: x + y, reads=2, flops=1),
            _rows("elementwise", "gelu", n, n, "bfloat16", _functional("gelu")),
            _rows("elementwise", "silu", v, v, "float32", _functional("silu"))]
    out += [_sums("sum_rows", v, n, "float32", lambda torch, x: x.sum(-1)),
            _sums("max_rows", v, n, "bfloat16", lambda torch, x: x.amax(-1)),
            _sums("sum_columns", n, v, "float32", lambda torch, x: x.sum(0))]
    out += [Case("transposes", f"{n}x{n} float32", "transpose", (((n, n), "float32"),), lambda torch, x: x.T.contiguous(), 0.0,
                 8.0 * n * n)]
    out += [_rows("scans", op, r, c, "float32", peer, flops=1)
            for op, r, c, peer in (("cumsum", v, v, _cumsum), ("cumsum", 1, v * v, _cumsum),
                                   ("cumsum_columns", v, v, lambda torch, x: torch.cumsum(x, 0)))]
    x, w, b = ((v, v), "bfloat16"), ((v, v), "bfloat16"), ((v,), "bfloat16")
    out += [Case("fused", f"linear_gelu {v}^3 bfloat16", "linear_gelu", (x, w, b),
                 lambda torch, x, w, b: torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b)), 2.0 * v**3,
                 _bytes(x, x, w, b), matrix=True),
            Case("fused", f"add_layernorm {v}x{v} float32", "add_layernorm", (((v, v), "float32"),) * 2 + (g, g),
                 lambda torch, x, r, g, b: (_layernorm(torch, x + r, g, b), x + r), 10.0 * v * v, 16.0 * v * v)]
    return out
