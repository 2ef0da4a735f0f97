"""Operands of sums of narrow products that are one of two elements get memory of their own, where an instruction takes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ml_dtypes import bfloat16

import polyop
from polyop.ir.reference import evaluate
from polyop.ir.target import target
from polyop.poly.wellformed import check
from polyop.rewrite.copies.operands import rounded_apart
from tests.rewrite.ops import arguments, op

V4 = target("x86:x86-64-v4")
BRAIN = replace(V4, name="brain", features="+avx512bf16")
RECURRENT = """op f(h: bf16[B, K], U: bf16[K, K], X: bf16[T, B, K]) -> (Y: bf16[T, B, K]) {
    z[t, b, g] += (Y[t-1, b, k] else h[b, k]) * U[g, k]
    Y[t, b, g] = bf16(z[t, b, g] + X[t, b, g]) }"""
WINDOW = """op f(X: bf16[H, Q], B: bf16[H, Q], W: bf16[3, Q, N]) -> (C: f32[H, N]) {
    C[p, n] += f32((X[p + r - 1, q] else B[p, q])) * f32(W[r, q, n])  where p in 0:H }"""


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 2, 4), (2, 0, 3), (0, 2, 2)])
def test_the_sum_is_that_of_the_text(sizes):
    o = op(RECURRENT)
    made, named = rounded_apart(o, BRAIN), dict(zip("TBK", sizes, strict=True))
    assert [t.name for t in made.temporaries] == ["z", "z_of"] and made.tensor("z_of").dtype.name == "bf16"
    check(made)
    _, arrays = arguments(o, named)
    want, got = (evaluate(x, named, {}, arrays)["Y"] for x in (o, made))
    np.testing.assert_array_equal(got, want)


def test_other_operands_stay():
    assert rounded_apart(op(RECURRENT), V4) == op(RECURRENT)  # no instruction
    for text in (WINDOW, RECURRENT.replace("bf16", "f32")):
        assert rounded_apart(op(text), BRAIN) == op(text)


@pytest.mark.parametrize("t,b,k", [(3, 1, 17), (2, 17, 32), (3, 33, 15)])
def test_calls_get_it_right(t, b, k):
    rng, f = np.random.default_rng(b), polyop.op(RECURRENT)
    h, x = rng.integers(-2, 3, (b, k)).astype(bfloat16), rng.integers(-2, 3, (t, b, k)).astype(bfloat16)
    u = np.eye(k, k=1).astype(bfloat16)  # sums of few numbers are exact
    y, want = h.astype(np.float64), []
    for turn in x.astype(np.float64):
        y = y @ u.astype(np.float64).T + turn
        want.append(y)
    for _ in range(3):
        np.testing.assert_array_equal(f(h, u, x).astype(np.float64), np.array(want))
