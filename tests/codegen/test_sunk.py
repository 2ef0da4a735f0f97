"""Operands are fetched behind the test of the products that they are for, and nothing else moves."""

from __future__ import annotations

import pytest

from polyop.codegen.gpu.sunk import sunk
from polyop.ir.expr import Affine, affine
from polyop.ir.loops import For, Kind, LoopNest, Node
from tests.codegen.nests import A, ap, ld, loop, nest, reg, rows, st, tensor, when

T = A("N", (-1, "k"), -1)


def side(index: str, upper: Affine | None, *body: Node) -> For:
    return For(index, Affine(), affine(8) if upper is None else upper, body, 1, Kind.ATOM, 8)


def fetched(upper: Affine | None = None, at="q", most: Affine | None = None) -> For:
    return rows("q", 4, most, side("n", upper, st(ld("b", at, "n"), ld("x", A("q", "k"), "n"))))


def product(source: str = "b", at="q") -> For:
    return rows("q", 4, None, side("n", None, st(ld("c", "q", "n"), ap("mul", ld("a", "n"), ld(source, at, "n")), "add")))


def of(*body: Node) -> LoopNest:
    return nest([tensor("x", 99, 8), tensor("y", 8), reg("a", 8), reg("b", 4, 8), reg("c", 4, 8)], [loop("k", 8, *body)])


def test_operands_are_fetched_behind_the_test_of_their_products():
    assert sunk(of(fetched(), when([T], [product()]))) == of(when([T], [fetched(), product()]))


def test_of_two_operands_both_are():
    a = side("n", None, st(ld("a", "n"), ld("x", 0, "n")))
    assert sunk(of(a, fetched(), when([T], [product()]))) == of(when([T], [a, fetched(), product()]))


LATER = side("n", None, st(ld("y", "n"), ld("b", 0, "n")))


@pytest.mark.parametrize("body", [
    (fetched(), when([T], [product()], [product()])),                     # those who are left out want it
    (fetched(), when([T], [product()]), LATER),                           # and so does somebody behind them
    (fetched(most=A("N")), when([T], [product()])),                       # a turn fetches some, and finds others
    (fetched(upper=A("N")), when([T], [product()])),
    (when([A("M")], [fetched()]), when([T], [product()])),
    (fetched(at="k"), when([T], [product()])),                            # each turn elsewhere
    (fetched(), when([T], [product(at="k")])),
    (fetched(), LATER, when([T], [product()])),
    (fetched(), when([T], [product("a")])),                               # it is for somebody else
    (fetched(), when([T], [st(ld("y", 0), ld("b", 0, 0))])),              # one lane may ask that alone
    (rows("q", 4, None, st(ld("b", "q", 0), ld("x", "q", 0))), when([T], [product()])),
    (rows("q", 4, None, side("n", None, st(ld("y", "n"), ld("x", "q", "n")))), when([T], [product()])),
])
def test_what_others_read_or_a_turn_does_not_fetch_whole_stays(body):
    assert sunk(of(*body)) == of(*body)


def test_it_goes_as_far_in_as_tests_do():
    twice = of(fetched(), when([A("M")], [when([T], [product()])]))
    assert sunk(twice) == of(when([A("M")], [when([T], [fetched(), product()])]))
