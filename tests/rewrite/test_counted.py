"""Pairs of truths are counted, where the target can and enough results share them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyop
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.poly.wellformed import check
from polyop.rewrite.regimes.regimes import regime, regimes_of
from polyop.rewrite.sums.counted import MOST, SHARED, counted, find_pairs
from tests.rewrite.ops import assert_same, op

V4, V3, AMX, V2 = (target(f"x86:{cpu}") for cpu in ("x86-64-v4", "x86-64-v3", "sapphirerapids", "x86-64-v2"))
VNNI = replace(V4, name="vnni", features="+avx512vnni")
HEAD = "op f(A: bool[M, K], B: bool[K, N]) -> (C: bool[M, N]) "
SUM = "op f(A: bool[M, K], B: bool[K, N]) -> (C: i32[M, N]) "
TEXTS = {
    "or": HEAD + "{ C[m, n] or= A[m, k] and B[k, n] }",
    "and": HEAD + "{ C[m, n] and= A[m, k] or not B[k, n] }",
    "subsets": HEAD + "{ C[m, n] or= not (A[m, k] or not B[k, n]) }",
    "bits": HEAD + "{ C[m, n] ^= A[m, k] & B[k, n] }",
    "max": HEAD + "{ C[m, n] max= min(A[m, k], B[k, n]) }",
    "batches": "op f(A: bool[B, M, K], W: bool[B, N, K], v: bool[K]) -> (C: bool[B, M, N]) "
               "{ C[b, m, n] or= A[b, m, k] and W[b, n, k] and v[k] }",
    "tests": "op f(X: i32[M, K], B: bool[N, K]) -> (C: bool[M, N]) { C[m, n] or= X[m, k] > 0 and B[n, k] }",
    "how many": SUM + "{ C[m, n] += i32(A[m, k] and B[k, n]) }",
    "ones": SUM + "{ C[m, n] += A[m, k] and not B[k, n] ? 1 : 0 }",
    "products": SUM.replace("i32", "i64") + "{ C[m, n] += i64(A[m, k]) * i64(B[k, n]) }",
    "unsigned": "op f(X: i32[M, K], B: bool[N, K]) -> (C: u32[M, N]) { C[m, n] += u32(X[m, k] > 0) * u32(B[n, k]) }",
    "used again": HEAD + "{ T[m, n] or= A[m, k] and B[k, n]\n C[m, n] = not T[m, n] }",
}


@pytest.mark.parametrize("t", [VNNI, V3], ids=lambda t: t.name)
@pytest.mark.parametrize("name", TEXTS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_the_answer_is_that_of_the_text(name, t, data):
    o = op(TEXTS[name])
    made = counted(o, t)
    check(made)
    assert made is not o
    sizes = {n: data.draw(st.integers(0, 4), n) for n in o.sizes}
    assert_same(o, made, sizes, data.draw(st.integers(0, 99), "seed"))


@pytest.mark.parametrize(("t", "left", "right"), [(VNNI, "u8", "i8"), (V3, "i16", "i16")], ids=["bytes", "words"])
def test_a_product_over_or_and_is_one_of_what_the_target_multiplies(t, left, right):
    assert [str(s).split("  where")[0] for s in counted(op(TEXTS["or"]), t).steps] == [
        f"C_left[m, k] = {left}(A[m, k])", f"C_right[k, n] = {right}(B[k, n])",
        "C_count[m, n] += (i32(C_left[m, k]) * i32(C_right[k, n]))", "C[m, n] = (C_count[m, n] != i32(0))"]


@pytest.mark.parametrize("text", [
    HEAD + "{ C[m, n] or= A[m, k] or B[k, n] }",
    SUM + "{ C[m, n] += i32(A[m, k] or B[k, n]) }",
    SUM + "{ C[m, n] += A[m, k] and B[k, n] ? 2 : 0 }",
    SUM.replace("i32", "f32") + "{ C[m, n] += f32(A[m, k] and B[k, n]) }",
    HEAD + "{ C[m, n] and= A[m, k] and B[k, n] }",
    HEAD + "{ C[m, n] or= A[m, k] and B[k, n] where k <= m }",
    HEAD + "{ C[m, n] or= A[m, k] and B[m, n] }",                                                             # no sum of products
    "op f(A: bool[M, K], B: bool[K]) -> (C: bool[M]) { C[m] or= A[m, k] and B[k] }",                          # no columns
    "op f(A: bool[M, K, N], B: bool[K, N]) -> (C: bool[M, N]) { C[m, n] or= A[m, k, n] and B[k, n] }",        # no rows
    "op f(A: i32[M, K], B: i32[K, N]) -> (C: i32[M, N]) { C[m, n] |= A[m, k] & B[k, n] }",                    # 32 truths each
    "op f(A: bool[M, K], j: i32[M], B: bool[K, N]) -> (C: bool[M, N]) { C[m, n] or= A[j[m], k] and B[k, n] }",
])
def test_what_is_no_product_of_truths_stays_as_it_is(text):
    o = op(text)
    assert find_pairs(o) == () and counted(o, VNNI) is o


def test_pairs_are_counted_where_results_share_them_and_the_target_counts():
    q, sizes = regimes_of(op(TEXTS["or"])), {"M": SHARED, "K": MOST - 1, "N": SHARED}
    assert all(regime(q, sizes, Options(), t).counted for t in (VNNI, AMX, V4, V3))
    assert not regime(q, sizes, Options(), V2).counted
    assert not any(regime(q, sizes | less, Options(), AMX).counted for less in ({"M": 15}, {"N": 15}, {"K": MOST}))


@pytest.mark.parametrize("name", ("or", "and", "bits", "how many"))
def test_calls_give_what_numpy_does(name):
    o, rng = polyop.op(TEXTS[name]), np.random.default_rng(1)
    wanted = {"or": lambda a, b: (a & b).any(1), "and": lambda a, b: (a | ~b).all(1),
              "bits": lambda a, b: np.bitwise_xor.reduce(a & b, axis=1),
              "how many": lambda a, b: (a & b).sum(1)}[name]
    for m, n, k in ((16, 16, 1), (17, 31, 65), (37, 64, 0), (15, 70, 5), (0, 20, 20), (130, 67, 129)):
        a, b = rng.random((m, k)) < 0.1, rng.random((n, k)).T < 0.1
        for _ in range(2):
            np.testing.assert_array_equal(o(a, b), wanted(a[:, :, None], b[None]))
