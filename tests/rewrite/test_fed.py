"""What feeds a sum row by row is cut into shares with it, where rows are read twice, and computes what it did."""

from __future__ import annotations

import numpy as np
import pytest

from polyop.ir.loops import For, Kind, stores
from polyop.ir.options import Layout, Options
from polyop.ir.reference import evaluate
from polyop.ir.target import target
from polyop.poly.middle import lower, scop_of
from polyop.poly.verify import first_failure, prove
from polyop.rewrite.regimes.regimes import kinds, regime, regimes_of
from polyop.rewrite.sums.shares import cut_into_shares, sums
from tests.rewrite.ops import op

V4 = target("x86:x86-64-v4")
ATAX = "op f(A: f64[M, N], x: f64[N]) -> (s: f64[N]) {\n t[m] += A[m, n] * x[n]\n s[n] += A[m, n] * t[m]\n}"
FED = {
    "products": ATAX,
    "through maps": "op f(A: f64[M, N], x: f64[N], z: f64[M]) -> (s: f64[N]) {\n t[m] += A[m, n] * x[n]\n"
                    " r[m] = max(t[m], 0) - z[m]\n s[n] += A[m, n] * r[m]\n}",
    "two sums": "op f(A: f64[M, N]) -> (s: f64[N]) {\n t[m] += A[m, n]\n q[m] max= A[m, n]\n s[n] += A[m, n] * t[m] - q[m]\n}",
    "one after the other": "op f(A: f64[M, N]) -> (s: f64[N]) {\n t[m] += A[m, n]\n q[m] += max(A[m, n] - t[m], 0)\n"
                           " s[n] += A[m, n] * q[m]\n}",
    "batches": "op f(A: f64[B, M, N], x: f64[B, N]) -> (s: f64[B, N]) {\n t[m, b] += A[b, m, n] * x[b, n]\n"
               " s[b, n] += A[b, m, n] * t[m, b]\n}",
}
WHOLE = {
    "another row": "op f(A: f64[M, N], x: f64[N]) -> (s: f64[N]) {\n t[m] += A[m, n] * x[n]\n"
                   " s[n] += A[m, n] * t[m] where m >= 1\n s[n] += t[0]\n}",
    "a result": "op f(A: f64[M, N], x: f64[N]) -> (s: f64[N], t: f64[M]) {\n t[m] += A[m, n] * x[n]\n s[n] += A[m, n] * t[m]\n}",
    "all rows": "op f(A: f64[M, N]) -> (s: f64[N]) {\n t[m] += A[m, n]\n u += t[m]\n r[m] = t[m] - u\n s[n] += A[m, n] * r[m]\n}",
    "the row before": "op f(A: f64[M, N]) -> (s: f64[N]) {\n t[m] += A[m, n]\n"
                      " s[n] += A[m, n] * (t[m] - t[m - 1]) where m >= 1\n}",
    "columns": "op f(A: f64[N, M], x: f64[N]) -> (s: f64[N]) {\n t[m] += A[n, m] * x[n]\n s[n] += A[n, m] * t[m]\n}",
    "two matrices": "op f(A: f64[M, N], C: f64[M, N], x: f64[N]) -> (s: f64[N]) {\n t[m] += A[m, n] * x[n]\n"
                    " s[n] += C[m, n] * t[m]\n}",
}


def arrays_of(whole, sizes):
    rng = np.random.default_rng(0)
    return {t.name: rng.integers(-4, 5, [sizes[str(e)] for e in t.shape]).astype(float) for t in whole.inputs}


@pytest.mark.parametrize("name", FED)
def test_what_feeds_a_sum_is_cut_with_it(name):
    whole = op(FED[name])
    (found,) = (x for x in sums(whole) if x.target == "s")
    assert [str(e) for e in found.row.extents] == ["N"] and found.row.bytes_ == 8
    for chunk in (4, 64):
        cut = cut_into_shares(whole, {"s": chunk})
        assert len(cut.steps) == len(whole.steps) + 1
        for m, n in ((0, 3), (1, 1), (4, 3), (11, 5), (70, 2)):
            sizes = {s: x for s, x in (("M", m), ("N", n), ("B", 3)) if s in whole.sizes}
            arrays = arrays_of(whole, sizes)
            np.testing.assert_array_equal(evaluate(cut, sizes, {}, arrays)["s"], evaluate(whole, sizes, {}, arrays)["s"])


@pytest.mark.parametrize("name", WHOLE)
def test_what_others_read_or_what_is_read_once_stays_whole(name):
    whole = op(WHOLE[name])
    assert not any(x.row for x in sums(whole))
    if any(x.target == "s" for x in sums(whole)):
        assert len(cut_into_shares(whole, {"s": 4}, alone=False).steps) == len(whole.steps) + 1


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("name", ["products", "through maps", "one after the other"])
def test_both_are_in_one_loop_over_shares(name, threads):
    scop = scop_of(cut_into_shares(op(FED[name]), {"s": 16}))
    layout = Layout(tuple((t.name, len(t.shape) - 1) for t in scop.op.tensors if t.role != "temp"))
    made = lower(scop, layout, V4, Options(threads=threads, shares=(("s", 16),)), "tuned")
    assert first_failure(prove(made.scop, made.nest, made.context)) is None
    shares, total = made.nest.body
    assert isinstance(shares, For) and shares.kind == Kind.PARALLEL
    assert {x.origin for x in stores((total,))} - {None} == {"s_init", scop.stmts[-1].name}


@pytest.mark.parametrize(("m", "n", "share"), [
    (4096, 4096, 8), (100000, 100, 256), (4096, 1000, 32),
    (100, 1000, 0),     # all rows are in the cache
    (1000, 10000, 0),   # too few rows are
])
def test_rows_that_are_read_twice_stay_in_the_second_cache(m, n, share):
    q, sizes = regimes_of(op(ATAX)), {"M": m, "N": n}
    wanted = (("s", share),) if share else ()
    assert regime(q, sizes, Options(), V4, 1).shares == wanted
    assert regime(q, sizes, Options(numerics="strict"), V4, 1).shares == ()
    if share:
        assert regime(q, sizes, Options(), V4, 2).shares == wanted


def test_explain_says_which_calls_have_rows_in_a_cache():
    assert any("read twice" in k for k in kinds(op(ATAX))) and not any("read twice" in k for k in kinds(op(WHOLE["columns"])))
