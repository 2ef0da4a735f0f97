"""What a loop computes is known before it runs: by that little work stays on one thread."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyop.codegen.llvm.effort import APART, MOVED, effort
from polyop.compiler import compile_op
from polyop.ir.dtypes import F32
from polyop.ir.expr import Const
from polyop.ir.loops import For, If, Kind, walk
from polyop.ir.options import Options
from polyop.runtime import cpu, threads
from polyop.runtime.layout import contiguous
from tests.codegen.nests import A, ap, lanes, ld, loop, nest, rows, st, strip, tensor
from tests.rewrite.ops import library

V4 = cpu.resolve("x86:x86-64-v4")
VNNI = replace(V4, name="vnni", features="+avx512vnni,+avx512bf16")
X, Y = tensor("x", "M", "N"), tensor("y", "M", "N")
I = A("i_c", "i_v")
SIZES = {"M": 10, "N": 100}
PLUS = 1 + MOVED * 3  # one operation, one element read, one written
SCALAR = PLUS + 2 * APART


def of(*body, sizes=SIZES):
    n = nest([X, Y], list(body), sizes=("M", "N"))
    return effort(n, n.body[0]).value(sizes)


def test_it_is_the_product_of_the_trips_and_of_what_one_computes():
    body = st(ld("y", "m", "i"), ap("add", ld("x", "m", "i"), Const(1.0, F32)))
    assert of(loop("m", "M", loop("i", "N", body), parallel=True)) == 10 * 100 * SCALAR
    assert of(loop("m", "M", loop("i", "N", body), parallel=True, step=4)) == 3 * 100 * SCALAR
    assert of(loop("m", "M", loop("i", A("N", -200), body), parallel=True)) == 0


def test_loops_inside_are_taken_in_the_middle_of_those_around():
    body = st(ld("y", "m", "i"), ld("x", "m", "i"))
    assert of(loop("m", "M", loop("i", "m", body), parallel=True)) == 10 * 4 * SCALAR


def test_tiles_and_what_they_leave_are_added_up():
    body = st(ld("y", "m", I), ld("x", "m", I))
    tiled = strip("i", 16, "N", body)
    assert 10 * 100 * PLUS <= of(loop("m", "M", tiled, parallel=True)) <= 10 * 112 * PLUS


def test_what_goes_over_another_size_counts_though_it_is_in_fewer_loops():
    zeros = loop("a", 2, loop("i", "N", st(ld("y", "a", "i"), Const(0.0, F32))))
    sums = loop("k", "M", st(ld("y", "m", "k"), ld("x", "m", "k")))
    both = of(loop("m", 10, zeros, sums, parallel=True))
    assert both == of(loop("m", 10, zeros, parallel=True)) + of(loop("m", 10, sums, parallel=True))
    again = loop("k", "N", st(ld("y", "m", "k"), ld("x", "m", "k")))
    assert of(loop("m", 10, zeros, again, parallel=True)) == of(loop("m", 10, zeros, parallel=True)), "as what a tile leaves"


def test_of_two_branches_the_full_tiles_count():
    whole, rest = (lanes("v", 16, n, st(ld("y", "m", "v"), ld("x", "m", "v"))) for n in (None, A("N", -96)))
    assert of(loop("m", "M", If((A("N", -16),), (whole,), (rest,)), parallel=True)) == 10 * 16 * PLUS


def test_what_is_the_same_along_rows_or_lanes_was_read_for_others():
    def tile(x):
        inner = lanes("v", 16, None, rows("r", 4, None, st(ld("y", A("r"), A("v")), x)))
        return of(loop("m", "M", inner, parallel=True))
    assert tile(ld("x", "r", "v")) == 10 * 64 * PLUS
    assert tile(ld("x", "r", "m")) == tile(ld("x", "m", "v")) == 10 * 64 * (PLUS - MOVED)


def test_elements_that_lie_apart_are_moved_one_by_one():
    def row(to, x):
        return of(loop("m", "M", lanes("v", 16, None, st(to, x)), parallel=True))
    dense, apart = ld("x", "m", "v"), ld("x", "m", A((2, "v")))
    assert row(ld("y", "m", "v"), apart) == row(ld("y", "m", A((2, "v"))), dense) == 10 * 16 * (PLUS + APART)
    assert row(ld("y", "m", "v"), ld("x", "v", "m")) == 10 * 16 * (PLUS + APART)
    assert row(ld("y", "m", "v"), ld("x", "m", A("m", "v"))) == 10 * 16 * PLUS


def test_a_square_that_is_turned_in_registers_is_read_and_written_side_by_side():
    square = lanes("v", 16, None, rows("r", 16, None, st(ld("y", "v", "r"), ld("x", "r", "v"))))
    assert of(loop("m", "M", square, parallel=True)) == 10 * 256 * PLUS


def regions(name, sizes, where=V4, **options):
    """The work of each region of a kernel for several threads, for `sizes` and indices of serial loops around it."""
    o = library(*name)
    made = compile_op(o, contiguous(o), where, Options(threads=True, check=False, **options))
    inside, found = set(), []
    for n in walk(made.final.body):
        if isinstance(n, For) and n.kind == Kind.PARALLEL and n not in inside:
            inside.update(x for x in walk(n.body) if isinstance(x, For))
            found.append(effort(made.final, n).value(sizes))
    return found


@pytest.mark.parametrize(("n", "shared"), [(64, False), (128, True), (1000, True)])
def test_small_products_stay_on_one_thread(n, shared):
    work = regions(("linalg", "matmul"), {"M": n, "N": n, "K": n})
    assert n**3 <= max(work) <= 2 * n**3
    assert (max(work) >= threads.LEAST) is shared


def test_dot_products_of_bytes_take_four_steps_at_once():
    n = 256
    assert n**3 // 4 <= max(regions(("linalg", "matmul_i8"), {"M": n, "N": n, "K": n}, VNNI)) <= n**3 // 2


@pytest.mark.parametrize(("columns", "shared"), [(64, False), (256, True)])
def test_the_turns_of_a_block_of_a_triangular_system_are_one_region(columns, shared):
    """Threads have columns of their own for all turns of a block, and not turn by turn."""
    *_, contraction, block = regions(("linalg", "trsm"), {"M": 256, "N": columns, "s_far_0": 4})
    assert (min(contraction, block) >= threads.LEAST) is shared


def test_the_turns_of_a_factorisation_stay_on_one_thread():
    """There each turn needs all of the turn before: of the kinds of regions the fifth to the seventh are a turn."""
    turn = regions(("linalg", "cholesky"), {"N": 256, "j_b2": 4, "j_p5": 4})[4:7]
    assert max(turn) < threads.LEAST


@pytest.mark.parametrize(("rows_", "columns", "shared"), [(16, 256, False), (128, 768, True)])
def test_few_short_rows_stay_on_one_thread(rows_, columns, shared):
    assert (max(regions(("softmax", "softmax"), {"dim0": rows_, "C": columns})) >= threads.LEAST) is shared
