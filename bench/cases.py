"""What is measured: an operator, its inputs, the same in PyTorch and in NumPy, and how much work it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import polyop
from polyop.operator import Operator

Array = Any
RNG = np.random.default_rng(0)


@dataclass(frozen=True, eq=False, slots=True)
class Case:
    """One line of a table.

    ours, torch, numpy   called with `inputs` as tensors or arrays; torch is given the module first
    flops                multiply-adds count twice, everything else is left out; 0 where memory is the limit
    """

    group: str
    label: str
    ours: Operator | Callable[..., Array]
    inputs: tuple[Array, ...]
    torch: Callable[..., Array] | None
    numpy: Callable[..., Array] | None
    flops: float = 0.0
    keywords: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-4


def f32(*shape: int) -> Array:
    return RNG.standard_normal(shape, np.float32)


def _op(text: str) -> Operator:
    return polyop.op(text)


SHAPES = {"nn": ("A: f32[M, K], B: f32[K, N]", "A[m, k] * B[k, n]"), "nt": ("A: f32[M, K], B: f32[N, K]", "A[m, k] * B[n, k]"),
          "tn": ("A: f32[K, M], B: f32[K, N]", "A[k, m] * B[k, n]"), "tt": ("A: f32[K, M], B: f32[N, K]", "A[k, m] * B[n, k]")}


def matmul() -> Iterator[Case]:
    ops = {kind: _op(f"op mm_{kind}({p}) -> (C: f32[M, N]) {{ C[m, n] += {e} }}") for kind, (p, e) in SHAPES.items()}
    for n in (64, 128, 192, 256, 384, 512, 640, 768, 1000, 1024, 1536, 2048):
        yield Case("matmul", f"nn {n}", ops["nn"], (f32(n, n), f32(n, n)), lambda t, a, b: a @ b, np.matmul, 2 * n**3)
    for kind in ("nt", "tn", "tt"):
        for n in (256, 512, 1024, 2048):
            yield Case("matmul", f"{kind} {n}", ops[kind], (f32(n, n), f32(n, n)),
                       lambda t, a, b, kind=kind: (a.T if kind[0] == "t" else a) @ (b.T if kind[1] == "t" else b),
                       lambda a, b, kind=kind: (a.T if kind[0] == "t" else a) @ (b.T if kind[1] == "t" else b), 2 * n**3)
    for m, n, k in ((64, 1024, 1024), (128, 3072, 768), (16, 1024, 1024), (16, 4096, 4096), (1, 4096, 4096)):
        yield Case("matmul", f"nn {m}x{n}x{k}", ops["nn"], (f32(m, k), f32(k, n)), lambda t, a, b: a @ b, np.matmul,
                   2 * m * n * k)
    head = "X: f32[M, K], W: f32[K, N], b: f32[N]"
    relu = _op(f"op linear_relu({head}) -> (Y: f32[M, N]) {{ z[m, n] += X[m, k] * W[k, n]\n Y[m, n] = relu(z[m, n] + b[n]) }}")
    gelu = _op(f"op linear_gelu({head}) -> (Y: f32[M, N]) {{ z[m, n] += X[m, k] * W[k, n]\n Y[m, n] = gelu(z[m, n] + b[n]) }}")
    for m, n, k in ((128, 768, 768), (512, 3072, 768), (512, 768, 3072)):
        args, flops = (f32(m, k), f32(k, n) / math.sqrt(k), f32(n)), 2 * m * n * k
        yield Case("matmul", f"linear+relu {m}x{n}x{k}", relu, args, lambda t, x, w, b: t.relu(t.addmm(b, x, w)),
                   lambda x, w, b: np.maximum(x @ w + b, 0), flops)
        yield Case("matmul", f"linear+gelu {m}x{n}x{k}", gelu, args,
                   lambda t, x, w, b: t.nn.functional.gelu(t.addmm(b, x, w)), None, flops)
    bmm = _op("op bmm(A: f32[B, M, K], X: f32[B, K, N]) -> (C: f32[B, M, N]) { C[b, m, n] += A[b, m, k] * X[b, k, n] }")
    for b, n in ((64, 32), (64, 64), (16, 128), (8, 256)):
        yield Case("matmul", f"bmm {b}x{n}", bmm, (f32(b, n, n), f32(b, n, n)), lambda t, a, x: t.bmm(a, x), np.matmul,
                   2 * b * n**3)


def _channels_last(stride: int, pad: int) -> Callable[..., Array]:
    """PyTorch's convolution of NHWC images; its filter is brought into its own layout once, as a model would keep it."""
    kept: list[Array] = []

    def run(t: Any, x: Array, f: Array) -> Array:
        if not kept:
            kept.append(f.permute(3, 2, 0, 1).contiguous(memory_format=t.channels_last))
        return t.nn.functional.conv2d(x.permute(0, 3, 1, 2), kept[0], stride=stride, padding=pad).permute(0, 2, 3, 1)
    return run


