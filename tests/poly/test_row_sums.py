"""Sums of rows, and rows that are copied."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.ir.loops import structure
from polyop.ir.options import Options

from .middles import CASES, V4, middle, proved, run

SUMS = {
    "sum": ("op f(X: f32[N, B]) -> (S: f32[B]) { S[b] += X[n, b] }", lambda x: x.sum(0)),
    "most": ("op f(X: f32[N, B]) -> (S: f32[B]) { S[b] max= X[n, b] }", lambda x: x.max(0)),
    "mean": ("op f(X: f32[N, B]) -> (S: f32[B]) { t[b] += X[n, b]; S[b] = t[b] / N }", lambda x: x.mean(0)),
    "weighted": ("op f(X: f32[N, B]) -> (S: f32[B]) { t[b] += X[n, 0] * X[n, b]; S[b] = relu(t[b]) + 1 }",
                 lambda x: np.maximum(x[:, 0] @ x, 0) + 1),
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("numerics", ["fast", "strict"])
def test_sums_of_rows_add_up_a_few_rows_at_a_time_over_long_runs(name, numerics):
    text, expected = SUMS[name]
    m = middle(text, "tuned", Options(numerics=numerics))
    assert proved(m) and structure(m.nest.body).startswith("b_c:parallel(n_c(b_r(b_v:lanes(")
    for sizes in ({"N": 19, "B": 70}, {"N": 8, "B": 1}, {"N": 1, "B": 64}, {"N": 7, "B": 65}):
        arrays, got = run(m, sizes)
        np.testing.assert_allclose(got, expected(arrays["X"]), rtol=1e-4, atol=1e-4)


def test_rows_are_added_up_whole_as_long_as_a_sixteenth_of_the_second_cache_has_their_results():
    m = middle(SUMS["sum"][0], "tuned")
    run_ = V4.l2 // 16 // 4
    assert f"for b_c in [0, B) by {run_}" in str(m.nest)
    f = polyop.op(SUMS["weighted"][0])
    for columns in (run_ - 1, run_ + 1, 2 * run_, 2 * run_ + 65):
        x = np.random.default_rng(columns).standard_normal((11, columns)).astype(np.float32)
        np.testing.assert_allclose(f(x), SUMS["weighted"][1](x.astype(np.float64)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("threads", "pieces"), [(False, 64), (True, 16)])
@pytest.mark.parametrize(("term", "expected"), [
    ("X[n, a, b]", lambda x: x.sum(0)), ("X[n, 0, b] * X[n, a, b]", lambda x: np.einsum("nb,nab->ab", x[:, 0], x))])
def test_rows_in_pieces_are_added_up_many_pieces_at_a_time(threads, pieces, term, expected):
    m = middle(f"op f(X: f32[N, A, B]) -> (S: f32[A, B]) {{ S[a, b] += {term} }}", "tuned", Options(threads=threads))
    assert proved(m) and structure(m.nest.body).startswith("a_c:parallel(b_c")
    assert f"in [0, A) by {pieces}" in str(m.nest) and f"in [0, B) by {V4.l2 // 16 // 4 // 8}" in str(m.nest)
    for sizes in ({"N": 19, "A": 65, "B": 33}, {"N": 8, "A": 1, "B": 70}, {"N": 1, "A": 63, "B": 1}, {"N": 9, "A": 17, "B": 64}):
        arrays, got = run(m, sizes)
        np.testing.assert_allclose(got, expected(arrays["X"].astype(np.float64)), rtol=1e-4, atol=1e-4)


def test_rows_that_lie_inside_pieces_are_added_up_piece_by_piece():
    m = middle("op f(X: f32[A, N, B]) -> (S: f32[A, B]) { S[a, b] += X[a, n, b] }", "tuned")
    assert proved(m) and structure(m.nest.body).startswith("a:parallel(")


def test_rows_from_anywhere_are_added_up_in_registers_many_elements_at_a_time():
    m = middle("op f(ids: i64[L], E: f32[V, D]) -> (S: f32[D]) { S[d] += E[ids[l], d] }", "tuned")
    assert proved(m) and "lanes 128" in str(m.nest) and "l_c" not in structure(m.nest.body)


@pytest.mark.parametrize(("arch", "vectors"), [("x86-64-v4", "4 x 16"), ("x86-64-v3", "8 x 8"), ("x86-64-v2", "8 x 4")])
def test_short_rows_are_added_up_whole_whatever_a_vector_holds(arch, vectors):
    made = polyop.op(SUMS["sum"][0]).compile(target=f"x86:{arch}", options=Options(strip=True))
    assert f"lanes b (shell), {vectors}" in made.notes[0]


@pytest.mark.parametrize("body", ["S[b] += X[n, b] where n <= b", "S[b] += X[b, n]", "S[b] += X[n, b]; S[b] += X[b, n]"])
def test_what_is_no_plain_sum_of_rows_keeps_its_strategy(body):
    m = middle(f"op f(X: f32[B, B]) -> (S: f32[B]) {{ {body} }}", "tuned")
    assert proved(m) and "n_c" not in structure(m.nest.body)


@pytest.mark.parametrize("name", ["triangle", "triangle t", "lower", "band"])
def test_a_contraction_over_a_triangle_is_packed_too(name):
    assert "packed" in middle(CASES[name][0], "tuned").chosen[0]


def test_rows_that_are_copied_several_times_are_copied_again_while_they_are_near():
    made = polyop.op("op f(X: f32[M, N]) -> (Y: f32[M, 3*N]) { Y[i, j] = X[i, j % N] }").compile()
    assert made.trace["schedule"].strip() == "[i : j(S0) j2(S1) j3(S2)]"


@pytest.mark.parametrize("text", [
    "op f(X: f32[N]) -> (Y: f32[3*N]) { Y[j] = X[j % N] }",                                              # one row alone
    "op f(X: f32[M, N], Z: f32[M, N]) -> (Y: f32[2, M, N]) { Y[0, i, j] = X[i, j]; Y[1, i, j] = Z[i, j] }",  # other rows
    "op f(X: f32[M, N]) -> (Y: f32[2, N, M]) { Y[0, j, i] = X[i, j]; Y[1, j, i] = X[i, j] }",            # turned
])
def test_what_is_no_row_that_is_copied_again_has_loops_of_its_own(text):
    assert len(polyop.op(text).compile().trace["schedule"].splitlines()) > 1


@pytest.mark.parametrize(("rows", "strategy"), [("N", "packed: no rows"), ("64", "packed: no rows"), ("8", "rows")])
def test_a_few_rows_at_a_time_are_added_up_whether_their_number_is_known_or_not(rows, strategy):
    made = polyop.op(f"op f(X: f32[{rows}, C]) -> (Y: f32[C]) {{ Y[c] += X[n, c] }}").compile()
    assert f": {strategy}" in made.notes[0]


@pytest.mark.parametrize(("beside", "clusters"), [(1, 1), (8, 1), (9, 3)])
def test_the_few_elements_beside_rows_that_are_copied_are_written_with_them(beside, clusters):
    made = polyop.op(f"""op f(X: f32[M, N]) -> (Y: f32[M, N + {2 * beside}]) {{
        Y[i, j] = (X[i, j - {beside}] else 7) }}""").compile()
    assert "lanes" in made.trace["final"]
    assert len(made.trace["schedule"].splitlines()) == clusters


def test_what_is_computed_from_several_elements_keeps_loops_apart_from_those_of_its_edges():
    made = polyop.op("""op f(X: f32[M, N]) -> (Y: f32[M, N]) {
        Y[i, j] = 1 <= j < N - 1 ? X[i, j - 1] + X[i, j + 1] : X[i, j] }""").compile()
    assert len(made.trace["schedule"].splitlines()) == 3


@pytest.mark.parametrize("arch", ["x86-64-v4", "x86-64-v3", "x86-64-v2"])
@pytest.mark.parametrize("body", [
    "(Y: f32[N]) { Y[j] += X[i, j] }", "(Y: f32[N], Z: f32[N]) { Y[j] += X[i, j]; Z[j] += X[i, j] * X[i, j] }",
    "(Y: f32[N], Z: f32[N], W: f32[N]) { Y[j] += X[i, j]; Z[j] += X[i, j] * X[i, j]; W[j] max= X[i, j] }",
    "(Y: f32[M - 2, N]) where M >= 2 { Y[i, j] += X[i + r, j] where r in 0:3 }"])
def test_sums_of_short_rows_fit_into_the_registers_however_many_they_are(body, arch):
    made = polyop.op(f"op f(X: f32[M, N]) -> {body}").compile(target=f"x86:{arch}", options=Options(strip=True))
    assert "not on rung" not in "\n".join(made.notes)


def test_rows_that_share_a_window_have_registers_for_their_sums_where_they_are_short():
    made = polyop.library("conv2d_depthwise_nhwc").compile(
        target="x86:x86-64-v3", consts={"pad": 1}, options=Options(fixed=(("R", 3), ("S", 3)), strip=True))
    notes = "\n".join(made.notes)
    assert "not on rung" not in notes and "4 x 8, rows q" in notes


@pytest.mark.parametrize(("body", "lanes"), [("Y[i] and= X[i, j]", 256), ("Y[i] and= X[i, j] and Z[i, j] > 0", 64)])
def test_rows_of_bytes_alone_have_four_vectors_of_bytes_at_a_time(body, lanes):
    made = polyop.op(f"op f(X: bool[M, N], Z: f32[M, N]) -> (Y: bool[M]) {{ {body} }}").compile("x86:x86-64-v4")
    assert f"(lanes {lanes})" in made.trace["loops"]


def test_rows_that_are_added_up_beside_other_sums_are_read_eight_vectors_at_a_time():
    """The last sum of attention of one query: rows of V are read whole up to eight vectors."""
    m = middle("""op f(s: f32[B, N], V: f32[B, N, E]) -> (O: f32[B, E]) { top[b] max= s[b, j]
        e[b, j] = exp(s[b, j] - top[b])
        o[b, v] += e[b, j] * V[b, j, v]
        O[b, v] = 2 * o[b, v] }""", "tuned")
    assert proved(m) and "8 x 16" in m.chosen[0]
    for n, e in ((1, 1), (3, 127), (5, 128), (2, 129), (7, 17)):
        arrays, got = run(m, {"B": 2, "N": n, "E": e})
        s = arrays["s"].astype(np.float64)
        want = 2 * np.einsum("bj,bjv->bv", np.exp(s - s.max(1, keepdims=True)), arrays["V"])
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
