"""Nests with sizes and data for them: each is printed, compiled for every target, and run against the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from gpu_nests import at, buffer, call, loop, nest, parallel, store

from polyop.ir.dtypes import BF16, BOOL, F16, F32, F64, I8, I32, I64, U8, DType
from polyop.ir.expr import Apply, Const, Number, Scalar, Test, affine, evaluate, quasi
from polyop.ir.loops import If, Kind, LoopNest, Space
from polyop.ir.op import Monoid

M, N, K, T = (affine(n) for n in "MNKT")
i, j, k, m, n, t, r, c = (affine(x) for x in "ijkmntrc")


def f32(x: float) -> Const:
    return Const(x, F32)


@dataclass(frozen=True)
class Case:
    """`sizes`: assignments to try; `special`: how to make an array other than from random values."""

    nest: LoopNest
    sizes: tuple[dict[str, int], ...]
    scalars: dict[str, Any] = field(default_factory=dict)
    special: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = field(default_factory=dict)


def saxpy() -> Case:
    scaled = call("mul", Scalar("alpha", F32), at("X", "i"))
    body = parallel("i", "N", store("S0", at("Y", "i"), call("add", scaled, at("Z", "i"))))
    buffers = (buffer("X", "N", unit=0), buffer("Z", "N"), buffer("Y", "N", unit=0))
    return Case(nest("saxpy", "N", buffers, body, scalars=(("alpha", F32),)), ({"N": 1}, {"N": 300}, {"N": 0}), {"alpha": 1.5})


def matmul() -> Case:
    update = store("S1", at("acc"), call("mul", at("A", "m", "k"), at("B", "k", "n")), "add")
    body = parallel("m", "M", parallel("n", "N", store("S0", at("acc"), f32(0.0)), loop("k", "K", update),
                                       store("S2", at("C", "m", "n"), at("acc"))))
    buffers = (buffer("A", "M", "K", unit=1), buffer("B", "K", "N", unit=0), buffer("C", "M", "N", unit=1),
               buffer("acc", space=Space.REG))
    sizes = ({"M": 13, "N": 17, "K": 9}, {"M": 3, "N": 2, "K": 0}, {"M": 0, "N": 5, "K": 2})
    return Case(nest("matmul", "M N K", buffers, body), sizes)


def tiled_matmul() -> Case:
    """Tiles of 4 x 8 per thread, with a row and a lane loop whose last copies may be missing."""
    rows, lanes = quasi("min", M - affine("m_r"), affine(4)), quasi("min", N - affine("n_r"), affine(8))
    mm, nn = affine("m_r") + affine("m_p"), affine("n_r") + affine("n_v")

    def unrolled(*body: Any) -> Any:
        inner = loop("n_v", lanes, *body, kind=Kind.LANES, extent=8)
        return loop("m_p", rows, inner, kind=Kind.ROWS, extent=4)

    acc = at("acc", "m_p", "n_v")
    update = store("S1", acc, call("mul", at("A", mm, "k"), at("B", "k", nn)), "add")
    body = parallel("m_r", "M", parallel("n_r", "N", unrolled(store("S0", acc, f32(0.0))), loop("k", "K", unrolled(update)),
                                         unrolled(store("S2", at("C", mm, nn), acc)), step=8), step=4)
    buffers = (buffer("A", "M", "K", unit=1), buffer("B", "K", "N", unit=1), buffer("C", "M", "N", unit=1),
               buffer("acc", 4, 8, space=Space.REG))
    return Case(nest("tiled", "M N K", buffers, body), ({"M": 13, "N": 17, "K": 9}, {"M": 4, "N": 8, "K": 1}))


def softmax() -> Case:
    """Row maximum and sum in registers, the exponentials in work space."""
    e = call("exp", call("sub", at("X", "r", "c"), at("top")))
    body = parallel("r", "M", store("S0", at("top"), f32(float("-inf"))),
                    loop("c", "N", store("S1", at("top"), at("X", "r", "c"), "max")),
                    loop("c", "N", store("S2", at("e", "r", "c"), e)), store("S3", at("z"), f32(0.0)),
                    loop("c", "N", store("S4", at("z"), at("e", "r", "c"), "add")),
                    loop("c", "N", store("S5", at("Y", "r", "c"), call("div", at("e", "r", "c"), at("z")))))
    buffers = (buffer("X", "M", "N", unit=1), buffer("Y", "M", "N", unit=1), buffer("e", "M", "N", space=Space.WORK),
               buffer("top", space=Space.REG), buffer("z", space=Space.REG))
    return Case(nest("softmax", "M N", buffers, body), ({"M": 5, "N": 33}, {"M": 1, "N": 1}))


def private_rows() -> Case:
    """A work buffer of which every thread has its own copy, in a loop of blocks of two rows."""
    mine = at("e", "i", "c")
    inner = [loop("i", quasi("min", M - r, affine(2)), loop("c", "N", store("S0", mine, call("exp", at("X", r + i, "c"))))),
             loop("i", quasi("min", M - r, affine(2)), loop("c", "N", store("S1", at("Y", r + i, "c"), at("e", "i", N - c - 1))))]
    own = replace(buffer("e", 2, "N", space=Space.WORK), private=True, pad=4)
    buffers = (buffer("X", "M", "N", unit=1), buffer("Y", "M", "N", unit=1), own)
    return Case(nest("private", "M N", buffers, parallel("r", "M", *inner, step=2)), ({"M": 7, "N": 5}, {"M": 1, "N": 1}))


def stencil() -> Case:
    """A guarded read outside gives 0, a `select` picks the border, an `If` cuts the domain."""
    total = call("add", at("X", i - 1, dtype=F32, guard=(i - 1,)), at("X", i + 1, guard=(N - i - 2,)))
    border = Apply("select", (Test((i - 1, N - i - 2)), total, Number(i, F32)), F32)
    body = parallel("i", "N", If((N - i * 2 - 1,), (store("S0", at("Y", "i"), total),), (store("S1", at("Y", "i"), border),)))
    buffers = (buffer("X", "N", unit=0), buffer("Y", "N", unit=0))
    return Case(nest("stencil", "N", buffers, body), ({"N": 1}, {"N": 2}, {"N": 131}))


def triangle() -> Case:
    """Inner bounds that depend on outer parallel loops, and a floor division in an index."""
    upper = quasi("min", i + 5, N)
    cell = store("S0", at("Y", "i", "j"), at("X", quasi("div", i + j, affine(2))))
    body = parallel("i", "N", parallel("j", upper, cell, lower=i, step=2))
    return Case(nest("triangle", "N", (buffer("X", "N"), buffer("Y", "N", "N", unit=1)), body), ({"N": 1}, {"N": 40}))


def heat() -> Case:
    """Time steps by the host, each one a launch; boundaries are launched apart, under a test."""
    last = at("U", t - 1, i)
    left, right = at("U", t - 1, i - 1), at("U", t - 1, i + 1)
    step = call("add", last, call("mul", Scalar("a", F32), call("add", left, call("sub", right, call("mul", f32(2.0), last)))))
    inside = parallel("i", N - 1, store("S1", at("U", "t", "i"), step), lower=1)
    ends = If((N - 1,), (store("S2", at("U", "t", 0), at("U", t - 1, 0)), store("S3", at("U", t, N - 1), at("U", t - 1, N - 1))))
    start = parallel("i", "N", store("S0", at("U", 0, "i"), at("X", "i")))
    body = (start, loop("t", T + 1, inside, ends, lower=1))
    return Case(nest("heat", "N T", (buffer("X", "N", unit=0), buffer("U", T + 1, N, unit=1)), *body, scalars=(("a", F32),)),
                ({"N": 20, "T": 4}, {"N": 1, "T": 2}, {"N": 4, "T": 0}), {"a": 0.25})


def gather() -> Case:
    ids = at("ids", "i", dtype=I64)
    body = parallel("i", "M", parallel("j", "K", store("S0", at("Y", "i", "j"), at("E", ids, "j"))))
    buffers = (buffer("ids", "M", dtype=I64), buffer("E", "N", "K", unit=1), buffer("Y", "M", "K", unit=1))
    return Case(nest("gather", "M N K", buffers, body), ({"M": 9, "N": 5, "K": 3},),
                special={"ids": lambda g, s: g.integers(0, 5, s)})


def scatter() -> Case:
    """A computed target, one thread; positions and data of narrow types."""
    ids = at("ids", "i", dtype=U8)
    body = (loop("j", "N", store("S0", at("Y", "j", dtype=I32), Const(0, I32))),
            loop("i", "M", store("S1", at("Y", ids, dtype=I32), Apply("cast", (at("X", "i", dtype=I8),), I32), "add")))
    buffers = (buffer("ids", "M", dtype=U8), buffer("X", "M", dtype=I8), buffer("Y", "N", dtype=I32))
    return Case(nest("scatter", "M N", buffers, *body), ({"M": 20, "N": 7},),
                special={"ids": lambda g, s: g.integers(0, 7, s).astype(np.uint8)})


def half(dtype: DType) -> Case:
    """A dot product per row of a 16-bit type, summed in f32; a 16-bit scalar and a 16-bit chain of operations."""
    wide = [Apply("cast", (at(x, "m", "k", dtype=dtype),), F32) for x in "AB"]
    scaled = call("mul", Apply("cast", (at("acc"),), dtype), Scalar("s", dtype))
    out = call("max", call("add", scaled, Const(0.1, dtype)), Const(-2.0, dtype))
    body = parallel("m", "M", store("S0", at("acc"), f32(0.0)), loop("k", "K", store("S1", at("acc"), call("mul", *wide), "add")),
                    store("S2", at("Y", "m", dtype=dtype), out))
    buffers = (buffer("A", "M", "K", dtype=dtype, unit=1), buffer("B", "M", "K", dtype=dtype, unit=1),
               buffer("Y", "M", dtype=dtype), buffer("acc", space=Space.REG))
    return Case(nest(f"dot_{dtype}", "M K", buffers, body, scalars=(("s", dtype),)), ({"M": 6, "K": 20},), {"s": 0.75})


def mask() -> Case:
    """Bytes and truth values: wrapping integers, comparisons, an `and` reduction."""
    x, y = at("X", "i", "j", dtype=I8), at("Z", "i", "j", dtype=I8)
    less, least = call("lt", call("mul", x, y), y, dtype=BOOL), call("eq", x, Const(-128, I8), dtype=BOOL)
    test = call("or", less, least)
    body = parallel("i", "M", store("S0", at("all", dtype=BOOL), Const(True, BOOL)),
                    loop("j", "N", store("S1", at("Y", "i", "j", dtype=BOOL), test),
                         store("S2", at("all", dtype=BOOL), at("Y", "i", "j", dtype=BOOL), "and")),
                    store("S3", at("every", "i", dtype=BOOL), call("not", at("all", dtype=BOOL))))
    buffers = (buffer("X", "M", "N", dtype=I8), buffer("Z", "M", "N", dtype=I8), buffer("Y", "M", "N", dtype=BOOL, unit=1),
               buffer("every", "M", dtype=BOOL), buffer("all", dtype=BOOL, space=Space.REG))
    return Case(nest("mask", "M N", buffers, body), ({"M": 7, "N": 40},))


def user_monoid() -> Case:
    """log(exp(a) + exp(b)) of rows, in f64."""
    a, b = Scalar("a", F64), Scalar("b", F64)
    body_ = call("add", call("max", a, b), call("log1p", call("exp", call("neg", call("abs", call("sub", a, b))))))
    empty = call("eq", a, Const(float("-inf"), F64), dtype=BOOL)
    lse = Monoid("lse", float("-inf"), None, Apply("select", (empty, b, body_), F64))
    cell = at("Y", "i", dtype=F64)
    body = parallel("i", "M", store("S0", cell, Const(float("-inf"), F64)),
                    loop("j", "N", store("S1", cell, at("X", "i", "j", dtype=F64), lse)))
    buffers = (buffer("X", "M", "N", dtype=F64), buffer("Y", "M", dtype=F64))
    return Case(nest("lse", "M N", buffers, body), ({"M": 4, "N": 12},))


def total() -> Case:
    """A rank-0 result: neighbours without a parallel loop share one kernel, so the register lives on."""
    body = (store("S0", at("acc"), f32(0.0)), loop("i", "N", store("S1", at("acc"), at("X", "i"), "add")),
            store("S2", at("O"), at("acc")))
    buffers = (buffer("X", "N"), buffer("O"), buffer("acc", space=Space.REG))
    return Case(nest("total", "N", buffers, *body), ({"N": 50}, {"N": 0}))


def constants() -> Case:
    """Parallel loops of constant extents, one with a step."""
    cell = at("Y", i * 6 + j)
    body = parallel("i", 3, parallel("j", 6, store("S0", cell, at("X", i, j)), step=2))
    odd = parallel("i", 9, store("S1", at("Y", i * 2 + 1), Number(i, F32)))
    return Case(nest("constants", "", (buffer("X", 3, 6, unit=1), buffer("Y", 18)), body, odd), ({},))


def odd_names() -> Case:
    """Names that C or the printer itself uses."""
    first = store("S0", at("new.1", "int", "item"), at("X_s0", "int", "item"))
    second = store("S1", at("for", "int", "pop_x"), at("new.1", "int", "pop_x"))
    body = parallel("int", "double", parallel("item", "float", first))
    out = parallel("int", "double", parallel("pop_x", "float", second))
    buffers = (buffer("X_s0", "double", "float"), buffer("for", "double", "float"),
               buffer("new.1", "double", "float", space=Space.WORK))
    return Case(nest("class", "double float", buffers, body, out), ({"double": 3, "float": 4},))


CASES = {x.nest.name: x for x in (saxpy(), matmul(), tiled_matmul(), softmax(), private_rows(), stencil(), triangle(), heat(),
                                  gather(), scatter(), half(F16), half(BF16), mask(), user_monoid(), total(),
                                  constants(), odd_names())}


def data(case: Case, sizes: dict[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """An array for each tensor."""
    g = np.random.default_rng(seed)
    out: dict[str, np.ndarray] = {}
    for b in case.nest.buffers:
        if b.space != Space.TENSOR:
            continue
        shape = tuple(evaluate(e, sizes) for e, _ in b.dims)
        if b.name in case.special:
            out[b.name] = case.special[b.name](g, shape)
        elif b.dtype.is_float:
            out[b.name] = g.standard_normal(shape).astype(b.dtype.numpy)
        elif b.dtype == BOOL:
            out[b.name] = g.integers(0, 2, shape).astype(np.bool_)
        else:
            out[b.name] = g.integers(max(-128, b.dtype.lowest), 127, shape).astype(b.dtype.numpy)
    return out

