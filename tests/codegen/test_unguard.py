"""Guards that are asked once for a tile keep what is computed, and the rewritten loops can be followed."""

from __future__ import annotations

from dataclasses import replace

import islpy as isl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyop.codegen.cpu.passes import split_full_tiles, unswitch
from polyop.codegen.cpu.unguard import unguard
from polyop.ir.dtypes import F32
from polyop.ir.expr import Affine, Const, Test, loads
from polyop.ir.interpret import interpret
from polyop.ir.loops import For, If, LoopNest, structure, walk
from polyop.ir.loops import stores as stores_of
from polyop.poly.verify.rewrites import difference
from tests.codegen import nests
from tests.codegen.harness import RUNNABLE, check, compiled
from tests.codegen.nests import A, ap, lanes, ld, least, loop, nest, reg, rows, tensor, work

ROWS, LANES = 3, 8
factor = st.integers(1, 2)


def window(steps: tuple[int, int], pad: int, chosen: bool, high=3) -> LoopNest:
    """Y[p, q] = the sum over a `high` x R window of X in `steps`, 0 (or -2) outside, in tiles of 3 x 8."""
    down = A((steps[0], "p_c"), (steps[0], "p_p"), "r", -pad)
    along = A((steps[1], "q_c"), (steps[1], "q_v"), "s", -pad)
    tests = (down, A("N", -1) - down, along, A("N", -1) - along)
    x = ld("X", down, along, guard=tests)
    value = ap("select", Test(tests), x, Const(-2.0, F32)) if chosen else x
    body = rows("p_p", ROWS, least(ROWS, A("N", (-1, "p_c"))), nests.st(ld("acc", "p_p", "q_v"), value, "add"))
    start, end = (rows("p_p", ROWS, least(ROWS, A("N", (-1, "p_c"))), x) for x in (
        nests.st(ld("acc", "p_p", "q_v"), Const(0.0, F32)),
        nests.st(ld("Y", A("p_c", "p_p"), A("q_c", "q_v")), ld("acc", "p_p", "q_v"))))
    tile = lanes("q_v", LANES, least(LANES, A("N", (-1, "q_c"))), start, loop("r", high, loop("s", "R", body)), end)
    return nest([tensor("X", "N", "N"), tensor("Y", "N", "N"), reg("acc", ROWS, LANES)],
                [loop("p_c", "N", loop("q_c", "N", tile, step=LANES), step=ROWS)], sizes=("N", "R"))


def results(n: LoopNest, size: int, width: int) -> np.ndarray:
    arrays = {"X": np.random.default_rng(size).integers(-9, 9, (size, size)).astype(np.float32),
              "Y": np.zeros((size, size), np.float32)}
    interpret(n, {"N": size, "R": width}, {}, arrays)
    return arrays["Y"]


@settings(deadline=None, max_examples=60)
@given(st.tuples(factor, factor), st.integers(0, 2), st.booleans(), st.integers(0, 19), st.integers(0, 4))
def test_whatever_the_window_nothing_changes(steps, pad, chosen, size, width):
    n = window(steps, pad, chosen)
    want = results(n, size, width)
    for cut in (unguard(n), unguard(split_full_tiles(n, 4))):
        np.testing.assert_array_equal(results(cut, size, width), want, err_msg=str(cut))


@pytest.mark.parametrize("chosen", [False, True])
def test_the_checker_follows_it(chosen):
    n = window((2, 1), 1, chosen)
    assert difference(n, unguard(split_full_tiles(n, 4)), isl.Set("[N, R] -> { : N >= 0 and R >= 0 }")) is None


def guards(n) -> set[Affine]:
    return {t for s in stores_of((n,)) for e in loads(s.expr) for t in e.guard}


@pytest.mark.parametrize("chosen", [False, True])
def test_inside_only_what_lanes_decide_is_still_asked(chosen):
    n = unguard(split_full_tiles(window((2, 1), 1, chosen), LANES))
    asked = [x for x in walk(n.body) if isinstance(x, If) and A("p_c", -1) in x.tests]
    assert asked
    for x in asked:
        assert set(x.tests) == {A("p_c", -1), A("N", (-2, "p_c"), -6)}  # { 2 p_c - 1 >= 0 } and { N - 2 (p_c + 2) - 2 >= 0 }
        inside, outside = guards(x.then[0]), guards(x.other[0])
        assert all("q_v" in {a for a, _ in t.terms} for t in inside) and inside < outside


def test_a_tile_with_rows_missing_is_asked_as_well_where_its_rows_lie_apart():
    n = window((1, 1), 1, False, "R")
    asked = {t for x in walk(unguard(n).body) if isinstance(x, If) for t in x.tests}
    assert {A("p_c", -1), A("N", (-1, "p_c"), (-1, "R"), 2 - ROWS)} <= asked
    assert difference(n, unguard(n), isl.Set("[N, R] -> { : N >= 0 and R >= 0 }")) is None


