"""Element by element, along one dimension, and from each element to the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from polyop.bench.case import Case, Node, library, text
from polyop.bench.groups import loops

COUNTS = (1 << 12, 1 << 16, 1 << 20, 1 << 24)


def elementwise() -> Iterator[Case]:
    """Chains and activations, from what fits into the first cache to what fits into none."""
    chain = text("op chain(X: f32[N], Y: f32[N]) -> (Z: f32[N]) { Z[i] = relu(X[i] * 2 + Y[i]) * X[i] - Y[i] }")
    for n in COUNTS:
        once = n == 1 << 20
        yield Case("elementwise", f"relu(2x+y)*x-y {n}", *chain, {"N": n}, torch=lambda t, x, y: t.relu(x * 2 + y) * x - y,
                   array=lambda xp, x, y: xp.maximum(x * 2 + y, 0) * x - y, loops=loops.chain, compiled=once, quick=n != 1 << 24)
        yield Case("elementwise", f"add {n}", *library("add"), {"dim0": n}, rank=1, torch=lambda t, x, y: x + y,
                   array=lambda xp, x, y: x + y, onnx=Node("Add"), quick=once)
        for name in ("gelu", "gelu_tanh", "sigmoid", "tanh"):
            def one(t: Any, x: Any, name: str = name) -> Any:
                if name.startswith("gelu"):
                    return t.nn.functional.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")
                return getattr(t, name)(x)
            node = {"gelu": Node("Gelu"), "sigmoid": Node("Sigmoid"), "tanh": Node("Tanh")}.get(name)
            yield Case("elementwise", f"{name} {n}", *library(name), {"dim0": n}, rank=1, torch=one, onnx=node, quick=once,
                       array=(lambda xp, x: xp.tanh(x)) if name == "tanh" else None)
        yield Case("elementwise", f"silu(x)*y {n}", *library("silu_mul"), {"dim0": n}, rank=1, quick=once, compiled=once,
                   torch=lambda t, x, y: t.nn.functional.silu(x) * y)
    yield Case("elementwise", f"mul {1 << 22}", *library("mul"), {"dim0": 1 << 22}, rank=1, torch=lambda t, x, y: x * y,
               array=lambda xp, x, y: x * y)
    for source, to, name in (("f32", "i8", "int8"), ("f64", "i64", "int64")):
        cast = text(f"op to(X: {source}[N]) -> (Y: {to}[N]) {{ Y[i] = {to}(X[i]) }}")
        yield Case("elementwise", f"{source} to {to} {1 << 18}", *cast, {"N": 1 << 18},
                   torch=lambda t, x, name=name: x.to(getattr(t, name)), array=lambda xp, x, name=name: x.astype(name))
    across = text("op across(X: f32[B, A], Y: f32[B, A]) -> (Z: f32[A, B]) { Z[a, b] = X[b, a] * Y[b, a] }")
    yield Case("elementwise", "X.T*Y.T 1300x1200", *across, {"A": 1200, "B": 1300},
               torch=lambda t, x, y: (x * y).T.contiguous(), array=lambda xp, x, y: xp.ascontiguousarray((x * y).T))
    steps = text("op steps(X: f32[B, A], Y: f32[B, A], W: f32[B, A]) -> (Z: f32[A, B]) { "
                 "t[b, a] = X[b, a] * Y[b, a]; Z[a, b] = t[b, a] + W[b, a] }")
    yield Case("elementwise", "(X*Y+W).T 1024x1024", *steps, {"A": 1024, "B": 1024},
               torch=lambda t, x, y, w: (x * y + w).T.contiguous(), array=lambda xp, x, y, w: xp.ascontiguousarray((x * y + w).T))
    third = text("op third(X: f32[C, A, B], Y: f32[B, C, A]) -> (Z: f32[A, B, C]) { Z[a, b, c] = X[c, a, b] * Y[b, c, a] }")
    yield Case("elementwise", "X[c,a,b]*Y[b,c,a] 100x110x120", *third, {"A": 100, "B": 110, "C": 120},
               torch=lambda t, x, y: (x.permute(1, 2, 0) * y.permute(2, 0, 1)).contiguous(),
               array=lambda xp, x, y: xp.ascontiguousarray(x.transpose(1, 2, 0) * y.transpose(2, 0, 1)))
    yield Case("elementwise", "bias+gelu 1024x3072", *library("bias_gelu"), {"dim0": 1024, "D": 3072}, rank=1, compiled=True,
               torch=lambda t, x, b: t.nn.functional.gelu(x + b))


def reductions() -> Iterator[Case]:
    """Sums, extremes and their places along each dimension."""
    for shape in ((512, 512, 64), (64, 4096, 32), (2048, 2048)):
        for axis in range(len(shape)):
            places = {0: "columns", len(shape) - 1: "rows"}
            for name, other in (("sum", "sum"), ("max", "max"), ("argmax", "argmax"), ("mean", "mean")):
                where = places.get(axis, "middle")
                if where == "middle" and name == "argmax":
                    continue
                rest = [n for k, n in enumerate(shape) if k != axis]
                named = {"A": shape[0], "N": shape[1], "B": shape[-1]} if where == "middle" else {
                    "N": shape[axis], **{f"dim{k}": n for k, n in enumerate(rest)}}
                reduced = {"sum": "ReduceSum", "max": "ReduceMax", "mean": "ReduceMean"}
                node = (Node(reduced[name], (("keepdims", 0),), (np.array([axis]),)) if name in reduced else
                        Node("ArgMax", (("axis", axis), ("keepdims", 0))))

                def torch(t: Any, x: Any, other: str = other, axis: int = axis) -> Any:
                    return getattr(t, "amax" if other == "max" else other)(x, axis)

                def array(xp: Any, x: Any, other: str = other, axis: int = axis) -> Any:
                    return getattr(xp, other)(x, axis)
                yield Case("reductions", f"{name} {'x'.join(map(str, shape))} axis {axis}", *library(f"{name}_{where}"), named,
                           rank=None if where == "middle" else len(rest), torch=torch, array=array, onnx=node, tolerance=1e-3,
                           quick=len(shape) == 2 and name != "mean")
    yield Case("reductions", "variance 4096x768", *library("var_rows"), {"dim0": 4096, "N": 768}, rank=1,
               torch=lambda t, x: t.var(x, -1, correction=0), array=lambda xp, x: xp.var(x, -1))
    yield Case("reductions", "log sum exp 4096x768", *library("logsumexp"), {"dim0": 4096, "C": 768}, rank=1,
               torch=lambda t, x: t.logsumexp(x, -1), compiled=True)
    for shape in ((1024, 1024), (64, 65536)):
        for name in ("all", "any"):  # of what has no early end
            def torch_(t: Any, x: Any, name: str = name) -> Any:
                return getattr(t, name)(x, -1)

            def array_(xp: Any, x: Any, name: str = name) -> Any:
                return getattr(xp, name)(x, -1)
            yield Case("reductions", f"{name} {'x'.join(map(str, shape))}", *library(f"{name}_rows"),
                       {"X": np.full(shape, name == "all")}, rank=1, torch=torch_, array=array_)
    for n in (1 << 16, 1 << 24):
        yield Case("reductions", f"dot {n}", *library("dot"), {"N": n}, torch=lambda t, x, y: t.dot(x, y),
                   array=lambda xp, x, y: xp.dot(x, y), einsum="i,i->", tolerance=1e-2)


def scans() -> Iterator[Case]:
    """Prefix sums and what is like them."""
    for r, c in ((1024, 1024), (16, 65536), (1, 1 << 20)):
        yield Case("scans", f"cumsum rows {r}x{c}", *library("cumsum"), {"dim0": r, "N": c}, rank=1, tolerance=1e-3,
                   torch=lambda t, x: t.cumsum(x, -1), array=lambda xp, x: xp.cumsum(x, -1), quick=r == 1024,
                   onnx=Node("CumSum", (), (np.array(1),)))
    yield Case("scans", "cumsum rows f64 1024x1024", *library("cumsum"), {"dim0": 1024, "N": 1024, "T": "f64"}, rank=1,
               torch=lambda t, x: t.cumsum(x, -1), array=lambda xp, x: xp.cumsum(x, -1))
    yield Case("scans", "cumsum columns 1024x1024", *library("cumsum_columns"), {"N": 1024, "dim0": 1024}, rank=1, tolerance=1e-3,
               torch=lambda t, x: t.cumsum(x, 0), array=lambda xp, x: xp.cumsum(x, 0), onnx=Node("CumSum", (), (np.array(0),)))
    yield Case("scans", "cumprod rows 512x512", *library("cumprod"), {"dim0": 512, "N": 512}, rank=1,
               torch=lambda t, x: t.cumprod(x, -1), array=lambda xp, x: xp.cumprod(x, -1))
    yield Case("scans", "cummax rows 1024x1024", *library("cummax"), {"dim0": 1024, "N": 1024}, rank=1,
               torch=lambda t, x: t.cummax(x, -1).values, numpy=lambda xp, x: xp.maximum.accumulate(x, -1))
    yield Case("scans", "log cumsum exp 256x1024", *library("logcumsumexp"), {"dim0": 256, "N": 1024}, rank=1,
               torch=lambda t, x: t.logcumsumexp(x, -1))
    decay = np.random.default_rng(3).random((4096, 256), np.float32)
    yield Case("scans", "linear recurrence 4096x256", *library("linear_recurrence"), {"A": decay}, quick=True,
               loops=loops.recurrence, numpy=lambda xp, a, x, h: loops.recurrence(a, x, h))
