"""The middle as a whole: on every rung each operator's nest is proved, and the interpreter computes what NumPy says."""

from __future__ import annotations

import islpy as isl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyop
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import evaluate
from polyop.ir.interpret import interpret
from polyop.ir.loops import Kind, stores, structure, walk
from polyop.ir.op import Op
from polyop.ir.options import SHORT, TURNED, Layout, Options
from polyop.ir.span import Source
from polyop.ir.target import target
from polyop.poly.middle import Middle, lower, scop_of
from polyop.poly.sets import quota
from polyop.poly.verify import first_failure, prove

V4 = target("x86:x86-64-v4")
RUNGS = ("tuned", "default", "distributed")

MATMUL = "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }"
BIAS = """op f(A: f32[M, K], B: f32[N, K], b: f32[N]) -> (D: f32[M, N]) {
    C[m, n] += A[m, k] * B[n, k]; D[m, n] = relu(C[m, n] + b[n]) }"""
SOFTMAX = "op f(X: f32[R, C]) -> (Y: f32[R, C]) { e[r, c] = exp(X[r, c] - max[k](X[r, k])); Y[r, c] = e[r, c] / sum[k](e[r, k]) }"
CONV = """op f(X: f32[H, W, C], F: f32[3, 3, C, K]) -> (Y: f32[H, W, K]) {
    Y[p, q, k] += (X[p + r - 1, q + s - 1, c] else 0) * F[r, s, c, k] }"""
NCHW = """op f(X: f32[C, H, W], F: f32[K, C, 3, 3]) -> (Y: f32[K, H, W]) {
    Y[k, p, q] += (X[c, p + r - 1, q + s - 1] else 0) * F[k, c, r, s] }"""
TWICE_NCHW = """op f(X: f32[C, H, W], F: f32[K, C, 3, 3], Z: f32[C, H, W], G: f32[K, C, 3, 3]) -> (Y: f32[K, H, W]) {
    Y[k, p, q] += (X[c, p + r - 1, q + s - 1] else 0) * F[k, c, r, s]
    Y[k, p, q] += (Z[c, p + r - 1, q + s - 1] else 0) * G[k, c, r, s] }"""
SCAN = "op f(X: f32[R, C]) -> (Y: f32[R, C]) { Y[r, c] = (Y[r, c-1] else 0) + X[r, c] }"
BACKWARDS = "op f(X: f32[R, C]) -> (Y: f32[R, C]) { Y[r, c] = (Y[r, c+1] else 0) + X[r, c] }"
ELMAN = """op f(X: f32[T, B, D], U: f32[D, D]) -> (H: f32[T, B, D]) {
    Z[t, b, j] += (H[t-1, b, k] else 0) * U[k, j]; H[t, b, j] = X[t, b, j] - Z[t, b, j] }"""
HEAT = """op f(X: f32[N]; steps: int) -> (Y: f32[N]) {
    A: f32[steps + 1, N]
    A[0, i] = X[i]
    A[t, i] = ((A[t-1, i-1] else 0) + A[t-1, i] + (A[t-1, i+1] else 0)) * 0.25  where t >= 1
    Y[i] = A[steps, i] }"""
TRIANGLE = "op f(L: f32[N, N], B: f32[N, M]) -> (C: f32[N, M]) { C[i, m] += L[i, k] * B[k, m]  where k <= i }"
LOWER = """op f(A: f32[N, K]) -> (C: f32[N, N]) {
    t[i, j] += A[i, k] * A[j, k] where j <= i
    C[i, j]  = j <= i ? t[i, j] : 0
}"""
BAND = "op f(A: f32[N, N], B: f32[N, M]) -> (C: f32[N, M]) { C[i, j] += A[i, k] * B[k, j] where i - 3 < k <= i + 1 }"
BESIDE = "op f(A: f32[I, K, B], M: f32[J, K]) -> (C: f32[J, B, I]) { C[j, b, a] += A[a, k, b] * M[j, k] }"
TRANSPOSE = "op f(X: f32[R, C]) -> (Y: f32[C, R]) { Y[c, r] = X[r, c] }"
MAXPLUS = "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] max= A[m, k] + B[k, n] }"


def op_of(text: str) -> Op:
    return instantiate(parse(Source("<test>", text)), "f")


def middle(text: str, rung: str, options: Options | None = None, units: dict[str, int | None] | None = None,
           fold: bool = True) -> Middle:
    op = op_of(text)
    layout = Layout(tuple((t.name, (units or {}).get(t.name, len(t.shape) - 1 if t.shape else None))
                          for t in op.tensors if t.role != "temp"))
    return lower(scop_of(op), layout, V4, options or Options(), rung, fold)


