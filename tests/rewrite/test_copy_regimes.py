"""What is copied, and what is read where it lies: blocks of columns that suit the sizes of a call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyop.compiler import compile_op
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.options import ALL_TERMS, CHUNK, Options
from polyop.ir.span import Source
from polyop.ir.target import BY_NAME, Hints
from polyop.rewrite.regimes.copy_regimes import AT_HAND, AT_ONCE, AWAY, DEPTH, FEW
from polyop.rewrite.regimes.regimes import kinds, regime, regimes_of
from polyop.runtime.layout import contiguous
from tests.rewrite.ops import library

AVX512 = BY_NAME["x86:x86-64-v4"]
XEON = BY_NAME["x86:sapphirerapids"]
MATMUL = instantiate(parse(Source("<test>", """
op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }
""")), "f")


@pytest.mark.parametrize(("rows", "columns", "threads", "broad"), [
    (1024, 512, 2, True), (1023, 512, 2, False), (1024, 512, 3, False), (1024, 512, 1, False), (256, 2048, 2, True),
    (255, 4096, 2, False), (100000, 65, 2, True), (100000, 64, 2, False)])
def test_threads_copy_more_columns_each_where_they_have_many_rows(rows, columns, threads, broad):
    sizes = {"K": 64, "M": rows, "N": columns}
    assert regime(regimes_of(MATMUL), sizes, Options(), AVX512, threads).broad is broad
    across = "op f(A: f32[K, M], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[k, m] * B[k, n] }"  # A is copied
    below = "op f(A: f32[M, M], B: f32[M, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] where k < m }"
    for text in (across, below):
        q = regimes_of(instantiate(parse(Source("<test>", text)), "f"))
        assert not regime(q, sizes, Options(), AVX512, threads).broad


@pytest.mark.parametrize(("rows", "columns", "terms", "threads", "flat"), [
    (512, 512, 8, 1, True), (512, 512, 9, 1, False), (511, 512, 8, 1, False), (512, 512, 8, 2, False), (1024, 512, 1, 2, True),
    (255, 4096, 8, 1, False), (256, 4096, 8, 2, True)])
def test_blocks_have_more_columns_where_many_results_are_short_sums(rows, columns, terms, threads, flat):
    sizes = {"K": terms, "M": rows, "N": columns}
    assert regime(regimes_of(MATMUL), sizes, Options(), AVX512, threads).flat is flat
    assert any("at most 8 terms" in k for k in kinds(MATMUL))


@pytest.mark.parametrize(("rows", "columns", "terms", "threads", "slabs"), [
    (2560, 2048, 2048, 1, False), (2561, 2048, 2048, 1, True), (2561, 512, 2048, 1, False), (2561, 513, 2048, 1, True),
    (2561, 2048, 511, 1, False), (5121, 2048, 256, 1, True), (2561, 2048, 2048, 2, False)])
@pytest.mark.parametrize("text", [
    "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }",
    "op f(A: f32[K, M], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[k, m] * B[k, n] }"])
def test_rows_are_cut_where_the_last_cache_may_lose_what_all_read_of_a_block(text, rows, columns, terms, threads, slabs):
    """More than 5 times 1,024 kB of A, in 512 steps; and more than 1,024 kB of B."""
    op, sizes = instantiate(parse(Source("<test>", text)), "f"), {"M": rows, "K": terms, "N": columns}
    assert regime(regimes_of(op), sizes, Options(), AVX512, threads).slabs is slabs
    assert any("a core's part of the last cache" in k for k in kinds(op))


@pytest.mark.parametrize(("rows", "terms", "threads", "slim"), [
    (FEW, 512, 1, True), (FEW + 1, 512, 1, False), (9, 512, 1, True), (8, 512, 1, False), (FEW, 512, 2, False),
    (FEW, 128, 1, False), (FEW, 4681, 1, True), (FEW, 4682, 1, False)])
def test_blocks_are_slim_where_few_rows_stay_in_the_second_cache(rows, terms, threads, slim):
    """1,024 kB of A and no more; more than 2,048 of B; and with one to eight rows nothing is copied."""
    sizes = {"M": rows, "K": terms, "N": 2048}
    assert regime(regimes_of(MATMUL), sizes, Options(), XEON, threads).slim is slim
    lies = "op f(A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }"  # copied by squares
    pages = "op f(A: f32[M, K], B: f32[K, N, J]) -> (C: f32[M, N, J]) { C[m, n, j] += A[m, k] * B[k, n, j] }"
    for text in (lies, pages):
        q = regimes_of(instantiate(parse(Source("<test>", text)), "f"))
        assert not regime(q, sizes | {"J": 64}, Options(), XEON, threads).slim


@pytest.mark.parametrize(("change", "bare"), [
    ({}, True), ({"M": AT_HAND + 1}, False), ({"M": 9}, True), ({"M": 8}, False), ({"N": 512}, False),
    ({"N": 512, "M": AT_ONCE}, True), ({"N": 512, "M": AT_ONCE + 1}, False), ({"K": 1310}, True), ({"K": 1311}, False),
    ({"threads": 2}, True)])
def test_columns_are_read_where_they_lie_where_few_rows_use_what_a_cache_holds(change, bare):
    """1,536 kB at most; rows of 2 kB fall on each other in L1."""
    sizes = {"M": AT_HAND, "K": 64, "N": 300} | change
    threads = sizes.pop("threads", 1)
    assert regime(regimes_of(MATMUL), sizes, Options(), XEON, threads).bare == bare * ALL_TERMS
    assert any("so few rows use an operand which lies along columns" in k for k in kinds(MATMUL))
    lies = "op f(A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }"
    batches = "op f(A: f32[P, M, K], B: f32[P, K, N]) -> (C: f32[P, M, N]) { C[p, m, n] += A[p, m, k] * B[p, k, n] }"
    for text, found in ((lies, False), (batches, bare)):
        q = regimes_of(instantiate(parse(Source("<test>", text)), "f"))
        assert regime(q, sizes | {"P": 99}, Options(), XEON, threads).bare == found * ALL_TERMS


@pytest.mark.parametrize(("change", "streamed"), [
    ({}, True), ({"M": AWAY + 1}, False), ({"M": 9}, True), ({"M": 8}, False), ({"N": 2048}, False), ({"N": 2049}, True),
    ({"threads": 2}, True)])
def test_rows_share_the_way_of_what_comes_from_memory_for_few_of_them(change, streamed):
    """More than 16 MB of the last cache."""
    sizes = {"M": AWAY, "K": 2048, "N": 4096} | change
    threads, target = sizes.pop("threads", 1), replace(XEON, l3=16 << 20)
    found = regime(regimes_of(MATMUL), sizes, Options(), target, threads)
    assert found.bare == streamed * CHUNK
    lies = "op f(A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }"
    assert not regime(regimes_of(instantiate(parse(Source("<test>", lies)), "f")), sizes, Options(), target, threads).bare


@pytest.mark.parametrize(("change", "bare"), [
    ({}, ALL_TERMS), ({"N": 383, "P": 1}, 0), ({"N": 385, "P": 1}, ALL_TERMS), ({"M": 97}, 0), ({"M": 9}, ALL_TERMS),
    ({"M": 8}, 0), ({"N": 512}, 0), ({"N": 512, "M": 32}, ALL_TERMS),
    ({"K": 1024}, ALL_TERMS), ({"K": 1025}, DEPTH), ({"M": 16, "N": 1 << 20}, CHUNK), ({"M": 17, "N": 1 << 20}, ALL_TERMS),
    ({"threads": 2}, ALL_TERMS)])
@pytest.mark.parametrize("text", [
    "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }",
    "op f(A: f32[M, K], B: f32[P, K, N]) -> (C: f32[P, M, N]) { C[p, m, n] += A[m, k] * B[p, k, n] }"])
def test_more_rows_do_so_where_tiles_ask_for_the_next_columns_meanwhile(text, change, bare):
    """Up to 96, of twice L1 or more, or 32 where columns fall on each other; up to 16 take a few terms at a time from memory."""
    sizes = {"M": 96, "K": 64, "N": 500, "P": 5} | change
    threads, target = sizes.pop("threads", 1), replace(XEON, l3=16 << 20, hints=Hints(panels=96))
    found = regime(regimes_of(instantiate(parse(Source("<test>", text)), "f")), sizes, Options(), target, threads)
    assert found.bare == (ALL_TERMS if "P" in text and bare == CHUNK else bare)


@pytest.mark.parametrize(("weights", "rows", "bare"), [
    ("W: f32[J, K]", 24, ALL_TERMS), ("W: f32[J, K]", 97, 0), ("W: f32[K, J]", 24, 0)])
def test_so_do_rows_of_a_sum_that_is_turned_late_but_for_those_that_are_copied(weights, rows, bare):
    index = weights[weights.index("["):].lower()
    text = f"op f(X: f32[A, K, B], {weights}) -> (Z: f32[J, B, A]) {{ Z[j, b, a] += X[a, k, b] * W{index} }}"
    sizes, target = {"A": 300, "B": 300, "J": rows, "K": 300}, replace(XEON, hints=Hints(panels=96))
    found = regime(regimes_of(instantiate(parse(Source("<test>", text)), "f")), sizes, Options(), target)
    assert found.late and found.bare == bare


@pytest.mark.parametrize(("change", "bare"), [
    ({}, True), ({"N": 2, "H": 4, "W": 64}, False), ({"N": 1, "H": 8, "W": 16}, True), ({"H": 8, "W": 17}, False),
    ({"H": 9, "W": 9}, False), ({"H": 16, "W": 3}, True), ({"C": 18}, False), ({"C": 19}, True), ({"K": 512}, True),
    ({"K": 512, "C": 228}, False), ({"C": 2000, "K": 250}, False), ({"H": 16, "threads": 2}, True),
    ({"H": 17, "threads": 2}, False)])
@pytest.mark.parametrize("asked", [0, 96])
def test_few_pixels_read_filters_where_they_lie(change, bare, asked):
    """64 kB to 16 MB, or 4 where rows of filters fall on each other; and what stays in L2 on machines that ask for no columns."""
    text = """op f(X: f32[N, H, W, C], F: f32[R, R, C, K]) -> (Y: f32[N, H, W, K]) {
      Y[n, p, q, k] += (X[n, p + r - 1, q + s - 1, c] else 0) * F[r, s, c, k] }"""
    sizes = {"N": 1, "H": 8, "W": 8, "C": 19, "K": 100, "R": 3} | change
    threads, target = sizes.pop("threads", 1), replace(XEON, l1=32 << 10, l2=1 << 20, l3=16 << 20, hints=Hints(panels=asked))
    found = regime(regimes_of(instantiate(parse(Source("<test>", text)), "f")), sizes, Options(), target, threads)
    assert found.bare == (bare and (asked > 0 or sizes["K"] != 512)) * DEPTH
    across = text.replace("F: f32[R, R, C, K]", "F: f32[K, R, R, C]").replace("F[r, s, c, k]", "F[k, r, s, c]")
    assert not regime(regimes_of(instantiate(parse(Source("<test>", across)), "f")), sizes, Options(), target, threads).bare


@pytest.mark.parametrize(("text", "threads", "bare"), [
    ("A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }", 1, True),
    ("A: f64[M, K, L], B: f64[K, L, N]) -> (C: f64[M, N]) { C[m, n] += A[m, k, l] * B[k, l, n] }", 2, True),
    ("A: f32[K, M], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[k, m] * B[k, n] }", 1, True),
    ("A: f32[K, M], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[k, m] * B[k, n] }", 2, False),  # rows are copied anyway
    ("A: i8[M, K], B: i8[K, N]) -> (C: i32[M, N]) { C[m, n] += i32(A[m, k]) * i32(B[k, n]) }", 1, False),
    ("A: bf16[M, K], B: bf16[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }", 1, False),
    ("A: f32[M, K], B: f32[K, N], D: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * (B[k, n] + D[k, n]) }", 1, False),
    ("A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }", 1, False)])
def test_a_kernel_that_reads_columns_where_they_lie_is_asked_for_where_it_is_another_one(text, threads, bare):
    o = instantiate(parse(Source("<test>", f"op f({text}")), "f")
    sizes = {n: x for n, x in {"M": 20, "N": 100, "K": 60, "L": 5}.items() if n in o.sizes}
    for steps, target in ((ALL_TERMS, XEON), (CHUNK, replace(XEON, l2=1024, l3=4096))):
        asked = regime(regimes_of(o), sizes, Options(), target, threads)
        assert asked.bare == bare * steps
        both = (compile_op(o, contiguous(o), target, replace(asked, bare=b)) for b in (steps, 0))
        so, else_ = (str(x.trace["final"]) for x in both)
        assert (so != else_) is bare


@pytest.mark.parametrize(("change", "direct"), [
    ({}, True), ({"M": 255}, True), ({"M": 256}, False), ({"N": 256}, True), ({"N": 257}, False), ({"K": 384}, True),
    ({"K": 385}, False), ({"threads": 2}, False)])
def test_rows_that_lie_along_an_operand_are_read_there_where_few_columns_use_few_lines(change, direct):
    """Up to a KB from line to line, which are 24 KB at most."""
    sizes = {"M": 64, "K": 64, "N": 64} | change
    threads = sizes.pop("threads", 1)
    for end, lies in (("k, n", "K, N"), ("n, k", "N, K")):
        text = f"op f(A: f32[K, M], B: f32[{lies}]) -> (C: f32[M, N]) {{ C[m, n] += A[k, m] * B[{end}] }}"
        o = instantiate(parse(Source("<test>", text)), "f")
        assert regime(regimes_of(o), sizes, Options(), XEON, threads).direct is direct
        assert any("256 columns use an operand that lies along rows" in k for k in kinds(o))
    assert not regime(regimes_of(MATMUL), sizes, Options(), XEON, threads).direct


@pytest.mark.parametrize("name", ["conv2d", "conv2d_nhwc"])
def test_blocks_are_slim_where_a_window_reads_an_image_that_stays(name):
    op = library("conv", name)
    q = regimes_of(op)
    sizes = {"B": 1, "C": 256, "K": 256, "H": 14, "W": 14, "R": 3, "S": 3}
    for change, slim in (({}, True), ({"K": 64}, False), ({"B": 8}, False), ({"R": 1, "S": 1}, False)):
        assert regime(q, sizes | change, Options(), XEON).slim is slim, change
    assert any("stay in L2" in k for k in kinds(op))


def test_a_sum_is_deep_where_several_indices_of_it_are_long_and_leave_the_second_cache():
    text = "op f(X: f32[L, K, I], Y: f32[K, J, L]) -> (Z: f32[J, I]) { Z[j, i] += X[l, k, i] * Y[k, j, l] }"
    op = instantiate(parse(Source("<test>", text)), "f")
    q, larger = regimes_of(op), replace(AVX512, l2=4 << 20)
    for k, n, t, deep in ((192, 188, AVX512, True), (64, 64, larger, False), (63, 9999, AVX512, False), (9999, 64, larger, True)):
        assert regime(q, {"I": 99, "J": 99, "K": k, "L": n}, Options(), t).deep == deep
    assert not regime(regimes_of(MATMUL), {"K": 99999, "M": 99, "N": 99}, Options(), AVX512).deep
    assert "long in several indices" in " ".join(kinds(op))


@pytest.mark.parametrize(("change", "slim"), [
    ({}, True), ({"N": 64, "K": 9000}, True), ({"N": 65}, False), ({"M": 1023}, False), ({"threads": 2}, False),
    ({"P": 9}, False)])
def test_blocks_are_slim_where_one_tile_has_all_columns(change, slim):
    """6 x 4 vectors at most, and 16,384 results or more."""
    sizes = {"M": 1024, "K": 30, "N": 16} | change
    threads = sizes.pop("threads", 1)
    beside = "op f(A: f32[M, K], B: f32[P, K, N]) -> (C: f32[P, M, N]) { C[p, m, n] += A[m, k] * B[p, k, n] }"
    op = instantiate(parse(Source("<test>", beside)), "f") if "P" in sizes else MATMUL
    found = regime(regimes_of(op), sizes, Options(), replace(XEON, l2=1 << 20), threads)
    assert found.slim is slim
