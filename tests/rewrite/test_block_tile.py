"""How large a tile a block of a GPU's threads takes: large ones where they leave blocks enough for all multiprocessors."""

from __future__ import annotations

import pytest

import polyop
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.rewrite.questions import questions
from polyop.rewrite.regimes import block_tile, in_blocks

PRODUCT = "op mm(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m,n] += A[m,k] * B[k,n] }"


@pytest.mark.parametrize(("m", "n", "tile"), [
    (8192, 8192, ()), (2048, 2048, ()), (1024, 1024, (64, 128)), (512, 512, (32, 64)), (32, 32, (32, 32)), (1, 1, (16, 16)),
    (16, 16384, (16, 128)), (33, 65, (32, 32)), (65536, 5, (128, 16)), (17, 17, (32, 32)),
])
def test_tiles_shrink_until_there_are_blocks_enough(m: int, n: int, tile: tuple[int, ...]) -> None:
    operator = polyop.op(PRODUCT)
    op = operator._op(operator.choice())
    assert block_tile(questions(op), {"M": m, "N": n, "K": 100}, target("cuda:sm_80")) == tile


@pytest.mark.parametrize(("m", "n", "tile"), [
    (8192, 8192, ()), (2048, 2048, ()), (2048, 1024, (128, 128)), (8192, 512, ()), (65536, 100, (128, 128)),
    (1024, 1024, (64, 128)),
])
def test_units_that_take_wide_tiles_get_narrower_ones_where_blocks_would_be_few(m: int, n: int, tile: tuple[int, ...]) -> None:
    operator = polyop.op(PRODUCT)
    op = operator._op(operator.choice())
    assert block_tile(questions(op), {"M": m, "N": n, "K": 100}, target("cuda:sm_90a")) == tile


def test_an_operator_without_one_contraction_has_no_tile() -> None:
    operator = polyop.op("op relu2(X: f32[N]) -> (Y: f32[N]) { Y[i] = relu(X[i]) }")
    assert block_tile(questions(operator._op(operator.choice())), {"N": 5}, target("cuda:sm_80")) == ()


@pytest.mark.parametrize(("n", "hint"), [(1, 32), (32, 32), (33, 64), (512, 512), (513, 0), (1 << 20, 0)])
def test_short_rows_are_told_from_longer_ones_where_they_are_summed_up(n: int, hint: int) -> None:
    t = target("cuda:sm_80")
    for text, size in (("op norm(X: f32[M, N]) -> (Y: f32[M, N]) {\n s[m] += X[m, n]\n Y[m, n] = X[m, n] / s[m]\n}", "N"),
                       ("op mv(A: f32[M, N], x: f32[N]) -> (y: f32[M]) { y[m] += A[m, n] * x[n] }", "N")):
        operator = polyop.op(text)
        op, sizes = operator._op(operator.choice()), {"M": 5, "N": n}
        assert in_blocks(op, questions(op), sizes, Options(), t).hints == (((size, hint),) if hint else ())
        assert in_blocks(op, questions(op), sizes, Options(hints=((size, 77),)), t).hints == ((size, 77),)
    op = polyop.op(PRODUCT)._op(polyop.op(PRODUCT).choice())
    assert in_blocks(op, questions(op), {"M": 9, "N": 9, "K": n}, Options(), t).hints == ()


def test_a_product_with_one_row_or_column_is_a_sum_of_rows() -> None:
    op = polyop.op(PRODUCT)._op(polyop.op(PRODUCT).choice())
    for sizes, ones, shares in (({"M": 1, "N": 4096, "K": 4096}, ("M",), ()), ({"M": 4096, "N": 1, "K": 4096}, ("N",), ()),
                                ({"M": 1, "N": 1024, "K": 65536}, ("M",), (("C", 16384),)),
                                ({"M": 4, "N": 1, "K": 1 << 20}, ("N",), (("C", 32768),))):
        found = in_blocks(op, questions(op), sizes, Options(), target("cuda:sm_80"))
        assert (found.ones, found.shares) == (ones, shares)


def test_products_that_feed_each_other_keep_their_sizes_open() -> None:
    text = ("op two(A: f32[M, K], B: f32[K, D], C: f32[D, N]) -> (Y: f32[M, N]) "
            "{ t[m, d] += A[m, k] * B[k, d]; Y[m, n] += t[m, d] * C[d, n] }")
    op = polyop.op(text)._op(polyop.op(text).choice())
    assert in_blocks(op, questions(op), dict.fromkeys(op.sizes, 1), Options(), target("cuda:sm_80")).ones == ()
