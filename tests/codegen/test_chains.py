"""Parallel loops are counted through together where each thread can do what stands between for itself."""

from __future__ import annotations

import pytest

from polyop.codegen.llvm.builder import Builder, Text
from polyop.codegen.llvm.chains import together
from polyop.ir.dtypes import F32
from polyop.ir.expr import Const
from tests.codegen.harness import RUNNABLE, check, compiled
from tests.codegen.nests import A, ap, ld, least, loop, nest, rows, st, strip, tensor, when, work
from tests.codegen.test_structure import Pool

I = A("i_c", "i_v")
X, Y, Z = tensor("x", "B", "N"), tensor("y", "B", "M", "N"), tensor("z", "N")
OWN, COMMON = work("t", "N", pad=16, private=True), work("t", "N", pad=16)
COPY = strip("i", 16, "N", st(ld("t", I), ld("x", "b", I)))
USE = strip("i", 16, "N", st(ld("y", "b", "m", I), ap("add", ap("add", ld("t", I), ld("y", "b", "m", I)), Const(1.0, F32))))


def turns(*body, buffers=(X, Y, OWN), **inner):
    """`body`, then a loop over m, in two serial turns inside a loop over b."""
    rows = loop("m", "M", USE, parallel=True, **inner)
    return nest([*buffers], [loop("b", "B", loop("s", 2, *body, rows), parallel=True)], sizes=("B", "M", "N"))


def chained(given):
    found = together(given, given.body[0])
    return [n.index for n in found.loops], found.around


def test_a_private_copy_and_serial_loops_may_stand_between():
    assert chained(turns(COPY)) == (["b", "m"], 1)
    assert chained(turns()) == (["b", "m"], 0)


def test_a_copy_for_all_threads_ends_the_chain():
    assert chained(turns(COPY, buffers=(X, Y, COMMON))) == (["b"], 0)


def test_bounds_that_depend_on_a_loop_around_end_the_chain():
    assert chained(turns(COPY, lower=A("s"))) == (["b"], 0)
    assert chained(turns(COPY, lower=A("b"))) == (["b"], 0)


def test_what_a_loop_writes_is_not_copied_before_it_by_whoever_comes_late():
    again = strip("i", 16, "N", st(ld("t", I), ld("y", "b", 0, I)))
    assert chained(turns(again)) == (["b"], 0)


def test_what_stands_behind_a_loop_ends_the_chain():
    rows = loop("m", "M", USE, parallel=True)
    after = nest([X, Y, Z, OWN], [loop("b", "B", rows, COPY, parallel=True)], sizes=("B", "M", "N"))
    assert chained(after) == (["b"], 0)


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
def test_each_thread_makes_the_copy_that_its_part_needs(target):
    n = turns(COPY)
    k, pool = compiled(n, target), Pool()
    for b, m, lot in ((1, 1, 1), (1, 7, 1), (2, 40, 1), (3, 40, 40), (11, 4, 1), (12, 4, 4), (13, 7, 7), (50, 1, 1)):
        pool.calls.clear()
        pool.lots.clear()
        check(n, {"B": b, "M": m, "N": 17}, kernel=k, parallel=pool.address, threads=3)
        assert (pool.calls, pool.lots) == (([(0, b * m, 1)], [lot]) if b * m > 1 else ([], []))
        check(n, {"B": b, "M": m, "N": 17}, kernel=k)
    check(n, {"B": 0, "M": 5, "N": 17}, kernel=k, parallel=pool.address, threads=3)


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
def test_lots_are_told_where_they_are_even_or_many(target):
    """Of four rows each: three threads have one each, or some a smaller one, or four and more, of which one does not matter."""
    p = A("b", "p")
    tile = strip("i", 16, "N", rows("p", 4, least(4, A("B", (-1, "b"))), st(ld("y", p, "m", I), ld("x", p, I))))
    own = loop("b", "B", COPY, loop("m", "M", tile, parallel=True), step=4, parallel=True)
    n = nest([X, Y, OWN], [own], sizes=("B", "M", "N"))
    assert chained(n) == (["b", "m"], 1)
    k, pool = compiled(n, target), Pool()
    for b, m, lot in ((12, 5, 5), (11, 5, 1), (28, 3, 1), (43, 3, 1), (45, 3, 3), (49, 3, 3)):
        pool.calls.clear()
        pool.lots.clear()
        check(n, {"B": b, "M": m, "N": 17}, kernel=k, parallel=pool.address, threads=3)
        assert (pool.calls, pool.lots) == ([(0, -(-b // 4) * m, 1)], [lot])


@pytest.mark.parametrize("counted,rare,alone", [(2, True, True), (2, False, False), (0, True, False)])
def test_edges_of_a_counted_loop_compute_for_themselves_what_the_loop_around_changes(counted, rare, alone):
    b = Builder(Text(), depth={"%i": 1, "%j": 2}, counted=counted)
    around = []
    b.zones += [around, []]
    with b.arm(rare):
        first = b.add("%i", 1)
    assert bool(around) != alone and (b.add("%i", 1) == first) != alone


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
def test_edges_of_counted_loops_are_written_right(target):
    tile = strip("i", 16, "N", rows("p", 4, least(4, A("M", (-1, "m"))), st(ld("y", "b", A("m", "p"), I), ld("x", "b", I))))
    columns = loop("i_c", "N", when([A("M", -4, (-1, "m"))], [tile.body[0]], [tile.body[0]]), step=16, parallel=True)
    n = nest([X, Y], [loop("b", "B", loop("m", "M", columns, step=4, parallel=True), parallel=True)], sizes=("B", "M", "N"))
    k, pool = compiled(n, target), Pool()
    for size in ({"B": 1, "M": 9, "N": 5}, {"B": 2, "M": 4, "N": 40}, {"B": 3, "M": 3, "N": 16}):
        check(n, size, kernel=k, parallel=pool.address, threads=3)
