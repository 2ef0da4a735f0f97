"""Matrix products and tensor contractions: square, skinny, in batches, of any rank, and in few bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from polyop.bench.case import Case, Node, Random, library, text
from polyop.bench.groups.tccg import CONTRACTIONS, sizes
from polyop.dsl.einsum import einsum_text
from polyop.ir.dtypes import F32

MATMUL = {"nn": ("matmul", "mk,kn->mn"), "nt": ("matmul_nt", "mk,nk->mn"), "tn": ("matmul_tn", "km,kn->mn"),
          "tt": ("matmul_tt", "km,nk->mn")}


def product(group: str, kind: str, m: int, n: int, k: int, dtype: str = "f32", **more: Any) -> Case:
    """A product with the operands as `kind` says: each plain or transposed."""
    def other(xp: Any, a: Any, b: Any) -> Any:
        return (a.T if kind[0] == "t" else a) @ (b.T if kind[1] == "t" else b)
    name, _ = MATMUL[kind]
    size = f"{m}" if m == n == k else f"{m}x{n}x{k}"
    label = f"{kind} {size}" + ("" if dtype == "f32" else f" {dtype}")
    onnx = Node("MatMul") if kind == "nn" else Node("Gemm", (("transA", int(kind[0] == "t")), ("transB", int(kind[1] == "t"))))
    array = other if dtype in ("f32", "f64") else None
    return Case(group, label, *library(name), {"M": m, "N": n, "K": k, "T": dtype}, torch=other, array=array,
                onnx=onnx if array else None, **more)


def matmul() -> Iterator[Case]:
    """Square products in f32, all transpositions, and two in f64."""
    for n in (64, 128, 192, 256, 384, 512, 768, 1000, 1024, 1536, 2048):
        yield product("matmul", "nn", n, n, n, quick=n in (64, 256, 1000))
    for kind in ("nt", "tn", "tt"):
        for n in (64, 256, 512, 1000, 2048):
            yield product("matmul", kind, n, n, n, quick=n == 512)
    for n in (256, 1000):
        yield product("matmul", "nn", n, n, n, "f64", tolerance=1e-10)


def skinny() -> Iterator[Case]:
    """Layers of language models with few rows (weights come from memory) and many, and products with one short side."""
    for m in (1, 2, 4, 8, 16, 32):
        for n, k in ((4096, 4096), (11008, 4096)) if m in (1, 16) else ((4096, 4096),):
            yield product("skinny", "nt", m, n, k, cold=True, quick=m in (1, 8) and n == 4096)
    for m, n, k in ((1, 4096, 4096), (4, 4096, 4096)):
        yield product("skinny", "nn", m, n, k, cold=True)
    for m, n, k in ((128, 768, 768), (128, 3072, 768), (128, 768, 3072), (197, 3072, 768), (384, 1024, 4096), (1024, 2304, 768),
                    (512, 4096, 4096), (1500, 384, 384)):
        yield product("skinny", "nt", m, n, k, quick=m == 128 and n == 3072)
    for m, n, k in ((100000, 32, 32), (32, 32, 100000), (4096, 16, 4096), (16, 4096, 4096), (1024, 1024, 8)):
        yield product("skinny", "nn", m, n, k, quick=k == 8, tolerance=1e-3)
    for m, n, k in ((12, 333, 1000), (16, 512, 512), (24, 480, 768), (32, 300, 300)):  # weights are in a cache
        yield product("skinny", "nn", m, n, k)


def batched() -> Iterator[Case]:
    """Many small products, and those of attention."""
    for b, m, n, k in ((10000, 4, 4, 4), (4096, 8, 8, 8), (1024, 16, 16, 16), (256, 32, 32, 32), (64, 64, 64, 64),
                       (1000, 5, 7, 9), (16, 128, 128, 128), (12, 128, 64, 128), (16, 384, 384, 64)):
        yield Case("batched", f"{b} x {m}x{n}x{k}", *library("bmm"), {"dim0": b, "M": m, "N": n, "K": k}, rank=1,
                   torch=lambda t, a, x: t.bmm(a, x), array=lambda xp, a, x: xp.matmul(a, x), onnx=Node("MatMul"),
                   quick=m in (8, 64))


def einsum(group: str, label: str, equation: str, extents: dict[str, int], lying: str = "", **more: Any) -> Case:
    """A contraction by its equation; with two operands, each product is one multiply-add.

    lying   the indices of each operand as they lie in memory, where a caller turned them
    """
    terms = equation.split("->")[0].split(",")
    shapes = [tuple(extents[i] for i in term) for term in terms]
    definition = einsum_text(equation, shapes, [F32] * len(terms))
    flops = 2.0 * math.prod(extents.values()) if len(terms) == 2 else None
    orders = [tuple(term.index(i) for i in own) for term, own in zip(terms, lying.split(","), strict=True)] if lying else []
    given: dict[str, Any] = {f"N_{i}": n for i, n in extents.items()} if not orders else {
        f"X{k}": Random(shape, 1.0, k, order) for k, (shape, order) in enumerate(zip(shapes, orders, strict=True))}
    return Case(group, label, *text(definition), given, einsum=equation, flops=flops, **more)


def contractions() -> Iterator[Case]:
    """The TCCG benchmark, and a few that attention and tensor networks need; of operands that a caller turned, too."""
    for number, (name, equation, extents) in enumerate(CONTRACTIONS):
        yield einsum("contractions", f"{name}", equation, sizes(extents), tolerance=1e-3, quick=number in (10, 15))
    for equation, extents in (("bhid,bhjd->bhij", "b=4 h=12 i=128 j=128 d=64"), ("bhij,bhjd->bhid", "b=4 h=12 i=128 j=128 d=64"),
                              ("bshd,bthd->bhst", "b=2 s=256 t=256 h=12 d=64"), ("ijk,jl,km->ilm", "i=32 j=40 k=48 l=24 m=24"),
                              ("d,dab->ba", "d=500 a=300 b=30"), ("bda,dac->bca", "b=128 d=227 a=6 c=172"),
                              ("abc,acb->a", "a=13 b=100 c=300"), ("ab,ba->a", "a=800 b=700"),
                              ("cde,cd->ec", "c=165 d=849 e=8")):
        yield einsum("contractions", f"{equation} {extents.replace('=', '')}", equation, sizes(extents), tolerance=1e-3)
    for equation, extents, lying in (("cea,ae->ca", "a=201 c=14 e=1156", "aec,ae"), ("bcd,bd->cd", "b=62 c=122 d=493", "bdc,db"),
                                     ("dc,adbc->ba", "a=40 b=300 c=60 d=30", "dc,dcab")):
        label = f"{equation} {extents.replace('=', '')} lying {lying}"
        yield einsum("contractions", label, equation, sizes(extents), lying, tolerance=1e-3)


def precision() -> Iterator[Case]:
    """In 8 and 16 bits; the sums are kept in 32."""
    mixed = text("op matmul_u8i8(A: u8[M, K], B: i8[K, N]) -> (C: i32[M, N]) { C[m, n] += i32(A[m, k]) * i32(B[k, n]) }")
    for n in (256, 1024):
        exact = (lambda xp, a, b: xp.matmul(a.astype(xp.int32), b.astype(xp.int32))) if n <= 256 else None
        yield Case("precision", f"u8 x i8 {n}", *mixed, {"M": n, "N": n, "K": n}, array=exact, onnx=Node("MatMulInteger"),
                   quick=n == 256)
        yield Case("precision", f"i8 x i8 {n}", *library("matmul_i8"), {"M": n, "N": n, "K": n},
                   torch=lambda t, a, b: t._int_mm(a, b), onnx=Node("MatMulInteger"))
    for dtype, tolerance in (("bf16", 2e-2), ("f16", 2e-3)):
        for n in (256, 1024):
            yield product("precision", "nn", n, n, n, dtype, tolerance=tolerance)
        yield product("precision", "nt", 1, 4096, 4096, dtype, tolerance=tolerance, cold=True, quick=dtype == "bf16")
        for kind in ("nn", "nt"):
            yield product("precision", kind, 16, 4096, 4096, dtype, tolerance=tolerance, cold=True)
        for r, c in ((1024, 1024), (4096, 768)):
            given = {"dim0": r, "C": c, "T": dtype}
            yield Case("precision", f"softmax {r}x{c} {dtype}", *library("softmax"), given, rank=1, tolerance=tolerance,
                       torch=lambda t, x: t.softmax(x, -1))
            given = {"dim0": r, "D": c, "T": dtype}
            yield Case("precision", f"layernorm {r}x{c} {dtype}", *library("layernorm"), given, rank=1, tolerance=tolerance,
                       torch=lambda t, x, g, b: t.nn.functional.layer_norm(x, x.shape[-1:], g, b))
