"""Reads held inside by a minimum or maximum along the lanes become vectors, and read what they read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from polyop.codegen.cpu.clamp import declamp
from polyop.codegen.cpu.lower import lower
from polyop.ir.dtypes import F32
from polyop.ir.expr import Affine, Const, Load, affine, quasi
from polyop.ir.expr import Test as Tests
from polyop.ir.interpret import interpret
from polyop.ir.loops import For, Kind, LoopNest, stores, structure, walk
from polyop.ir.options import Options
from tests.codegen.harness import RUNNABLE, V4, assembly, check, compiled, last_page
from tests.codegen.nests import A, ap, ld, least, loop, nest, reg, st, strip, tensor

I = A("i_c", "i_v")
LAST = A("N", -1)


def most(*xs: Affine | int) -> Affine:
    return quasi("max", *(affine(x) for x in xs))


KINDS = {
    "low": most(I - 2, 0),
    "high": least(I + 3, LAST),
    "both": least(most(I - 5, 0), LAST),
    "mirrored": least(most(I - 3, A(3) - I, 0), LAST),
    "backwards": most(LAST - I - 1, 0),
    "shifted": most(I - 70, 0),
    "from a size": most(least(I, A("N", -4)), 0),
}


def copy(index: Affine, target: Affine = I, extent: int = 64) -> LoopNest:
    return nest([tensor("x", "N"), tensor("y", "N")], [strip("i", extent, "N", st(ld("y", target), ld("x", index)))])


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_reads_what_the_loops_read(kind, target):
    low = lower(copy(KINDS[kind]), target, Options())
    kernel = compiled(low, target)
    for n in (1, 2, 3, 5, 15, 16, 17, 63, 64, 65, 80, 127, 128, 129, 200, 321):
        check(copy(KINDS[kind]), {"N": n}, target, kernel=kernel)


@pytest.mark.parametrize("kind", KINDS)
def test_no_lane_is_fetched_alone(kind):
    assert "gather" not in assembly(lower(copy(KINDS[kind]), V4, Options()), V4)


@settings(deadline=None, max_examples=60)
@given(some.integers(-9, 9), some.integers(-9, 9), some.integers(0, 6), some.integers(1, 40))
def test_taking_reads_apart_keeps_what_is_read(a, b, low, n):
    whole = copy(least(most(I + a, low, A(b) - I), A("N", 5)), extent=16)
    whole = LoopNest(whole.name, whole.sizes, (), (tensor("x", A("N", 30)), whole.buffers[1]), whole.body)
    x = np.arange(n + 30, dtype=np.float32)
    got, want = np.zeros(n, np.float32), np.zeros(n, np.float32)
    interpret(whole, {"N": n}, {}, {"x": x, "y": want})
    interpret(declamp(whole), {"N": n}, {}, {"x": x, "y": got})
    np.testing.assert_array_equal(got, want)


def test_a_window_over_a_clamped_row_is_right_at_every_size():
    window = st(ld("acc", "i_v"), ap("mul", ld("w", "k"), ld("x", least(most(I + affine("k") - 2, 0), LAST))), "add")
    body = (st(ld("acc", "i_v"), Const(0.0, F32)), loop("k", 5, window), st(ld("y", I), ld("acc", "i_v")))
    whole = nest([tensor("x", "N"), tensor("w", 5), tensor("y", "N"), reg("acc", 32)], [strip("i", 32, "N", *body)])
    kernel = compiled(lower(whole, V4, Options()), V4)
    for n in (1, 2, 4, 5, 31, 32, 33, 64, 65, 99):
        check(whole, {"N": n}, kernel=kernel)


@pytest.mark.parametrize(("kind", "read"), [("both", "x[i_c + i_v - 5]"), ("mirrored", "x[i_c + i_v - 3]")])
def test_the_interior_has_neither_clamps_nor_choices(kind, read):
    low = lower(copy(KINDS[kind]), V4, Options())
    full = [f for f in walk(low.body) if isinstance(f, For) and f.kind == Kind.LANES and f.is_full]
    plain = [s for f in full for s in stores(f.body) if isinstance(s.expr, Load)]
    assert {str(s.expr) for s in plain} == {read}
    assert structure(low.body).startswith("i_c(i_v:lanes(s)) i_c(i_v:lanes(s)) i_c(i_v:lanes(s)) i_c(if(")


def test_a_clamp_along_another_dimension_stays():
    first = nest([tensor("x", "N", "N"), tensor("y", "N")], [strip("i", 16, "N", st(ld("y", I), ld("x", most(I - 1, 0), 0)))])
    assert declamp(first) == first


def test_a_clamp_around_a_remainder_stays():
    odd = most(affine(quasi("mod", I, affine(5)).terms[0][0]), 2)
    assert declamp(copy(odd)) == copy(odd)


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
def test_a_lane_that_is_not_there_chooses_no_place(target):
    far = ap("select", Tests((I - 8,)), ld("x", 8), ld("x", I))
    n = nest([tensor("x", "M"), tensor("y", "N")], [strip("i", 16, "N", st(ld("y", I), far))], sizes=("M", "N"))
    x, y = last_page(np.arange(5, dtype=np.float32)), np.zeros(5, np.float32)
    compiled(n, target)({"M": 5, "N": 5}, {}, {"x": x, "y": y})
    np.testing.assert_array_equal(y, np.arange(5))
