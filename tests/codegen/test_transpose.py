"""Squares turned in registers: right for each width of elements, and LLVM sees few shuffles in a row."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyop

TEXT = "op f(X: {0}[M, N]) -> (Y: {0}[N, M]) {{ Y[n, m] = X[m, n] }}"
DTYPES = ("f64", "f32", "i32", "i16", "i8")


def deepest(text: str) -> int:
    """How many shuffles of two vectors follow each other at most, as far as LLVM sees."""
    depth: dict[str, int] = {}
    for line in text.splitlines():
        found = re.match(r"\s*(%\w+) = (shufflevector|bitcast) (.*)", line)
        if found:
            name, what, rest = found.groups()
            vectors = re.findall(r"> (%\w+)", rest)
            depth[name] = max((depth.get(v, 0) for v in vectors), default=0) + (what == "shufflevector" and len(vectors) == 2)
    return max(depth.values(), default=0)


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_the_four_rounds_of_a_transpose_are_not_seen_together(dtype):
    text = polyop.op(TEXT.format(dtype)).compile(target="x86:x86-64-v4").source
    assert 2 <= deepest(text) <= 3  # of two rounds each; what copies the rest of few rows has three


@pytest.mark.parametrize("dtype", DTYPES)
def test_squares_of_each_width_are_turned(dtype):
    f, kind = polyop.op(TEXT.format(dtype)), np.dtype({"f": "f", "i": "i"}[dtype[0]] + str(int(dtype[1:]) // 8))
    for m, n in ((1, 1), (7, 9), (16, 64), (31, 65), (64, 64), (129, 67), (128, 191)):
        x = np.random.default_rng(m + n).integers(-99, 99, (m, n)).astype(kind)
        np.testing.assert_array_equal(f(x), x.T)
