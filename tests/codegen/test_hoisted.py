"""What all threads answer alike is asked before their loops, and so is whether any of several conditions may hold in them."""

from __future__ import annotations

import numpy as np
import pytest

from polyop.codegen.gpu.hoisted import asked
from polyop.ir.expr import Affine, quasi
from polyop.ir.interpret import interpret
from polyop.ir.loops import For, If, Kind, LoopNest
from tests.codegen.nests import A, ld, nest, rows, st, tensor, when

ALIKE, OTHER = A("N", -3), A("N", (-4, "v"), (-1, "i"), -1)
ANY = quasi("max", A("i", (4, "v"), (-1, "N")), A("N", -40))  # at N and behind it, or everywhere


def of(*tests: Affine) -> LoopNest:
    """Rows that threads write where all of `tests` hold."""
    at = A("i", (4, "v"))
    body = rows("i", 4, None, when(tests, [st(ld("y", at), ld("x", at))]))
    return nest([tensor("x", 32), tensor("y", 32)], [For("v", Affine(), A(8), (body,), 1, Kind.THREADS, 8, 1)])


def test_what_all_threads_answer_alike_is_asked_before_them():
    (first,) = asked(of(ALIKE, OTHER), ()).body
    assert isinstance(first, If) and first.tests == (ALIKE,) and first.then == of(OTHER).body


def test_whether_any_of_several_conditions_may_hold_is_asked_before_them():
    (first,) = asked(of(ANY), ()).body
    assert isinstance(first, If) and first.tests == (quasi("max", A((-1, "N"), 31), A("N", -40)),) and first.then == of(ANY).body


@pytest.mark.parametrize("tests", [(OTHER,), (OTHER, A("N", (-1, "i"))), (quasi("max", quasi("mod", A("i"), A(2)), OTHER),)])
def test_what_threads_or_rows_answer_apart_stays(tests):
    assert asked(of(*tests), ()) == of(*tests)


def test_what_all_threads_come_to_stays():
    assert asked(of(ALIKE, ANY), {"s"}) == of(ALIKE, ANY)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 31, 32, 33, 39, 40])
@pytest.mark.parametrize("tests", [(ALIKE, OTHER), (ANY,), (ALIKE, ANY), (OTHER, ANY)])
def test_the_same_rows_are_written(tests, n):
    given, x = of(*tests), np.arange(1, 33, dtype=np.float32)
    found = [np.zeros_like(x), np.zeros_like(x)]
    for each, y in zip((given, asked(given, ())), found, strict=True):
        interpret(each, {"N": n}, {}, {"x": x, "y": y})
    assert np.array_equal(*found)
