"""Chains of windows in overlapped tiles compute the same, bit for bit, and all that is claimed of their copies is proved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyop
from polyop.compiler import compile_op
from polyop.ir.copies import Recomputed
from polyop.ir.expr import Affine, affine, map_loads
from polyop.ir.loops import Space
from polyop.ir.op import Op
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.poly.scop import extract
from polyop.poly.verify.copies import same_elements
from polyop.poly.wellformed import check
from polyop.rewrite.regimes.regimes import kinds
from polyop.rewrite.windows.chains import find_chains
from polyop.rewrite.windows.overlap import cut_into_tiles
from polyop.rewrite.windows.traffic import tile_rows
from polyop.runtime import cpu
from polyop.runtime.layout import contiguous
from tests.rewrite.ops import assert_same, op

BLUR = """op f(X: i32[N, M]) -> (Y: i32[N-2, M-2]) {
    T[i, j] = X[i, j] + X[i, j+1] - X[i, j+2]  where i in 0:N, j in 0:M-2
    Y[i, j] = T[i, j] + T[i+1, j] - T[i+2, j] }"""
THREE = """op f(X: i32[N, M]) -> (Y: i32[N, M]) {
    A[i, j] = X[i, j] - (X[i-1, j] else 5) + (X[i, j+1] else 1)
    B[i, j] = A[i, j] + (A[i+1, j] else 2) - (A[i-1, j-1] else 3)
    Y[i, j] = B[i, j] - (B[i-1, j] else 7) + (B[i+1, j+1] else 9) }"""
HARRIS = """op f(X: i32[N, M]) -> (Y: i32[N-4, M-4]) {
    G[i, j]  = X[i, j+2] - X[i+2, j]                   where i in 0:N-2, j in 0:M-2
    H[i, j]  = X[i+2, j+1] - X[i+1, j]                 where i in 0:N-2, j in 0:M-2
    g[i, j] += G[i+r, j+s] * G[i+r, j+s]               where r in 0:3, s in 0:3, i in 0:N-4, j in 0:M-4
    h[i, j] += G[i+r, j+s] * H[i+r, j+s]               where r in 0:3, s in 0:3, i in 0:N-4, j in 0:M-4
    Y[i, j]  = g[i, j] - 3 * h[i, j] }"""
POOLED = """op f(X: i32[B, N, M]) -> (Y: i32[B, (N-1)/2, M]) {
    T[b, i, j] = X[b, i, j] + (X[b, i, j-1] else 0)
    Y[b, i, j] max= T[b, 2*i + r, j]  where r in 0:3, i in 0:(N-1)/2 }"""
CLAMPED = """op f(X: i32[N, M]) -> (Y: i32[N, M]) {
    T[i, j] = X[max(i-1, 0), j] - X[min(i+2, N-1), j]  where i in 0:N, j in 0:M
    Y[i, j] = T[max(i-2, 0), j] - T[min(i+1, N-1), j] }"""
TWO_ENDS = """op f(X: i32[N, M]) -> (Y: i32[N-2, M], Z: i32[N-2, M]) {
    T[i, j] = X[i, j] * X[i, j] - 3
    Y[i, j] = T[i, j] - T[i+2, j]
    Z[i, j] = T[i+1, j] + T[i+2, j] }"""
FILTERS = """op f(X: i32[N, M, C], F: i32[R, S, C, D], G: i32[R, S, D, E]) -> (Y: i32[N-2*R+2, M-2*S+2, E]) {
    T[i, j, d] += X[i + r, j + s, c] * F[r, s, c, d]  where i in 0:N-R+1, j in 0:M-S+1
    A[i, j, d]  = max(T[i, j, d], 0)
    Y[i, j, e] += A[i + r, j + s, d] * G[r, s, d, e] }"""
PIECES = """op f(X: i32[N, M]) -> (Y: i32[N, M]) {
    T[i, j] = i < 2 ? X[i, j] : X[i-2, j] - X[i, j]  where i in 0:N, j in 0:M
    Y[i, j] = T[i, j] + (T[i-1, j] else 4) - (T[i+1, j] else 6) }"""
ALL = {"blur": BLUR, "three": THREE, "harris": HARRIS, "pooled": POOLED, "clamped": CLAMPED, "two ends": TWO_ENDS,
       "filters": FILTERS, "pieces": PIECES}

POINTWISE = """op f(X: i32[N, M]) -> (Y: i32[N, M]) {
    T[i, j] = X[i, j] * 2
    Y[i, j] = T[i, j] - 1 }"""
MARCHING = """op f(X: i32[N, M]; steps: int) -> (Y: i32[N, M]) {
    A: i32[steps + 1, N, M]
    A[0, i, j] = X[i, j]
    A[t, i, j] = A[t-1, i, j] + (A[t-1, i+1, j] else 0)  where t >= 1
    Y[i, j] = A[steps, i, j] }"""
WHOLE = """op f(X: i32[N, M]) -> (Y: i32[N, M]) {
    T[i, j] = X[i, j] + (X[i-1, j] else 0)
    s[j]   += T[i, j]
    Y[i, j] = s[j] + (T[i-1, j] else 0) }"""
GATHERED = """op f(X: i32[N, M], at: i64[N]) -> (Y: i32[N, M]) {
    T[i, j] = X[i, j] + (X[i-1, j] else 0)
    Y[i, j] = T[at[i], j] + (T[i-1, j] else 0) }"""
MIRRORED = """op f(X: i32[N, M]) -> (Y: i32[N, M]) {
    T[i, j] = X[i, j] + (X[i-1, j] else 0)
    Y[i, j] = T[N-1-i, j] }"""
TOTAL = """op f(X: i32[N, M]) -> (Y: i32[N, M], s: i32) {
    t += X[i, j]
    Y[i, j] = X[i, j] - t
    s = t + 1 }"""
NUMBER = """op f(X: i32[N, M]) -> (Y: i32[N, M]) {
    t += X[i, j]
    Y[i, j] = X[i, j] - t }"""
NONE = {"a number, and another reader": TOTAL, "a number": NUMBER, "pointwise": POINTWISE, "marching": MARCHING,
        "read as a whole": WHOLE, "gathered": GATHERED, "mirrored": MIRRORED}


def tiled(o: Op, rows: int = 4) -> Recomputed:
    made = cut_into_tiles(o, rows)
    assert made is not None
    return made


@pytest.mark.parametrize("size", range(13))
@pytest.mark.parametrize("name", ALL)
def test_tiles_compute_the_same(name, size):
    o = op(ALL[name])
    few = {"B": 2, "M": 5, "R": 2, "S": 2, "C": 2, "D": 2, "E": 2}
    sizes = {n: few.get(n, size) for n in o.sizes}
    if size >= {"blur": 2, "harris": 4, "two ends": 2, "filters": 2, "pooled": 1}.get(name, 0):
        assert_same(o, tiled(o).op, sizes)


@pytest.mark.parametrize("name", ALL)
def test_all_that_is_claimed_of_tiles_is_proved(name):
    o = op(ALL[name])
    made = tiled(o)
    check(made.op)
    proof = same_elements(extract(o), made, extract(made.op))
    assert proof.holds, proof


@pytest.mark.parametrize(("rows", "kept"), [(5, 7), (8, 10), (9, 10), (0, 3)])
def test_a_tile_has_no_more_rows_than_there_are_if_these_are_known(rows, kept):
    """Tiles of 8 at most, and two rows to spare: of contractions that were made matrices of 16 rows, 1,024 were kept."""
    o = op(BLUR.replace("N-2", str(rows)).replace("0:N", f"0:{rows + 2}").replace("X: i32[N,", f"X: i32[{rows + 2},"))
    made = tiled(o, 8)
    assert [t.shape[1] for t in made.op.tensors if t.name == "T_tile"] == [affine(kept)]
    assert_same(o, made.op, {"M": 5})
    assert same_elements(extract(o), made, extract(made.op)).holds


@pytest.mark.parametrize("name", NONE)
def test_what_is_handed_over_point_by_point_or_not_to_rows_alone_is_no_chain(name):
    assert find_chains(op(NONE[name])) == () and cut_into_tiles(op(NONE[name]), 8) is None


def test_windows_add_up_along_a_chain():
    chain, = find_chains(op(THREE))
    assert {t: (r.stride, r.first.const, r.window.const) for t, r in chain.rows.items()} == \
        {"Y": (1, 0, 1), "B": (1, -1, 3), "A": (1, -2, 5)}


def test_below_a_pooling_a_tile_needs_rows_in_steps():
    chain, = find_chains(op(POOLED))
    assert chain.rows["T"].stride == 2 and chain.rows["T"].count(8) == affine(17)


def test_windows_may_be_as_long_as_a_size_says():
    chain, = find_chains(op(FILTERS))
    assert str(chain.rows["A"].count(8)) == "R + 7" == str(chain.rows["T"].count(8)) and chain.rows["T"].dim == 0


# --- planted bugs ------------------------------------------------------------------------------------------------------------


def shifted(made: Recomputed, step: int, by: int) -> Recomputed:
    """`made`, with a step that reads its copies so many rows away."""
    names = {c.name: len(c.indices) for c in made.copies}

    def read(x):
        return replace(x, index=(x.index[0], x.index[1] + by, *x.index[2:])) if x.source in names else x

    s = made.op.steps[step]
    steps = (*made.op.steps[:step], replace(s, expr=map_loads(s.expr, read)), *made.op.steps[step + 1 :])
    return replace(made, op=replace(made.op, steps=steps))


def proof_of(o: Op, made: Recomputed):
    return same_elements(extract(o), made, extract(made.op))


def test_a_copy_of_the_row_beside_is_refused():
    o = op(BLUR)
    proof = proof_of(o, shifted(tiled(o), 1, 1))
    assert not proof.holds and "is not T[" in proof.witness


def test_a_tile_that_starts_a_row_too_early_is_refused():
    o = op(BLUR)
    made = tiled(o)
    c, = made.copies
    wrong = replace(made, copies=(replace(c, index=(c.index[0] - 1, *c.index[1:])),))
    assert not proof_of(o, wrong).holds


def test_another_value_in_a_copy_is_refused():
    o = op(BLUR)
    made = tiled(o)
    first = made.op.steps[0]
    steps = (replace(first, expr=first.expr.args[0]), *made.op.steps[1:])
    proof = proof_of(o, replace(made, op=replace(made.op, steps=steps)))
    assert not proof.holds and proof.witness


def test_a_copy_outside_the_rows_that_exist_is_refused():
    o = op(BLUR)
    made = tiled(o)
    steps = (replace(made.op.steps[0], where=()), *made.op.steps[1:])
    proof = proof_of(o, replace(made, op=replace(made.op, steps=steps)))
    assert not proof.holds and "is no instance" in proof.witness


def test_a_sum_that_lacks_a_term_or_has_one_twice_is_refused():
    o = op(POOLED.replace("max=", "+="))
    made = tiled(o)
    n, s = next((n, s) for n, s in enumerate(made.op.steps) if s.reduce is not None)
    r, = (r for r in s.ranges if r.upper == affine(3))
    short = replace(s, ranges=tuple(replace(x, upper=affine(2)) if x is r else x for x in s.ranges))
    lacking = replace(made.op, steps=(*made.op.steps[:n], short, *made.op.steps[n + 1 :]))
    assert "has not the terms" in proof_of(o, replace(made, op=lacking)).witness
    twice = replace(made, op=replace(made.op, steps=(*made.op.steps[: n + 1], *made.op.steps[n:])),
                    origins=(*made.origins[: n + 1], *made.origins[n:]))
    assert "2 steps" in proof_of(o, twice).witness


def test_a_result_that_comes_from_another_place_of_its_copies_is_refused():
    o = op(POOLED)
    made = tiled(o)
    at = next(n for n, x in enumerate(made.origins) if x.step is None)
    s = made.op.steps[at]
    moved = replace(s.expr, index=tuple(Affine() if p == affine("row") else p for p in s.expr.index))
    steps = (*made.op.steps[:at], replace(s, expr=moved), *made.op.steps[at + 1 :])
    assert "another" in proof_of(o, replace(made, op=replace(made.op, steps=steps))).witness


# --- compiled ----------------------------------------------------------------------------------------------------------------


def compiled(text: str, **options):
    o = op(text)
    return compile_op(o, contiguous(o), cpu.resolve("x86"), Options(**options))


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("name", [n for n in ALL if n not in ("pieces", "filters")])
def test_of_what_is_handed_over_each_thread_keeps_one_tile(name, threads, caplog):
    made = compiled(ALL[name], overlap=8, threads=threads)
    kept = [b for b in made.nest.buffers if b.space == Space.WORK]
    assert made.rung == "tuned" and not caplog.records and not any("not on rung" in n for n in made.notes)
    assert kept and all(b.private for b in kept) and all(p.holds for p in made.proofs)
    assert any(p.claim == "each copy of an element is computed as the element is" for p in made.proofs)


@pytest.mark.parametrize("rows", [(1, 1), (7, 40), (8, 3), (9, 64), (25, 100)])
@pytest.mark.parametrize("name", [n for n in ALL if n not in ("pooled", "filters")])
def test_kernels_of_tiles_compute_what_others_do(name, rows):
    n, m = rows
    x = np.random.default_rng(0).integers(-9, 9, (n + 4, m + 4)).astype(np.int32)
    plain, over = polyop.op(ALL[name]), polyop.op(ALL[name], options=Options(overlap=8))
    wanted, given = plain(x), over(x)
    for a, b in zip(wanted, given, strict=True) if isinstance(wanted, tuple) else [(wanted, given)]:
        np.testing.assert_array_equal(a, b)


def test_calls_get_tiles_where_what_is_handed_over_leaves_l2_and_a_tile_does_not():
    chains, v4 = find_chains(op(BLUR)), target("x86:x86-64-v4")
    assert tile_rows(chains, {"N": 500, "M": 500}, v4) == 0
    assert tile_rows(chains, {"N": 4000, "M": 500}, v4) == 128
    assert tile_rows(chains, {"N": 4000, "M": 4000}, v4) == 32
    assert tile_rows(chains, {"N": 4000, "M": 40000}, v4) == 0
    assert tile_rows((), {}, v4) == 0 == tile_rows(chains, {"N": 4000, "M": 4000}, target("cuda:sm_80"))


def test_convolutions_get_tiles_where_spare_rows_cost_less_than_memory():
    chains, v4 = find_chains(op(FILTERS)), target("x86:x86-64-v4")
    window = {"R": 3, "S": 3}
    assert tile_rows(chains, {"N": 512, "M": 512, "C": 3, "D": 16, "E": 16} | window, v4) == 16
    assert tile_rows(chains, {"N": 512, "M": 512, "C": 128, "D": 16, "E": 16} | window, v4) == 0
    assert tile_rows(chains, {"N": 56, "M": 56, "C": 64, "D": 64, "E": 64} | window, v4) == 0


def test_planes_that_nothing_mixes_stay_in_a_cache_one_by_one():
    depthwise = find_chains(op(POOLED))
    assert tile_rows(depthwise, {"B": 1000, "N": 56, "M": 56}, target("x86:x86-64-v4")) == 0


def test_a_kernel_of_tiles_is_for_calls_of_large_images():
    assert any("rows to spare" in k for k in kinds(op(BLUR))) and not any("rows to spare" in k for k in kinds(op(POINTWISE)))


@pytest.mark.parametrize("threads", [False, True])
def test_contractions_are_packed_inside_shared_tiles(threads):
    made = compiled(FILTERS, overlap=8, threads=threads)
    assert made.rung == "tuned" and all(p.holds for p in made.proofs) and not any("not on rung" in n for n in made.notes)
    assert made.trace["schedule"].startswith("tile around") and sum("packed" in c for c in made.chosen) == 2
    assert made.nest.buffer("A_tile").private


@pytest.mark.parametrize("rows", [5, 8, 19])
def test_kernels_of_filters_in_tiles_compute_what_others_do(rows):
    rng = np.random.default_rng(1)
    arrays = [rng.integers(-3, 4, s).astype(np.int32) for s in ((rows, 23, 3), (2, 3, 3, 17), (2, 3, 17, 5))]
    plain, over = polyop.op(FILTERS), polyop.op(FILTERS, options=Options(overlap=8))
    np.testing.assert_array_equal(plain(*arrays), over(*arrays))


def test_an_output_channel_stays_inside_tiles_since_a_contraction_without_columns_is_none():
    made = compiled("""op f(X: i32[N, H, W, C], F: i32[D, C]) -> (Y: i32[N, D, H-2, W]) {
    T[n, d, i, j] += X[n, i, j, c] * F[d, c]
    Y[n, d, i, j] max= T[n, d, i + r, j]  where r in 0:3, i in 0:H-2 }""", overlap=8)
    assert made.trace["schedule"].startswith("n tile around\n  [d row j")


def test_clusters_that_are_no_contractions_share_batches_and_leave_lanes_theirs():
    scan, retention = polyop.library("selective_scan").compile(), polyop.library("retention").compile()
    assert scan.trace["schedule"].startswith("d around") and retention.trace["schedule"].startswith("b h around")
