"""A loop ends where the test ends that everything in it stands behind, begins where such a test begins, and does what it did."""

from __future__ import annotations

from dataclasses import replace

import islpy as isl
import pytest

from polyop.codegen.cpu.until import end_early
from polyop.ir.expr import Const, names
from polyop.ir.loops import If, LoopNest, Prefetch, stores, structure, walk
from polyop.poly.verify.rewrites import follows
from tests.codegen.nests import F32, A, ld, loop, nest, rows, st, tensor

T = A("N", (-1, "k"), -1)  # holds while k < N
LATER = A("N", (-1, "k"), (-1, "p"), -1)
ONE, X = Const(1.0, F32), ld("x", "k")


def of(*body, upper=8) -> LoopNest:
    return nest([tensor("x", 99), tensor("y", 99)], [loop("k", upper, *body)], sizes=("N", "M"))


def y(i):
    return st(ld("y", i), X, "add")


@pytest.mark.parametrize("body", [
    (If((T,), (y("k"),)),),
    (If((T,), (y("k"),)), rows("p", 4, None, If((T,), (y("p"),)))),
    (Prefetch(ld("x", A("k", 8))), If((T,), (y("k"),)), If((T,), (y(A(3)),))),
    (If((T, A("M", -5)), (y("k"),), (If((T,), (y(A(1)),)),)),),
    (If((A("M", -5),), (Prefetch(X),), (If((T,), (y("k"),)),)),),
])
def test_a_loop_ends_where_all_its_stores_do(body):
    whole = of(*body)
    cut = end_early(whole)
    assert str(cut.body[0].upper) == "min(8, N)"
    assert not any(isinstance(n, If) and T in n.tests for n in walk(cut.body))
    assert len(stores(cut.body)) == len(stores(whole.body))
    assert follows(whole, cut, isl.Set("[N, M] -> { : N >= 0 and M >= 0 }")).holds


@pytest.mark.parametrize("first, lower", [(A("k", (-1, "N")), "max(0, N)"), (A("k", "N", -5), "max(0, -N + 5)")])
def test_a_loop_begins_where_all_its_stores_do(first, lower):
    whole = of(If((first, T), (y("k"),)), rows("p", 4, None, If((first,), (y("p"),))))
    cut = end_early(whole)
    assert str(cut.body[0].lower) == lower and str(cut.body[0].upper) == "8"
    assert not any(isinstance(n, If) and first in n.tests for n in walk(cut.body))
    assert follows(whole, cut, isl.Set("[N, M] -> { : N >= 0 and M >= 0 }")).holds
    by_twos = replace(whole, body=(replace(whole.body[0], step=2),))
    assert end_early(by_twos) == by_twos  # it would begin beside its steps


@pytest.mark.parametrize("body", [
    (If((T,), (y("k"),)), y(A(1))),                                       # what it does without asking goes on
    (If((T,), (y("k"),), (y(A(1)),)),),                                   # and so does what it does otherwise
    (rows("p", 4, None, If((LATER,), (y("p"),))),),                       # rows end one after the other
    (If((A("k", (-1, "N")),), (y("k"),)), y(A(1))),                       # what it does without asking begins before
    (If((A("N", (-2, "k"), -1),), (y("k"),)),),                           # the half of N is the end: left to `peel`
    (Prefetch(X),),
])
def test_a_loop_some_of_which_goes_on_stays(body):
    whole = of(*body)
    assert end_early(whole) == whole


def test_inner_loops_end_for_themselves():
    inner = loop("j", 4, If((A("N", (-1, "j"), -1), T), (st(ld("y", "j"), X),)))
    cut = end_early(of(inner, upper="M"))
    assert structure(cut.body) == "k(j(s))" and str(cut.body[0].upper) == "min(M, N)"
    assert str(cut.body[0].body[0].upper) == "min(4, N)"


@pytest.mark.parametrize("last", [A("N", (-1, "k"), -1), A("p", (-1, "k"))])
def test_a_loop_in_rows_ends_where_it_does_for_all_of_them(last):
    whole = nest([tensor("x", 99), tensor("y", 99)], [rows("p", 4, None, loop("k", 8, If((last,), (y("p"),))))], sizes=("N",))
    cut = end_early(whole)
    assert str(cut.body[0].body[0].upper) == ("min(8, N)" if "N" in names(last) else "8")
    assert (cut == whole) == ("p" in names(last))