def test_a_tile_with_rows_missing_is_left_alone_where_they_lie_side_by_side():
    n = window((1, 1), 1, False)
    n = replace(n, buffers=(tensor("X", "N", "N", unit=0), *n.buffers[1:]))
    assert unguard(n) == n
    assert "if" not in structure(unguard(n).body)


def copied_windows(step: int, pad: int) -> LoopNest:
    """Y[p, q] = the sum over a window of 3 x R, which is copied for each tile of 8 columns."""
    down, along = A("p", "r", -pad), A((step, "q_c"), (step, "q_v"), "s", -pad)
    x = ld("X", down, along, guard=(down, A("N", -1) - down, along, A("N", -1) - along))
    there = least(LANES, A("N", (-1, "q_c")))
    copy = loop("r", 3, loop("s", "R", lanes("q_v", LANES, there, nests.st(ld("W", "r", "s", "q_v"), x))))
    taken = loop("r", 3, loop("s", "R", nests.st(ld("acc", "q_v"), ld("W", "r", "s", "q_v"), "add")))
    tile = lanes("q_v", LANES, there, nests.st(ld("acc", "q_v"), Const(0.0, F32)), taken,
                 nests.st(ld("Y", "p", A("q_c", "q_v")), ld("acc", "q_v")))
    return nest([tensor("X", "N", "N"), tensor("Y", "N", "N"), work("W", 3, "R", LANES), reg("acc", LANES)],
                [loop("p", "N", loop("q_c", "N", copy, tile, step=LANES))], sizes=("N", "R"))


@settings(deadline=None, max_examples=60)
@given(factor, st.integers(0, 2), st.integers(0, 29), st.integers(1, 4))
def test_a_copied_window_is_what_it_was(step, pad, size, width):
    n = copied_windows(step, pad)
    np.testing.assert_array_equal(results(unguard(unswitch(split_full_tiles(n, 4))), size, width), results(n, size, width))


def test_full_vectors_of_a_window_are_copied_without_tests_where_all_of_it_lies_inside():
    n = copied_windows(2, 1)
    cut = unguard(unswitch(split_full_tiles(n, 4)))
    (asked,) = (x for x in walk(cut.body) if isinstance(x, If) and A("p", -1) in x.tests)
    # { N - (p + 2 - 1) - 1 >= 0 }, { 2 q_c - 1 >= 0 }, { N - (2 (q_c + 7) + R - 1 - 1) - 1 >= 0 }
    assert set(asked.tests) == {A("p", -1), A("N", (-1, "p"), -2), A("q_c", -1), A("N", (-2, "q_c"), (-1, "R"), -13)}
    assert not guards(asked.then[0]) and len(guards(asked.other[0])) == 4
    assert difference(n, cut, isl.Set("[N, R] -> { : N >= 0 and R >= 1 }")) is None


def test_where_a_tiles_only_test_fails_it_is_not_asked_again():
    at = A("t", -1)
    x = ap("select", Test((at,)), ld("Y", at, "k", guard=(at,)), ld("h", "k"))
    tile = lanes("v", LANES, None, loop("k", "N", nests.st(ld("acc", "v"), x, "add")))
    n = nest([tensor("Y", "T", "N"), tensor("h", "N"), reg("acc", LANES)], [loop("t", "T", tile)], sizes=("T", "N"))
    (test,) = (x for x in walk(unguard(n).body) if isinstance(x, If))
    inside, outside = (stores_of(way)[0].expr for way in (test.then, test.other))
    assert test.tests == (at,) and inside == ld("Y", at, "k") and outside == ld("h", "k")
    assert difference(n, unguard(n), isl.Set("[T, N] -> { : T >= 0 and N >= 0 }")) is None


def first_tile(both: bool) -> LoopNest:
    """Tiles that add up guarded rows of X, where k is not 0 of rows in a copy, which are guarded if `both`."""
    at = A("p", "r", -1)
    acc, lane = ld("acc", "q_v"), A("q_c", "q_v")
    guarded, copied = (loop("r", 3, nests.st(acc, x, "add")) for x in (
        ld("X", at, lane, guard=(at, A("N", -1) - at)), ld("Z", "r", lane, guard=(at,) if both else ())))
    tile = lanes("q_v", LANES, None, nests.st(acc, Const(0.0, F32)), nests.when([A((-1, "k"))], [guarded], [copied]),
                 nests.st(ld("Y", "k", "p", lane), acc))
    inside = loop("p", "N", loop("k", 4, loop("q_c", LANES, tile, step=LANES)))
    return nest([tensor("X", "N", LANES), tensor("Z", 3, LANES), tensor("Y", 4, "N", LANES), reg("acc", LANES)], [inside])


def test_a_tile_that_looks_in_one_of_two_ways_alone_is_not_written_twice():
    once, always = first_tile(False), first_tile(True)
    assert unguard(once) == once and unguard(always) != always


