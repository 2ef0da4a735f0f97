"""Which reads are asked for early: what lanes read once and add up in registers."""

import re
from dataclasses import replace

import numpy as np
import pytest

from polyop.codegen.cpu.prefetch import read_ahead
from polyop.codegen.cpu.prefetch_tiles import prefetch_tiles
from polyop.compiler import compile_op
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.dtypes import F16, F32, F64
from polyop.ir.expr import affine
from polyop.ir.interpret import interpret
from polyop.ir.loops import Node, Prefetch, walk
from polyop.ir.options import Options
from polyop.ir.span import Source
from polyop.ir.target import HINTS, USUAL_HINTS
from polyop.runtime.layout import contiguous
from tests.codegen.harness import V4, make_arrays
from tests.codegen.nests import A, ap, lanes, ld, loop, nest, reg, rows, st, strip, tensor

C = A("c_c", "c_v")
PART = ld("part", "c_v")


def summed(expr, *around, **buffers):
    """Rows of `expr` added up in lanes, in the loops `around` by name, outermost first."""
    body: Node = strip("c", 64, "N", st(PART, expr, "add"))
    for index in reversed(around):
        body = loop(index, "M", body)
    named = {"X": tensor("X", "M", "N"), "Y": tensor("Y", "M", "N"), "b": tensor("b", "N"), "part": reg("part", 64)} | buffers
    return nest(named.values(), [body], sizes=("M", "N"))


def early(n, hints=USUAL_HINTS):
    """The places that `n` asks for a page early."""
    return [str(x.place) for x in walk(read_ahead(n, hints).body) if isinstance(x, Prefetch)]


def test_what_lanes_add_up_is_asked_for_a_page_early():
    assert early(summed(ld("X", "r", C), "r")) == ["X[r, c_c + c_v + 1024]"]


@pytest.mark.parametrize(("dtype", "place"), [(F64, "X[r, c_c + c_v + 512]"), (F16, "X[r, c_c + c_v + 2048]")])
def test_a_page_holds_fewer_wide_numbers_and_more_narrow_ones(dtype, place):
    assert early(summed(ld("X", "r", C, t=dtype), "r", X=tensor("X", "M", "N", t=dtype))) == [place]


def test_what_other_iterations_read_again_is_in_a_cache_by_then():
    assert early(summed(ap("mul", ld("X", "r", C), ld("b", C)), "r")) == ["X[r, c_c + c_v + 1024]"]
    assert early(summed(ld("X", "r", C), "q", "r")) == []


def test_of_neighbours_the_last_is_asked_for():
    both = ap("add", ld("X", "r", C + 1), ap("add", ld("X", "r", C), ld("X", A("r", 1), C)))
    assert early(summed(both, "r")) == ["X[r, c_c + c_v + 1025]", "X[r + 1, c_c + c_v + 1024]"]


def test_of_several_long_rows_each_is_asked_for_nearer():
    long = {"X": tensor("X", "N"), "Y": tensor("Y", "N")}
    both = ap("mul", ld("X", C), ld("Y", C))
    body = strip("c", 64, "N", st(PART, both, "add"))
    assert early(nest([*long.values(), reg("part", 64)], [body])) == ["X[c_c + c_v + 256]", "Y[c_c + c_v + 256]"]
    assert early(summed(ap("mul", ld("X", "r", C), ld("Y", "r", C)), "r")) == ["X[r, c_c + c_v + 1024]", "Y[r, c_c + c_v + 1024]"]


@pytest.mark.parametrize(("abreast", "vector", "dtype", "more"), [
    (4, True, F32, "max(256, min(1024, -N + 2304))"), (4, True, F64, "max(128, min(512, -N + 1152))"),
    (3, True, F32, "1024"), (4, False, F32, "1024")])
