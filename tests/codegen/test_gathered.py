"""Rows at places that data says are prefetched where the next ones are known, and positions are read only where they exist."""

from __future__ import annotations

import numpy as np
import pytest

from polyop.codegen.cpu.gathered import fetch_gathered
from polyop.ir.dtypes import F32, I64
from polyop.ir.expr import Affine, Const, Load, affine, quasi
from polyop.ir.loops import For, LoopNest, Node, Prefetch, structure, walk
from tests.codegen.harness import RUNNABLE, check, random_array
from tests.codegen.nests import A, ap, lanes, ld, least, loop, nest, reg, st, tensor, when

each_target = pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
V = A("v")
BUFFERS = [tensor("ids", "B", "L", t=I64), tensor("E", "N", 32), tensor("Y", "B", 32), reg("acc", 32)]


def row(*at) -> Load:
    return ld("E", ld("ids", *at, t=I64), V)


def bag(read: Load, *, length="L", around=lambda body: body) -> LoopNest:
    body: tuple[Node, ...] = (st(ld("acc", V), ap("add", ld("acc", V), read)),)
    tile = lanes("v", 32, None, st(ld("acc", V), Const(0.0, F32)), loop("l", length, *around(body)),
                 st(ld("Y", "b", V), ld("acc", V)))
    return nest(BUFFERS, [loop("b", "B", tile)], ("B", "L", "N"))


def fetched(n: LoopNest) -> list[Load]:
    return [x.place for x in walk(fetch_gathered(n).body) if isinstance(x, Prefetch)]


def strip_of(length: Affine, store: Node) -> Node:
    return loop("t", length, lanes("v", 32, least(32, length - A("t")), store), step=32)


def last(name: str, by: int, upper: str) -> Affine:
    return quasi("min", affine(name) + by, affine(upper) - 1)


def test_a_row_found_by_two_loops_is_that_of_the_next_outer_iteration():
    assert fetched(bag(row("b", "l"))) == [row(last("b", 1, "B"), "l")]


def test_a_row_found_by_one_loop_is_some_iterations_ahead_and_never_past_the_last():
    n = nest(BUFFERS, [loop("b", "B", lanes("v", 32, None, st(ld("Y", "b", V), row("b", 0))))], ("B", "L", "N"))
    assert fetched(n) == [row(last("b", 8, "B"), 0)]


@pytest.mark.parametrize("width", [1, 8, 9])
def test_rows_that_are_known_to_be_short_are_not_fetched_one_by_one(width):
    body = lanes("v", width, None, st(ld("Y", "b", V), row("b", 0)))
    assert bool(fetched(nest(BUFFERS, [loop("b", "B", body)], ("B", "L", "N")))) == (width > 8)
    short = lanes("v", width, None, loop("l", "L", st(ld("acc", V), ap("add", ld("acc", V), row("b", "l")))))
    assert fetched(nest(BUFFERS, [loop("b", "B", short)], ("B", "L", "N")))  # a bag's rows, of the next bag


def test_of_a_row_that_is_copied_the_beginning_is_fetched_before_its_loop():
    t = A("t", "v")
    read = ld("E", ld("ids", "b", 0, t=I64), t)
    row_ = loop("t", "L", lanes("v", 32, least(32, A("L", (-1, "t"))), st(ld("Y", "b", t), read, stream=True)), step=32)
    n = nest(BUFFERS, [loop("b", "B", row_)], ("B", "L", "N"))
    assert structure(fetch_gathered(n).body) == "b(v:lanes(prefetch) t(v:lanes(s)))"
    assert fetched(n) == [row(last("b", 8, "B"), 0)]


def test_where_a_row_that_is_copied_is_empty_no_position_is_read():
    t = A("t", "v")
    read = ld("E", ld("ids", "b", A("l", 1), t=I64), t)
    row_ = strip_of(A("L", (-1, "l"), -1), st(ld("Y", "b", "l", t), read, stream=True))
    n = nest([*BUFFERS[:2], tensor("Y", "B", "L", "L")], [loop("b", "B", loop("l", "L", row_))], ("B", "L", "N"))
    hint = next(x for x in walk(fetch_gathered(n).body) if isinstance(x, For) and isinstance(x.body[0], Prefetch))
    assert hint.upper == least(32, A("L", (-1, "l"), -1))


@pytest.mark.parametrize("n", [
    bag(row("b", "l"), length=least("L", A("b", 1))),
    bag(row("b", "l"), around=lambda body: (when([A("b", (-1, "l"))], body),)),
    bag(ld("E", ld("ids", ld("ids", "b", "l", t=I64), "l", t=I64), V)),
    bag(ld("E", ld("ids", "b", "l", t=I64), V, guard=(A("b", (-1, "l")),))),
    bag(ap("select", ap("lt", ld("E", 0, V), Const(0.0, F32)), row("b", "l"), Const(0.0, F32))),
    bag(ld("E", ld("ids", "b", V, t=I64), V)),
    bag(ld("E", V, ld("ids", "b", "l", t=I64))),
], ids=["a bound", "a test", "found by data", "guarded", "chosen", "another row in each lane", "elements"])
def test_positions_that_may_not_exist_are_not_read_and_single_elements_not_fetched(n):
    assert fetched(n) == []


@each_target
def test_rows_are_summed_as_before(target):
    n = fetch_gathered(bag(row("b", "l")))
    rng = np.random.default_rng(0)
    for size, length in ((1, 1), (1, 9), (5, 0), (7, 3)):
        arrays = {"ids": rng.integers(0, 6, (size, length)), "E": random_array(rng, F32, (6, 32)),
                  "Y": np.zeros((size, 32), np.float32)}
        check(n, {"B": size, "L": length, "N": 6}, target, arrays=arrays)
