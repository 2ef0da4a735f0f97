"""A window of known size that rows in lock step share is written out, and reads what several of them need once."""

import re
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings, strategies

import polyop
from polyop.codegen.x86 import emit
from polyop.ir.dtypes import F32
from polyop.ir.expr import Const
from polyop.ir.options import Options
from tests.codegen.harness import RUNNABLE, V4, check
from tests.codegen.nests import A, ap, lanes, ld, loop, nest, reg, rows, st, strip, tensor, when

each_target = pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)


def sliding(window=3, step=1, count=4, missing=False, reduce="add", guard=()):
    """Y[p, v] is the sum of X[step p + r, v + s] F[r, s] in a window of a known number of rows and S columns."""
    acc, upper = ld("acc", "p", "v"), A("M") if missing else count
    x = ld("X", A((step, "p"), "r"), A("v", "s"), guard=guard)
    value = ap("mul", x, ld("F", "r", "s")) if reduce == "add" else x
    start = Const(0.0 if reduce == "add" else -np.inf, F32)
    inside = loop("s", "S", rows("p", count, upper, st(acc, value, reduce)))
    body = [rows("p", count, upper, st(acc, start)), loop("r", window, inside),
            rows("p", count, upper, st(ld("Y", "p", "v"), acc))]
    buffers = [tensor("X", "H", "W"), tensor("F", "R", "S"), tensor("Y", "M", 32), reg("acc", count, 32)]
    return nest(buffers, [lanes("v", 32, None, *body)], sizes=("H", "M", "R", "S", "W"))


def vectors_read(n, numerics="fast"):
    return len(re.findall(r" = load <16 x float>", emit(n, V4, Options(numerics)).text))


SIZES = {"H": 12, "M": 4, "R": 3, "S": 5, "W": 40}


@each_target
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("reduce", ["add", "max"])
def test_a_window_computes_what_its_loops_do(target, step, reduce):
    check(sliding(step=step, reduce=reduce), SIZES, target)
    check(sliding(step=step, reduce=reduce, missing=True), SIZES | {"M": 3}, target)


@each_target
def test_rows_outside_are_no_part_of_a_window(target):
    inside = (A("p", "r", -2), A(4, (-1, "p"), (-1, "r")))
    check(sliding(guard=inside), SIZES, target)


def test_each_row_that_a_window_needs_is_read_once():
    assert vectors_read(sliding()) == 6 * 2           # rows 0 .. 5, two vectors each, for 3 x 4 x 2 multiply-adds
    assert vectors_read(sliding(step=2)) == 9 * 2     # rows 0 .. 8, of which every other one serves two
    assert vectors_read(sliding(window=9)) == 4 * 2   # too long: a loop


@pytest.mark.parametrize("below", [A("p", "r", "H", -20), A("H", (-1, "p"), (-1, "r"), -1)])
def test_each_row_that_may_lie_outside_is_read_once(below):
    assert vectors_read(sliding(guard=(below,))) == 6 * 2  # from where it lies, or from zeros
    for h in (4, 5, 6):
        check(sliding(guard=(A("H", (-1, "p"), (-1, "r"), -1),)), SIZES | {"H": h})


def test_strict_sums_keep_their_order():
    check(sliding(), SIZES, numerics="strict")
    assert vectors_read(sliding(), "strict") == 4 * 2


def test_what_one_of_two_ways_needs_is_computed_in_that_way():
    far, near = (st(ld("Y", A("i_c", "i_v")), ld("X", A((7, "i_c"), "i_v", k))) for k in (1000, 2000))
    n = nest([tensor("X", "M"), tensor("Y", "N")],
             [loop("j", "M", when([A("j", -5)], [strip("i", 16, "N", far)], [strip("i", 16, "N", near)]))], sizes=("M", "N"))
    head, ways = emit(n, V4, Options()).text.split("phi", 1)[1].split("label", 1)
    assert "i64 1000" not in head and "i64 2000" not in head and "i64 1000" in ways and "i64 2000" in ways
    check(n, {"M": 7 * 40 + 2100, "N": 37})


@lru_cache
def convolution(step, border):
    """Windows of 3 x 3 in steps, inside of an image or over a border of so many elements."""
    least, high, wide = 3 - 2 * border, *(f"({n} + {2 * border} - 3) / {step} + 1" for n in "HW")
    return polyop.op(f"""
    op f(X: f32[N, C, H, W], F: f32[K, C, 3, 3]) -> (Y: f32[N, K, {high}, {wide}]) where H >= {least}, W >= {least} {{
        Y[n, k, p, q] += (X[n, c, {step}*p + r - {border}, {step}*q + s - {border}] else 0) * F[k, c, r, s] }}""")


@settings(max_examples=25, deadline=None)
@given(step=strategies.sampled_from((1, 2, 3)), images=strategies.integers(1, 3), filters=strategies.integers(1, 33),
       rows=strategies.integers(1, 9), columns=strategies.integers(1, 34), border=strategies.sampled_from((0, 1)))
def test_few_filters_or_columns_are_right_with_lanes_along_either(step, images, filters, rows, columns, border):
    """Calls of so few choose among lanes along columns, rows and filters, and among few rows and tiles."""
    f = convolution(step, border)
    high, wide = ((n - 1) * step + 3 - 2 * border for n in (rows, columns))
    g = np.random.default_rng(filters)
    x, w = g.integers(-9, 9, (images, 5, high, wide)).astype("f4"), g.integers(-9, 9, (filters, 5, 3, 3)).astype("f4")
    padded = np.pad(x.astype(float), ((0, 0), (0, 0), (border, border), (border, border)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::step, ::step]
    for _ in range(2):  # the second call has a kernel for its regime
        np.testing.assert_array_equal(f(x, w), np.einsum("ncpqrs,kcrs->nkpq", seen, w.astype(float)))
