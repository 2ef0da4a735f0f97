"""A contraction whose large operand lies across the result is computed in the order of that operand, and turned afterwards."""

import re

import numpy as np
import pytest

import polyop
from polyop.compiler import compile_op
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.loops import structure
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.span import Source
from polyop.ir.target import BY_NAME
from polyop.poly.middle import lower, scop_of
from polyop.rewrite.copies.late import LONG, TIMES, find_late, turned_late
from polyop.rewrite.regimes.regimes import as_it_lies, kinds, regime, regimes_of
from polyop.rewrite.regimes.tile_regimes import TERMS
from polyop.runtime.arrays import view
from polyop.runtime.layout import contiguous, layout

AVX512 = BY_NAME["x86:x86-64-v4"]


def views(x, w, z):
    return {n: view(a.astype(np.float32, order="K"), n, None) for n, a in (("X", x), ("W", w), ("Z", z))}


def op(text):
    return instantiate(parse(Source("<test>", text)), "f")


TEXT = "op f(X: f32[A, K, B], W: f32[J, K]) -> (Z: f32[J, B, A]) { Z[j, b, a] += X[a, k, b] * W[j, k] }"
ACROSS = op(TEXT)
PLUS = op("op f(W: i32[J, K], X: i32[A, D, K, B]) -> (Z: i32[B, J, D, A]) { Z[b, j, d, a] max= W[j, k] + X[a, d, k, b] }")


def test_sums_stand_where_the_operand_lies():
    update, turn = (str(s).split("  where") for s in turned_late(ACROSS).steps)
    assert update[0] == "Z_lying[a, j, b] += (X[a, k, b] * W[j, k])" and turn[0] == "Z[j, b, a] = Z_lying[a, j, b]"
    assert update[1].index("a in") < update[1].index("j in") < update[1].index("b in") < update[1].index("k in")
    assert str(turned_late(PLUS).steps[0]).startswith("Z_lying[a, d, j, b] max=")


@pytest.mark.parametrize("made", [ACROSS, PLUS])
def test_the_result_is_the_same(made):
    rng, sizes = np.random.default_rng(0), {"A": 5, "B": 3, "D": 2, "J": 4, "K": 7}
    arrays = {t.name: rng.integers(-9, 9, [sizes[e.name] for e in t.shape]).astype(t.dtype.numpy) for t in made.inputs}
    np.testing.assert_array_equal(evaluate(turned_late(made), sizes, {}, arrays)["Z"], evaluate(made, sizes, {}, arrays)["Z"])


@pytest.mark.parametrize("text", [
    "op f(X: f32[A, K, B], W: f32[J, K]) -> (Z: f32[J, A, B]) { Z[j, a, b] += X[a, k, b] * W[j, k] }",       # along the result
    "op f(X: f32[A, B, K], W: f32[J, K]) -> (Z: f32[J, B, A]) { Z[j, b, a] += X[a, b, k] * W[j, k] }",       # along the sum
    "op f(X: f32[A, K, B], W: f32[J, K]) -> (Z: f32[J, B, A]) { Z[j, b, a] += X[a, k, b] * W[j, k] where k <= a }",
    "op f(X: f32[A, K + 1, B], W: f32[J, K]) -> (Z: f32[J, B, A]) { Z[j, b, a] += X[a, k + 1, b] * W[j, k] }",
    "op f(X: f32[A, B], W: f32[J]) -> (Z: f32[J, B, A]) { Z[j, b, a] = X[a, b] * W[j] }",                    # no sum
    "op f(X: f32[A, K, B]) -> (Z: f32[B, A]) { Z[b, a] += X[a, k, b] }",                                     # no rows
])
def test_what_lies_another_way_stays(text):
    assert turned_late(op(text)) == op(text) and find_late(op(text)) == ()


def test_calls_with_large_operands_ask_for_it():
    sizes = {"A": 64, "B": 512, "J": 32, "K": 64}
    assert AVX512.stream_bytes == 64 * 64 * 512 * 4 and TIMES * 32 == 64
    for other, late in (({}, True), ({"A": 63}, False), ({"J": 33}, False), ({"A": 99}, True)):
        assert regime(regimes_of(ACROSS), sizes | other, Options(), AVX512).late is late
    assert not regime(regimes_of(ACROSS), sizes, Options(special=False), AVX512).late
    for k in (TERMS, TERMS + 1):
        assert dict(regime(regimes_of(ACROSS), sizes | {"K": k}, Options(), AVX512).fixed) == ({"K": k} if k == TERMS else {})
    assert "lies across" in " ".join(kinds(ACROSS))


@pytest.mark.parametrize(("sizes", "late"), [
    ((6, 48, 24, 64), True), ((10, 32, 6, 64), True), ((6, 48, 3, 64), True), ((2, 100, 3, 200), True),
    ((6, 48, 24, 15), False),                                                  # few terms
    ((12, 48, 24, 64), False),                                                 # vectors are three quarters full
    ((6, 7, 24, 64), False),                                                   # the operand's rows are no better
    ((6, 48, 100, 64), False)])                                                # lanes run along other rows
def test_so_do_those_whose_results_leave_vectors_empty(sizes, late):
    a, b, j, k = sizes
    assert regime(regimes_of(ACROSS), {"A": a, "B": b, "J": j, "K": k}, Options(), AVX512).late is late
    f, rng = polyop.op(TEXT), np.random.default_rng(a)
    x, w = rng.standard_normal((a, k, b)).astype(np.float32), rng.standard_normal((j, k)).astype(np.float32)
    for _ in range(2):
        want = np.einsum("akb,jk->jba", x.astype(np.float64), w)
        np.testing.assert_allclose(f(x, w), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("d", "late"), [(3, True), (11, True), (12, False), (48, False)])
