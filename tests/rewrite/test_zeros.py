"""Products of bytes less zero points are products of bytes and sums of rows and columns."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.ir.dots import product
from polyop.poly.wellformed import check
from polyop.rewrite.sums.zeros import multiplied_out
from tests.rewrite.ops import assert_same, op

HEAD = "op f(X: u8[M, K], W: i8[N, K], u: i8[N]; a: i32, b: i32) -> (Y: i32[M, N]) "
TEXTS = {
    "both": HEAD + "{ Y[m, n] += (i32(X[m, k]) - a) * (i32(W[n, k]) - b) }",
    "left": HEAD + "{ Y[m, n] += (i32(X[m, k]) - a) * i32(W[n, k]) }",
    "right, added": HEAD + "{ Y[m, n] += i32(X[m, k]) * (b + i32(W[n, k])) }",
    "for each column": HEAD + "{ Y[m, n] += (a - i32(X[m, k])) * (i32(W[n, k]) - i32(u[n])) }",
    "windows": """op f(X: i8[B, L, C], F: i8[K, 3, C]; a: i32) -> (Y: i32[B, L - 2, K]) where L >= 2 {
        Y[b, p, k] += (i32(X[b, p + r, c]) - a) * (i32(F[k, r, c]) - 3) }""",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_parts_are_what_the_whole_is(text, depth):
    whole = op(text)
    made = multiplied_out(whole)
    assert sum(product(s.expr) is not None for s in made.steps) == 1 < len(made.steps)
    check(made)
    assert_same(whole, made, {"M": 3, "N": 2, "K": depth, "B": 2, "L": 5, "C": depth})


@pytest.mark.parametrize("text", [
    HEAD + "{ Y[m, n] += i32(X[m, k]) * i32(W[n, k]) }",
    HEAD + "{ Y[m, n] += (i32(X[m, k]) - a) * (i32(W[n, k]) - b) where k <= m }",
    HEAD + "{ Y[m, n] += (i32(X[m, k]) - k) * i32(W[n, k]) }",
    HEAD + "{ Y[m, n] += (i32((X[m, k - 1] else 0)) - a) * i32(W[n, k]) }",
    "op f(X: f32[M, K], W: f32[N, K]; a: f32) -> (Y: f32[M, N]) { Y[m, n] += (X[m, k] - a) * W[n, k] }",
    "op f(X: i32[M, K], W: i32[N, K]; a: i32) -> (Y: i32[M, N]) { Y[m, n] += (X[m, k] - a) * W[n, k] }",
    HEAD + "{ Y[m, n] max= (i32(X[m, k]) - a) * (i32(W[n, k]) - b) }",
    HEAD + "{ Y[m, n] += (i32(X[m, k]) - a) * i32(W[n, k]) where k in 0:min(m, K) }",
    HEAD + "{ Y[m, n] += (i32(X[m, k]) - a) * i32(W[n, k]); Y[m, n] += i32(X[m, k]) }",
    HEAD + "{ Y[m, n] += (i32(X[m, k]) - a - n) * (i32(W[n, k]) - b) }",
    "op f(X: u8[M, K], W: i8[N, K]; a: f32) -> (Y: f32[M, N]) { Y[m, n] += (f32(X[m, k]) - a) * f32(W[n, k]) }",
    "op f(X: i16[M, K], W: i16[N, K]; a: i32) -> (Y: i32[M, N]) { Y[m, n] += (i32(X[m, k]) - a) * i32(W[n, k]) }",
], ids=["plain", "a triangle", "along the sum", "a border", "floats", "wide", "a maximum", "a range that ends", "two steps",
        "six terms", "sums of floats", "two bytes"])
def test_other_sums_stay(text):
    whole = op(text)
    assert multiplied_out(whole) == whole


def test_a_call_takes_zero_points_off_where_sums_wrap():
    rng = np.random.default_rng(2)
    x, w, u = rng.integers(0, 256, (33, 70)), rng.integers(-128, 128, (17, 70)), rng.integers(-128, 128, 17)
    f = polyop.op(TEXTS["for each column"])
    got = f(x.astype(np.uint8), w.astype(np.int8), u.astype(np.int8), a=2**30, b=0)
    assert np.array_equal(got, ((2**30 - x) @ (w - u[:, None]).T).astype(np.int32))
    assert "Y_part" in f.compile().explain()
