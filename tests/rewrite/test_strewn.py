"""Which operands of a product are copied first on a GPU, by how they lie: those that cannot be read 16 bytes at a time."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import polyop
from polyop.ir.op import Op
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.known import Known, on_gpu, seen_as
from polyop.rewrite.copies.strewn import AGAIN, to_copy
from polyop.rewrite.regimes.block_regimes import in_blocks
from polyop.rewrite.regimes.blocktiles import block_tiles
from polyop.rewrite.regimes.questions import questions
from polyop.runtime.bind import bind

HOPPER, AMPERE = "cuda:sm_90a", "cuda:sm_80"
X, F = ("X", 1), ("F", 1)


def conv(dtype: str = "bf16", pad: int = 1, stride: int = 1) -> Op:
    o = polyop.library("conv2d")
    return o._op(o.choice({"T": dtype}, {"pad": pad, "stride": stride}))


def copied(op: Op, on: str, numerics: str = "fast", **sizes: int) -> tuple[tuple[str, int], ...]:
    return to_copy(questions(op).strewn, sizes, target(on), numerics)


IMAGE = {"B": 32, "C": 64, "H": 56, "W": 56, "K": 64, "R": 3, "S": 3}


@pytest.mark.parametrize(("why", "on", "changed", "found"), [
    ("windows move along rows, and filters lie apart", HOPPER, {}, (X, F)),
    ("and so they do elsewhere", AMPERE, {}, (X, F)),
    ("a border moves rows without a window", HOPPER, {"S": 1}, (X, F)),
    ("channels are no pieces", HOPPER, {"C": 3}, ()),
    ("few results use a filter", HOPPER, {"B": 1, "H": 7, "W": 8}, (X,)),
    ("few filters use a pixel", HOPPER, {"K": 4, "W": 28}, (F,)),
])
def test_what_lies_in_no_pieces_is_copied_if_it_is_used_often(why: str, on: str, changed: dict[str, int],
                                                             found: tuple[tuple[str, int], ...]) -> None:
    assert copied(conv(), on, **{**IMAGE, **changed}) == found, why


def test_images_read_in_steps_are_copied() -> None:
    assert copied(conv(stride=2), HOPPER, **IMAGE) == (X, F)
    assert copied(conv(pad=0), AMPERE, **{**IMAGE, "R": 1, "S": 1}) == ()


def test_where_no_unit_has_tiles_along_the_sum_or_none_is_copied_to_by_itself_nothing_is() -> None:
    assert copied(conv("f32"), HOPPER, **IMAGE) == () != copied(conv("f32"), HOPPER, "tf32", **IMAGE)
    assert copied(conv(), "hip:gfx942", **IMAGE) == copied(conv(), HOPPER, "strict", **IMAGE) == ()


def test_an_operand_of_a_product_whose_rows_begin_anywhere_is_copied_to_lie_along_the_sum() -> None:
    o = polyop.library("matmul")
    product = o._op(o.choice({"T": "f16"}))
    assert copied(product, HOPPER, M=512, N=511, K=512) == (("B", 0),)
    assert copied(product, HOPPER, M=512, N=512, K=511) == copied(product, HOPPER, M=512, N=512, K=512) == ()
    assert copied(product, HOPPER, M=AGAIN - 1, N=511, K=512) == ()


def test_what_lies_along_the_sum_already_is_not_copied() -> None:
    o = conv()
    x, f = (np.zeros(s, ml_dtypes.bfloat16) for s in ((2, 28, 28, 128), (128, 3, 3, 128)))
    y = np.zeros((2, 128, 28, 28), ml_dtypes.bfloat16)

    def options(*arrays: np.ndarray) -> Options:
        bound = bind(o, {"X": arrays[0], "F": arrays[1]}, y)
        merged = Known(o).merged(bound)
        return on_gpu(merged, seen_as(bound, merged.flat), Options(), target(HOPPER))[1]

    x, f = (a.transpose(0, 3, 1, 2) for a in (x, f))
    assert options(x, f).inward == ()
    assert options(np.ascontiguousarray(x), f).inward == (X,)
    assert options(np.ascontiguousarray(x), np.ascontiguousarray(f)).inward == (X, F)


def test_tiles_of_a_copied_image_have_fewer_pixels_of_a_line() -> None:
    q, sizes = questions(conv()), IMAGE
    lines = [block_tiles(q, sizes, target(HOPPER), turned).lines for turned in (False, True)]
    assert lines == [((), (1, 2, 64)), ((), (2, 8, 8))]
    found = in_blocks(conv(), q, sizes, Options(), target(HOPPER))
    assert (found.inward, found.tile, found.lines) == ((X, F), (64, 128), ((), (2, 8, 8)))


def test_rows_of_eight_bytes_are_pieces() -> None:
    o = polyop.library("conv2d_pointwise")
    pixels = o._op(o.choice({"T": "bf16"}))
    of_line = {"B": 32, "C": 256, "K": 256, "H": 1}
    assert [copied(pixels, HOPPER, **of_line, W=w) for w in (196, 198, 200)] == [(), (X,), ()]
