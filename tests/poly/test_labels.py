"""Whatever an operator's names are, those that the compiler makes up are others."""

from __future__ import annotations

import pytest

import polyop
from polyop.poly.labels import is_buffer, is_coordinate, loop_name, stems

MATMUL = "C[{m}, {n}] += A[{m}, {k}] * B[{k}, {n}]"

CLASHES = {
    "registers": """op f(X: f32[R, C], top_reg: f32[R], top_S0_part: f32[R], X_row: f32[R]) -> (Y: f32[R, C]) {
        top[r] max= X[r, c]; Y[r, c] = X[r, c] - top[r] + top_reg[r] + top_S0_part[r] + X_row[r] }""",
    "rows": """op f(X: f32[R, C], e_row: f32[R]) -> (Y: f32[R, C]) {
        e[r, c] = exp(X[r, c]); t[r] += e[r, c]; Y[r, c] = e[r, c] / t[r] + e_row[r] }""",
    "copies": """op f(A: f32[M, K], B: f32[K, N], C_S0_right: f32[N], C_S0_acc: f32[N]) -> (C: f32[M, N], D: f32[N]) {
        C[m, n] += A[m, k] * B[k, n]; D[n] = C_S0_right[n] + C_S0_acc[n] }""",
    "scalars": """op f(A: f32[M, K], B: f32[K, N], D_S0_right: f32, D_S0_acc: f32, n_v: f32, m_c: f32) -> (C: f32[M, N]) {
        D[m, n] += A[m, k] * B[k, n]; C[m, n] = D[m, n] * D_S0_right + n_v * m_c + D_S0_acc }""",
    "each other's": """op f(A: f32[M, K], B: f32[K, N], D: f32[M, K], E: f32[K, N]) -> (Z: f32[M, N]) {
        C[m, n] += A[m, k] * B[k, n]; C_S0[m, n] += D[m, k] * E[k, n]; Z[m, n] = C[m, n] * C_S0[m, n] }""",
    "sizes": "op f(A: f32[m_c, k_p], B: f32[k_p, n_v]) -> (C: f32[m_c, n_v]) { " + MATMUL.format(m="m", n="n", k="k") + " }",
    "more sizes": "op f(A: f32[m_p, k_c], B: f32[k_c, n_r]) -> (C: f32[m_p, n_r]) { " + MATMUL.format(m="m", n="n", k="k") + " }",
    "a row's size": "op f(X: f32[r, c_v]) -> (Y: f32[r, c_v]) { top[i] max= X[i, c]; Y[i, c] = X[i, c] - top[i] }",
    "tensors": "op f(m_c: f32[M, K], n_v: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += m_c[m, k] * n_v[k, n] }",
    "iterators": "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { " + MATMUL.format(m="n_v", n="n", k="n_r") + " }",
    "an init's": """op f(X: f32[Y_0, Y_1], Z: f32[Y_0, Y_1]) -> (Y: f32[Y_0, Y_1]) { Y[i, j] += X[i, j]; Y[i, j] += Z[i, j] }""",
    "statements": "op f(X: f32[N], S0: f32[N]) -> (Y: f32[N], Y_init: f32[N]) { Y[i] = X[i] + S0[i]; Y_init[i] = S0[i] * 2.0 }",
    "carried": "op f(X: f32[N], Y_carried0: f32) -> (Y: f32[N]) { Y[i] = (Y[i - 1] else 0.0) * Y_carried0 + X[i] }",
}


@pytest.mark.parametrize("target", ["x86:x86-64-v4", "cuda:sm_80"])
@pytest.mark.parametrize("whose", CLASHES)
def test_names_that_look_made_up_cost_no_rung(whose, target):
    made = polyop.op(CLASHES[whose]).compile(target=target)
    assert not [n for n in made.notes if "not on rung" in n]


def test_a_loop_has_a_name_of_its_own_and_so_have_its_coordinates():
    assert loop_name("m", ("n", "M"), (), ()) == "m"
    assert loop_name("m", ("m",), (), ()) == "m2"
    assert loop_name("m", ("m_c", "m2_v"), (), ()) == "m3"
    assert loop_name("m", ("m_S0_r",), (), ("S0",)) == "m2"
    assert loop_name("m", ("m_max", "m_S1_r"), (), ("S0",)) == "m"
    assert loop_name("m_c", ("m",), (), ()) == "m_c" and loop_name("m_c", ("m",), ("m",), ()) == "mc"
    assert is_coordinate("m_S0_r", "m", ("S0",)) and not is_coordinate("m_", "m", ()) and not is_coordinate("mc", "m", ())


def test_buffers_beside_tensors_are_told_apart():
    assert stems(("C", "D"), ("C", "D", "C_max"), ("S0",)) == {"C": "C", "D": "D"}
    assert stems(("C",), ("C", "C_row", "C2_S0_acc"), ("S0",)) == {"C": "C3"}
    assert stems(("C", "C_S0", "C2"), (), ("S0",)) == {"C": "C", "C_S0": "C_S02", "C2": "C2"}
    assert is_buffer("X_turned3", "X", ()) and not is_buffer("X_S1_acc", "X", ("S0",))


def test_a_name_that_looks_like_a_coordinate_whatever_its_number_gets_another_form():
    assert loop_name("d_i", {"d", "t", "X"}, {"d", "t"}, ()) == "di"
    assert loop_name("d_i", {"d", "di"}, {"d"}, ()) == "di2"