def run(m: Middle, sizes: dict[str, int]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Inputs at random, and the first output."""
    rng, op = np.random.default_rng(0), m.scop.op
    arrays = {t.name: rng.integers(-3, 4, [evaluate(e, sizes) for e in t.shape]).astype(t.dtype.numpy) for t in op.inputs}
    outputs = {t.name: np.full([evaluate(e, sizes) for e in t.shape], np.nan, t.dtype.numpy) for t in op.outputs}
    interpret(m.nest, sizes, {}, arrays | outputs)
    return arrays, outputs[op.outputs[0].name]


def proved(m: Middle) -> bool:
    failed = first_failure(prove(m.scop, m.nest, m.context))
    assert failed is None, failed
    return True


def elman(a):
    h, out = 0, []
    for x in a["X"]:
        h = x - h @ a["U"] if len(out) else x
        out.append(h)
    return np.array(out)


def heat(a, steps):
    x = a["X"]
    for _ in range(steps):
        p = np.pad(x, 1)
        x = (p[:-2] + p[1:-1] + p[2:]) * 0.25
    return x


def conv(a):
    p = np.pad(a["X"], ((1, 1), (1, 1), (0, 0)))
    h, w, _ = a["X"].shape
    return sum(p[r:r + h, s:s + w] @ a["F"][r, s] for r in range(3) for s in range(3))


def nchw(a):
    x = {"X": a["X"].transpose(1, 2, 0), "F": a["F"].transpose(2, 3, 1, 0)}
    return conv(x).transpose(2, 0, 1)


def softmax(a):
    e = np.exp(a["X"] - a["X"].max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


CASES = {
    "matmul": (MATMUL, lambda a, s: a["A"] @ a["B"],
               ({"M": 13, "N": 70, "K": 9}, {"M": 1, "N": 1, "K": 1}, {"M": 5, "N": 17, "K": 513})),
    "bias": (BIAS, lambda a, s: np.maximum(a["A"] @ a["B"].T + a["b"], 0),
             ({"M": 7, "N": 17, "K": 5}, {"M": 5, "N": 3, "K": 515})),
    "softmax": (SOFTMAX, lambda a, s: softmax(a), ({"R": 3, "C": 70}, {"R": 2, "C": 64}, {"R": 1, "C": 1})),
    "conv": (CONV, lambda a, s: conv(a), ({"H": 3, "W": 8, "C": 2, "K": 5}, {"H": 1, "W": 1, "C": 1, "K": 1})),
    "nchw": (NCHW, lambda a, s: nchw(a), ({"C": 2, "H": 3, "W": 18, "K": 5},)),
    "scan": (SCAN, lambda a, s: np.cumsum(a["X"], 1), ({"R": 3, "C": 17},)),
    "backwards": (BACKWARDS, lambda a, s: np.cumsum(a["X"][:, ::-1], 1)[:, ::-1], ({"R": 3, "C": 17},)),
    "elman": (ELMAN, lambda a, s: elman(a), ({"T": 4, "B": 7, "D": 5}, {"T": 1, "B": 1, "D": 1})),
    "heat": (HEAT, lambda a, s: heat(a, s["steps"]), ({"N": 70, "steps": 4}, {"N": 1, "steps": 1}, {"N": 2, "steps": 3})),
    "triangle": (TRIANGLE, lambda a, s: np.tril(a["L"]) @ a["B"], ({"N": 9, "M": 20},)),
    "triangle t": (TRIANGLE.replace("L[i, k]", "L[k, i]"), lambda a, s: np.tril(a["L"].T) @ a["B"], ({"N": 9, "M": 20},)),
    "lower": (LOWER, lambda a, s: np.tril(a["A"] @ a["A"].T), ({"N": 70, "K": 3}, {"N": 7, "K": 20}, {"N": 1, "K": 1})),
    "band": (BAND, lambda a, s: np.triu(np.tril(a["A"], 1), -2) @ a["B"], ({"N": 21, "M": 17}, {"N": 2, "M": 1})),
    "beside": (BESIDE, lambda a, s: np.einsum("akb,jk->jba", a["A"], a["M"]), ({"I": 17, "K": 3, "B": 18, "J": 7},)),
    "transpose": (TRANSPOSE, lambda a, s: a["X"].T, ({"R": 17, "C": 35}, {"R": 1, "C": 1})),
    "maxplus": (MAXPLUS, lambda a, s: (a["A"][:, :, None] + a["B"]).max(1), ({"M": 7, "N": 17, "K": 3},)),
}


TIED = {
    "below": ("y[i] += A[k, i] * x[k] where k >= i", lambda a, x: np.tril(a).T @ x),
    "far below": ("y[i] += A[k, i] * x[k] where k >= i + 5", lambda a, x: np.tril(a, -5).T @ x),
    "band": ("y[i] += A[k, i] * x[k] where i - 3 <= k <= i + 70", lambda a, x: np.triu(np.tril(a.T, 70), -3) @ x),
    "maximum": ("y[i] max= A[k, i] where k >= i", lambda a, x: np.array([a[i:, i].max() for i in range(len(x))])),
    "beside": ("t[i] += A[k, i] * x[k] where k >= i; y[i] = t[i] * 2 + x[i]", lambda a, x: np.tril(a).T @ x * 2 + x),
}


@pytest.mark.parametrize("name", TIED)
def test_lanes_stay_where_a_condition_ties_them_to_a_sum_inside(name):
    body, expected = TIED[name]
    m = middle(f"op f(A: f32[N, N], x: f32[N]) -> (y: f32[N]) {{ {body} }}", "default")
    assert "i_v:lanes" in structure(m.nest.body) and proved(m)
    for n in (1, 2, 17, 63, 64, 65, 130):
        arrays, got = run(m, {"N": n})
        np.testing.assert_allclose(got, expected(arrays["A"], arrays["x"]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("name", CASES)
def test_every_rung_is_proved_and_computes_what_numpy_says(name, rung):
    text, expected, many = CASES[name]
    m = middle(text, rung)
    assert proved(m)
    for sizes in many:
        arrays, got = run(m, sizes)
        np.testing.assert_allclose(got, expected(arrays, sizes), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("name", ["matmul", "softmax", "conv", "triangle"])
def test_the_regime_any_serves_sizes_of_zero(name, rung):
    text, expected, _ = CASES[name]
    m = middle(text, rung, Options(regime="any"))
    assert proved(m)
    for zero in m.scop.op.sizes:
        sizes = {s: 0 if s == zero else 3 for s in m.scop.op.sizes}
        if name == "softmax" and zero == "C":
            continue  # NumPy has no maximum of nothing
        arrays, got = run(m, sizes)
        np.testing.assert_allclose(got, expected(arrays, sizes), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["matmul", "conv", "elman"])
def test_loops_cut_for_threads_are_proved_too(name):
    m = middle(CASES[name][0], "tuned", Options(threads=True))
    assert proved(m)
    assert any(getattr(n, "kind", None) == Kind.PARALLEL for n in walk(m.nest.body))


def test_threads_take_rows_behind_a_block_of_columns_that_each_packs_for_itself():
    found = structure(middle(CONV, "tuned", Options(threads=True)).nest.body)
    packed, _, rows = found.partition("(S0_right)")
    assert "k_c:parallel(c_c(" in packed and rows.count(":parallel(") >= 2


def test_without_blocks_of_columns_threads_pack_behind_the_rows_they_take():
    text = "op f(A: f32[M, K], B: f32[K, 5]) -> (C: f32[M, 5]) { C[m, n] += A[m, k] * B[k, n] }"
    m = middle(text, "tuned", Options(threads=True))
    assert proved(m)
    assert structure(m.nest.body).index("m_c:parallel(") < structure(m.nest.body).index("S0_right")


def test_tiles_of_several_short_rows_are_packed_as_they_go_by_each_of_several_threads():
    text, expected, _ = CASES["nchw"]
    m = middle(text, "tuned", Options(threads=True, short=SHORT))
    assert proved(m) and "fused" in m.chosen[0]
    assert structure(m.nest.body).startswith("p_c:parallel(q_c:parallel(k_c:parallel(")
    arrays, got = run(m, {"C": 3, "H": 14, "W": 9, "K": 200})
    np.testing.assert_allclose(got, expected(arrays, {}), rtol=1e-4, atol=1e-4)


def test_a_matmul_is_packed_into_register_tiles_by_the_schedule_alone():
    m = middle(MATMUL, "tuned")
    assert structure(m.nest.body) == (
        "m_c:parallel(k_c(n_c(m_r(n_r(n_v:lanes(if(m_p:rows(S0_fill) | m_p:rows(C_init)) "
        "k_p(if(S0_right) m_p:rows(S0)) m_p:rows(S0_finish)))))))")


def test_a_row_reduction_runs_along_the_unit_stride_wherever_that_is():
    last = structure(middle(SOFTMAX, "tuned").nest.body)
    first = structure(middle(SOFTMAX, "tuned", units={"X": 0, "Y": 0}).nest.body)
    assert last.startswith("r:parallel(") and "c_v:lanes" in last
    assert first.startswith("r_t:parallel(r_v:lanes(")


@pytest.mark.parametrize("body", [
    "Y[r] argmax= X[r, c]",
    "n[r] += X[r, c]; Y[r] = i64(n[r]) / 3",
    "s[r] += X[r, c]; v[r] += (X[r, c] - s[r]) * (X[r, c] - s[r]); Y[r] = i64(v[r])"])
def test_what_lies_in_registers_never_makes_up_for_a_tensor_read_from_places_apart(body):
    m = middle(f"op f(X: f32[R, C]) -> (Y: i64[R]) {{ {body} }}", "tuned")
    assert "c_v:lanes" in structure(m.nest.body) and "r_v" not in structure(m.nest.body) and proved(m)


def test_a_temporary_of_a_recurrence_keeps_only_the_steps_that_are_read():
    m = middle(HEAT, "tuned")
    assert m.has_folds and proved(m)
    assert str(m.nest.buffer("A").dims[0][0]) == "2"
    assert str(middle(HEAT, "tuned", fold=False).nest.buffer("A").dims[0][0]) == "steps + 1"


def test_a_fold_that_would_lose_a_value_is_refused_by_the_checker():
    m = middle(HEAT.replace("A[t-1, i] +", "(A[t-2, i] else A[t-1, i]) +"), "tuned")
    kept = int(str(m.nest.buffer("A").dims[0][0]))
    assert kept == 3 and proved(m)


def test_lanes_leave_a_short_result_for_a_longer_loop_if_asked_to():
    text, expected, _ = CASES["nchw"]
    m = middle(text, "tuned", Options(short=TURNED))
    assert proved(m) and "k_v:lanes" in structure(m.nest.body)
    arrays, got = run(m, {"C": 3, "H": 4, "W": 3, "K": 18})
    np.testing.assert_allclose(got, expected(arrays, {}), rtol=1e-4, atol=1e-4)


def test_partial_sums_of_a_result_whose_lanes_lie_apart_stand_aside_with_lanes_last():
    text, expected, _ = CASES["nchw"]
    m = middle(text, "tuned", Options(short=TURNED, height=7))
    assert proved(m) and [str(e) for e, _ in m.nest.buffer("Y_S0_sum").dims] == ["H", "W", "K"]
    arrays, got = run(m, {"C": 130, "H": 1, "W": 9, "K": 3})
    np.testing.assert_allclose(got, expected(arrays, {}), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("step", [1, 2])
def test_an_operand_whose_lanes_are_picked_is_packed_before_the_tiles_and_not_in_them(step):
    m = middle(f"""op f(X: f32[C, L], F: f32[K, C, 3]) -> (Y: f32[K, (L - 3)/{step} + 1]) where L >= 3 {{
        Y[k, p] += X[c, {step}*p + r] * F[k, c, r] }}""", "tuned")
    assert proved(m) and ("right, fused" in m.chosen[0]) == (step == 1) and m.nest.buffer("Y_S0_right")
    arrays, got = run(m, {"C": 5, "K": 7, "L": 140})
    x = np.lib.stride_tricks.sliding_window_view(arrays["X"], 3, 1)[:, ::step]
    np.testing.assert_allclose(got, np.einsum("cpr,kcr->kp", x, arrays["F"]), rtol=1e-4, atol=1e-4)


def test_sums_that_add_to_what_is_there_begin_with_it_also_where_their_lanes_lie_apart():
    m = middle(TWICE_NCHW, "tuned", Options(short=TURNED, height=7))
    assert proved(m) and "S1_start" in structure(m.nest.body) and "k_v:lanes" in structure(m.nest.body)
    for c in (2, 150):
        arrays, got = run(m, {"C": c, "H": 1, "W": 9, "K": 3})
        both = {"X": np.concatenate([arrays["X"], arrays["Z"]]), "F": np.concatenate([arrays["F"], arrays["G"]], 1)}
        np.testing.assert_allclose(got, nchw(both), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["matmul", "conv"])
@pytest.mark.parametrize("height", [4, 7, 8])
def test_a_tile_has_as_many_rows_as_it_is_told(name, height):
    text, expected, sizes = CASES[name]
    m = middle(text, "tuned", Options(height=height))
    assert proved(m) and f"x {height}, lanes" in m.chosen[0]
    for s in sizes:
        arrays, got = run(m, s)
        np.testing.assert_allclose(got, expected(arrays, s), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(3, 4, 3, 18), (17, 7, 7, 6), (2, 5, 16, 13), (1, 3, 2, 1)])
def test_a_tile_takes_several_values_of_another_column_where_the_lanes_are_few(shape):
    text, expected, _ = CASES["nchw"]
    m = middle(text, "tuned", Options(short=SHORT))
    assert proved(m) and "p_p:rows" in structure(m.nest.body) and "q_v:lanes" in structure(m.nest.body)
    arrays, got = run(m, dict(zip("CHWK", shape, strict=True)))
    np.testing.assert_allclose(got, expected(arrays, {}), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "half", "whole"), [(1, 512, 1024), (4, 128, 768), (8, 64, 384)])
def test_threads_take_a_page_of_a_row_at_a_time_where_there_is_one_for_each(rows, half, whole):
    def run_of(options):
        nest = middle(MATMUL, "tuned", options).nest
        return next(n.step for n in walk(nest.body) if getattr(n, "index", None) == "n_c")
    assert [run_of(Options(rows=rows, threads=True, paged=p)) for p in (False, True)] == [half, whole]


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
@pytest.mark.parametrize("strip", [False, True])
def test_a_product_with_few_rows_reads_its_right_operand_in_place(rows, strip):
    m = middle(MATMUL, "tuned", Options(rows=rows, strip=strip))
    assert proved(m) and "right" not in str(m.nest) and ("k_c" in structure(m.nest.body)) != strip
    for sizes in ({"M": rows, "N": 300, "K": 19}, {"M": rows + 3, "N": 17, "K": 8}, {"M": 1, "N": 1, "K": 1}):
        arrays, got = run(m, sizes)
        np.testing.assert_allclose(got, arrays["A"] @ arrays["B"], rtol=1e-4, atol=1e-4)


def test_a_row_times_columns_that_lie_along_the_contraction_is_many_dot_products():
    text = "op f(A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }"
    one, more = (middle(text, "tuned", Options(rows=rows)) for rows in (1, 0))
    assert proved(one) and "k_v:lanes" in structure(one.nest.body) and "n_v:lanes" in structure(more.nest.body)


@pytest.mark.parametrize("text", ["C[m, n] += A[m, k] * B[n, k]", "c[m, n] += A[m, k] * B[n, k]\nC[m, n] = 2 * c[m, n]",
                                  "C[m, n] max= A[m, k] * B[n, k]"])
@pytest.mark.parametrize("rows", [2, 4])
def test_a_few_rows_of_dot_products_share_what_they_are_multiplied_with(text, rows):
    m = middle(f"op f(A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) {{ {text} }}", "tuned", Options(rows=rows))
    assert proved(m) and f"rows m x {rows}" in m.chosen[0] and "m_p:rows(" in structure(m.nest.body)
    for sizes in ({"M": rows, "N": 5, "K": 130}, {"M": rows + 3, "N": 3, "K": 19}, {"M": 1, "N": 1, "K": 1}):
        arrays, got = run(m, sizes)
        products = arrays["A"][:, None] * arrays["B"]
        want = products.max(-1) if "max=" in text else products.sum(-1) * (2 if "2 *" in text else 1)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_eight_rows_by_columns_are_a_tile_of_eight_rows():
    m = middle("op f(A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }", "tuned", Options(rows=8))
    assert proved(m) and "packed: rows m x 8" in m.chosen[0] and "packs right" in m.chosen[0]


@pytest.mark.parametrize("step", [1, 2, 4, 5])
def test_a_window_in_small_steps_along_rows_is_read_in_place(step):
    m = middle(f"""op f(X: f32[C, W], F: f32[K, C, S]) -> (Y: f32[K, W - {step}*S + {step}]) where S >= 1, W >= {step}*S
        {{ Y[k, q] += X[c, q + {step}*s] * F[k, c, s] }}""", "tuned", Options(short=TURNED))
    assert proved(m) and ("packs right" in m.chosen[0]) == (step <= 4) and ("packs left and right" in m.chosen[0]) == (step > 4)
    arrays, got = run(m, {"C": 5, "K": 20, "S": 3, "W": 40})
    shifted = np.stack([arrays["X"][:, step * s : step * s + got.shape[1]] for s in range(3)], -1)
    np.testing.assert_allclose(got, np.einsum("cqs,kcs->kq", shifted, arrays["F"]), rtol=1e-4, atol=1e-4)


def test_every_other_element_of_filters_that_lie_apart_is_copied():
    m = middle("""op f(X: f32[C, W], F: f32[C, K, R]) -> (Y: f32[K, W - 1]) where R >= 3, W >= 2
        { Y[k, q] += X[c, q + s] * F[c, k, 2*s] where s in 0:2 }""", "tuned")
    assert proved(m) and "packs left and right" in m.chosen[0]


def test_a_sum_of_rows_may_have_a_dimension_of_one():
    m = middle("op f(A: f32[K], B: f32[K, N]) -> (C: f32[1, N]) { C[0, n] += A[k] * B[k, n] }", "tuned")
    assert proved(m) and "no rows" in m.chosen[0]
    arrays, got = run(m, {"K": 19, "N": 300})
    np.testing.assert_allclose(got[0], arrays["A"] @ arrays["B"], rtol=1e-4, atol=1e-4)


def test_what_is_added_to_dot_products_once_does_not_decide_where_lanes_run():
    m = middle("op f(x: f32[K], W: f32[N, K], b: f32[N]) -> (y: f32[N]) { y[n] += x[k] * W[n, k]\ny[n] += b[n] }", "tuned")
    assert proved(m) and "k_v:lanes" in structure(m.nest.body)


def test_few_columns_of_dot_products_share_a_row():
    m = middle("op f(A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }", "tuned",
               Options(few=(("N", 4),)))
    assert proved(m) and "rows n x 4" in m.chosen[0] and "k_v:lanes" in structure(m.nest.body)
    for sizes in ({"M": 9, "N": 4, "K": 130}, {"M": 3, "N": 2, "K": 19}, {"M": 2, "N": 7, "K": 70}):
        arrays, got = run(m, sizes)
        np.testing.assert_allclose(got, arrays["A"] @ arrays["B"].T, rtol=1e-4, atol=1e-4)


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


def test_rows_from_anywhere_are_added_up_in_registers_many_elements_at_a_time():
    m = middle("op f(ids: i64[L], E: f32[V, D]) -> (S: f32[D]) { S[d] += E[ids[l], d] }", "tuned")
    assert proved(m) and "lanes 128" in str(m.nest) and "l_c" not in structure(m.nest.body)


@pytest.mark.parametrize("body", ["S[b] += X[n, b] where n <= b", "S[b] += X[b, n]", "S[b] += X[n, b]; S[b] += X[b, n]"])
def test_what_is_no_plain_sum_of_rows_keeps_its_strategy(body):
    m = middle(f"op f(X: f32[B, B]) -> (S: f32[B]) {{ {body} }}", "tuned")
    assert proved(m) and "n_c" not in structure(m.nest.body)


@pytest.mark.parametrize("name", ["triangle", "triangle t", "lower", "band"])
def test_a_contraction_over_a_triangle_is_packed_too(name):
    assert "packed" in middle(CASES[name][0], "tuned").chosen[0]


ATTENTION = """op f(Q: f32[B, H, M, D], K: f32[B, H, N, D], V: f32[B, H, N, E]) -> (O: f32[B, H, M, E]) {
    s[b, h, i, j]  += Q[b, h, i, d] * K[b, h, j, d]
    top[b, h, i] max= s[b, h, i, j]
    e[b, h, i, j]   = s[b, h, i, j] - top[b, h, i]
    O[b, h, i, v]  += e[b, h, i, j] * V[b, h, j, v]
}"""


def attention(a):
    s = a["Q"] @ a["K"].swapaxes(-1, -2)
    return (s - s.max(-1, keepdims=True)) @ a["V"]


@pytest.mark.parametrize("threads", [False, True])
def test_what_batches_hand_over_from_one_contraction_to_the_next_is_kept_for_one_of_them(threads):
    m = middle(ATTENTION, "tuned", Options(threads=threads))
    assert proved(m) and ("b:parallel(h:parallel(i_o:parallel(" if threads else "b(h:parallel(") in structure(m.nest.body)
    assert str(m.schedule).startswith("b h, 192 of i at a time around")
    buffer = m.nest.buffer("s")
    assert [str(e) for e, _ in buffer.dims] == ["1", "1", "min(M, 192)", "N"] and buffer.private
    assert "e takes the memory of s" in m.notes and all(b.name != "e" for b in m.nest.buffers)
    for sizes in ({"B": 2, "H": 2, "M": 7, "N": 17, "D": 5, "E": 9}, dict.fromkeys("BHMNDE", 1),
                  {"B": 1, "H": 2, "M": 193, "N": 3, "D": 2, "E": 1}, {"B": 1, "H": 1, "M": 383, "N": 2, "D": 1, "E": 2}):
        arrays, got = run(m, sizes)
        np.testing.assert_allclose(got, attention(arrays), rtol=1e-4, atol=1e-3)


def test_a_temporary_does_not_take_the_memory_of_one_that_is_read_beside_its_place_too():
    m = middle("""op f(X: f32[N, M]) -> (Y: f32[N, M]) {
    A[i, j] = X[i, j] + (X[i-1, j] else 0)
    B[i, j] = A[i, j] + (A[i-1, j] else 0)
    Y[i, j] = B[i, j] + (B[i-1, j] else 0) }""", "tuned")
    assert not any("takes the memory" in n for n in m.notes)


def test_what_all_tiles_of_rows_read_is_packed_before_them():
    m = middle(ATTENTION, "tuned")
    assert sum("packs right, ahead of all tiles" in c for c in m.chosen) == 2
    h = m.nest.body[0].body[0]
    *packs, tiles = h.body
    assert tiles.index == "i_o" and tiles.step == 192
    assert {s.target.source for p in packs for s in stores((p,))} == {"s_S0_right", "O_S3_right"}
    assert all(s.target.source not in ("s_S0_right", "O_S3_right") for s in stores((tiles,)))


@pytest.mark.parametrize("threads", [False, True])
def test_tiles_of_rows_are_shared_out_where_there_are_no_batches(threads):
    m = middle("""op f(Q: f32[M, D], K: f32[N, D], V: f32[N, E]) -> (O: f32[M, E]) {
        s[i, j]  += Q[i, d] * K[j, d]
        top[i] max= s[i, j]
        e[i, j]   = s[i, j] - top[i]
        O[i, v]  += e[i, j] * V[j, v]
    }""", "tuned", Options(threads=threads))
    assert proved(m) and "i_o:parallel(" in structure(m.nest.body)
    assert str(m.schedule).startswith("192 of i at a time around")
    assert m.nest.buffer("s").private and not m.nest.buffer("s_S0_right").private
    for sizes in ({"M": 200, "N": 17, "D": 5, "E": 9}, dict.fromkeys("MNDE", 1)):
        arrays, got = run(m, sizes)
        np.testing.assert_allclose(got, attention(arrays), rtol=1e-4, atol=1e-3)


def test_a_batch_of_one_contraction_alone_stays_inside_the_tiles():
    m = middle("""op f(Q: f32[M, G, D], K: f32[G, N, D], V: f32[N, E]) -> (O: f32[M, E]) {
        s[i, g, j]  += Q[i, g, d] * K[g, j, d]
        e[i, j]    max= s[i, g, j]
        O[i, v]  += e[i, j] * V[j, v]
    }""", "tuned")
    assert proved(m) and str(m.schedule).startswith("192 of i at a time around")
    arrays, got = run(m, {"M": 195, "N": 5, "D": 3, "E": 9, "G": 2})
    want = np.einsum("igd,gjd->igj", arrays["Q"], arrays["K"]).max(1) @ arrays["V"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def test_rows_whose_results_the_next_contraction_adds_up_are_not_taken_in_tiles():
    m = middle("""op f(Q: f32[M, D], K: f32[N, D], V: f32[M, E]) -> (O: f32[N, E]) {
        s[i, j]  += Q[i, d] * K[j, d]
        top[i] max= s[i, j]
        e[i, j]   = s[i, j] - top[i]
        O[j, v]  += e[i, j] * V[i, v]
    }""", "tuned")
    assert proved(m) and "around" not in str(m.schedule)


@pytest.mark.parametrize("text", [
    "op f(X: f32[S, I], W: f32[I, J], U: f32[J, O]) -> (Y: f32[S, O]) {"
    "h[s, j] += X[s, i] * W[i, j]; Y[s, o] += h[s, j] * U[j, o] }",
    "op f(X: f32[B, S, I], W: f32[I, J], U: f32[J, O]) -> (Y: f32[B, S, O]) {"
    "h[b, s, j] += X[b, s, i] * W[i, j]; Y[b, s, o] += h[b, s, j] * U[j, o] }",
])
def test_a_loop_that_is_no_batch_of_every_contraction_stays_where_it_was(text):
    m = middle(text, "tuned")
    assert proved(m) and "around" not in str(m.schedule)


@pytest.mark.parametrize(("read", "again", "reused"),
                         [("t[i, j]", "A[k, j]", True), ("t[j, i]", "A[k, j]", False), ("t[i, j]", "t[k, j]", False)])
def test_a_temporary_takes_the_memory_of_one_that_nothing_reads_any_more(read, again, reused):
    text = f"""op f(A: f32[N, N]) -> (Y: f32[N, N]) {{
        t[i, j] += A[i, k] * A[k, j]
        m[i]  max= t[i, j]
        e[i, j]  = {read} - m[i]
        Y[i, j] += e[i, k] * {again} }}"""
    m = middle(text, "tuned")
    assert proved(m) and any("takes the memory" in n for n in m.notes) == reused

    def expected(x):
        a = x.astype(np.float64)
        t = a @ a
        e = (t.T if read == "t[j, i]" else t) - t.max(1, keepdims=True)
        return e @ (t if again == "t[k, j]" else a)
    for size in (1, 7, 20):
        arrays, got = run(m, {"N": size})
        np.testing.assert_allclose(got, expected(arrays["A"]), rtol=1e-4)
    for size in (70, 200):  # more tiles than one are the machine code's business: an interpreter would take half a minute
        x = np.random.default_rng(size).integers(-1, 2, (size, size)).astype(np.float32)
        np.testing.assert_allclose(polyop.op(text)(x), expected(x), rtol=1e-4)


def test_what_follows_a_contraction_keeps_memory_of_its_own_for_partial_sums():
    m = middle("""op f(X: f32[S, D], A: f32[D, F], B: f32[D, F], C: f32[F, D]) -> (Y: f32[S, D]) {
        gate[s, f] += X[s, d] * A[d, f]
        up[s, f]   += X[s, d] * B[d, f]
        h[s, f]     = relu(gate[s, f]) * up[s, f]
        Y[s, d]    += h[s, f] * C[f, d] }""", "tuned")
    assert proved(m) and not any("takes the memory" in n for n in m.notes)


def test_strict_numerics_never_splits_a_sum_over_lanes():
    strict = middle("op f(X: f32[R, C]) -> (S: f32[R]) { S[r] += X[r, c] }", "tuned", Options(numerics="strict"))
    assert "c_v" not in structure(strict.nest.body) and proved(strict)


def test_lanes_run_along_a_read_that_is_held_inside():
    many = " + ".join(f"X[max(i - {d}, 0)] + X[min(i + {d}, N - 1)]" for d in range(1, 5))
    m = middle(f"op f(X: f32[N]) -> (Y: f32[N]) {{ Y[i] = {many} }}", "tuned")
    assert "i_v:lanes" in structure(m.nest.body) and proved(m)


def test_a_recurrence_without_an_order_along_single_loops_is_refused_with_a_reason():
    text = """op f(X: f32[N, N]) -> (A: f32[N, N]) {
        A[i, j] = X[i, j] + (A[i-1, j+1] else 0) + (A[i+1, j-2] else 0) }"""
    for rung in RUNGS:
        with pytest.raises(UnsupportedError, match="no order along single iterators"):
            middle(text, rung)


def test_a_quota_that_runs_out_is_reported_and_isl_goes_on():
    m = isl.Map("[N] -> { S[i, j] -> T[i + j] : 0 <= i, j < N and exists k : j = 2k }")
    with pytest.raises(UnsupportedError, match="isl operations"), quota(20, "closure"):
        for _ in range(50):
            m = m.apply_range(m.reverse()).coalesce()
    assert not isl.Set("{ [i] : 0 <= i < 3 }").is_empty()


LETTERS = "abcd"


@st.composite
def contractions(draw):
    """Two operands over few letters, and a result over some of them: any product-sum, in any order of dimensions."""
    left = draw(st.permutations(LETTERS).map(lambda p: p[: draw(st.integers(1, 3))]))
    right = draw(st.permutations(LETTERS).map(lambda p: p[: draw(st.integers(1, 3))]))
    every = sorted(set(left) | set(right))
    out = draw(st.permutations(every).map(lambda p: p[: draw(st.integers(0, len(every)))]))
    return "".join(left), "".join(right), "".join(out)


@settings(max_examples=25, deadline=None)
@given(contractions(), st.integers(0, 1))
def test_any_contraction_is_proved_and_right(equation, which):
    left, right, out = equation
    dims = lambda labels: f"[{', '.join(x.upper() for x in labels)}]" if labels else ""  # noqa: E731
    at = lambda labels: f"[{', '.join(labels)}]" if labels else ""  # noqa: E731
    head = f"op f(X: f32{dims(left)}, Y: f32{dims(right)}) -> (Z: f32{dims(out)})"
    m = middle(f"{head} {{ Z{at(out)} += X{at(left)} * Y{at(right)} }}", RUNGS[which])
    assert proved(m)
    sizes = {x.upper(): n for x, n in zip(LETTERS, (3, 17, 2, 7), strict=True)}
    arrays, got = run(m, {s: sizes[s] for s in m.scop.op.sizes})
    np.testing.assert_allclose(got, np.einsum(f"{left},{right}->{out}", arrays["X"], arrays["Y"]), rtol=1e-4, atol=1e-4)


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


@pytest.mark.parametrize(("body", "lanes"), [("Y[i] and= X[i, j]", 256), ("Y[i] and= X[i, j] and Z[i, j] > 0", 64)])
def test_rows_of_bytes_alone_have_four_vectors_of_bytes_at_a_time(body, lanes):
    made = polyop.op(f"op f(X: bool[M, N], Z: f32[M, N]) -> (Y: bool[M]) {{ {body} }}").compile()
    assert f"(lanes {lanes})" in made.trace["loops"]