def test_a_tile_without_steps_is_left_alone():
    x = ld("X", A("p", -1), A("q_c", "q_v"), guard=(A("p", -1),))
    tile = lanes("q_v", LANES, None, nests.st(ld("Y", "p", A("q_c", "q_v")), x))
    n = nest([tensor("X", "N", "N"), tensor("Y", "N", "N")], [loop("p", "N", loop("q_c", "N", tile, step=LANES))])
    assert unguard(n) == n


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
@pytest.mark.parametrize("chosen", [False, True])
def test_machine_code_agrees_at_every_border(chosen, target):
    n = window((1, 1), 1, chosen)
    k = compiled(unguard(split_full_tiles(n, target.lanes(4))), target)
    for size in (1, 3, 8, 9, 17, 24):
        check(n, {"N": size, "R": 3}, kernel=k)


def image(steps: int, missing: bool = False, turned: bool = False) -> LoopNest:
    """Y[p] = the sum over c and a window of 3 of X[c, steps p + r - 1], 0 outside, in tiles of 3 rows and 8 equal lanes.

    missing   whether there are but R lanes, if that is less; turned: whether rows lie side by side in Y
    """
    at = A((steps, "p_c"), (steps, "p_p"), "r", -1)
    body = rows("p_p", ROWS, least(ROWS, A("N", (-1, "p_c"))),
                nests.st(ld("acc", "p_p", "q_v"), ld("X", "c", at, guard=(at, A("N", -1) - at)), "add"))
    acc = ld("acc", "p_p", "q_v")
    start, end = (rows("p_p", ROWS, least(ROWS, A("N", (-1, "p_c"))), x) for x in (
        nests.st(acc, Const(0.0, F32)),
        nests.st(ld("Y", *((A("q_v"), A("p_c", "p_p")) if turned else (A("p_c", "p_p"), A("q_v")))), acc)))
    tile = lanes("q_v", LANES, least(LANES, "R") if missing else LANES, start, loop("r", 3, loop("c", "R", body)), end)
    y = tensor("Y", *((LANES, "N") if turned else ("N", LANES)))
    return nest([tensor("X", "R", "N"), y, reg("acc", ROWS, LANES)], [loop("p_c", "N", tile, step=ROWS)], sizes=("N", "R"))


@pytest.mark.parametrize("steps", [1, 2])
def test_steps_of_a_window_in_which_no_row_is_outside_are_asked_about_once(steps):
    n = image(steps)
    cut = unguard(split_full_tiles(n, 4))
    asked = [x for x in walk(cut.body) if isinstance(x, For) and x.index == "r" and isinstance(x.body[0], If)]
    assert asked and all(structure(x.body) == "if(c(p_p:rows(s)) | c(p_p:rows(s)))" for x in asked)
    assert difference(split_full_tiles(n, 4), cut, isl.Set("[N, R] -> { : N >= 1 and R >= 1 }")) is None
    for size in (1, 3, 7, 12):
        arrays = {"X": np.random.default_rng(size).integers(-9, 9, (2, size)).astype(np.float32)}
        both = []
        for x in (n, cut):
            y = np.zeros((size, LANES), np.float32)
            interpret(x, {"N": size, "R": 2}, {}, {**arrays, "Y": y})
            both.append(y)
        np.testing.assert_array_equal(*both)


@pytest.mark.parametrize("bounds", [(5, 3), (3, 5)])
def test_loops_of_one_name_are_asked_about_up_to_where_each_ends(bounds):
    """T of more rows than Y, row by row in loops of one name, as overlapped tiles have it."""
    at = A("i_c", "i", 1)
    x = ap("select", Test((A("N", -1) - at,)), ld("X", at, "v", guard=(A("N", -1) - at,)), Const(7.0, F32))
    parts = [loop("i", least(end, A("N", (-1, "i_c"))), nests.st(ld(to, A("i_c", "i"), "v"), x))
             for end, to in zip(bounds, ("T", "Y"), strict=True)]
    n = nest([tensor(t, "N", LANES) for t in "XTY"], [loop("i_c", "N", lanes("v", LANES, LANES, *parts), step=5)])
    cut = unguard(n)
    assert cut != n and difference(n, cut, isl.Set("[N] -> { : N >= 1 }")) is None


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_tile_with_lanes_missing_is_written_once_if_it_turns_its_results(steps, turned):
    n = split_full_tiles(image(steps, True, turned), 4)
    cut = unguard(n)
    narrow, full = ([[isinstance(x, For) and x.index == "q_v" and x.is_full == k for x in walk(m.body)].count(True)
                     for m in (n, cut)] for k in (False, True))
    assert narrow[0] and (narrow[0] == narrow[1]) == turned and full[0] < full[1]
    assert difference(n, cut, isl.Set("[N, R] -> { : N >= 1 and R >= 1 }")) is None
    for size, width in ((1, 1), (3, 7), (7, 8), (12, 9)):
        x, got = np.random.default_rng(size).integers(-9, 9, (width, size)).astype(np.float32), []
        for m in (n, cut):
            arrays = {"X": x.copy(), "Y": np.zeros((LANES, size) if turned else (size, LANES), np.float32)}
            interpret(m, {"N": size, "R": width}, {}, arrays)
            got.append(arrays["Y"])
        np.testing.assert_array_equal(*got)