def test_where_lanes_would_run_along_rows_these_are_as_short(d, late):
    text = """op f(X: f32[F, A, B, C], W: f32[A, E, D, F]) -> (Z: f32[A, E, C, D, B]) {
        Z[a, e, c, d, b] += X[f, a, b, c] * W[a, e, d, f] }"""
    sizes = {"A": 3, "B": 4, "C": 24, "D": d, "E": 20, "F": 128}
    assert regime(regimes_of(op(text)), sizes, Options(), AVX512).late is late
    f, rng = polyop.op(text), np.random.default_rng(d)
    x, w = (rng.standard_normal([sizes[n] for n in t]).astype(np.float32) for t in ("FABC", "AEDF"))
    np.testing.assert_allclose(f(x, w), np.einsum("fabc,aedf->aecdb", x.astype(np.float64), w), rtol=1e-4, atol=1e-4)


def test_the_turn_is_a_pass_of_its_own():
    made = compile_op(ACROSS, contiguous(ACROSS), AVX512, Options(late=True))
    assert made.rung == "tuned" and "lanes b" in made.chosen[0] and len(made.chosen) == 2
    assert any("lies across its tiles" in n for n in made.notes) and all(p.holds for p in made.proofs)


def test_threads_copy_blocks_of_a_large_operand_as_one_does():
    scop, units = scop_of(turned_late(ACROSS)), contiguous(ACROSS)
    alone, several = (lower(scop, units, AVX512, Options(late=True, threads=x), "tuned") for x in (False, True))
    block = re.search("nc [0-9]+, packs .*", alone.chosen[0])
    assert block and block[0].endswith("fused") and block[0] in several.chosen[0]
    assert structure(several.nest.body).startswith("a:parallel(b_c:parallel(j_c:parallel(k_c(j_r(")


def test_what_may_be_turned_in_registers_stays_with_its_sums():
    turned = op("op f(A: f32[M, K], B: f32[K, N]) -> (D: f32[N, M]) { C[m, n] += A[m, k] * B[k, n]; D[n, m] = C[m, n] }")
    assert len(compile_op(turned, contiguous(turned), AVX512, Options()).chosen) == 1


@pytest.mark.parametrize(("a", "b", "j", "k"), [(1, 1, 1, 1), (17, 65, 7, 3), (15, 64, 6, 130), (16, 9, 23, 1)])
def test_kernels_compute_what_numpy_does(a, b, j, k):
    rng = np.random.default_rng(a)
    x, w = rng.integers(-3, 4, (a, k, b)).astype(np.float32), rng.integers(-3, 4, (j, k)).astype(np.float32)
    f = polyop.op(TEXT, options=Options(late=True))
    np.testing.assert_array_equal(f(x, w), np.einsum("akb,jk->jba", x.astype(np.float64), w))


def test_an_operand_that_lies_along_the_result_in_memory_needs_no_turn():
    f, sizes = polyop.op(TEXT), {"A": 64, "B": 512, "J": 32, "K": 64}
    rng = np.random.default_rng(0)
    w, across = (rng.integers(-3, 4, s).astype(np.float32) for s in ((sizes["J"], sizes["K"]), (64, 64, 512)))
    along = np.ascontiguousarray(across.T).T
    expected = np.ascontiguousarray(np.einsum("akb,jk->jba", across.astype(np.float64), w, optimize=True))
    for x, late in ((along, False), (across, True)):
        asked = as_it_lies(regimes_of(ACROSS), layout(ACROSS, views(x, w, expected)), Options(late=True))
        assert asked.late is late
        for _ in range(4):
            np.testing.assert_array_equal(f(x, w), expected)


PIECES = ("op f(X: f32[A, K, D, B, C], W: f32[J, K]) -> (Z: f32[C, J, B, D, A])"
          " { Z[c, j, b, d, a] += X[a, k, d, b, c] * W[j, k] }")


def test_long_pieces_of_rows_are_turned_one_after_the_other():
    r, sizes = regimes_of(op(PIECES)), {"A": 48, "K": 48, "D": 36, "B": 36, "C": 48, "J": 24}
    assert [x.pieces for x in find_late(op(PIECES))] == [(op(PIECES).tensor("X").shape[2],)]
    for other, threads, expected in (({}, 2, True), ({"B": 3}, 1, True),
                                     ({"B": 2}, 1, False), ({"D": 7}, 2, False), ({"A": 2, "J": 12}, 1, False)):
        assert regime(r, sizes | other, Options(), AVX512, threads).piecewise is expected
    assert not find_late(ACROSS)[0].pieces and f"at least {LONG} bytes" in " ".join(kinds(op(PIECES)))
    made = compile_op(op(PIECES), contiguous(op(PIECES)), AVX512, Options(late=True, piecewise=True))
    assert made.rung == "tuned" and all(p.holds for p in made.proofs) and structure(made.nest.body).startswith("d:parallel(")
    assert "Z_lying: f32[A, J, 1, B, C] work (private)" in str(made.nest)


@pytest.mark.parametrize(("a", "d", "b", "c", "j", "k"), [(1, 1, 1, 1, 1, 1), (17, 3, 2, 65, 7, 3), (16, 2, 5, 15, 6, 130)])
@pytest.mark.parametrize("threads", [False, True])
def test_pieces_come_to_what_numpy_does(a, d, b, c, j, k, threads):
    rng = np.random.default_rng(a)
    x, w = rng.integers(-3, 4, (a, k, d, b, c)).astype(np.float32), rng.integers(-3, 4, (j, k)).astype(np.float32)
    f = polyop.op(PIECES, options=Options(late=True, piecewise=True, threads=threads))
    np.testing.assert_array_equal(f(x, w), np.einsum("akdbc,jk->cjbda", x.astype(np.float64), w))
