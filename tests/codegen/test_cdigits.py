"""The sides of an atom that several loops count."""

from __future__ import annotations

import pytest

from polyop.codegen.c.digits import digits
from polyop.codegen.gpu.held import Digits, extent, step
from polyop.ir.expr import Affine, affine

SIDES: tuple[Digits, ...] = ((("q", 16),), (("p", 2), ("q", 8)), (("b", 4), ("p", 2), ("q", 2)))


@pytest.mark.parametrize("side", SIDES, ids=str)
def test_each_row_has_digits_of_its_own(side: Digits) -> None:
    assert extent(side) == 16
    found = [{i: eval(text.replace("/", "//"), {"row": r}) for i, text in digits(side, "row")} for r in range(16)]
    assert len({tuple(sorted(x.items())) for x in found}) == 16
    for r, x in enumerate(found):
        at = 0
        for i, n in side:
            assert 0 <= x[i] < n
            at = at * n + x[i]
        assert at == r


@pytest.mark.parametrize("side", SIDES, ids=str)
def test_a_place_grows_from_row_to_row_if_its_digits_do(side: Digits) -> None:
    at = Affine()
    for i, n in side:
        at = at * n + affine(i)
    assert step(at * 40 + affine("k") + 3, side) == 40 and step(affine("k"), side) == 0
    assert step(at * 40 + affine(side[0][0]), side) == (41 if len(side) == 1 else 0)
