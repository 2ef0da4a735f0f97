"""What tiles of rows ask for while they compute: the columns of the next tile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyop.codegen.cpu.lower import rewrites
from polyop.codegen.cpu.prefetch_panels import prefetch_panels
from polyop.ir.expr import evaluate
from polyop.ir.loops import For, LoopNest, Prefetch, walk
from polyop.ir.options import ALL_TERMS, Options
from polyop.ir.target import Hints
from tests.codegen.harness import V4, check
from tests.poly.middles import middle

BATCHES = "op f(A: f32[M, K], B: f32[P, K, N]) -> (C: f32[P, M, N]) { C[p, m, n] += A[m, k] * B[p, k, n] }"
ONE = "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }"
MEANWHILE = Hints(panels=96)


def nest(text: str, bare: int = ALL_TERMS) -> LoopNest:
    return middle(text, "tuned", Options(bare=bare), t=V4).nest


def asked(n: LoopNest) -> list[Prefetch]:
    return [x for x in walk(prefetch_panels(n).body) if isinstance(x, Prefetch)]


def places(n: LoopNest, **at: int) -> tuple[int, ...]:
    hint, = asked(n)
    return tuple(evaluate(p, at) for p in hint.place.index)


def test_each_tile_of_rows_asks_for_another_line_of_each_row_of_the_next_columns():
    n = nest(ONE)
    found = [places(n, n_c=128, m_r=row, k=7, N=1000) for row in (0, 6, 12, 18, 24, 600)]
    assert found == [(7, 192 + line) for line in (0, 16, 32, 48, 48, 48)]


@pytest.mark.parametrize(("column", "columns", "next_"), [
    (0, 65, (3, 64)), (64, 129, (3, 128)), (0, 64, (4, 0)), (0, 5, (4, 0)), (64, 128, (4, 0)), (64, 100, (4, 0))])
def test_behind_the_last_columns_come_the_first_ones_of_the_next_batch(column, columns, next_):
    batch, first = next_
    assert places(nest(BATCHES), p=3, n_c=column, m_r=6, k=2, N=columns) == (batch, 2, first + 16)


def test_nobody_asks_where_columns_are_copied_or_a_few_terms_are_read_at_a_time():
    assert not asked(nest(ONE, 0))


def test_nor_where_a_tile_copies_some_terms_at_a_time_for_instructions_that_take_them_together():
    """Of 16 rows of bf16 the hint had an index that is not there, and the kernel fell back: 11 ms, not 6."""
    text = ("op f(X: bf16[M, K], W: bf16[K, N]) -> (Y: bf16[M, N]) { "
            "t: f32[M, N]; t[m, n] += f32(X[m, k]) * f32(W[k, n]); Y[m, n] = bf16(t[m, n]) }")
    n = middle(text, "tuned", Options(height=8, slim=True), t=replace(V4, features="+avx512bf16")).nest
    assert any(x.index.endswith("_f") for x in walk(n.body) if isinstance(x, For)) and not asked(n)


@pytest.mark.parametrize("text", [
    "op f(A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }",
    "op f(X: f32[M, N]) -> (Y: f32[M]) { Y[m] += X[m, n] }",
    "op f(X: f32[M, N], Z: f32[M, N]) -> (Y: f32[M, N]) { Y[m, n] = X[m, n] * Z[m, n] }"])
def test_nor_where_no_tiles_share_columns(text):
    assert not asked(middle(text, "tuned", Options(), t=V4).nest)


def test_it_is_done_on_targets_that_were_measured():
    n = nest(ONE)
    with_, without = (str(rewrites(n, 16, hints)) for hints in (MEANWHILE, Hints()))
    assert with_.count("min(floor(") > 1 and "min(floor(" not in without


@pytest.mark.parametrize("text", [ONE, BATCHES])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (7, 5, 63), (13, 17, 65), (96, 3, 130), (25, 40, 64)])
def test_the_result_is_the_same(text, sizes):
    m, k, n = sizes
    check(nest(text), {"M": m, "K": k, "N": n, "P": 3}, replace(V4, hints=MEANWHILE))