def test_of_rows_abreast_that_are_multiplied_by_a_vector_long_ones_are_asked_for_nearer(abreast, vector, dtype, more):
    """Rows of 8 KB and more 1 KB ahead, which is as far as four of them leave the first cache room; short ones as any."""
    x, v, part = ld("X", A("r", "p"), C, t=dtype), ld("b", C, t=dtype), ld("part", "p", "c_v", t=dtype)
    body = strip("c", 64, "N", st(part, ap("mul", x, v) if vector else x, "add"))
    buffers = [tensor("X", "M", "N", t=dtype), tensor("b", "N", t=dtype), reg("part", abreast, 64, t=dtype)]
    n = nest(buffers, [loop("r", "M", rows("p", abreast, None, body), step=abreast)], sizes=("M", "N"))
    assert early(n) == [f"X[p + r, c_c + c_v + {more}]"]


def test_how_far_ahead_and_into_which_cache_is_the_processors_own():
    own = HINTS["znver4"]
    alone, vector = summed(ld("X", "r", C), "r"), ld("b", C)
    assert early(alone, own) == ["X[r, c_c + c_v + 256]"] != early(alone)
    assert "+ 256]  (cache 2)" in str(read_ahead(alone, own)) and "(cache" not in str(read_ahead(alone))
    body = strip("c", 64, "N", st(ld("part", "p", "c_v"), ap("mul", ld("X", A("r", "p"), C), vector), "add"))
    buffers = [tensor("X", "M", "N"), tensor("b", "N"), reg("part", 4, 64)]
    rows_abreast = nest(buffers, [loop("r", "M", rows("p", 4, None, body), step=4)], sizes=("M", "N"))
    assert early(rows_abreast, own) == ["X[p + r, c_c + c_v + max(512, min(2048, -N + 2560))]"]


def test_zen_3_is_asked_nearer_for_what_lies_side_by_side_and_as_usual_for_what_lies_alone():
    own = HINTS["znver3"]
    x, y = ld("X", A("c_c", "c_v")), ld("Y", A("c_c", "c_v"))
    flat = {"X": tensor("X", "N"), "Y": tensor("Y", "N")}
    both = nest([*flat.values(), reg("part", 64)], [strip("c", 64, "N", st(PART, ap("mul", x, y), "add"))], sizes=("N",))
    assert early(both, own) == ["X[c_c + c_v + 64]", "Y[c_c + c_v + 64]"] != early(both)
    assert early(summed(ld("X", "r", C), "r"), own) == early(summed(ld("X", "r", C), "r"))


@pytest.mark.parametrize(("cache", "locality"), [(1, 3), (2, 2)])
def test_the_instruction_names_the_cache(cache, locality):
    o = instantiate(parse(Source("<test>", "op f(X: f32[M, N]) -> (Y: f32[M]) { Y[m] += X[m, n] }")), "f")
    text = compile_op(o, contiguous(o), replace(V4, hints=replace(USUAL_HINTS, cache=cache)), Options()).module.text
    calls = [x for x in text.splitlines() if "call void @llvm.prefetch" in x]
    assert calls and all(f"i32 0, i32 {locality}, i32 1" in x for x in calls)


def test_of_tensors_that_caches_hold_what_is_read_now_is_asked_for_where_the_processor_wants_that():
    o = instantiate(parse(Source("<test>", "op f(X: f32[M, N]) -> (Y: f32[M]) { Y[m] += X[m, n] }")), "f")

    def text(least):
        return compile_op(o, contiguous(o), replace(V4, hints=replace(USUAL_HINTS, least=least)), Options()).module.text

    made = read_ahead(summed(ld("X", "r", C), "r"), replace(USUAL_HINTS, least=3 << 20))
    assert [(x.least, x.ahead) for x in walk(made.body) if isinstance(x, Prefetch)] == [(3 << 20, affine(1024))]
    back = r"select i1 %\w+, i64 0, i64 -1024"
    assert re.search(rf"icmp sge i64 %\w+, {3 << 18}\b", text(3 << 20)) and re.search(back, text(3 << 20))  # 3 MB of f32
    assert not re.search(back, text(0))