def conv() -> Iterator[Case]:
    nhwc, nchw = polyop.library("conv2d_nhwc"), polyop.library("conv2d")
    for c, k, h, r, s in ((64, 64, 56, 3, 1), (128, 128, 28, 3, 1), (256, 256, 14, 3, 1), (512, 512, 7, 3, 1),
                          (128, 128, 56, 3, 2), (64, 256, 56, 1, 1), (3, 64, 224, 7, 2)):
        pad = r // 2
        out = (h + 2 * pad - r) // s + 1
        flops, kw = 2 * out * out * k * c * r * r, {"stride": s, "pad": pad}
        x, f = f32(1, h, h, c), f32(r, r, c, k)
        yield Case("conv", f"nhwc {r}x{r} {c}->{k} {h}x{h} /{s}", nhwc, (x, f), _channels_last(s, pad), None, flops, kw)
        yield Case("conv", f"nchw {r}x{r} {c}->{k} {h}x{h} /{s}", nchw, (f32(1, c, h, h), f32(k, c, r, r)),
                   lambda t, x, f, s=s, p=pad: t.nn.functional.conv2d(x, f, stride=s, padding=p), None, flops, kw)


def contractions() -> Iterator[Case]:
    """From the TCCG benchmark, in row-major order."""
    for equation, sizes in (
        ("akb,jk->jba", dict(a=312, b=312, j=24, k=296)), ("akbc,jk->cjba", dict(a=72, b=72, c=72, j=24, k=72)),
        ("fbea,ecfd->dcba", dict(zip("abcdef", [72] * 4 + [16, 16], strict=True))),
        ("eafb,fdec->dcba", dict(zip("abcdef", [72] * 4 + [16, 16], strict=True))),
        ("kaj,bk->jba", dict(a=192, b=192, j=192, k=64)), ("bhid,bhjd->bhij", dict(b=4, h=12, i=128, j=128, d=64)),
        ("bhij,bhjd->bhid", dict(b=4, h=12, i=128, j=128, d=64)), ("ijk,jl,km->ilm", dict(i=32, j=40, k=48, l=24, m=24)),
    ):
        terms, out = equation.split("->")
        inputs = tuple(f32(*(sizes[i] for i in t)) for t in terms.split(","))
        flops = 2.0 * math.prod(sizes[i] for i in set(equation) - set(",->")) if terms.count(",") == 1 else 0.0
        yield Case("contractions", f"{equation} {'x'.join(str(sizes[i]) for i in out)}",
                   lambda *a, e=equation: polyop.einsum(e, *a), inputs,
                   lambda t, *a, e=equation: t.einsum(e, *a), lambda *a, e=equation: np.einsum(e, *a, optimize=True), flops)


ROWS = ((128, 768), (1024, 1024), (4096, 768), (512, 4096), (16384, 256), (8, 50257))


def rows() -> Iterator[Case]:
    softmax, layernorm, rmsnorm = (polyop.library(n) for n in ("softmax", "layernorm", "rmsnorm"))
    for r, c in ROWS:
        x, g, b = f32(r, c), f32(c), f32(c)
        yield Case("rows", f"softmax {r}x{c}", softmax, (x,), lambda t, x: t.softmax(x, -1), None)
        yield Case("rows", f"layernorm {r}x{c}", layernorm, (x, g, b),
                   lambda t, x, g, b: t.nn.functional.layer_norm(x, x.shape[-1:], g, b), None)
        yield Case("rows", f"rmsnorm {r}x{c}", rmsnorm, (x, g),
                   lambda t, x, g: t.nn.functional.rms_norm(x, x.shape[-1:], g, 1e-6), None)


