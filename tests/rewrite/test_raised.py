"""One of two bytes of one sort is raised, where many rows share the sums of columns that are taken off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyop
from polyop.ir.expr import evaluate as value
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.target import target
from polyop.poly.wellformed import check
from polyop.rewrite.regimes.regimes import regime, regimes_of
from polyop.rewrite.sums.raised import COLUMNS, ROWS, find_alike, raised
from polyop.runtime.loans import everyday
from tests.rewrite.ops import op

V4, AMX = (target(f"x86:{cpu}") for cpu in ("x86-64-v4", "sapphirerapids"))
VNNI = replace(V4, name="vnni", features="+avx512vnni")
TEXTS = {
    "signed": "op f(A: i8[M, K], B: i8[K, N]) -> (C: i32[M, N]) { C[m, n] += i32(A[m, k]) * i32(B[k, n]) }",
    "unsigned": "op f(A: u8[K, M], B: u8[N, K]) -> (C: u32[M, N]) { C[m, n] += u32(B[n, k]) * u32(A[k, m]) }",
    "batches": "op f(A: i8[B, M, K], W: i8[B, N, K]) -> (C: i32[B, M, N]) { C[b, m, n] += i32(A[b, m, k]) * i32(W[b, n, k]) }",
    "windows": "op f(X: u8[H, Q], W: u8[2, Q, N]) -> (C: i32[H - 1, N]) { C[p, n] += i32(X[p + r, q]) * i32(W[r, q, n]) }",
    "made before": """op f(X: f32[M, K], B: i8[K, N]) -> (C: i32[M, N]) {
        A[m, k] = i8(X[m, k]); C[m, n] += i32(A[m, k]) * i32(B[k, n]) }""",
    "used again": """op f(A: i8[M, K], B: i8[K, N], s: f32[N]) -> (Y: f32[M, N]) {
        C[m, n] += i32(A[m, k]) * i32(B[k, n])
        Y[m, n] = f32(C[m, n]) * s[n] }""",
}


@pytest.mark.parametrize("name", TEXTS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_sum_is_that_of_the_text(name, data):
    o = op(TEXTS[name])
    made = raised(o)
    check(made)
    sizes = {n: data.draw(st.integers(1 if n == "H" else 0, 4), n) for n in o.sizes}
    rng = np.random.default_rng(data.draw(st.integers(0, 99), "seed"))
    arrays = {}
    for t in o.inputs:
        shape = [value(e, sizes) for e in t.shape]
        any_byte, some = rng.integers(0, 256, shape).astype(np.uint8), rng.integers(-99, 99, shape).astype(np.float32)
        arrays[t.name] = any_byte.view(t.dtype.numpy) if t.dtype.bits == 8 else some
    want, got = (evaluate(x, sizes, {}, arrays) for x in (o, made))
    for n, x in want.items():
        np.testing.assert_array_equal(got[n], x)


def test_sums_of_columns_stand_beside_a_sum_of_products_with_a_raised_copy():
    assert [str(s).split("  where")[0] for s in raised(op(TEXTS["signed"])).steps] == [
        "A_raised[A_0, A_1] = (u8(A[A_0, A_1]) + u8(128))", "B_sums[n] += i32(B[k, n])",
        "C_raised[m, n] += (i32(A_raised[m, k]) * i32(B[k, n]))",
        "C[m, n] = (C_raised[m, n] - (i32(128) * B_sums[n]))"]


@pytest.mark.parametrize("text", [
    "op f(A: u8[M, K], B: i8[K, N]) -> (C: i32[M, N]) { C[m, n] += i32(A[m, k]) * i32(B[k, n]) }",           # as they should be
    "op f(A: i8[M, K], B: i8[K]) -> (C: i32[M]) { C[m] += i32(A[m, k]) * i32(B[k]) }",                        # no rows
    "op f(A: i8[M, K], B: i8[K, N]) -> (C: i64[M, N]) { C[m, n] += i64(A[m, k]) * i64(B[k, n]) }",
    "op f(A: i8[M, K], B: i8[K, N]) -> (C: i32[M, N]) { C[m, n] += i32(A[m, k]) * i32(B[k, n]) where k <= m }",
    "op f(A: i8[M, K], B: i8[K, N]) -> (C: i32[M, N]) { C[m, n] += i32((A[m, k - 1] else 0)) * i32(B[k, n]) }",
    """op f(X: i8[T, K], B: i8[K, K]) -> (H: i8[T, K]) {
        Z[t, j] += i32((H[t - 1, k] else 0)) * i32(B[k, j]); H[t, j] = X[t, j] + i8(Z[t, j]) }""",
    "op f(A: i8[M, K, J], B: i8[K, N]) -> (C: i32[M, N]) { C[m, n] += i32(A[m, k, j]) * i32(B[k, n]) }",
])
def test_what_no_instruction_needs_raised_stays_as_it_is(text):
    o = op(text)
    assert find_alike(o) == () and raised(o) is o


def test_bytes_are_raised_for_many_rows_where_the_target_multiplies_unsigned_by_signed_ones():
    q, sizes = regimes_of(op(TEXTS["signed"])), {"M": ROWS, "K": 64, "N": COLUMNS}
    assert regime(q, sizes, Options(), VNNI).raised
    assert not regime(q, sizes | {"M": ROWS - 1}, Options(), VNNI).raised
    assert not regime(q, sizes | {"N": COLUMNS - 1}, Options(), VNNI).raised
    assert not regime(q, sizes, Options(special=False), VNNI).raised
    assert not any(regime(q, sizes, Options(), t).raised for t in (V4, AMX))


def test_a_call_may_borrow_a_kernel_whose_bytes_are_as_they_are():
    assert everyday(Options(raised=True), Options()) == Options()


@pytest.mark.parametrize("name", ["signed", "batches", "used again"])
def test_a_kernel_of_raised_bytes_computes_the_same(name):
    f, plain = (polyop.op(TEXTS[name], options=Options(raised=r)) for r in (True, False))
    rng = np.random.default_rng(1)
    shapes = {"signed": ((30, 70), (70, 33)), "batches": ((2, 17, 40), (2, 19, 40)), "used again": ((17, 40), (40, 35))}[name]
    arrays = [rng.integers(-128, 128, s).astype(np.int8) for s in shapes]
    arrays += [np.ones(35, np.float32)] if name == "used again" else []
    np.testing.assert_array_equal(f(*arrays), plain(*arrays))
