"""Domains of tile statements: which coordinates they have, in isl's sets."""

from __future__ import annotations

import islpy as isl

from polyop.ir.expr import affine
from polyop.poly.tiles import Coord, instances

WITHIN = isl.Set("[N] -> { point[i, j] : 0 <= i < N and 0 <= j <= i }")
I_C, I_P = Coord("i_c", step=8), Coord("i_p", cap=8)


def test_coordinates_are_in_their_boxes_and_their_sums_in_the_domain() -> None:
    found = instances("[N] -> ", "S", (I_C, I_P, Coord("j")), (affine("i_c") + affine("i_p"), affine("j")), WITHIN)
    tiles = isl.Set("[N] -> { S[c, p, j] : c >= 0 and c mod 8 = 0 and 0 <= p < 8 and c + p < N and 0 <= j <= c + p }")
    assert found.is_equal(tiles)


def test_conditions_on_coordinates_hold_too() -> None:
    found = instances("[N] -> ", "S", (Coord("i"),), (affine("i"), affine(0)), WITHIN, ("i >= 3",))
    assert found.is_equal(isl.Set("[N] -> { S[i] : 3 <= i < N }"))


def test_a_value_that_is_no_coordinate_stands_for_some_value_which_conditions_know() -> None:
    found = instances("[N] -> ", "S", (Coord("j"),), (affine("i"), affine("j")), WITHIN, ("i = j + 2",))
    assert found.is_equal(isl.Set("[N] -> { S[j] : 0 <= j < N - 2 }"))
