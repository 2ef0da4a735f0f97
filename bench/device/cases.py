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
    return out + _others(v, n, k)


def _others(v: int, n: int, k: int) -> list[Case]:
    """What the cases above leave out: other layouts, fusions and families."""
    half, single = "bfloat16", "float32"
    square = ((v, v), half)
    out = [_plain("gemm", op, f"{v}^3", (square, square), (square,), peer, flops=2.0 * v**3, matrix=True)
           for op, peer in (("matmul_nt", lambda torch, a, b: a @ b.T), ("matmul_tn", lambda torch, a, b: a.T @ b))]
    b, c, w = 32 // k, 256 // k, 28 // (k // 4 or 1)
    x, f = ((b, w, w, c), half), ((3, 3, c, c), half)
    out += [_plain("conv", "conv2d_nhwc", f"{b}x{w}x{w}x{c}, 3x3", (x, f), (x,), _conv_nhwc, {"pad": 1},
                   flops=18.0 * b * w * w * c * c, matrix=True)]
    x, f = ((b, c, w, w), half), ((c, c, 3, 3), half)
    out += [_plain("conv", "conv2d", f"{b}x{c}x{w}x{w}, 3x3 in steps of 2", (x, f), (((b, c, w // 2, w // 2), half),),
                   lambda torch, x, f: torch.nn.functional.conv2d(x, f, stride=2, padding=1), {"pad": 1, "stride": 2},
                   flops=4.5 * b * w * w * c * c, matrix=True)]
    x, f = ((b, c, 2 * w, 2 * w), single), ((c, 3, 3), single)
    out += [_plain("conv", "conv2d_depthwise", f"{b}x{c}x{2 * w}x{2 * w}, 3x3", (x, f), (x,),
                   lambda torch, x, f: torch.nn.functional.conv2d(x, f[:, None], padding=1, groups=x.shape[1]), {"pad": 1},
                   flops=72.0 * b * w * w * c)]
    out += [_plain("pooling", op, f"{b}x{c}x{2 * w}x{2 * w}", (x,), (((b, c, w, w), single),), peer, also, flops=1.0)
            for op, peer, also in (("max_pool2d", lambda torch, x: torch.nn.functional.max_pool2d(x, 3, 2, 1),
                                    {"window": 3, "stride": 2, "pad": 1}),
                                   ("avg_pool2d", lambda torch, x: torch.nn.functional.avg_pool2d(x, 2, 2), {}))]
    g = ((c,), single)
    out += [_plain("norms", "groupnorm", f"{b}x{c}x{2 * w}x{2 * w}", (x, g, g), (x,), _groupnorm, {"channels": 8})]
    h, s, d = 32 // k, 2048 // k // k, 128
    q, kv = ((2, h, s, d), half), ((2, h // 4, s, d), half)
    out += [_plain("attention", "attention_gqa", f"2x{h}/4x{s}x{d}", (q, kv, kv), (q,), _grouped, {"scale": d**-0.5, "group": 4},
                   flops=8.0 * h * s * s * d, matrix=True)]
    rows = ((v, v), single)
    for op, peer, left, t in (
            ("log_softmax", lambda torch, x: torch.log_softmax(x, -1), rows, single),
            ("logsumexp", lambda torch, x: torch.logsumexp(x, -1), ((v,), single), single),
            ("var_rows", lambda torch, x: torch.var(x, -1, correction=0), ((v,), single), single),
            ("argmax_rows", lambda torch, x: x.argmax(-1), ((v,), single), single),
            ("argmax_columns", lambda torch, x: x.argmax(0), ((v,), single), single),
            ("max_columns", lambda torch, x: x.amax(0), ((v,), half), half),
            ("sum_all", lambda torch, x: x.sum(), ((1,), single), single)):
        out += [_plain("reductions", op, f"{v}x{v}", (((v, v), t),), (left,), peer)]
    x, y = ((64, v, v // 64), single), ((64, v // 64), single)
    out += [_plain("reductions", "sum_middle", f"64x{v}x{v // 64}", (x,), (y,), lambda torch, x: x.sum(1))]
    x = ((8, v // 4, 64, 128), half)
    out += [_plain("transposes", "swap_heads", f"8x{v // 4}x64x128", (x,), (x,), lambda torch, x: x.transpose(1, 2).contiguous())]
    x = ((b, c, 2 * w, 2 * w), half)
    out += [_plain("transposes", "nchw_to_nhwc", f"{b}x{c}x{2 * w}x{2 * w}", (x,), (x,),
                   lambda torch, x: x.permute(0, 2, 3, 1).contiguous())]
    out += [_plain("elementwise", "concat", f"{v}x{v}", (rows, rows), (((v, 2 * v), single),),
                   lambda torch, x, y: torch.cat((x, y), -1)),
            _plain("elementwise", "silu_mul", f"{n}x{v}", (((n, v), half),) * 2, (((n, v), half),),
                   lambda torch, x, y: torch.nn.functional.silu(x) * y),
            _plain("elementwise", "laplacian2d", f"{n}x{n}", (((n, n), single),), (((n, n), single),), _laplacian)]
    x, w1, w2 = ((v // 2, v // 2), half), ((v // 2, v), half), ((v, v // 2), half)
    out += [_plain("fused", "swiglu", f"{v // 2}x{v // 2}x{v}", (x, w1, w1, w2), (x,), _swiglu, flops=1.5 * v**3, matrix=True)]
    x, y = ((v, 128), single), ((v, v), single)
    out += [_plain("fused", "distance_l2_gemm", f"{v}x{v}x128", (x, x), (y,), lambda torch, x, y: torch.cdist(x, y),
                   flops=256.0 * v * v)]
    return out


def _plain(group: str, op: str, name: str, inputs: tuple[Array, ...], outputs: tuple[Array, ...], peer: Callable[..., Any],
           also: Mapping[str, Any] | None = None, flops: float = 0.0, matrix: bool = False) -> Case:
    """A case that torch.compile is not asked for, if it is one of matrix units."""
    bytes_ = _bytes(*inputs, *outputs)
    return Case(group, f"{op} {name} {inputs[0][1]}", op, inputs, peer, flops, bytes_, also or {}, matrix, not matrix)


def _conv_nhwc(torch: Any, x: Any, f: Any) -> Any:
    """In the memory format that cuDNN takes as it lies; the filters' order is changed."""
    return torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), f.permute(3, 2, 0, 1), padding=1).permute(0, 2, 3, 1)


def _groupnorm(torch: Any, x: Any, g: Any, b: Any) -> Any:
    return torch.nn.functional.group_norm(x, x.shape[1] // 8, g, b, 1e-5)


def _grouped(torch: Any, q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=q.shape[-1]**-0.5, enable_gqa=True)


def _laplacian(torch: Any, x: Any) -> Any:
    y = torch.nn.functional.pad(x, (1, 1, 1, 1))
    return y[:-2, 1:-1] + y[2:, 1:-1] + y[1:-1, :-2] + y[1:-1, 2:] - 4 * x


def _swiglu(torch: Any, x: Any, w1: Any, w3: Any, w2: Any) -> Any:
    return (torch.nn.functional.silu(x @ w1) * (x @ w3)) @ w2
