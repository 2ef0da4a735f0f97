"""Where registers must keep what they had in rows and lanes that do not exist."""

from __future__ import annotations

import pytest

from polyop.codegen.llvm.lifetime import lives_of
from polyop.ir.dtypes import F32
from polyop.ir.expr import Affine, Const, affine, quasi
from polyop.ir.loops import For, If, Kind
from tests.codegen.nests import A, lanes, ld, loop, nest, reg, st, strip, tensor

PART, X = ld("part", "i_v"), ld("X", A("i_c", "i_v"))
FIRST = lanes("i_v", 32, None, st(PART, Const(0.0, F32)))
SUM = strip("i", 32, "N", st(PART, X, "add"))
LAST = lanes("i_v", 32, None, st(ld("Y", "r", "i_v"), PART))
BUFFERS = [tensor("X", "N"), tensor("Y", "M", 32), reg("part", 32)]


def test_a_buffer_lives_in_the_innermost_body_that_has_all_its_uses():
    row = loop("r", "M", FIRST, SUM, LAST)
    n = nest(BUFFERS, [row], ("M", "N"))
    around = lives_of(n).inside(n.body)
    assert around.unborn == {"part"} and not around.blended
    inside = around.inside(row.body)
    assert not inside.unborn and inside.blended == {"part": {0}}     # 32 lanes, of which the sum has fewer at its end


def test_what_is_blended_stays_so_further_inside():
    row = loop("r", "M", FIRST, SUM, LAST)
    n = nest(BUFFERS, [row], ("M", "N"))
    lives = lives_of(n).inside(n.body).inside(row.body)
    assert isinstance(SUM.body[0], For)
    assert lives.inside(SUM.body).inside(SUM.body[0].body) == lives


def test_equal_stores_may_be_blended_in_one_place_and_not_in_another():
    full = loop("i_c", "N", lanes("i_v", 32, None, SUM.body[0].body[0]))
    some, all_ = loop("r", "M", FIRST, SUM, LAST), loop("q", "M", FIRST, full, LAST)
    n = nest([*BUFFERS[:2], reg("part", 32)], [some], ("M", "N"))
    m = nest([*BUFFERS[:2], reg("part", 32)], [all_], ("M", "N"))
    assert lives_of(n).inside(n.body).inside(some.body).blended == {"part": {0}}
    assert not lives_of(m).inside(m.body).inside(all_.body).blended


def test_a_register_that_chooses_where_to_write_is_in_use():
    at = ld("at")
    row = loop("r", "M", st(at, ld("X", "r")), st(ld("Y", at), Const(1.0, F32)))
    n = nest([tensor("X", "M"), tensor("Y", "M"), reg("at")], [row], ("M",))
    around = lives_of(n).inside(n.body)
    assert around.unborn == {"at"} and not around.inside(row.body).unborn


def test_loops_side_by_side_that_begin_with_writing_it_have_lives_of_their_own():
    full, rest = loop("r", "M", FIRST, lanes("i_v", 32, None, st(PART, X, "add")), LAST), loop("q", "M", FIRST, SUM, LAST)
    n = nest(BUFFERS, [full, rest], ("M", "N"))
    around = lives_of(n).inside(n.body)
    assert around.unborn == {"part"} and not around.blended
    assert not around.inside(full.body).blended and around.inside(rest.body).blended == {"part": {0}}


def test_what_the_loop_before_has_left_is_the_same_life():
    first, then = loop("r", "M", FIRST, LAST), loop("q", "M", SUM, LAST)
    n = nest(BUFFERS, [first, then], ("M", "N"))
    assert lives_of(n).inside(n.body).blended == {"part": {0}}


def under(test, *inside):
    return loop("r", "M", FIRST, loop("k", "K", lanes("i_v", 32, None, If((test,), (st(PART, X, "add"),)))), *inside)


def read_under(test):
    return lanes("i_v", 32, None, If((test,), (st(ld("Y", "r", "i_v"), PART),)))


R_LESS_V, K_LESS_V = A("r") - A("i_v"), A("k") - A("i_v")


@pytest.mark.parametrize(("test", "last", "ignored"), [
    (R_LESS_V, read_under(R_LESS_V), True),        # the other triangle is never read
    (R_LESS_V, LAST, False),                       # it is
    (R_LESS_V, read_under(R_LESS_V - 1), False),   # another one is not
    (K_LESS_V, read_under(K_LESS_V), False),       # which it is differs from turn to turn
])
def test_sums_need_not_ask_a_test_under_which_alone_they_are_read(test, last, ignored):
    row = under(test, last)
    n = nest(BUFFERS, [row], ("K", "M", "N"))
    assert ((test,) in lives_of(n).inside(n.body).inside(row.body).ignored["part"]) == ignored


def test_rows_that_are_missing_everywhere_keep_nothing_where_lanes_do():
    def rows(*body):
        return For("p_p", Affine(), quasi("min", affine(4), affine("M")), body, kind=Kind.ROWS, extent=4)
    part, x = ld("part", "p_p", "i_v"), ld("X", "p_p", A("i_c", "i_v"))
    first, last = lanes("i_v", 32, None, st(part, Const(0.0, F32))), lanes("i_v", 32, None, st(ld("Y", "p_p", "i_v"), part))
    tile = rows(first, strip("i", 32, "N", st(part, x, "add")), last)
    n = nest([tensor("X", "M", "N"), tensor("Y", "M", 32), reg("part", 4, 32)], [loop("r", "M", tile)], ("M", "N"))
    around = lives_of(n).inside(n.body)
    assert around.inside(n.body[0].body).inside(tile.body).blended == {"part": {1}}
