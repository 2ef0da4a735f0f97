"""How large a tile a block of a GPU's threads takes: large ones where they leave blocks enough for all multiprocessors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

import polyop
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.rewrite.regimes.block_regimes import in_blocks
from polyop.rewrite.regimes.blocktiles import TILES, Tiles, block_tiles, split
from polyop.rewrite.regimes.questions import questions

PRODUCT = "op mm(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m,n] += A[m,k] * B[k,n] }"


@pytest.mark.parametrize(("m", "n", "tile"), [
    (8192, 8192, ()), (2048, 2048, ()), (1024, 1024, (64, 128)), (512, 512, (32, 64)), (32, 32, (32, 32)), (1, 1, (16, 16)),
    (16, 16384, (16, 128)), (33, 65, (32, 32)), (65536, 5, (128, 16)), (17, 17, (32, 32)),
])
def test_tiles_shrink_until_there_are_blocks_enough(m: int, n: int, tile: tuple[int, ...]) -> None:
    operator = polyop.op(PRODUCT)
    op = operator._op(operator.choice())
    assert block_tiles(questions(op), {"M": m, "N": n, "K": 100}, target("cuda:sm_80")).sides == tile


@pytest.mark.parametrize(("m", "n", "tile"), [
    (8192, 8192, ()), (2048, 2048, ()), (2048, 1024, (128, 128)), (8192, 512, ()), (65536, 100, (128, 128)),
    (1024, 1024, (64, 128)),
])
def test_units_that_take_wide_tiles_get_narrower_ones_where_blocks_would_be_few(m: int, n: int, tile: tuple[int, ...]) -> None:
    operator = polyop.op(PRODUCT)
    op = operator._op(operator.choice())
    assert block_tiles(questions(op), {"M": m, "N": n, "K": 100}, target("cuda:sm_90a")).sides == tile


def test_an_operator_without_one_contraction_has_no_tile() -> None:
    operator = polyop.op("op relu2(X: f32[N]) -> (Y: f32[N]) { Y[i] = relu(X[i]) }")
    assert block_tiles(questions(operator._op(operator.choice())), {"N": 5}, target("cuda:sm_80")) == Tiles()


@pytest.mark.parametrize(("n", "hint"), [(1, 32), (32, 32), (33, 64), (512, 512), (513, 0)])
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
                                ({"M": 4, "N": 1, "K": 1 << 20}, ("N",), (("C", 8192),))):
        found = in_blocks(op, questions(op), sizes, Options(), target("cuda:sm_80"))
        assert (found.ones, found.shares) == (ones, shares)
        assert found.hints == ((("K", sizes["K"]),) if shares else ())  # which says how many shares are joined


def test_products_that_feed_each_other_keep_their_sizes_open() -> None:
    text = ("op two(A: f32[M, K], B: f32[K, D], C: f32[D, N]) -> (Y: f32[M, N]) "
            "{ t[m, d] += A[m, k] * B[k, d]; Y[m, n] += t[m, d] * C[d, n] }")
    op = polyop.op(text)._op(polyop.op(text).choice())
    assert in_blocks(op, questions(op), dict.fromkeys(op.sizes, 1), Options(), target("cuda:sm_80")).ones == ()


IMAGES = "op conv(X: f16[B, H, W, C], F: f16[3, 3, C, K]) -> (Y: f16[B, H - 2, W - 2, K]) { " \
         "y[b,p,q,k] += f32(X[b,p+r,q+s,c]) * f32(F[r,s,c,k]); Y[b,p,q,k] = f16(y[b,p,q,k]) }"


@pytest.mark.parametrize(("images", "pixels", "sides", "lines"), [
    (32, 56, (), ((2, 8, 8), ())), (1, 56, (64, 64), ((1, 8, 8), ())), (32, 14, (64, 128), ((16, 2, 2), ())),
    (256, 7, (), ((16, 1, 8), ())), (9, 7, (32, 32), ((1, 4, 8), ())), (1, 128, (), ()), (8, 28, (64, 128), ((4, 4, 4), ())),
])
def test_small_images_share_tiles(images: int, pixels: int, sides: tuple[int, ...], lines: tuple[tuple[int, ...], ...]) -> None:
    op = polyop.op(IMAGES)
    sizes = {"B": images, "H": pixels + 2, "W": pixels + 2, "C": 64, "K": 256}
    found = block_tiles(questions(op._op(op.choice())), sizes, target("cuda:sm_80"))
    assert (found.sides, found.lines) == (sides or (128, 128) if lines else (), lines)
    if lines:
        (b, p, q), edge = lines[0], sides or (128, 128)
        assert found.blocks == -(-images // b) * -(-pixels // p) * -(-pixels // q) * (256 // edge[1])


@given(st.lists(st.integers(1, 300), min_size=1, max_size=5), st.sampled_from(TILES), st.sampled_from((1, 16)))
def test_a_side_is_split_so_that_no_other_way_leaves_much_less_of_it_empty(extents: list[int], side: int, least: int) -> None:
    def tiles(n: Sequence[int]) -> int:
        return prod(-(-e // k) for e, k in zip(extents, n, strict=True))

    found = split(tuple(extents), side, least)
    assert prod(found) == side and found[-1] >= min(least, side, extents[-1])
    alone = (*(1 for _ in extents[1:]), side)
    assert 8 * tiles(found) <= 9 * tiles(alone)  # the tile of one index is one of them
    assert sum(n > 1 for n in found) <= 3