def elementwise() -> Iterator[Case]:
    chain = _op("op chain(X: f32[N], Y: f32[N]) -> (Z: f32[N]) { Z[i] = relu(X[i] * 2 + Y[i]) * X[i] - Y[i] }")
    names = ("gelu", "silu_mul", "sigmoid", "tanh")
    for n in (1 << 12, 1 << 16, 1 << 20, 1 << 24):
        x, y = f32(n), f32(n)
        yield Case("elementwise", f"relu(2x+y)*x-y {n}", chain, (x, y), lambda t, x, y: t.relu(x * 2 + y) * x - y,
                   lambda x, y: np.maximum(x * 2 + y, 0) * x - y)
        for name in names:
            two = name == "silu_mul"
            yield Case("elementwise", f"{name} {n}", polyop.library(name), (x, y) if two else (x,),
                       (lambda t, x, y: t.nn.functional.silu(x) * y) if two else
                       (lambda t, x, name=name: getattr(t.nn.functional if name == "gelu" else t, name)(x)), None)


def reductions() -> Iterator[Case]:
    for a, n, b in ((512, 512, 64), (64, 4096, 32), (2048, 2048, 1)):
        x = f32(a, n, b)
        flat = x.reshape(a, n * b)
        for name, dim, y in (("sum_rows", -1, flat), ("sum_columns", 0, flat), ("sum_middle", 1, x), ("max_rows", -1, flat),
                             ("max_columns", 0, flat), ("argmax_rows", -1, flat)):
            fn = name.split("_")[0]
            yield Case("reductions", f"{name} {'x'.join(map(str, y.shape))}", polyop.library(name), (y,),
                       lambda t, y, fn=fn, dim=dim: {"sum": t.sum, "max": t.amax, "argmax": t.argmax}[fn](y, dim),
                       lambda y, fn=fn, dim=dim: getattr(np, fn)(y, dim), tolerance=1e-3)


def permutes() -> Iterator[Case]:
    for text, order, shape in (("ij->ji", (1, 0), (4096, 4096)), ("ij->ji", (1, 0), (1000, 3001)),
                               ("bshd->bhsd", (0, 2, 1, 3), (8, 512, 12, 64)), ("ijk->kji", (2, 1, 0), (256, 256, 256)),
                               ("ijk->ikj", (0, 2, 1), (64, 512, 512)), ("nchw->nhwc", (0, 2, 3, 1), (16, 64, 56, 56)),
                               ("nhwc->nchw", (0, 3, 1, 2), (16, 56, 56, 64))):
        source, target = text.split("->")
        extents = {i: f"N{i}" for i in source}
        before, after = (", ".join(extents[i] for i in x) for x in (source, target))
        op = _op(f"op permute(X: f32[{before}]) -> (Y: f32[{after}]) {{ Y[{', '.join(target)}] = X[{', '.join(source)}] }}")
        yield Case("permutes", f"{text} {'x'.join(map(str, shape))}", op, (f32(*shape),),
                   lambda t, x, o=order: x.permute(o).contiguous(), lambda x, o=order: np.ascontiguousarray(x.transpose(o)))


def stencils() -> Iterator[Case]:
    laplace, jacobi = polyop.library("laplacian2d"), polyop.library("jacobi2d")

    def jacobi_torch(t: Any, x: Array, steps: int = 10) -> Array:
        for _ in range(steps):
            y = x.clone()
            y[1:-1, 1:-1] = (x[1:-1, 1:-1] + x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]) / 5
            x = y
        return x

    for n in (256, 1024, 4096):
        x = f32(n, n)
        yield Case("stencils", f"laplacian {n}", laplace, (x,), lambda t, x: t.nn.functional.conv2d(
            x[None, None], t.tensor([[[[0.0, 1, 0], [1, -4, 1], [0, 1, 0]]]]), padding=1)[0, 0], None)
        if n <= 1024:
            yield Case("stencils", f"jacobi, 10 steps {n}", jacobi, (x,), jacobi_torch, None, keywords={"steps": 10})


def calls() -> Iterator[Case]:
    add = _op("op add(X: f32[N], Y: f32[N]) -> (Z: f32[N]) { Z[i] = X[i] + Y[i] }")
    for n in (8, 64, 1024):
        x, y = f32(n), f32(n)
        yield Case("calls", f"add {n}", add, (x, y), lambda t, x, y: x + y, np.add)
    mm = _op("op mm(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }")
    for n in (4, 16, 32):
        yield Case("calls", f"matmul {n}", mm, (f32(n, n), f32(n, n)), lambda t, a, b: a @ b, np.matmul, 2 * n**3)


GROUPS: dict[str, Callable[[], Iterator[Case]]] = {
    f.__name__: f for f in (matmul, conv, contractions, rows, elementwise, reductions, permutes, stencils, calls)}
