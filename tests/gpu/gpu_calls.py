"""Random calls, and what they should give: operators of the library, equations, programs of a few steps, what graphs merge.

Sizes are around those of tiles, and operands lie in any order, some of them as parts of something larger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import gpu_data
import numpy as np
from gpu_programs import Rng, one_of, text

import polyop
from polyop.dsl.einsum import einsum_text
from polyop.graph.build import build
from polyop.ir import reference
from polyop.ir.deep import with_room
from polyop.ir.dtypes import DTYPES, DType
from polyop.ir.expr import evaluate
from polyop.ir.op import Op
from polyop.outcome import difference, hands_on_16_bits, tolerance
from polyop.runtime.bind import Bound, bind
from polyop.runtime.estimate import work
from polyop.trial import sample
from tests.graph.test_cluster import OPERATORS as MERGED
from tests.graph.test_cluster import TOTAL, X, Y
from tests.library.case import check
from tests.library.catalog import CASES, accuracy, instance

Array = np.ndarray
SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 24, 31, 32, 33, 40, 63, 64, 65, 97, 127, 128, 129)
"""Vectors and tiles, one less and one more, and primes."""

MOST = 1 << 21  # terms of a call
PLAIN = 40_000  # and of one that is evaluated element by element
SUMS = ("attention", "conv", "distance", "linalg", "mlp", "norm", "rnn", "scan", "softmax")
"""Files of the library whose kernels are the longest."""


class NotPossible(Exception):
    """Such a call nobody makes."""


@dataclass(frozen=True, eq=False)
class Called:
    """A call of `op`.

    wrong     says of its results what they should have been, or nothing
    outside   whether a position that data says is, so that the call has no results
    """

    name: str
    op: Op
    bound: Bound
    wrong: Callable[[tuple[Array, ...]], str]
    outside: Callable[[], bool] = bool


def library(rng: Rng) -> Called:
    """An operator of the library, of which NumPy knows the results."""
    file, case = one_of(rng, CASES if rng.random() < 0.5 else [x for x in CASES if x[0] in SUMS])
    dtype = one_of(rng, [t for t in case.dtypes if t != "f64"] or case.dtypes)
    row = dict(one_of(rng, (*case.sizes, *case.tiny)))
    for name in row:
        if isinstance(row[name], int) and rng.random() < 0.5:
            row[name] = int(one_of(rng, SIZES))
    inputs, keywords = case.arguments(dtype, row), case.keywords(row)
    op = instance(file, case, dtype, inputs, keywords)
    values = {p.name: keywords.get(p.name, p.default) for p in op.params}
    bound = called(op, inputs, values, rng)
    want = case.expected(inputs, row)
    if tuple(w.shape for w in want) != tuple(bound.views[t.name].shape for t in op.outputs):
        raise NotPossible("NumPy's reference is not for such sizes")

    def wrong(got: tuple[Array, ...]) -> str:
        try:
            check(case, accuracy(dtype), row, got, want)
        except AssertionError as error:
            return " ".join(str(error).split())[:300]
        return ""

    return Called(f"{file}.{case} {dtype} {row}", op, bound, wrong)


def equation(rng: Rng) -> Called:
    """Two operands or three over few letters, in any order, some of them of size 1, and a result over some of these."""
    letters = "abcdef"[: rng.integers(2, 6)]
    if rng.random() < 0.3:
        words = ["".join(rng.permutation(list(letters))[: rng.integers(1, 5)]) for _ in range(one_of(rng, (2, 2, 2, 3)))]
        used = sorted(set("".join(words)))
        out = "".join(rng.permutation(used)[: rng.integers(0, len(used) + 1)])
    else:  # a product of matrices, whose sides and sum have an index or two, perhaps many times
        m, n, k, b = ("".join(x[: rng.integers(least, 3)]) for x, least in (("mo", 1), ("np", 1), ("kl", 1), ("bc", 0)))
        b = b[:1] if rng.random() < 0.7 else ""
        words = ["".join(rng.permutation(list(x))) for x in (m + k + b, k + n + b)]
        used, out = sorted(m + n + k + b), "".join(rng.permutation(list(m + n + b)))
    sizes = {x: int(one_of(rng, SIZES)) for x in used}
    while prod(sizes.values()) > MOST:
        sizes[max(sizes, key=sizes.__getitem__)] //= 2
    dtype = DTYPES[one_of(rng, ("f16", "bf16", "f32", "f32", "f64", "i8", "i32"))]
    shapes = [tuple(1 if rng.random() < 0.05 else sizes[x] for x in w) for w in words]
    shapes = [s if 0 not in (sizes[x] for x in w) else tuple(sizes[x] for x in w) for s, w in zip(shapes, words, strict=True)]
    inputs = [rng.integers(-1, 2, s).astype(dtype.numpy) for s in shapes]
    how = f"{','.join(words)}->{out}"
    o = polyop.op(einsum_text(how, shapes, [dtype] * len(words)))
    want = np.einsum(how, *(x.astype(np.int64) for x in inputs))
    op = o._op(o.choice())
    kind = op.outputs[0].dtype

    def wrong(got: tuple[Array, ...]) -> str:
        right = want.astype(kind.numpy)
        off = int(np.count_nonzero(right.astype(np.float64) != got[0].astype(np.float64)))
        return f"{off} of {right.size} elements are wrong" if off else ""

    return Called(f"einsum({how!r}) {dtype} {shapes}", op, called(op, inputs, {}, rng), wrong)


def program(rng: Rng) -> Called:
    """A few steps, evaluated element by element."""
    written = text(rng)
    o = polyop.op(written, "f")
    return evaluated(" ".join(written.split()), o._op(o.choice()), rng)


def data(rng: Rng) -> Called:
    """A few steps that ask data."""
    written = gpu_data.text(rng)
    o = polyop.op(written, "f")
    return evaluated(" ".join(written.split()), o._op(o.choice()), rng)


def graph(rng: Rng) -> Called:
    """A kernel of a graph of a few calls."""
    squares, rows = [X, Y], [TOTAL(X)]
    for _ in range(rng.integers(1, 6)):
        f = one_of(rng, MERGED)
        results = f(*(one_of(rng, squares if len(p.dims) == 2 else rows) for p in f.interface.tensors))
        for r in results if isinstance(results, tuple) else (results,):
            (squares if len(r.shape) == 2 else rows).append(r)
    step = one_of(rng, build([squares[-1], rows[-1]]).compile().steps)
    return evaluated(f"graph {' '.join(str(step.op).split())}", step.op, rng)


KINDS: dict[str, Callable[[Rng], Called]] = {
    "library": library, "einsum": equation, "program": program, "graph": graph, "data": data}


@dataclass(frozen=True, eq=False)
class Given:
    """What a call of an Op is given, `arrays` by the names of its inputs; `wrong` and `outside` as in `Called`."""

    sizes: dict[str, int]
    arrays: dict[str, Array]
    scalars: dict[str, Any]
    wrong: Callable[[tuple[Array, ...]], str]
    outside: Callable[[], bool]

    def __str__(self) -> str:
        return f"{self.sizes} {self.scalars or ''}"


def evaluated(name: str, op: Op, rng: Rng) -> Called:
    """A call of `op` at sizes at which it may be evaluated element by element."""
    g = given(op, sizes_of(op, rng), rng)
    values = {p.name: g.sizes.get(p.name, g.scalars.get(p.name)) for p in op.params}
    return Called(f"{name} {g}", op, called(op, list(g.arrays.values()), values, rng), g.wrong, g.outside)


def sizes_of(op: Op, rng: Rng) -> dict[str, int]:
    sizes = {n: int(one_of(rng, SIZES)) for n in op.sizes}
    while work(op, sizes) > PLAIN:
        sizes[max(sizes, key=sizes.__getitem__)] //= 2
    return sizes


def given(op: Op, sizes: dict[str, int], rng: Rng) -> Given:
    """Random arguments of these sizes."""
    inputs = []
    for t in op.inputs:
        shape = tuple(evaluate(e, sizes) for e in t.shape)
        if min(shape, default=0) < 0:
            raise NotPossible(f"{t} has a negative extent")
        if t.name.startswith(("ids", "at")):
            inputs.append(sample(rng, t.dtype, shape, sizes["V"]))
            if t.name.startswith("at") and inputs[-1].size and rng.random() < 0.5:
                inputs[-1].flat[rng.integers(inputs[-1].size)] = one_of(rng, (-1, sizes["V"]))
        elif t.dtype.is_integer or rng.random() < 0.5:  # sums of small whole numbers are exact in any order
            inputs.append(rng.integers(-2, 3, shape).astype(t.dtype.numpy))
        else:
            inputs.append(sample(rng, t.dtype, shape))
    arrays = {t.name: a for t, a in zip(op.inputs, inputs, strict=True)}
    mine = [p for p in op.params if p.name not in sizes]
    scalars = {p.name: number(rng, p.dtype) if p.default is None else p.default for p in mine}

    @cache
    def plain(wide: bool) -> dict[str, Array] | None:
        try:
            return with_room(lambda: reference.evaluate(op, sizes, scalars, arrays, wide=wide))
        except reference.OutsideError:
            return None

    def wrong(got: tuple[Array, ...]) -> str:
        wide, own = plain(True), plain(False)
        if wide is None or own is None:
            return "a position was outside, and nobody said so"
        for t, x in zip(op.outputs, got, strict=True):
            terms = work(op, sizes) / max(1, x.size)
            error = difference(x, wide[t.name], own[t.name])
            if error > tolerance(t.dtype, terms, narrow=hands_on_16_bits(op)):
                return f"`{t.name}` is off by {error:.1e}"
        return ""

    return Given(sizes, arrays, scalars, wrong, lambda: plain(False) is None)


def number(rng: Rng, dtype: DType) -> float | int:
    """A number that a call gives."""
    return float(rng.integers(-4, 5)) / 2 if dtype.is_float else int(rng.integers(-2, 3))


def called(op: Op, inputs: list[Array], values: dict[str, Any], rng: Rng) -> Bound:
    """A call with operands, and perhaps results, that lie somehow."""
    given = {t.name: laid(a, rng) for t, a in zip(op.inputs, inputs, strict=True)}
    bound = bind(op, values | given)
    if work(op, bound.sizes) > MOST:
        raise NotPossible("too large")
    if rng.random() < 0.25 and not op.updates:
        out = tuple(laid(np.zeros(bound.views[t.name].shape, t.dtype.numpy), rng) for t in op.outputs)
        bound = bind(op, values | given, out if len(out) > 1 else out[0])
    return bound


def laid(a: Array, rng: Rng) -> Array:
    """`a`, in some order of its dimensions, perhaps as a part of something larger."""
    a = a.copy()
    how = rng.random()
    if a.ndim == 0 or how < 0.5:
        return a
    order = rng.permutation(a.ndim)
    room = np.zeros([a.shape[d] * (1 + (how > 0.9)) + (how > 0.75) for d in order], a.dtype)
    cut = room[tuple(slice(0, a.shape[d] * (1 + (how > 0.9)), 1 + (how > 0.9)) for d in order)]
    out = cut.transpose(np.argsort(order))
    out[...] = a
    return out
