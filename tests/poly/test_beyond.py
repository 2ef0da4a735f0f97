"""Matrix units take whole tiles: what they write beyond the bounds of their results is read by nobody, or a nest is refused."""

from __future__ import annotations

import islpy as isl
import pytest

from polyop.ir.dtypes import F32
from polyop.ir.expr import Affine, Apply, Load, affine, quasi
from polyop.ir.loops import Buffer, For, If, Kind, LoopNest, Node, Space, Store
from polyop.ir.op import builtin_monoid
from polyop.poly.verify.beyond import read_beyond

I, J, K, P = map(affine, "ijkp")
M = affine("M")
ENDS = M - affine("b") * 4
CONTEXT = isl.Set("[M] -> { : M >= 1 }")


def at(name: str, *index: Affine) -> Load:
    return Load(name, index, F32)


FULL = affine(4)


def side(index: str, *body: Node, upper: Affine = FULL) -> For:
    end = upper if upper.is_constant else quasi("min", affine(4), upper)
    return For(index, Affine(), end, body, kind=Kind.ATOM, extent=4)


def store(target: Load, e: Load | Apply, reduce: bool = False) -> Store:
    return Store("P" if reduce else "S", (), None, (), target, builtin_monoid("add", F32) if reduce else None, e)


PRODUCT = store(at("c", I, J), Apply("mul", (at("x", I, K), at("w", K, J)), F32), True)


def nest(*body: Node) -> LoopNest:
    """A block of 4 x 4 products for each four rows of M, of which `body` makes something."""
    four = (affine(4), 1)
    buffers = (Buffer("Y", F32, ((M, 1), four), Space.TENSOR), *(Buffer(n, F32, (four, four), Space.SHARED) for n in "xw"),
               Buffer("c", F32, (four, four), Space.REG))
    return LoopNest("small", ("M",), (), buffers, (For("b", Affine(), quasi("div", M + 3, affine(4)), body, kind=Kind.PARALLEL),))


def results(i: Affine, upper: Affine) -> For:
    return side("i", side("j", store(at("Y", I + affine("b") * 4, J), at("c", i, J))), upper=upper)


BOUNDED = side("i", side("j", side("k", PRODUCT)), upper=ENDS)
OUTSIDE = side("k", side("i", side("j", PRODUCT), upper=ENDS))
TESTED = side("i", side("j", If((I - J,), (side("k", PRODUCT),))), upper=ENDS)
ASKED = side("i", side("j", side("k", If((I - J,), (PRODUCT,)))), upper=ENDS)
SUMMED = side("i", side("j", side("k", If((I - K,), (PRODUCT,)))), upper=ENDS)


@pytest.mark.parametrize("product", [BOUNDED, OUTSIDE])
def test_rows_beyond_the_end_may_hold_anything(product: For) -> None:
    assert read_beyond(nest(product, results(I, ENDS)), CONTEXT) is None


@pytest.mark.parametrize("product", [BOUNDED, OUTSIDE])
@pytest.mark.parametrize("row", [affine(3), I * -1 + 3])
def test_a_row_that_a_unit_fills_with_something_else_is_not_read(product: For, row: Affine) -> None:
    assert "of S is read, which P may have written" in (read_beyond(nest(product, results(row, ENDS)), CONTEXT) or "")


@pytest.mark.parametrize("product", [ASKED, TESTED])
def test_elements_that_a_test_leaves_out_are_written_all_the_same(product: For) -> None:
    masked = side("i", side("j", If((I - J,), (store(at("Y", I + affine("b") * 4, J), at("c", I, J)),))), upper=ENDS)
    assert read_beyond(nest(product, masked), CONTEXT) is None
    assert "of S is read, which P may have written" in (read_beyond(nest(product, results(I, ENDS)), CONTEXT) or "")


def test_terms_that_a_test_leaves_out_are_asked_for_one_by_one() -> None:
    assert read_beyond(nest(SUMMED, results(I, ENDS)), CONTEXT) is None


def test_a_later_turn_does_not_read_what_an_earlier_one_wrote_beyond_its_bound() -> None:
    turns = For("t", Affine(), affine(3), (side("i", side("j", side("k", PRODUCT)), upper=ENDS - affine("t")),))
    assert read_beyond(nest(turns, results(I, ENDS)), CONTEXT)
