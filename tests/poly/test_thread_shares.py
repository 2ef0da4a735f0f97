"""Sums with few results are cut into shares for several threads, and inside a share loops are as one thread likes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyop
from polyop.compiler import compile_op
from polyop.forms import before_scop
from polyop.ir.loops import structure
from polyop.ir.options import Layout, Options
from polyop.ir.target import target
from polyop.poly.middle import Middle, lower, scop_of
from polyop.poly.verify import first_failure, prove
from polyop.rewrite.regimes.regimes import regime, regimes_of
from polyop.runtime import threads
from polyop.runtime.layout import contiguous
from tests.rewrite.ops import op as op_of

V4 = target("x86:x86-64-v4")

MATMUL = "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }"
DOTS = "op f(A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }"
COLUMNS = "op f(X: f32[K, N]) -> (Y: f32[N]) { Y[n] += X[k, n] }"
ROWS = "op f(X: f32[M, K]) -> (Y: f32[M]) { Y[m] += X[m, k] }"
TWICE = "op f(X: f32[L, K, I], Y: f32[K, J, L]) -> (Z: f32[J, I]) { Z[j, i] += X[l, k, i] * Y[k, j, l] }"
COUNTS = "op f(at: i64[K], N: int) -> (Y: i64[N]) { Y[at[k]] += 1 }"
PLACES = "op f(X: f32[K, M], at: i64[K], N: int) -> (Y: f32[N, M]) { Y[at[k], m] += X[k, m] }"
BYTES = "op f(A: u8[M, K], B: i8[K, N]) -> (C: i32[M, N]) { C[m, n] += i32(A[m, k]) * i32(B[k, n]) }"


def middle(text: str, options: Options) -> Middle:
    op = op_of(text)
    layout = Layout(tuple((t.name, len(t.shape) - 1 if t.shape else None) for t in op.tensors if t.role != "temp"))
    return lower(scop_of(before_scop(op, options, V4)), layout, V4, options, "tuned")


@pytest.mark.parametrize(("text", "m", "n", "k", "share"), [
    (MATMUL, 32, 32, 100000, 4096),   # two tiles: one for each of two threads, and none for a third
    (MATMUL, 200, 200, 20000, 512), (MATMUL, 200, 200, 2047, 0),
    (MATMUL, 480, 480, 100000, 0),    # tiles enough
    (MATMUL, 16, 4096, 4096, 512), (MATMUL, 16, 65536, 4096, 0),
    (MATMUL, 1, 3072, 768, 128), (MATMUL, 1, 3072, 512, 128), (MATMUL, 1, 3072, 511, 0),
    (MATMUL, 4, 4096, 4096, 256), (MATMUL, 4, 40960, 4096, 0),  # few rows: the right operand is read in its own order
    (DOTS, 4, 4096, 4096, 0), (DOTS, 4, 7, 100000, 4096),       # each result is a piece of work
    (COLUMNS, 0, 32, 100000, 2048), (COLUMNS, 0, 1000, 20000, 2048), (COLUMNS, 0, 1000, 8192, 256), (COLUMNS, 0, 40000, 8192, 0),
    (ROWS, 1, 0, 10**6, 32768), (ROWS, 4, 0, 10**6, 0), (ROWS, 1, 0, 10**4, 0),
    (COUNTS, 0, 10, 10**6, 16384), (COUNTS, 0, 4000, 10**6, 32768), (COUNTS, 0, 10, 50000, 0),
    (COUNTS, 0, 100000, 10**6, 0),    # each share would set as many places to zero as it adds up
    (PLACES, 64, 1000, 100000, 8192), (PLACES, 2048, 1000, 100000, 0),  # rows have strips enough
    (BYTES, 32, 32, 100000, 0),       # an instruction takes four steps at once, and never a part of these
])
def test_sums_are_cut_where_threads_would_have_too_little_to_share(text: str, m: int, n: int, k: int, share: int) -> None:
    op = op_of(text)
    sizes = {s: x for s, x in (("M", m), ("N", n), ("K", k)) if s in op.sizes}
    found = regime(regimes_of(op), sizes, Options(), V4, 2).shares
    assert found == (((op.outputs[0].name, share),) if share else ())
    assert regime(regimes_of(op), sizes, Options(), V4, 8).shares == found, "else results depend on the number of threads"
    assert regime(regimes_of(op), sizes, Options(), V4, 1).shares == ()
    assert regime(regimes_of(op), sizes, Options(numerics="strict"), V4, 2).shares == ()


@pytest.mark.parametrize(("deep", "share"), [((192, 188), 12), ((1000, 64), 4), ((100, 63), 6), ((8, 2000), 125), ((1, 2047), 0)])
def test_a_product_along_several_indices_has_shares_of_one_along_which_neighbours_do_not_lie(deep, share) -> None:
    q, (long, cut) = regimes_of(op_of(TWICE)), deep
    sizes = {"L": long, "K": cut, "J": 188, "I": 192}
    assert q.questions.sums[0].index == "k"
    assert regime(q, sizes, Options(), V4, 2).shares == ((("Z", share),) if share else ())


def test_a_share_of_a_product_is_packed_as_by_one_thread() -> None:
    m = middle(MATMUL, Options(threads=True, shares=(("C", 512),)))
    assert first_failure(prove(m.scop, m.nest, m.context)) is None
    assert "right, fused" in m.chosen[0] and structure(m.nest.body).startswith("t:parallel(m_c:parallel(n_c(")


@pytest.mark.parametrize("text", [
    "op f(A: f32[B, M, K], X: f32[B, K, N]) -> (C: f32[B, M, N]) { C[b, m, n] += A[b, m, k] * X[b, k, n] }",
    "op f(X: f32[K, B], at: i64[K], N: int) -> (C: f32[B, N]) { C[b, at[k]] += X[k, b] }"])
def test_shares_are_for_threads_also_where_batches_could_be(text: str) -> None:
    m = middle(text, Options(threads=True, shares=(("C", 512),)))
    assert first_failure(prove(m.scop, m.nest, m.context)) is None
    assert "t:parallel(" in structure(m.nest.body)


@pytest.mark.parametrize(("text", "name", "options"), [
    (MATMUL, "C", Options(threads=True, rows=4)), (COLUMNS, "Y", Options(threads=True)),
    (COLUMNS, "Y", Options(threads=True, paged=True))])
def test_a_share_of_what_is_read_once_goes_through_memory_in_its_order(text: str, name: str, options: Options) -> None:
    one = middle(text, Options(rows=options.rows))
    cut = middle(text, replace(options, shares=((name, 256),)))
    assert first_failure(prove(cut.scop, cut.nest, cut.context)) is None
    numbers = [c.split(": ", 2)[2].replace("k_i", "k") for c in (one.chosen[0], cut.chosen[0])]
    assert numbers[0] == numbers[1] and cut.chosen[0].startswith("[t ")
    assert "parts_init" in cut.chosen[0] and "parts_init" not in cut.chosen[1], "shares are added up by themselves"


def test_a_share_as_long_as_its_vectors_is_rewritten_as_any_other() -> None:
    """Sums are started and added up over all lanes, also where fewer have something to add."""
    op = op_of(DOTS)
    made = compile_op(op, contiguous(op), V4, Options(threads=True, few=(("N", 4),), shares=(("C", 64),)))
    assert made.rung == "tuned" and made.final != made.nest and all(p.holds for p in made.proofs)


@pytest.mark.parametrize("text", [MATMUL, DOTS, COLUMNS, ROWS, PLACES])
def test_sums_in_shares_are_the_same_bits_on_any_number_of_threads(text: str) -> None:
    f = polyop.op(text)
    rng = np.random.default_rng(0)
    shapes = {"A": (3, 5000), "B": (3, 5000) if text == DOTS else (5000, 33), "X": (2, 70000) if text == ROWS else (9000, 60)}
    arrays = {t.name: rng.standard_normal(shapes[t.name]).astype(np.float32) for t in f.interface.tensors if t.name in shapes}
    if text == PLACES:
        arrays |= {"at": rng.integers(0, 20, 9000), "N": 20}
    before = threads.get_num_threads()
    try:
        threads.set_num_threads(2)
        want = [f(**arrays) for _ in range(3)][-1]  # what is cut has a kernel of its own when it is asked for again
        for count in (3, 4, 7):
            threads.set_num_threads(count)
            for _ in range(3):
                np.testing.assert_array_equal(f(**arrays), want)
    finally:
        threads.set_num_threads(before)


def test_places_outside_are_told_in_the_words_of_the_text() -> None:
    f = polyop.op(PLACES)
    x, at = np.ones((9000, 60), np.float32), np.arange(9000) % 20
    before = threads.get_num_threads()
    try:
        threads.set_num_threads(2)
        for _ in range(3):
            np.testing.assert_array_equal(f(x, at, N=20), 450)
        at[4321] = 20
        with pytest.raises(polyop.PolyopError, match=r"`Y\[at\[k\], m\]` writes outside `Y`, which has N = 20 rows"):
            f(x, at, N=20)
    finally:
        threads.set_num_threads(before)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(("text", "shapes"), [
    (MATMUL, ((32, 5000), (5000, 33))), (MATMUL, ((3, 3000), (3000, 70))), (MATMUL, ((1, 5000), (5000, 500))),
    (MATMUL, ((130, 2500), (2500, 4))), (DOTS, ((40, 4100), (5, 4100))), (COLUMNS, ((5000, 100),)), (ROWS, ((3, 70000),)),
    (TWICE, ((40, 67, 33), (67, 5, 40)))])
def test_threads_add_up_shares_to_what_one_thread_gets(text: str, shapes: tuple[tuple[int, ...], ...], count: int) -> None:
    f = polyop.op(text)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-4, 5, s).astype(np.float32) for s in shapes]
    before = threads.get_num_threads()
    try:
        threads.set_num_threads(1)
        want = f(*arrays)
        threads.set_num_threads(count)
        for _ in range(3):  # what is cut has a kernel of its own when it is asked for again
            np.testing.assert_array_equal(f(*arrays), want)
    finally:
        threads.set_num_threads(before)
