"""A condition between loops, asked for a tile at a time, keeps what is computed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyop.codegen.cpu.passes import split_full_tiles
from polyop.codegen.cpu.ties import is_cut_across, untie
from polyop.ir.expr import Affine
from polyop.ir.interpret import interpret
from polyop.ir.loops import For, Kind, structure, walk
from tests.codegen import nests
from tests.codegen.harness import RUNNABLE, check, compiled
from tests.codegen.nests import A, ap, lanes, ld, least, loop, nest, rows, tensor, when

ROWS, LANES = 3, 8
factor = st.integers(-2, 2)


def triangle(tests: tuple[Affine, ...], untested: bool) -> nests.LoopNest:
    """C[i, j] += A[i, k] B[k, j] under `tests`, after a store that has none, in tiles of 3 x 8."""
    i, j = A("i_c", "i_p"), A("j_c", "j_v")
    update = nests.st(ld("C", i, j), ap("mul", ld("A", i, "k"), ld("B", "k", j)), "add")
    started = nests.st(ld("D", i, j), ld("C", i, j))
    inside = [when(tests, [update])]
    body = rows("i_p", ROWS, least(ROWS, A("N", (-1, "i_c"))), *inside)
    first = rows("i_p", ROWS, least(ROWS, A("N", (-1, "i_c"))), started if untested else when(tests[:1], [started]))
    tile = lanes("j_v", LANES, least(LANES, A("N", (-1, "j_c"))), first, loop("k", "N", body))
    return nest([tensor("A", "N", "N"), tensor("B", "N", "N"), tensor("C", "N", "N"), tensor("D", "N", "N")],
                [loop("i_c", "N", loop("j_c", "N", tile, step=LANES), step=ROWS)])


def cuboid(tests: tuple[Affine, ...]) -> nests.LoopNest:
    """C[i, j] += A[i, k] B[k, l] under `tests`, which may have both of the loops inside the tile in them."""
    i, j = A("i_c", "i_p"), A("j_c", "j_v")
    update = when(tests, [nests.st(ld("C", i, j), ap("mul", ld("A", i, "k"), ld("B", "k", "l")), "add")])
    body = rows("i_p", ROWS, least(ROWS, A("N", (-1, "i_c"))), update)
    tile = lanes("j_v", LANES, least(LANES, A("N", (-1, "j_c"))), loop("l", "N", loop("k", "N", body)))
    return nest([tensor("A", "N", "N"), tensor("B", "N", "N"), tensor("C", "N", "N")],
                [loop("i_c", "N", loop("j_c", "N", tile, step=LANES), step=ROWS)])


def results(n, size):
    rng = np.random.default_rng(size)
    arrays = {b.name: rng.integers(-3, 4, (size, size)).astype(np.float32) for b in n.buffers}
    interpret(n, {"N": size}, {}, arrays)
    return arrays


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(factor, factor, st.integers(-1, 1), st.integers(-9, 9)), min_size=1, max_size=3), st.booleans(),
       st.integers(0, 19))
def test_whatever_the_condition_nothing_changes(found, untested, size):
    tests = tuple(A((a, "i_c"), (a, "i_p"), (b, "j_c"), (b, "j_v"), (c, "k"), d) for a, b, c, d in found)
    tests = tuple(t if untested or n else t - A((t.factor("k"), "k")) for n, t in enumerate(tests))
    n = triangle(tests, untested)
    want = results(n, size)
    for cut in (untie(n), split_full_tiles(untie(n), 4)):
        for name, got in results(cut, size).items():
            np.testing.assert_array_equal(got, want[name], err_msg=f"{name}\n{cut}")


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(factor, factor, factor, factor, st.integers(-9, 9)), min_size=1, max_size=2), st.integers(0, 9))
def test_a_condition_on_two_loops_inside_cuts_only_the_inner_one(found, size):
    n = cuboid(tuple(A((a, "i_c"), (a, "i_p"), (b, "j_c"), (b, "j_v"), (c, "k"), (d, "l"), e) for a, b, c, d, e in found))
    want = results(n, size)
    for cut in (untie(n), split_full_tiles(untie(n), 4)):
        np.testing.assert_array_equal(results(cut, size)["C"], want["C"], err_msg=str(cut))


def test_a_tile_without_a_point_is_left_out_and_one_with_all_of_them_asks_nothing():
    below = A("i_c", "i_p", (-1, "j_c"), (-1, "j_v"))  # { j <= i }
    n = untie(triangle((below,), untested=False))
    tile = "j_v:lanes(i_p:rows({0}) k(i_p:rows({0})))"
    assert structure(n.body) == f"i_c(j_c(if(if({tile.format('s')} | {tile.format('if(s)')}))))"
    assert is_cut_across(triangle((below,), untested=False).body[0].body[0].body[0])


def window(columns):
    """Pixels, some of which a window leaves out, in lock step, beside so many lanes of filters."""
    pixel, filter_ = A("q_c", "q_p"), A("k_c", "k_v")
    read = A("q_c", "q_p", "s", -1)
    update = nests.st(ld("Y", pixel, filter_), ap("mul", ld("X", read), ld("F", "s", filter_)), "add")
    inside = when([read, A("W", (-1, "q_c"), (-1, "q_p"), (-1, "s"))], [update])
    body = loop("s", "S", loop("c", "C", rows("q_p", ROWS, least(ROWS, A("W", (-1, "q_c"))), inside)))
    tile = lanes("k_v", columns, least(columns, A("K", (-1, "k_c"))), body)
    return nest([tensor("X", "W"), tensor("F", "S", "K"), tensor("Y", "W", "K")],
                [loop("q_c", "W", loop("k_c", "K", tile, step=columns), step=ROWS)], sizes=("C", "K", "S", "W"))


@pytest.mark.parametrize("vectors,narrow,full", [(4, {4, 8}, True), (2, {4}, True), (1, set(), False)])
def test_a_window_that_leaves_out_rows_has_copies_of_few_vectors_and_none_for_all_lanes_of_one(vectors, narrow, full):
    """3 x 3 in 16 filters of 6 columns, with conditions: 106 us with four vectors of which three are empty, 43 with one."""
    cut = split_full_tiles(untie(window(4 * vectors)), 4)
    found = [f for f in walk(cut.body) if isinstance(f, For) and f.kind == Kind.LANES]
    assert {f.extent for f in found if f.extent < 4 * vectors} == narrow
    assert any(f.extent == 4 * vectors and f.is_full for f in found) == full


def test_a_loop_inside_ends_where_no_row_is_left():
    below = A("i_c", "i_p", (-1, "k"))  # { k <= i }
    n = untie(triangle((below,), untested=True))
    tile = n.body[0].body[0].body[0]
    plain, asked = tile.body[1], tile.body[2]
    assert structure(tile.body) == "i_p:rows(s) k(i_p:rows(s)) k(i_p:rows(if(s)))"
    assert str(plain.upper) == "min(N, i_c + 1)" and str(asked.upper) == f"min(N, i_c + {ROWS})"


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
def test_the_machine_code_masks_what_the_condition_leaves_out(target):
    n = triangle((A("i_c", "i_p", (-1, "j_c"), (-1, "j_v")), A("i_c", "i_p", (-1, "k"))), untested=True)
    k = compiled(untie(n), target)
    for size in (1, 3, 8, 9, 17, 24):
        check(n, {"N": size}, kernel=k)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 19))
def test_where_masks_cost_something_a_copy_asks_whether_all_lanes_are_there_when_rows_are_missing(size):
    i, j = A("i_c", "i_p"), A("j_c", "j_v")
    body = rows("i_p", ROWS, least(ROWS, A("N", (-1, "i_c"))), nests.st(ld("B", i, j), ld("A", j, i)))
    tile = lanes("j_v", LANES, least(LANES, A("N", (-1, "j_c"))), body)
    n = nest([tensor("A", "N", "N"), tensor("B", "N", "N")], [loop("i_c", "N", loop("j_c", "N", tile, step=LANES), step=ROWS)])
    cut = {masks: split_full_tiles(n, LANES, masks=masks) for masks in (True, False)}
    found = {masks: {(x.is_full, *(y.is_full for y in x.body if isinstance(y, For))) for x in walk(c.body)
                     if isinstance(x, For) and x.kind == Kind.LANES} for masks, c in cut.items()}
    assert found[False] - found[True] == {(True, False)}
    np.testing.assert_array_equal(results(cut[False], size)["B"], results(n, size)["B"])
