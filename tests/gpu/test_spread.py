"""Rows and columns spread over the threads of a block: what is proved, and what the emulator computes at boundary sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from gpu_texts import Array, compiled, values

from polyop.ir.errors import UnsupportedError
from polyop.ir.options import Options
from polyop.runtime import cxx, emulated

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)


SOFTMAX = """op softmax(x: f32[R, N]) -> (y: f32[R, N]) {
    t[r] max= x[r,c]; e[r,c] = exp(x[r,c] - t[r]); s[r] += e[r,c]; y[r,c] = e[r,c] / s[r] }"""
CENTRED = "op centred(x: f32[R, N]) -> (y: f32[R, N]) { s[c] += x[r,c]; y[r,c] = x[r,c] - s[c] / f32(R) }"


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize(("text", "strategy", "want", "lengths"), [
    (SOFTMAX, "threads -, -, c, c, c x 256", softmax, ((3, 1), (2, 31), (2, 257), (1, 1025))),
    (SOFTMAX.replace("N]", "200]"), "threads -, -, c, c, c x 32, 4 of r in a block", softmax, ((1, 200), (4, 200), (7, 200))),
    ("op total(x: f32[R, N]) -> (y: f32[R]) { y[r] += x[r,c] }", "threads -, c x 256", lambda x: x.sum(1), ((3, 1), (2, 1033))),
    ("op total(x: f32[R, 20]) -> (y: f32[R]) { y[r] += x[r,c] }", "threads -, c x 4, 32 of r in a block", lambda x: x.sum(1),
     ((1, 20), (9, 20))),
    ("op below(x: f32[R, N]) -> (y: f32[N]) { y[c] += x[r,c] }", "threads -, r x 32, 32 of c in a block, side by side",
     lambda x: x.sum(0), ((1, 1), (226, 31), (257, 33), (600, 100))),
    (CENTRED, "side by side", lambda x: x - x.mean(0), ((1, 1), (7, 32), (33, 31))),
])
def test_a_reduction_is_spread_over_threads_and_computes_what_numpy_says(
        text: str, strategy: str, want: Callable[[Array], Array], lengths: tuple[tuple[int, int], ...]) -> None:
    c = compiled(text)
    assert c.rung == "tuned" and c.proofs and strategy in c.chosen[0]
    for (r, n), order in zip(lengths, emulated.ORDERS * 2, strict=False):
        a = values(c, {"R": r, "N": n} if "N" in c.op.sizes else {"R": r}, order)
        np.testing.assert_allclose(a["y"], want(a["x"].astype(np.float64)), rtol=1e-5, atol=1e-5)


def test_terms_that_are_no_neighbours_are_asked_about_once_and_all_on_their_way_before_one_is_added() -> None:
    for on, dtype, most in (("cuda:sm_90a", "f32", 481), ("cuda:sm_80", "f64", 225), ("hip:gfx942", "bf16", 241)):
        c = compiled(f"op below(x: {dtype}[R, N]) -> (y: f32[N]) {{ y[c] += f32(x[r,c]) }}", on=on)
        assert c.module is not None
        whole, edge = c.module.text.split(f"if (R >= r_t + r_v + {most}) {{")[1].split("} else {")[:2]
        assert "#pragma unroll\n" in whole and "if (" not in whole
        assert "#pragma unroll 1\n" in edge and "if (R > " in edge  # written out as well, it would begin alike


def test_few_rows_have_fewer_threads_and_very_few_none() -> None:
    text = "op below(x: f32[R, N]) -> (y: f32[N]) { y[c] += x[r,c] }"
    for hint, chosen in ((16, "r x 8"), (200, "r x 16"), (4096, "r x 32"), (15, "rows:")):
        c = compiled(text, Options(hints=(("R", hint),)))
        assert chosen in c.chosen[0], c.chosen
        for k, (r, n) in enumerate(((1, 1), (hint, 33), (hint + 70, 32))):  # a hint is no promise
            v = values(c, {"R": r, "N": n}, ("forward", "backward")[k % 2])
            np.testing.assert_allclose(v["y"], v["x"].astype(np.float64).sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("on", ["cuda:sm_80", "hip:gfx942"])
def test_sums_that_no_threads_share_stand_together_in_their_loop(on: str) -> None:
    text = """op f(x: f32[R, N]) -> (y: f32[R, N]) {
        s[r] += x[r,c]; q[r] += x[r,c] * x[r,c]; y[r,c] = x[r,c] - s[r] + q[r] }"""
    c = compiled(text, Options(numerics="strict"), on)  # so that sums keep their order
    assert c.rung == "tuned" and "threads -, -, -, c" in c.chosen[0]
    for (r, n), order in zip(((1, 1), (3, 31), (2, 257)), emulated.ORDERS, strict=True):
        a = values(c, {"R": r, "N": n}, order)
        x = a["x"].astype(np.float64)
        np.testing.assert_allclose(a["y"], x - x.sum(1, keepdims=True) + (x * x).sum(1, keepdims=True), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("on", ["cuda:sm_80", "hip:gfx942"])
def test_sums_beside_a_short_row_may_move_different_numbers_of_neighbours(on: str) -> None:
    text = """op f(x: u8[R, K, L], at: i32[K], w: u8[L, V, N], z: u8[N]) -> (y: i32[R]) {
        t[r,n] += i32(x[r,k,l]) * i32((w[l,at[k],n] else 1)); y[r] += t[r,n] * i32(z[n]) }"""
    c = compiled(text, Options(hints=(("N", 32),), shares=(("t", 16),)), on)
    assert c.rung == "tuned" and "of which n x 4 and l, n x 4 and t" in c.chosen[0]  # 8 of u8 at once, and 1 of i32
    for (r, k, m, n), order in zip(((1, 1, 1, 1), (2, 17, 9, 31), (3, 40, 5, 33)), emulated.ORDERS, strict=True):
        a = values(c, {"R": r, "K": k, "L": m, "N": n, "V": 9}, order)
        x, w, z = (a[name].astype(int) for name in "xwz")
        inside = (a["at"] >= 0) & (a["at"] < 9)
        w = np.where(inside[:, None], w[:, np.where(inside, a["at"], 0)], 1)
        np.testing.assert_array_equal(a["y"], np.einsum("rkl,lkn,n->r", x, w, z).astype(np.int32))


def test_warps_of_64_fold_as_well() -> None:
    for text, want in ((SOFTMAX, softmax), (CENTRED, lambda x: x - x.mean(0))):
        a = values(compiled(text, on="hip:gfx942"), {"R": 5, "N": 70})
        np.testing.assert_allclose(a["y"], want(a["x"].astype(np.float64)), rtol=1e-5, atol=1e-5)


def test_empty_sizes_give_what_a_reduction_starts_from() -> None:
    c = compiled("op total(x: f32[R, N]) -> (y: f32[R]) { y[r] += x[r,c] }", Options(regime="any"))
    assert values(c, {"R": 3, "N": 0})["y"].tolist() == [0, 0, 0]
    assert values(c, {"R": 0, "N": 3})["y"].shape == (0,)


def test_what_is_cheap_to_compute_is_computed_again_and_not_stored() -> None:
    c = compiled(SOFTMAX)
    assert c.module is not None and not c.module.signature.work


def test_a_long_reduction_to_one_element_is_cut_into_shares_for_many_blocks() -> None:
    c = compiled("op total(x: f32[N]) -> (y: f32) { y += x[i] }")
    assert c.module is not None and len(c.module.launch) == 2
    for n in (1, 16384, 16385):
        a = values(c, {"N": n})
        np.testing.assert_allclose(a["y"], a["x"].sum(dtype=np.float64), rtol=1e-5, atol=1e-4)


def test_rows_that_are_hinted_to_be_short_share_a_block() -> None:
    c = compiled(SOFTMAX, Options(hints=(("N", 128),)))
    assert "x 16, 8 of r in a block" in c.chosen[0]
    a = values(c, {"R": 5, "N": 300})
    np.testing.assert_allclose(a["y"], softmax(a["x"].astype(np.float64)), rtol=1e-5)


def test_sums_in_source_order_stay_on_one_thread() -> None:
    c = compiled("op total(x: f32[R, N]) -> (y: f32[R]) { y[r] += x[r,c] }", Options(numerics="strict"))
    assert "rows" in c.chosen[0] and any("not spread" in n for n in c.notes)


def test_short_rows_have_a_few_threads_each_and_share_a_block() -> None:
    for where in ("cuda:sm_80", "hip:gfx942"):
        for hint, each, rows in ((32, 4, 32), (100, 16, 8), (512, 64, 2)):
            c = compiled(SOFTMAX, Options(hints=(("N", hint),)), where)
            assert f"x {each}, {rows} of" in c.chosen[0], c.chosen
            for k, (m, n) in enumerate(((1, 1), (7, 33), (70, 5), (3, 600))):  # a hint is no promise
                v = values(c, {"R": m, "N": n}, ("forward", "backward")[k % 2])
                np.testing.assert_allclose(v["y"], softmax(v["x"]), atol=1e-6)


def test_rows_that_are_written_and_read_again_have_a_block_each() -> None:
    text = """op att(Q: f32[M, D], K: f32[N, D], V: f32[N, D]) -> (O: f32[M, D]) {
        s[m,n] += Q[m,d] * K[n,d]; t[m] max= s[m,n]; e[m,n] = exp(s[m,n] - t[m]); z[m] += e[m,n]
        o[m,d] += e[m,n] * V[n,d]; O[m,d] = o[m,d] / z[m] }"""
    c = compiled(text, Options(hints=(("N", 32),)))
    assert c.rung == "tuned" and "in a block" not in c.chosen[1], c.notes


def test_a_single_row_has_whole_warps_however_short_it_is() -> None:
    c = compiled("op total(x: f32[N]) -> (y: f32[1]) { t[i] = exp(exp(exp(exp(exp(x[i]))))); y[j] += t[i] * t[N - 1 - i] }",
                 Options(hints=(("N", 32),)))
    assert c.rung == "tuned", c.notes


@pytest.mark.parametrize(("where", "holds"), [
    ("i < 2, j >= 1", lambda i, j: (i < 2) & (j >= 1)),
    ("i / 2 == j", lambda i, j: i // 2 == j),
    ("i >= j, i < 2", lambda i, j: (i >= j) & (i < 2)),
    ("i == 3", lambda i, j: i == 3),
])
@pytest.mark.parametrize("on", ["cuda:sm_80", "hip:gfx942"])
def test_a_condition_that_leaves_work_to_one_thread_of_several_is_asked_by_all(where: str, holds: Callable, on: str) -> None:
    c = compiled(f"op s(x: f32[N, N]) -> (y: f32[N]) {{ y[j] += x[j, i]  where i in 0:N, j in 0:N, {where} }}", on=on)
    assert c.rung == "tuned"
    for n in (1, 2, 5, 33):
        a = values(c, {"N": n})
        j, i = np.indices((n, n))
        np.testing.assert_allclose(a["y"], np.where(holds(i, j), a["x"], 0).sum(1), rtol=1e-5, atol=1e-5)


def test_what_the_first_thread_writes_in_a_loop_is_read_by_all_behind_a_barrier() -> None:
    c = compiled("""op s(A: i32[N, N], C: i32[M]) -> (at: i64[M, N]) {
        t[i, j] ^= A[i, k]  where j in 0:N
        at[k, j] argmax= (t[j, max(j - 2, 2 - j)] else 0) + (C[(j - i) / 2] else 0)  where j in 0:N, i in 0:M, k in 0:M }""")
    assert c.rung == "tuned" and c.nest and "spread: threads j, -, " in str(c.chosen)
    assert "at_top_row is read after other threads wrote it" in str(c.nest)
    assert values(c, {"N": 5, "M": 3})["at"].shape == (3, 5)


def test_a_loop_over_blocks_that_conditions_cut_is_two_kernels_with_registers_of_their_own() -> None:
    c = compiled("""op s(A: f32[N], B: f32[M]) -> (T: f32[N]) {
        T[j] += A[i] * B[k]  where j in 0:N, i in 0:N, k in 0:M, k + j >= 2, j != i, i / 2 == k }""")
    assert c.rung != "interpreter" and c.proofs
    for n, m in ((1, 1), (2, 3), (7, 4), (33, 9)):
        a = values(c, {"N": n, "M": m})
        j, i, k = np.indices((n, n, m))
        terms = np.where((k + j >= 2) & (j != i) & (i // 2 == k), a["A"][i] * a["B"][k], 0)
        np.testing.assert_allclose(a["T"], terms.sum((1, 2)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("test", "taken"), [("n % 4 < 2", lambda n: n % 4 < 2), ("n % 8 < 5", lambda n: n % 8 < 5)])
def test_a_condition_on_rows_side_by_side_is_asked_inside_all_loops_over_threads(test, taken):
    text = f"op f(A: f32[K], B: f32[P, N, K]) -> (Y: f32[P, N]) {{ Y[p, n] += A[k] * B[p, n, k] where {test} }}"
    made = compiled(text, Options(hints=(("K", 32),)))
    assert made.rung == "tuned" and "32 of n in a block" in made.chosen[-1]
    for sizes in ({"K": 1, "N": 1, "P": 2}, {"K": 31, "N": 33, "P": 1}, {"K": 5, "N": 64, "P": 2}):
        for order in ("forward", "backward"):
            x = values(made, sizes, order)
            want = np.where(taken(np.arange(sizes["N"])), x["B"].astype(np.float64) @ x["A"], 0)
            np.testing.assert_allclose(x["Y"], want, atol=1e-4)