def test_what_few_rows_share_is_asked_for_by_each_tile_of_them():
    """Not these rows, which all columns read again."""
    step = st(ld("part", "q", "p", "c_v"), ap("mul", ld("X", A("r", "p"), C), ld("Y", A("m", "q"), C)), "add")
    tile = rows("p", 4, None, rows("q", 4, None, strip("c", 64, "N", step)))
    found = nest([tensor("X", "M", "N"), tensor("Y", "K", "N"), reg("part", 4, 4, 64)],
                 [loop("r", "M", loop("m", "K", tile, step=4), step=4)], sizes=("M", "N", "K"))
    assert early(found) == ["X[p + r, c_c + c_v + max(256, min(1024, -N + 2304))]"]


def test_what_no_row_of_a_tile_has_of_its_own_is_not_asked_for():
    step = st(ld("part", "p", "c_v"), ap("mul", ld("X", "b", A("r", "p"), C), ld("Y", "b", C)), "add")
    tile = loop("r", "M", rows("p", 4, None, strip("c", 64, "N", step)), step=4)
    buffers = [tensor("X", "B", "M", "N"), tensor("Y", "B", "N"), reg("part", 4, 64)]
    assert all(x.startswith("X[") for x in early(nest(buffers, [loop("b", "B", tile)], sizes=("B", "M", "N"))))


def test_what_an_earlier_statement_asked_for_is_not_asked_for_again():
    first, other = strip("c", 64, "N", st(PART, ld("X", "r", C), "max")), ap("mul", ld("X", "r", C), ld("Y", "r", C))
    second = strip("c", 64, "N", replace(st(PART, other, "add"), stmt="second"))
    n = summed(ld("X", "r", C), "r")
    assert early(replace(n, body=(loop("r", "M", first, second),))) == ["X[r, c_c + c_v + 1024]", "Y[r, c_c + c_v + 1024]"]


def test_lanes_that_lie_apart_ask_for_nothing():
    assert early(summed(ld("X", C, "r"), "r")) == []
    assert early(summed(ld("X", "r", (C + C)), "r")) == []
    assert early(summed(ld("X", "r", C), "r", X=tensor("X", "M", "N", unit=None))) == []


def test_what_also_writes_memory_keeps_up_without():
    n = nest([tensor("X", "N"), tensor("Y", "N")], [strip("c", 64, "N", st(ld("Y", C), ld("X", C)))])
    assert read_ahead(n) == n


def test_what_stands_at_a_place_of_its_own_in_each_row_in_lock_step_is_left():
    inside = strip("c", 64, "N", rows("p", 4, None, st(ld("part", "p", "c_v"), ld("X", A("r", "p"), C), "add")))
    n = nest([tensor("X", "M", "N"), reg("part", 4, 64)], [loop("r", "M", inside, step=4)], sizes=("M", "N"))
    assert read_ahead(n) == n


def test_asking_early_keeps_what_a_nest_computes():
    n = summed(ld("X", "r", C), "r")
    y = ld("Y", 0, C)
    n = nest(n.buffers, [strip("c", 64, "N", st(PART, y)), *n.body, strip("c", 64, "N", st(y, PART))], sizes=n.sizes)
    sizes = {"M": 3, "N": 40}
    first = make_arrays(n, sizes, np.random.default_rng(0))
    second = {k: x.copy() for k, x in first.items()}
    interpret(n, sizes, {}, first)
    interpret(read_ahead(n), sizes, {}, second)
    np.testing.assert_array_equal(first["Y"], second["Y"])


@pytest.mark.parametrize(("place", "asked"), [(A("q", "s"), 0), (A("q"), 1)])
def test_a_window_is_short_and_its_filter_stays_in_a_cache(place, asked):
    acc = ld("acc", "q", "v")
    body = st(acc, ap("mul", ld("X", place, "v"), ld("F", "s", "v")), "add")
    n = nest([tensor("X", "M", 16), tensor("F", "N", 16), reg("acc", 4, 16)],
             [lanes("v", 16, None, loop("s", "N", rows("q", 4, None, body)))], sizes=("M", "N"))
    assert sum(isinstance(x, Prefetch) and x.place.source == "F" for x in walk(prefetch_tiles(n, 16).body)) == asked
