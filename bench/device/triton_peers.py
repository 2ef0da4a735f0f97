"""Kernels written in Triton, as one writes them by hand from its documentation: a peer of what polyop generates.

    ways("matmul", (a, b))[k](a, b)      the k-th way to run it: another tile, or another number of warps

Which way is the fastest is measured, as Triton's own tuning would. Tensors are contiguous, but for the views of a product.
Nothing but this file needs Triton, and whoever imports it has it.

Source  Triton's language reference; Tillet, Kung and Cox, "Triton: an intermediate language and compiler for tiled neural
        network computations", 2019; Dao, "FlashAttention-2", 2023; Milakov and Gimelshein, "Online normalizer calculation for
        softmax", 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import triton
import triton.language as tl

_WHOLE = 16384  # elements of a row that a program keeps in registers


@triton.jit
def _gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


# --- products ----------------------------------------------------------------------------------------------------------------


@triton.jit
def _product(a, b, c, bias, M, N, K, a_z, a_m, a_k, b_z, b_k, b_n, c_z, c_m, BM: tl.constexpr, BN: tl.constexpr,
             BK: tl.constexpr, GROUP: tl.constexpr, PRECISION: tl.constexpr, IS_GELU: tl.constexpr):
    """c[z, m, n] = sum of a[z, m, k] b[z, k, n]; blocks go through GROUP rows of tiles before they go on to the next columns."""
    item, z = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tiles_n = tl.cdiv(N, BN)
    first = item // (GROUP * tiles_n) * GROUP
    rows = tl.minimum(tl.cdiv(M, BM) - first, GROUP)
    m = (first + item % (GROUP * tiles_n) % rows) * BM + tl.arange(0, BM)
    n = item % (GROUP * tiles_n) // rows * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a_at = a + z * a_z + (m % M)[:, None] * a_m + k[None, :] * a_k  # rows beyond the last are computed and not stored
    b_at = b + z * b_z + k[:, None] * b_k + (n % N)[None, :] * b_n
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for at in range(0, K, BK):
        x = tl.load(a_at, mask=k[None, :] < K - at, other=0.0)
        y = tl.load(b_at, mask=k[:, None] < K - at, other=0.0)
        total = tl.dot(x, y, total, input_precision=PRECISION)
        a_at += BK * a_k
        b_at += BK * b_k
    if IS_GELU:
        total = _gelu(total + tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :])
    inside = (m[:, None] < M) & (n[None, :] < N)
    tl.store(c + z * c_z + m[:, None] * c_m + n[None, :], total.to(c.dtype.element_ty), mask=inside)


def _run_product(tile: tuple[int, int, int], warps: int, stages: int, a: Any, b: Any, bias: Any = None) -> Any:
    """`a` and `b` of two dimensions, or of three, the first of which counts products."""
    m, n, k = a.shape[-2], b.shape[-1], a.shape[-1]
    c, many = a.new_empty((*a.shape[:-1], n)), a.shape[0] if a.ndim == 3 else 1

    def strides(x: Any) -> tuple[int, ...]:
        return tuple(x.stride()) if x.ndim == 3 else (0, *x.stride())

    bm, bn, bk = tile
    _product[(triton.cdiv(m, bm) * triton.cdiv(n, bn), many)](
        a, b, c, a if bias is None else bias, m, n, k, *strides(a), *strides(b), *strides(c)[:2], BM=bm, BN=bn, BK=bk, GROUP=8,
        PRECISION="ieee", IS_GELU=bias is not None, num_warps=warps, num_stages=stages)
    return c


def _run_linear_gelu(tile: tuple[int, int, int], warps: int, stages: int, x: Any, w: Any, b: Any) -> Any:
    return _run_product(tile, warps, stages, x, w.t(), b)


# --- attention ---------------------------------------------------------------------------------------------------------------


@triton.jit
def _turns(q, k, v, top, total, out, m, begin, end, T, scale, D: tl.constexpr, BN: tl.constexpr, IS_MASKED: tl.constexpr,
           IS_CAUSAL: tl.constexpr):
    """The keys from `begin` on to `end`: the greatest score of each row so far, the sum of exp2 beside it, and the result."""
    d = tl.arange(0, D)
    for at in range(begin, end, BN):
        n = at + tl.arange(0, BN)
        if IS_MASKED:
            keys = tl.load(k + n[None, :] * D + d[:, None], mask=n[None, :] < T, other=0.0)
            values = tl.load(v + n[:, None] * D + d[None, :], mask=n[:, None] < T, other=0.0)
        else:
            keys = tl.load(k + n[None, :] * D + d[:, None])
            values = tl.load(v + n[:, None] * D + d[None, :])
        score = tl.dot(q, keys, input_precision="ieee") * scale
        if IS_MASKED:
            seen = n[None, :] < T
            if IS_CAUSAL:
                seen = seen & (n[None, :] <= m[:, None])
            score = tl.where(seen, score, float("-inf"))
        new = tl.maximum(top, tl.max(score, 1))
        each, repair = tl.exp2(score - new[:, None]), tl.exp2(top - new)
        total = total * repair + tl.sum(each, 1)
        out = tl.dot(each.to(values.dtype), values, out * repair[:, None], input_precision="ieee")
        top = new
    return top, total, out


@triton.jit
def _attention(q, k, v, o, S, T, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, IS_CAUSAL: tl.constexpr):
    """o[z, m] = softmax over n of (scale q[z, m] . k[z, n]) times v[z, n]; with exp2, so `scale` holds log2(e)."""
    i, z = tl.program_id(0), tl.program_id(1).to(tl.int64)
    m, d = i * BM + tl.arange(0, BM), tl.arange(0, D)
    at = z * S * D + m[:, None] * D + d[None, :]
    rows = tl.load(q + at, mask=m[:, None] < S, other=0.0)
    k += z * T * D
    v += z * T * D
    last = tl.minimum(T, (i + 1) * BM) if IS_CAUSAL else T
    whole = (tl.minimum(T, i * BM) if IS_CAUSAL else T) // BN * BN  # of these keys all rows see all
    top, total = tl.full((BM,), float("-inf"), dtype=tl.float32), tl.zeros((BM,), dtype=tl.float32)
    out = tl.zeros((BM, D), dtype=tl.float32)
    top, total, out = _turns(rows, k, v, top, total, out, m, 0, whole, T, scale, D, BN, False, IS_CAUSAL)
    top, total, out = _turns(rows, k, v, top, total, out, m, whole, last, T, scale, D, BN, True, IS_CAUSAL)
    tl.store(o + at, (out / total[:, None]).to(o.dtype.element_ty), mask=m[:, None] < S)


def _run_attention(tile: tuple[int, int], warps: int, stages: int, is_causal: bool, q: Any, k: Any, v: Any, scale: float) -> Any:
    (b, h, s, d), (bm, bn), o = q.shape, tile, q.new_empty(q.shape)
    _attention[(triton.cdiv(s, bm), b * h)](q, k, v, o, s, k.shape[2], scale * 1.4426950408889634, D=d, BM=bm, BN=bn,
                                            IS_CAUSAL=is_causal, num_warps=warps, num_stages=stages)
    return o


# --- rows --------------------------------------------------------------------------------------------------------------------


@triton.jit
def _softmax(x, y, N, B: tl.constexpr):
    """One row in registers."""
    at, n = tl.program_id(0).to(tl.int64) * N, tl.arange(0, B)
    row = tl.load(x + at + n, mask=n < N, other=float("-inf")).to(tl.float32)
    each = tl.exp(row - tl.max(row, 0))
    tl.store(y + at + n, (each / tl.sum(each, 0)).to(y.dtype.element_ty), mask=n < N)


@triton.jit
def _long_softmax(x, y, N, B: tl.constexpr):
    """One row that is read twice: each lane has its own greatest number and sum, which are joined at the end."""
    at, lane = tl.program_id(0).to(tl.int64) * N, tl.arange(0, B)
    top, total = tl.full((B,), -3.0e38, dtype=tl.float32), tl.zeros((B,), dtype=tl.float32)
    for begin in range(0, N, B):
        n = begin + lane
        row = tl.load(x + at + n, mask=n < N, other=float("-inf")).to(tl.float32)
        new = tl.maximum(top, row)
        total = total * tl.exp(top - new) + tl.exp(row - new)
        top = new
    most = tl.max(top, 0)
    whole = tl.sum(total * tl.exp(top - most), 0)
    for begin in range(0, N, B):
        n = begin + lane
        row = tl.load(x + at + n, mask=n < N, other=float("-inf")).to(tl.float32)
        tl.store(y + at + n, (tl.exp(row - most) / whole).to(y.dtype.element_ty), mask=n < N)


def _run_softmax(warps: int, x: Any) -> Any:
    y, (m, n) = x.new_empty(x.shape), x.shape
    if n <= _WHOLE:
        _softmax[(m,)](x, y, n, B=triton.next_power_of_2(n), num_warps=warps)
    else:
        _long_softmax[(m,)](x, y, n, B=1024 * warps, num_warps=warps)
    return y


@triton.jit
def _norm(x, r, g, b, y, s, N, eps, B: tl.constexpr, IS_RMS: tl.constexpr, ADDS: tl.constexpr):
    """y = (x - mean) / deviation * g + b for one row, or x / sqrt(mean of squares) * g; x + r is stored and taken for x."""
    at, n = tl.program_id(0).to(tl.int64) * N, tl.arange(0, B)
    row = tl.load(x + at + n, mask=n < N, other=0.0).to(tl.float32)
    if ADDS:
        row += tl.load(r + at + n, mask=n < N, other=0.0).to(tl.float32)
        tl.store(s + at + n, row.to(s.dtype.element_ty), mask=n < N)
    scale = tl.load(g + n, mask=n < N, other=0.0).to(tl.float32)
    if IS_RMS:
        out = row * tl.rsqrt(tl.sum(row * row, 0) / N + eps) * scale
    else:
        away = tl.where(n < N, row - tl.sum(row, 0) / N, 0.0)
        out = away * tl.rsqrt(tl.sum(away * away, 0) / N + eps) * scale + tl.load(b + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(y + at + n, out.to(y.dtype.element_ty), mask=n < N)


def _run_norm(warps: int, kind: str, *given: Any) -> Any:
    x, r, g, b = {"layernorm": lambda x, g, b: (x, x, g, b), "rmsnorm": lambda x, g: (x, x, g, g),
                  "add_layernorm": lambda x, r, g, b: (x, r, g, b)}[kind](*given)
    y, adds = x.new_empty(x.shape), kind == "add_layernorm"
    s = x.new_empty(x.shape) if adds else y
    _norm[(x.shape[0],)](x, r, g, b, y, s, x.shape[1], 1e-6 if kind == "rmsnorm" else 1e-5, B=triton.next_power_of_2(x.shape[1]),
                         IS_RMS=kind == "rmsnorm", ADDS=adds, num_warps=warps)
    return (y, s) if adds else y


# --- elements, sums, transposes ----------------------------------------------------------------------------------------------


@triton.jit
def _elements(x, other, y, N, OP: tl.constexpr, B: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    a = tl.load(x + n, mask=n < N).to(tl.float32)
    if OP == "add":
        a += tl.load(other + n, mask=n < N).to(tl.float32)
    elif OP == "gelu":
        a = _gelu(a)
    else:
        a = a / (1.0 + tl.exp(-a))
    tl.store(y + n, a.to(y.dtype.element_ty), mask=n < N)


def _run_elements(block: int, op: str, x: Any, other: Any = None) -> Any:
    y = x.new_empty(x.shape)
    _elements[(triton.cdiv(x.numel(), block),)](x, x if other is None else other, y, x.numel(), OP=op, B=block, num_warps=4)
    return y


@triton.jit
def _fold_rows(x, y, N, B: tl.constexpr, IS_MAX: tl.constexpr):
    at, lane = tl.program_id(0).to(tl.int64) * N, tl.arange(0, B)
    start = float("-inf") if IS_MAX else 0.0
    found = tl.full((B,), start, dtype=tl.float32)
    for begin in range(0, N, B):
        n = begin + lane
        row = tl.load(x + at + n, mask=n < N, other=start).to(tl.float32)
        found = tl.maximum(found, row) if IS_MAX else found + row
    out = tl.max(found, 0) if IS_MAX else tl.sum(found, 0)
    tl.store(y + tl.program_id(0), out.to(y.dtype.element_ty))


def _run_fold_rows(block: int, is_max: bool, x: Any) -> Any:
    y = x.new_empty(x.shape[:1])
    _fold_rows[x.shape[:1]](x, y, x.shape[1], B=block, IS_MAX=is_max, num_warps=4)
    return y


@triton.jit
def _sum_columns(x, y, M, N, SHARE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Of SHARE rows, added to the result in memory, which starts with zeros."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    found = tl.zeros((BN,), dtype=tl.float32)
    for begin in range(0, SHARE, BM):
        m = (tl.program_id(1) * SHARE + begin + tl.arange(0, BM)).to(tl.int64)
        found += tl.sum(tl.load(x + m[:, None] * N + n[None, :], mask=(m[:, None] < M) & (n[None, :] < N), other=0.0), 0)
    tl.atomic_add(y + n, found, mask=n < N)


def _run_sum_columns(share: int, x: Any) -> Any:
    y, (m, n) = x.new_zeros(x.shape[1:]), x.shape
    _sum_columns[(triton.cdiv(n, 128), triton.cdiv(m, share))](x, y, m, n, SHARE=share, BM=32, BN=128, num_warps=4)
    return y


@triton.jit
def _transpose(x, y, M, N, B: tl.constexpr):
    m, n = tl.program_id(1) * B + tl.arange(0, B), tl.program_id(0) * B + tl.arange(0, B)
    tile = tl.load(x + m.to(tl.int64)[:, None] * N + n[None, :], mask=(m[:, None] < M) & (n[None, :] < N))
    tl.store(y + n.to(tl.int64)[:, None] * M + m[None, :], tl.trans(tile), mask=(n[:, None] < N) & (m[None, :] < M))


def _run_transpose(block: int, x: Any) -> Any:
    y, (m, n) = x.new_empty(x.shape[::-1]), x.shape
    _transpose[(triton.cdiv(n, block), triton.cdiv(m, block))](x, y, m, n, B=block, num_warps=4)
    return y


# --- what there is -----------------------------------------------------------------------------------------------------------

_TILES = (((128, 128, 64), 4, 4), ((128, 256, 64), 8, 3), ((64, 64, 32), 4, 4))  # rows, columns and depth; warps; stages
_FLAT = (((16, 64, 128), 4, 4), ((16, 128, 64), 4, 4))
_EXACT = (((64, 64, 32), 4, 3), ((64, 64, 16), 8, 3))  # in f32, without a matrix unit; larger ones take minutes to compile
_HEADS = (((128, 64), 4, 3), ((128, 128), 8, 2), ((64, 64), 4, 3))


def _each(f: Callable[..., Any], choices: Iterable[Any], *more: Any) -> tuple[Callable[..., Any], ...]:
    return tuple(partial(f, *(c if isinstance(c, tuple) else (c,)), *more) for c in choices)


_OTHER: Mapping[str, tuple[Callable[..., Any], ...]] = {
    "attention": _each(_run_attention, _HEADS, False),
    "attention_causal": _each(_run_attention, _HEADS, True),
    "softmax": _each(_run_softmax, (4, 8)),
    **{n: _each(_run_norm, (4, 8), n) for n in ("layernorm", "rmsnorm", "add_layernorm")},
    **{n: _each(_run_elements, (1024, 2048), n) for n in ("add", "gelu", "silu")},
    "sum_rows": _each(_run_fold_rows, (1024, 4096), False),
    "max_rows": _each(_run_fold_rows, (1024, 4096), True),
    "sum_columns": _each(_run_sum_columns, (256, 1024)),
    "transpose": _each(_run_transpose, (32, 64)),
}


def ways(op: str, tensors: tuple[Any, ...]) -> tuple[Callable[..., Any], ...]:
    """The ways to run an operator of the library: of its tensors, and its other arguments by name; none, if it is not here."""
    if op in ("matmul", "bmm", "linear_gelu"):
        tiles = _EXACT if tensors[0].element_size() == 4 else _FLAT if tensors[0].shape[-2] <= 16 else _TILES
        return _each(_run_linear_gelu if op == "linear_gelu" else _run_product, tiles)
    return _OTHER.get(op, ())
