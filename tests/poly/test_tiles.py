"""Contractions in register tiles: what is packed, where lanes run, and what few rows or columns change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyop
from polyop.codegen.cpu.verify import verify
from polyop.ir.expr import evaluate, loads
from polyop.ir.loops import stores, structure, walk
from polyop.ir.options import ALL_TERMS, SHORT, TURNED, Layout, Options
from polyop.ir.target import target
from polyop.poly.middle import lower, scop_of

from .middles import CASES, CONV, HEAT, MATMUL, SOFTMAX, TWICE_NCHW, V4, middle, nchw, op_of, proved, run

V3 = target("x86:x86-64-v3")
DENSE = Layout((("A", 1), ("B", 1), ("C", 1)))


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
    arrays, got = run(m, {"C": 2, "H": 3, "W": 9, "K": 98})
    np.testing.assert_allclose(got, expected(arrays, {}), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("shape", "right"), [("N, 24", "n, k"), ("24, N", "k, n")])
def test_threads_share_a_copy_of_the_left_operand_and_columns_and_rows_behind_it(shape, right):
    text = f"op f(A: f32[M, 24, J], B: f32[{shape}]) -> (C: f32[J, M, N]) {{ C[j, m, n] += A[m, k, j] * B[{right}] }}"
    m = middle(text, "tuned", Options(threads=True))
    left, _, behind = structure(m.nest.body).partition("(S0_left)")
    columns, _, rows = behind.partition("(S0_right)")
    assert proved(m) and left.count(":parallel(") == 4 and "n_c:parallel(" in columns and ") j:parallel(m_r:parallel(" in rows
    for sizes in ({"J": 1, "M": 1, "N": 1}, {"J": 17, "M": 7, "N": 5}, {"J": 2, "M": 7, "N": 65}, {"J": 1, "M": 13, "N": 63}):
        arrays, got = run(m, sizes)
        wanted = np.einsum(f"mkj,{right.replace(', ', '')}->jmn", arrays["A"].astype(float), arrays["B"].astype(float))
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("depth", [8, "K"])
@pytest.mark.parametrize(("shape", "right"), [("60, {k}", "n, k"), ("{k}, 60", "k, n")])
@pytest.mark.parametrize("rows", [15, "M"])
@pytest.mark.parametrize("left", ["k, m", "m, k, j"])
def test_threads_share_the_copy_of_columns_that_are_known_to_be_one_block(left, rows, shape, right, depth):
    extents = left.upper().replace("K", str(depth)).replace("M", str(rows))
    kept = "j, m" if "j" in left else "m"
    text = (f"op f(A: f32[{extents}], B: f32[{shape.format(k=depth)}]) -> (C: f32[{kept.upper().replace('M', str(rows))}, 60]) "
            f"{{ C[{kept}, n] += A[{left}] * B[{right}] }}")
    m = middle(text, "tuned", Options(threads=True))
    assert proved(m)
    arrays, got = run(m, dict.fromkeys(op_of(text).sizes, 7))
    a, b, c = (part.replace(", ", "") for part in (left, right, f"{kept}, n"))
    wanted = np.einsum(f"{a},{b}->{c}", arrays["A"].astype(float), arrays["B"].astype(float))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("left", "right"), [(0, 1), (0, None), (0, 0), (None, 1), (None, None), (1, 0), (2, 1)])
def test_what_threads_share_of_a_copy_is_never_inside_what_runs_in_lock_step(left, right):
    text = "op f(A: f32[B, M, K], W: f32[N, K]) -> (C: f32[N, M, B]) { C[n, m, b] += A[b, m, k] * W[n, k] }"
    m = middle(text, "tuned", Options(threads=True, short=2, few=(("B", 4),)), {"A": left, "W": right})
    verify(m.nest, V4)
    assert proved(m)
    for sizes in ({"B": 1, "M": 1, "N": 1, "K": 1}, {"B": 2, "M": 7, "N": 9, "K": 20}, {"B": 3, "M": 13, "N": 65, "K": 17}):
        arrays, got = run(m, sizes)
        wanted = np.einsum("bmk,nk->nmb", arrays["A"].astype(float), arrays["W"].astype(float))
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_threads_share_the_copy_of_the_left_operand_of_a_product():
    text = "op f(A: f32[K, M], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[k, m] * B[k, n] }"
    m = middle(text, "tuned", Options(threads=True))
    expected = "m_c(k_c(k_z:parallel(m_x:parallel(m_s:rows(k_l:lanes(S0_left)))) n_c:parallel("
    assert proved(m) and structure(m.nest.body).startswith(expected)
    assert "n_c:parallel(k_p(n_v:lanes(S0_right)) m_r:parallel(" in structure(m.nest.body), "rows are shared, too"
    for sizes in ({"M": 1, "N": 1, "K": 1}, {"M": 33, "N": 65, "K": 17}, {"M": 400, "N": 70, "K": 3}):
        arrays, got = run(m, sizes)
        np.testing.assert_allclose(got, arrays["A"].T.astype(float) @ arrays["B"].astype(float), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("t", [V3, V4], ids=lambda t: t.arch)
def test_rows_of_a_copy_lie_no_power_of_two_apart_and_are_written_some_at_a_time_where_squares_are_half_a_line(t):
    text = "op f(A: f32[K, M], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[k, m] * B[k, n] }"
    m = middle(text, "tuned", t=t)
    left = m.nest.buffer("C_S0_left")
    apart = {k: evaluate(left.dims[-1][0], {"K": k, "M": 1, "N": 1}) for k in (1, 8, 64, 100, 128, 4096)}
    assert proved(m) and apart == {1: 1, 8: 9, 64: 72, 100: 112, 128: 144, 4096: apart[4096]} and apart[4096] % 256 == 16
    some = "k_c(m_b(k_z(m_x(m_s:rows(k_l:lanes(S0_left)))))" if t is V3 else "k_c(k_z(m_x(m_s:rows(k_l:lanes(S0_left))))"
    assert some in structure(m.nest.body)
    for sizes in ({"M": 1, "N": 1, "K": 1}, {"M": 63, "N": 5, "K": 7}, {"M": 64, "N": 9, "K": 9}, {"M": 65, "N": 3, "K": 8}):
        arrays, got = run(m, sizes)
        np.testing.assert_allclose(got, arrays["A"].T.astype(float) @ arrays["B"].astype(float), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("shape", "right"), [("24, E, N", "a, e, n"), ("E, N, 24", "e, n, a")])
def test_tiles_across_columns_are_packed_once_for_all_rows_that_a_thread_takes(shape, right):
    text = f"op f(A: f32[J, M, E], B: f32[{shape}]) -> (C: f32[J, N, M, 24]) {{ C[j, n, m, a] += A[j, m, e] * B[{right}] }}"
    m = middle(text, "tuned", Options(threads=True, height=4, pair=4))
    copy, _, rows = structure(m.nest.body).partition("(S0_right)")
    assert proved(m) and "n_c:parallel(" in copy and rows.count(":parallel(") == 2
    arrays, got = run(m, {"J": 3, "M": 9, "E": 5, "N": 10})
    wanted = np.einsum(f"jme,{right.replace(', ', '')}->jnma", arrays["A"].astype(float), arrays["B"].astype(float))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_blocks_of_columns_are_as_broad_for_threads_that_have_many_rows_as_for_one():
    chosen = {o: middle(MATMUL, "tuned", o).chosen[0].partition("nc ")[2].partition(",")[0]
              for o in (Options(), Options(threads=True), Options(threads=True, broad=True))}
    one, several, broad = chosen.values()
    assert several == "64" and broad == one != several
    m = middle(MATMUL, "tuned", Options(threads=True, broad=True))
    arrays, got = run(m, {"M": 25, "N": 70, "K": 3})
    assert proved(m)
    np.testing.assert_allclose(got, arrays["A"].astype(float) @ arrays["B"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (7, 47, 15), (49, 48, 16), (6, 49, 17), (13, 193, 3)])
def test_blocks_have_the_columns_of_one_tile_where_all_rows_stay(m, n, k):
    found = middle(MATMUL, "tuned", Options(slim=True))
    assert "nc 64," in found.chosen[0] and "lanes n x 64" in found.chosen[0] and proved(found)
    assert "nc 64," not in middle(MATMUL, "tuned", Options()).chosen[0]
    arrays, got = run(found, {"M": m, "N": n, "K": k})
    np.testing.assert_allclose(got, arrays["A"].astype(float) @ arrays["B"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (7, 47, 15), (49, 48, 16), (6, 49, 17), (13, 193, 3)])
def test_rows_are_read_where_they_lie_if_a_call_asks_for_it(m, n, k):
    across = "op f(A: f32[K, M], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[k, m] * B[k, n] }"
    found = middle(across, "tuned", Options(direct=True))
    assert "packs right" in found.chosen[0] and "packs left" in middle(across, "tuned", Options()).chosen[0] and proved(found)
    arrays, got = run(found, {"M": m, "N": n, "K": k})
    np.testing.assert_allclose(got, arrays["A"].astype(float).T @ arrays["B"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (7, 47, 15), (12, 64, 16), (3, 17, 1500), (13, 65, 40), (5, 130, 0)])
def test_columns_are_read_where_they_lie_if_a_call_asks_for_it(m, n, k, threads):
    found = middle(MATMUL, "tuned", Options(bare=ALL_TERMS, threads=threads, regime="any"))
    assert "packs" not in found.chosen[0] and "packs right" in middle(MATMUL, "tuned", Options()).chosen[0] and proved(found)
    assert "work" not in str(found.nest)
    arrays, got = run(found, {"M": m, "N": n, "K": k})
    np.testing.assert_allclose(got, arrays["A"].astype(float) @ arrays["B"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (7, 47, 15), (13, 65, 16), (3, 17, 1500)])
def test_many_terms_at_a_time_are_read_so_if_a_call_asks_for_it(m, n, k, threads):
    found = middle(MATMUL, "tuned", Options(bare=16, threads=threads))
    assert "kc 16" in found.chosen[0] and "packs nothing" in found.chosen[0] and proved(found) and "work" not in str(found.nest)
    arrays, got = run(found, {"M": m, "N": n, "K": k})
    np.testing.assert_allclose(got, arrays["A"].astype(float) @ arrays["B"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (7, 47, 7), (12, 64, 8), (13, 1025, 9), (3, 2100, 17), (16, 47, 150)])
def test_a_few_rows_of_the_columns_at_a_time_are_read_by_all_rows_if_a_call_asks_for_it(m, n, k, threads):
    found = middle(MATMUL, "tuned", Options(bare=8, threads=threads))
    assert "kc 8" in found.chosen[0] and "packs nothing" in found.chosen[0] and proved(found) and "work" not in str(found.nest)
    arrays, got = run(found, {"M": m, "N": n, "K": k})
    np.testing.assert_allclose(got, arrays["A"].astype(float) @ arrays["B"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize(("terms", "columns"), [("", 16384), ("8", 16384), ("16", 8192), ("1000", 256)])
def test_blocks_have_as_many_columns_of_short_sums_as_half_of_the_second_cache_holds(threads, terms, columns):
    found = middle(MATMUL.replace("K", terms or "K"), "tuned", Options(flat=not terms, threads=threads, broad=threads))
    assert f"nc {columns}," in found.chosen[0] and proved(found)
    for m, n, k in ((1, 1, 1), (2, 65, 9), (1, 257, 1)) if terms == "1000" else ((1, 1, 1), (7, 65, 9), (2, 1025, 1)):
        arrays, got = run(found, {"M": m, "N": n, **({} if terms else {"K": k})})
        np.testing.assert_allclose(got, arrays["A"].astype(float) @ arrays["B"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("l2", "rows"), [(1 << 18, 384), (1 << 20, 1536), (2 << 20, 1536)])
def test_so_many_rows_meet_all_columns_as_a_few_second_caches_hold_of_a_blocks_depth(l2, rows):
    found = middle(MATMUL, "tuned", Options(slabs=True), t=replace(V4, l2=l2))
    assert f"mc {rows}," in found.chosen[0] and proved(found)
    arrays, got = run(found, {"M": rows + 7, "N": 3, "K": 2})
    np.testing.assert_allclose(got, arrays["A"].astype(float) @ arrays["B"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("l2", "block"), [(1 << 20, "kc 512, nc 256"), (2 << 20, "kc 1024, nc 256")])
def test_blocks_are_deeper_where_the_second_cache_has_room_for_wide_ones_of_that_depth(l2, block):
    op = op_of(MATMUL)
    layout = Layout(tuple((t.name, 1) for t in op.tensors))
    m = lower(scop_of(op), layout, replace(V4, l2=l2), Options(), "tuned")
    shared = lower(scop_of(op), layout, replace(V4, l2=l2), Options(threads=True), "tuned")
    assert proved(m) and block in m.chosen[0]
    assert block.replace("nc 256", "nc 64") in shared.chosen[0]  # each thread has such a cache
    arrays, got = run(m, {"M": 7, "N": 3, "K": 1030})
    np.testing.assert_allclose(got, arrays["A"] @ arrays["B"], rtol=1e-4, atol=1e-4)


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


@pytest.mark.parametrize(("height", "shape"), [
    (0, (3, 4, 3, 18)), (0, (17, 7, 7, 6)), (10, (2, 5, 16, 13)), (7, (1, 3, 2, 1)), (7, (2, 3, 15, 14)), (0, (65, 2, 1, 9)),
    (0, (3, 2, 17, 9))])
def test_a_tile_takes_two_values_of_another_column_where_the_lanes_are_few(height, shape):
    text, expected, _ = CASES["nchw"]
    m = middle(text, "tuned", Options(short=SHORT, height=height))
    assert f"rows k x {height or 8}, p x 2, lanes q x 16" in m.chosen[0]
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


@pytest.mark.parametrize(("rows", "height", "columns", "wide"), [(2, 2, 32, 64), (3, 3, 24, 64), (4, 4, 16, 64), (6, 6, 16, 64),
                                                                 (7, 7, 8, 48), (8, 4, 16, 32)])
def test_few_rows_have_tiles_that_fit_into_few_registers(rows, height, columns, wide):
    m, more = (lower(scop_of(op_of(MATMUL)), DENSE, t, Options(rows=rows), "tuned") for t in (V3, V4))
    assert proved(m) and f"rows m x {height}, lanes n x {columns}," in m.chosen[0]
    assert f"rows m x {rows}, lanes n x {wide}," in more.chosen[0]
    for sizes in ({"M": rows, "N": 300, "K": 19}, {"M": rows + 3, "N": 17, "K": 8}, {"M": 1, "N": 1, "K": 1}):
        arrays, got = run(m, sizes)
        np.testing.assert_allclose(got, arrays["A"] @ arrays["B"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "tile"), [(2, "rows m x 2 and n x 4"), (3, "rows m x 3 and n x 3"), (4, "rows m x 4 and n x 2"),
                                            (6, "rows m x 6"), (8, "rows m x 8")])
def test_few_rows_by_columns_are_dot_products_with_as_many_columns_as_registers_hold(rows, tile):
    op = op_of("op f(A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }")
    m = lower(scop_of(op), DENSE, V3, Options(rows=rows), "tuned")
    assert proved(m) and tile in m.chosen[0] and ("and n" in m.chosen[0]) == ("and n" in tile)
    for sizes in ({"M": rows, "N": 7, "K": 33}, {"M": rows + 3, "N": 2, "K": 16}, {"M": 1, "N": 3, "K": 1}):
        arrays, got = run(m, sizes)
        np.testing.assert_allclose(got, arrays["A"] @ arrays["B"].T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "copies"), [(12, False), (24, False), (100, True)])
def test_what_four_tiles_of_a_little_product_use_is_read_in_place_in_no_more_lanes_than_there_are_columns(rows, copies):
    text = f"op f(A: f32[B, {rows}, 5], W: f32[B, 5, 7]) -> (C: f32[B, {rows}, 7]) {{ C[b, m, n] += A[b, m, k] * W[b, k, n] }}"
    m = middle(text, "tuned")
    assert proved(m) and ("right" in str(m.nest)) == copies and ("(lanes 7)" in str(m.nest)) != copies


def test_long_rows_of_a_temporary_lie_in_the_result_that_is_made_of_them():
    m = middle(SOFTMAX, "tuned", Options(lent=True))
    assert proved(m) and "_row" not in str(m.nest) and "_row" in str(middle(SOFTMAX, "tuned").nest)
    arrays, got = run(m, dict.fromkeys(m.scop.op.sizes, 70))
    e = np.exp(arrays["X"] - arrays["X"].max(1, keepdims=True))
    np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=1e-4)


@pytest.mark.parametrize(("result", "last"), [
    ("Y: f32[M, N]", "Y[m, n] = t[m, n] * s[m] + t[m, N - 1 - n]"),    # of an element that is another one then
    ("Y: f32[M, N]", "Y[M - 1 - m, n] = t[m, n] * s[m]"),              # in another place
    ("Y: f64[M, N]", "Y[m, n] = f64(t[m, n] * s[m])"),                 # of another size
    ("Y: f32[M, N], Z: f32[M, N]", "Y[m, n] = t[m, n] * s[m]; Z[m, n] = Y[m, n] + t[m, n]"),  # that is read, and too late
    ("inout Y: f32[M, N]", "Y[m, n] = t[m, n] * s[m] + Y[m, n]"),      # that held something else
])
def test_no_other_result_has_room_for_them(result, last):
    given, made = (f", {result}", "") if "inout" in result else ("", f" -> ({result})")
    text = f"op f(X: f32[M, N]{given}){made} {{ t[m, n] = exp(X[m, n]); s[m] += t[m, n]; {last} }}"
    m = middle(text, "tuned", Options(lent=True))
    assert proved(m) and "t_row" in str(m.nest)


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


def test_eight_rows_by_columns_are_dot_products_with_several_columns_at_once():
    m = middle("op f(A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }", "tuned", Options(rows=8))
    assert proved(m) and "rows m x 8 and n x 3" in m.chosen[0]
    for sizes in ({"M": 8, "N": 7, "K": 33}, {"M": 5, "N": 2, "K": 16}, {"M": 9, "N": 3, "K": 1}):
        arrays, got = run(m, sizes)
        np.testing.assert_allclose(got, arrays["A"] @ arrays["B"].T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("term", "locked"), [
    ("A[n, k] * x[k]", True), ("A[n, k] * x[k] where k <= n", False), ("A[n, k]", False),
])
def test_rows_that_are_multiplied_with_one_vector_run_in_lock_step(term, locked):
    m = middle(f"op f(A: f32[N, N], x: f32[N]) -> (y: f32[N]) {{ y[n] += {term} }}", "tuned")
    assert proved(m) and ("rows n x 4" in m.chosen[0]) == locked
    for n in (1, 3, 4, 5, 70):
        arrays, got = run(m, {"N": n})
        own = np.tril(arrays["A"]) if "where" in term else arrays["A"]
        np.testing.assert_allclose(got, (own * arrays["x"] if "x" in term else own).sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("step", [1, 2, 4, 5])
def test_a_window_in_small_steps_along_rows_is_read_in_place(step, backwards):
    first, by = (f"{step}*S - {step}", -step) if backwards else ("0", step)
    m = middle(f"""op f(X: f32[C, W], F: f32[K, C, S]) -> (Y: f32[K, W - {step}*S + {step}]) where S >= 1, W >= {step}*S
        {{ Y[k, q] += X[c, q + {first} + {by}*s] * F[k, c, s] }}""", "tuned", Options(short=TURNED))
    assert proved(m) and ("packs right" in m.chosen[0]) == (step <= 4) and ("packs left and right" in m.chosen[0]) == (step > 4)
    arrays, got = run(m, {"C": 5, "K": 20, "S": 3, "W": 40})
    order = range(2, -1, -1) if backwards else range(3)
    shifted = np.stack([arrays["X"][:, step * s : step * s + got.shape[1]] for s in order], -1)
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


def test_dot_products_with_a_row_that_was_just_normed_keep_the_loop_over_them():
    m = middle("""op f(x: f32[K], W: f32[N, K]) -> (y: f32[N]) { q += x[k] * x[k]
        r[k] = x[k] * rsqrt(q + 1)
        y[n] += r[k] * W[n, k] }""", "tuned")
    assert proved(m) and any("rows n x 4" in c for c in m.chosen) and "n_s:parallel(n_p:rows(" in structure(m.nest.body)
    for sizes in ({"K": 1, "N": 1}, {"K": 63, "N": 3}, {"K": 64, "N": 4}, {"K": 65, "N": 5}, {"K": 131, "N": 9}):
        arrays, got = run(m, sizes)
        x = arrays["x"].astype(np.float64)
        np.testing.assert_allclose(got, arrays["W"] @ (x / np.sqrt(x @ x + 1)), rtol=1e-4, atol=1e-4)


def test_few_columns_of_dot_products_share_a_row():
    m = middle("op f(A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }", "tuned",
               Options(few=(("N", 4),)))
    assert proved(m) and "rows n x 4" in m.chosen[0] and "k_v:lanes" in structure(m.nest.body)
    for sizes in ({"M": 9, "N": 4, "K": 130}, {"M": 3, "N": 2, "K": 19}, {"M": 2, "N": 7, "K": 70}):
        arrays, got = run(m, sizes)
        np.testing.assert_allclose(got, arrays["A"] @ arrays["B"].T, rtol=1e-4, atol=1e-4)


def test_rows_of_a_tile_are_neighbours_in_the_result_where_it_has_few_columns():
    text = "op f(X: f32[B, M, I], Y: f32[M, A]) -> (Z: f32[I, B, A]) { Z[i, b, a] += X[b, m, i] * Y[m, a] }"
    assert "packed: rows i x" in middle(text, "tuned").chosen[0]
    m = middle(text, "tuned", Options(height=10))
    assert proved(m) and "packed: rows b x 10, lanes a x 32" in m.chosen[0] and "packs left" in m.chosen[0]
    for sizes in ({"B": 7, "M": 1, "I": 17, "A": 65}, {"B": 13, "M": 33, "I": 1, "A": 24}):
        arrays, got = run(m, sizes)
        expected = np.einsum("bmi,ma->iba", *(arrays[n].astype(np.float64) for n in "XY"))
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("right", ["Y[k, l, j]", "Y[k, j, l]"])
def test_a_sum_along_several_long_indices_is_taken_in_turns_of_all_but_one(right, threads):
    dims = right[2:-1].upper()
    text = f"op f(X: f32[L, K, I], Y: f32[{dims}]) -> (Z: f32[J, I]) {{ Z[j, i] += X[l, k, i] * {right} }}"
    m = middle(text, "tuned", Options(deep=True, threads=threads))
    assert proved(m) and "in turns of" in m.chosen[0]
    for sizes in ({"I": 65, "J": 7, "K": 1, "L": 1}, {"I": 3, "J": 2, "K": 3, "L": 513}, {"I": 17, "J": 13, "K": 5, "L": 3}):
        arrays, got = run(m, sizes)
        order = dims.lower()
        expected = np.einsum(f"lki,{''.join(order.split(', '))}->ji", *(arrays[n].astype(np.float64) for n in "XY"))
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_some_of_another_column_go_through_all_turns_of_a_sum_together():
    text = "op f(X: f32[H, B, L, K, I], Y: f32[K, J, L]) -> (Z: f32[H, B, J, I]) {{ {} }}"
    text = text.format("Z[h, b, j, i] += X[h, b, l, k, i] * Y[k, j, l]")
    m = middle(text, "tuned", Options(deep=True))
    assert proved(m) and "in turns of k, 12 of b at a time" in m.chosen[0]
    loops = structure(m.nest.body)
    assert loops.startswith("h:parallel(b_c(j_c(k(l_c(b(i_c(")
    for many, few in ((1, 3), (12, 1), (13, 2), (25, 1)):
        arrays, got = run(m, {"H": few, "B": many, "I": 3, "J": 2, "K": 3, "L": 2})
        expected = np.einsum("hblki,kjl->hbji", *(arrays[n].astype(np.float64) for n in "XY"))
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_what_follows_a_sum_in_turns_would_not_know_the_last_of_them():
    text = "op f(X: f32[L, K, I], Y: f32[K, J, L]) -> (Z: f32[J, I]) {{ {} }}"
    text = text.format("s[j, i] += X[l, k, i] * Y[k, j, l]; Z[j, i] = relu(s[j, i])")
    m = middle(text, "tuned", Options(deep=True))
    assert proved(m) and "packed: rows j" in m.chosen[0] and "in turns of" not in m.chosen[0]


def test_sums_whose_few_terms_are_known_are_never_fetched_from_the_result():
    text = "op f(A: f32[M, {K}], B: f32[{K}, N]) -> (C: f32[M, N]) {{ C[m, n] += A[m, k] * B[k, n] }}"
    deep, brief = (middle(text.format(K=k), "tuned") for k in (4096, 24))
    assert "kc None" in brief.chosen[0] and "kc None" not in deep.chosen[0] and proved(brief)
    assert not any(x.source == "C" for s in stores(brief.nest.body) for x in loads(s.expr))
    assert any(x.source == "C" for s in stores(deep.nest.body) for x in loads(s.expr))
    for m, n in ((1, 1), (7, 17), (13, 129)):
        arrays, got = run(brief, {"M": m, "N": n})
        np.testing.assert_allclose(got, arrays["A"].astype(np.float64) @ arrays["B"], rtol=1e-4, atol=1e-4)


def test_squares_of_an_operand_that_ask_for_the_next_block_are_right_at_their_edges():
    text = "op f(X: f32[C, A, B, 40], W: f32[40, J]) -> (Z: f32[C, J, B, A]) { Z[c, j, b, a] += X[c, a, b, k] * W[k, j] }"
    f, rng = polyop.op(text), np.random.default_rng(3)
    for c, a, b, j in ((1, 1, 1, 1), (2, 15, 3, 7), (1, 16, 2, 6), (3, 17, 1, 13), (2, 65, 5, 8)):
        x, w = (rng.standard_normal(s).astype(np.float32) for s in ((c, a, b, 40), (40, j)))
        np.testing.assert_allclose(f(x, w), np.einsum("cabk,kj->cjba", x.astype(np.float64), w), rtol=1e-4, atol=1e-4)
