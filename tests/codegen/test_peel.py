"""Peeling a loop keeps what it does, iteration for iteration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polyop.codegen.cpu.peel import peel
from polyop.ir.dtypes import F32
from polyop.ir.expr import Affine, Const, Load, affine
from polyop.ir.interpret import interpret
from polyop.ir.loops import Buffer, For, If, Kind, LoopNest, Node, Space, Store, structure


def store(value: float, at: Affine) -> Store:
    return Store("S", (), None, (), Load("A", (at,), F32), None, Const(value, F32))


def nest(lower: int, step: int, tile: int, other: bool = True) -> LoopNest:
    """for i in [lower, N) by step { if N - i - tile >= 0 { A[i] = 1 } else { A[i] = 2 } }"""
    test = affine("N") - affine("i") - tile
    body = If((test,), (store(1, affine("i")),), (store(2, affine("i")),) if other else ())
    buffer = Buffer("A", F32, ((affine("N"), 1),), Space.TENSOR, unit=0)
    return LoopNest("f", ("N",), (), (buffer,), (For("i", affine(lower), affine("N"), (body,), step),))


@given(st.integers(0, 9), st.integers(1, 5), st.integers(-2, 7), st.integers(0, 20))
def test_the_two_loops_write_what_the_one_wrote(lower, step, tile, n):
    whole = nest(lower, step, tile)
    cut = peel(whole)
    got, want = np.zeros(n, np.float32), np.zeros(n, np.float32)
    interpret(whole, {"N": n}, {}, {"A": want})
    interpret(cut, {"N": n}, {}, {"A": got})
    np.testing.assert_array_equal(got, want)


def test_full_tiles_come_first_without_a_test():
    assert structure(peel(nest(0, 4, 4)).body) == "i(S) i(S)"


def test_a_test_without_an_alternative_stays():
    assert structure(peel(nest(0, 4, 4, other=False)).body) == "i(if(S))"


def between(lower: int, step: int, low: int, tile: int) -> LoopNest:
    """for i in [lower, N) by step { if i - low >= 0 and N - i - tile >= 0 { A[i] = 1 } else { A[i] = 2 } }"""
    whole = nest(lower, step, tile)
    loop = whole.body[0]
    assert isinstance(loop, For) and isinstance(loop.body[0], If)
    test = replace(loop.body[0], tests=(affine("i") - low, *loop.body[0].tests))
    return replace(whole, body=(replace(loop, body=(test,)),))


@given(st.integers(0, 9), st.integers(1, 5), st.integers(-3, 25), st.integers(-2, 7), st.integers(0, 20))
def test_border_interior_and_border_write_what_the_one_loop_wrote(lower, step, low, tile, n):
    whole = between(lower, step, low, tile)
    got, want = np.zeros(n, np.float32), np.zeros(n, np.float32)
    interpret(whole, {"N": n}, {}, {"A": want})
    interpret(peel(whole), {"N": n}, {}, {"A": got})
    np.testing.assert_array_equal(got, want)


def test_between_two_borders_there_is_no_test():
    assert structure(peel(between(0, 4, 2, 4)).body) == "i(S) i(S) i(S)"


def test_a_loop_in_lanes_has_one_end_for_all_of_them():
    each = If((affine("r") + affine("v") - 1,), (store(1, affine("v")),), (store(2, affine("v")),))
    inner = For("r", affine(0), affine(3), (each,))
    for body in (inner, For("p", affine(0), affine(2), (inner,), kind=Kind.ROWS, extent=2)):
        lanes = For("v", affine(0), affine(4), (body,), kind=Kind.LANES, extent=4)
        whole = replace(nest(0, 1, 1), body=(lanes,))
        assert peel(whole) == whole
    assert peel(replace(whole, body=(replace(lanes, kind=Kind.SERIAL, extent=None, body=(inner,)),))) != whole


def test_a_loop_inside_lanes_is_cut_only_if_it_holds_no_other():
    """A window's step asks once for all that it adds up; else its border, before and behind, would be written twice."""
    (loop,) = between(0, 1, 1, 3).body
    assert isinstance(loop, For) and isinstance(loop.body[0], If)
    test = loop.body[0]

    def lanes(*body: Node) -> LoopNest:
        return replace(between(0, 1, 1, 3), body=(For("v", affine(0), affine(4), body, 1, Kind.LANES, 4),))

    inside = [For("k", affine(0), affine("N"), way, 1) for way in (test.then, test.other)]
    deep = replace(loop, body=(replace(test, then=inside[:1], other=inside[1:]),))
    assert structure(peel(lanes(loop)).body) == "v:lanes(i(S) i(S) i(S))"
    assert structure(peel(lanes(deep)).body) == "v:lanes(i(if(k(S) | k(S))))"
