"""Nothing is computed: permutations, pieces put together, rows picked from tables; and so little that only the call counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from polyop.bench.case import Case, Node, library, text


def permutes() -> Iterator[Case]:
    """Transposes and changes of layout."""
    for formula, order, shape in (
        ("ij->ji", (1, 0), (4096, 4096)), ("ij->ji", (1, 0), (1000, 3001)), ("ij->ji", (1, 0), (512, 512)),
        ("bshd->bhsd", (0, 2, 1, 3), (8, 512, 12, 64)), ("ijk->kji", (2, 1, 0), (256, 256, 256)),
        ("ijk->ikj", (0, 2, 1), (64, 512, 512)), ("ijk->jik", (1, 0, 2), (512, 512, 64)),
        ("nchw->nhwc", (0, 2, 3, 1), (16, 64, 56, 56)), ("nhwc->nchw", (0, 3, 1, 2), (16, 56, 56, 64)),
        ("abdc->dacb", (2, 0, 3, 1), (13, 44, 96, 83)),
        ("abcd->dbca", (3, 1, 2, 0), (2, 133, 128, 6)),
        ("nchw->nhwc", (0, 2, 3, 1), (1, 3, 224, 224)), ("abcdef->fedcba", (5, 4, 3, 2, 1, 0), (16, 16, 16, 16, 16, 16)),
    ):
        source, target = formula.split("->")
        before, after = (", ".join(f"N{i}" for i in x) for x in (source, target))
        definition = (f"op permute(X: f32[{before}]) -> (Y: f32[{after}]) "
                      f"{{ Y[{', '.join(target)}] = X[{', '.join(source)}] }}")
        yield Case("permutes", f"{formula} {'x'.join(map(str, shape))}", *text(definition),
                   {f"N{i}": n for i, n in zip(source, shape, strict=True)},
                   torch=lambda t, x, o=order: x.permute(o).contiguous(),
                   numpy=lambda xp, x, o=order: xp.ascontiguousarray(x.transpose(o)), onnx=Node("Transpose", (("perm", order),)),
                   quick=formula == "bshd->bhsd" or shape[0] == 1000)


def moves() -> Iterator[Case]:
    """Concatenation, slices, padding, and rows and elements at computed places."""
    for r, m, n in ((4096, 512, 512), (1000, 100, 333)):
        yield Case("moves", f"concat {r}x{m} {r}x{n}", *library("concat"), {"dim0": r, "M": m, "N": n}, rank=1, quick=r == 4096,
                   torch=lambda t, a, b: t.cat([a, b], -1), array=lambda xp, a, b: xp.concatenate([a, b], -1),
                   onnx=Node("Concat", (("axis", 1),)))
    yield Case("moves", "concat channels 8x(64,128,32)x28x28", *library("concat_channels"),
               {"B": 8, "K": 64, "L": 128, "M": 32, "H": 28, "W": 28}, torch=lambda t, a, b, c: t.cat([a, b, c], 1),
               array=lambda xp, a, b, c: xp.concatenate([a, b, c], 1), onnx=Node("Concat", (("axis", 1),)))
    yield Case("moves", "roll 1024x4096", *library("roll"), {"dim0": 1024, "N": 4096, "shift": 77}, rank=1,
               torch=lambda t, x: t.roll(x, 77, -1), array=lambda xp, x: xp.roll(x, 77, -1))
    yield Case("moves", "flip 1024x4096", *library("flip"), {"dim0": 1024, "N": 4096}, rank=1,
               torch=lambda t, x: t.flip(x, (-1,)), numpy=lambda xp, x: xp.ascontiguousarray(x[..., ::-1]))
    yield Case("moves", "repeat heads 1x8x512x128 4 times", *library("repeat_heads"),
               {"B": 1, "H": 8, "S": 512, "D": 128, "times": 4},
               torch=lambda t, x: t.repeat_interleave(x, 4, 1), array=lambda xp, x: xp.repeat(x, 4, 1))
    yield Case("moves", "each element of 400000 three times", *text("op each(X: f32[N]) -> (Y: f32[3*N]) { Y[i] = X[i/3] }"),
               {"N": 400000}, torch=lambda t, x: x.repeat_interleave(3), array=lambda xp, x: xp.repeat(x, 3))
    yield Case("moves", "lower triangle 2048x2048", *library("tril"), {"M": 2048, "N": 2048}, rank=0,
               torch=lambda t, x: t.tril(x), array=lambda xp, x: xp.tril(x))
    yield Case("moves", "tile 512x512 twice", *library("tile"), {"dim0": 512, "N": 512, "times": 2}, rank=1,
               torch=lambda t, x: x.repeat(1, 2), array=lambda xp, x: xp.tile(x, (1, 2)))
    yield Case("moves", "identity 512", *library("eye"), {"N": 512}, torch=lambda t: t.eye(512),
               numpy=lambda xp: xp.eye(512, dtype=xp.float32))
    for rows, table, width in ((1024, 30522, 768), (512, 32000, 4096)):
        yield Case("moves", f"embedding {rows} of {table}x{width}", *library("embedding"), {"dim0": rows, "V": table, "D": width},
                   rank=1, torch=lambda t, ids, e: t.nn.functional.embedding(ids, e), numpy=lambda xp, ids, e: e[ids],
                   quick=rows == 1024)
    yield Case("moves", "embedding bag 4096x32 of 100000x64", *library("embedding_bag"),
               {"B": 4096, "L": 32, "V": 100000, "D": 64},
               torch=lambda t, ids, e: t.nn.functional.embedding_bag(ids, e, mode="sum"),
               numpy=lambda xp, ids, e: e[ids].sum(1), quick=True)
    yield Case("moves", "gather 4096x64 of 4096x1000", *library("gather"), {"dim0": 4096, "M": 64, "N": 1000}, rank=1,
               torch=lambda t, x, at: t.gather(x, -1, at), array=lambda xp, x, at: xp.take_along_axis(x, at, -1),
               onnx=Node("GatherElements", (("axis", 1),)), quick=True)
    yield Case("moves", "index columns 1000 of 1024x8192", *library("index_columns"), {"N": 1024, "D": 8192, "M": 1000},
               torch=lambda t, x, at: t.index_select(x, 1, at), array=lambda xp, x, at: xp.take(x, at, 1))
    yield Case("moves", "scatter add 100000x64 into 1000", *library("scatter_add"), {"M": 100000, "D": 64, "N": 1000},
               torch=lambda t, x, at: t.zeros(1000, 64).index_add_(0, at, x), tolerance=1e-3)
    ids = np.random.default_rng(5).integers(0, 1000, 1 << 20)
    yield Case("moves", "bincount 1048576 into 1000", *library("bincount"), {"X": ids, "N": 1000},
               torch=lambda t, x: t.bincount(x, minlength=1000), array=_bincount)


def _bincount(xp: Any, x: Any) -> Any:
    return xp.bincount(x, minlength=1000, **({} if xp is np else {"length": 1000}))


def calls() -> Iterator[Case]:
    """On so few numbers that hardly anything but the call is measured."""
    for n in (8, 1024):
        yield Case("calls", f"add {n}", *text("op add(X: f32[N], Y: f32[N]) -> (Z: f32[N]) { Z[i] = X[i] + Y[i] }"), {"N": n},
                   torch=lambda t, x, y: x + y, numpy=lambda xp, x, y: x + y, onnx=Node("Add"), quick=n == 8)
        yield Case("calls", f"softmax {n}", *library("softmax"), {"C": n}, rank=0, torch=lambda t, x: t.softmax(x, -1),
                   onnx=Node("Softmax"))
    for n in (4, 16, 32):
        yield Case("calls", f"matmul {n}", *library("matmul"), {"M": n, "N": n, "K": n}, torch=lambda t, a, b: a @ b,
                   numpy=lambda xp, a, b: a @ b, onnx=Node("MatMul"), quick=n == 16)
