"""Rows that are only written are cut into vectors where their addresses are aligned, and end with one that reaches back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st_

from polyop.codegen.cpu.passes import split_full_tiles
from polyop.codegen.cpu.runs import is_run
from polyop.codegen.llvm.runs import FAR, SPLIT
from polyop.codegen.x86 import emit
from polyop.ir.dtypes import F32, F64, I8, I16, I64
from polyop.ir.expr import Affine, Const, Number, quasi
from polyop.ir.interpret import interpret
from polyop.ir.loops import For, Kind, LoopNest, structure
from polyop.ir.options import Options
from tests.codegen.harness import RUNNABLE, V4, check, load, random_array, wide
from tests.codegen.nests import A, ap, ld, loop, nest, st, strip, tensor, when
from tests.codegen.test_structure import Pool

I = A("i_c", "i_v")
X, Y, HERE = tensor("X", "N"), tensor("Y", "N"), ld("Y", I)
each_target = pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
LENGTHS = (0, 1, 3, 7, 8, 15, 16, 17, 31, 33, 47, 48, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 257, 300)


def copies(t=F32, extent=64, at="S") -> LoopNest:
    """Y[m, S + i] = X[m, i], where rows of both are longer than that."""
    row = strip("i", extent, "N", st(ld("Y", "m", A(I, at), t=t), ld("X", "m", I, t=t), stream=True))
    return nest([tensor("X", "M", "K", t=t), tensor("Y", "M", "L", t=t)], [loop("m", "M", row)], ("K", "L", "M", "N", "S"))


def only(n: LoopNest) -> For:
    found = n.body[0]
    while isinstance(found, For) and not is_run(n, found) and isinstance(found.body[0], For):
        found = found.body[0]
    assert isinstance(found, For)
    return found


def runs(target: For, buffers=(X, Y)) -> bool:
    return is_run(nest(buffers, [target]), target)


def copy(expr, target=HERE, **more) -> For:
    return strip("i", 64, "N", st(target, expr, **{"stream": True, **more}))


def test_a_row_that_is_only_written_is_a_run_and_stays_one_loop():
    n = copies()
    assert is_run(n, only(n)) and structure(split_full_tiles(n, 16).body) == "m(i_c(i_v:lanes(s)))"


@pytest.mark.parametrize("other", [
    copy(ld("X", I), stream=False),
    copy(ld("X", I, guard=(A("i_v", "i_c"),))),
    copy(ld("X", quasi("div", I, Affine(const=2)))),
    copy(ld("X", A("i_c"))),
    copy(ld("X", A("i_c", (2, "i_v")))),
    copy(ld("X", I), target=ld("Y", A(I, "i_c", "i_v"))),
    copy(ap("select", ap("lt", ld("X", I), Const(0.0, F32)), Const(1.0, F32), ld("X", I))),
    copy(Number(A("i_v"), F32)),
    strip("i", 64, "N", st(ld("Y", I), ld("X", I), stream=True), st(ld("Y", I), ld("X", I), stream=True)),
    loop("i_c", "N", when([A("i_c")], [copy(ld("X", I))])),
], ids=["read again", "guarded", "halved", "of the tile", "other steps", "twice", "chosen", "of the lane", "two", "a test"])
def test_what_depends_on_more_than_where_a_row_is_is_none(other):
    assert not runs(other)


def test_a_row_that_is_made_of_what_it_writes_is_none_whatever_the_hint_says():
    assert not runs(copy(ld("Y", A(I, 1))))
    aliased = replace(nest([X, Y], [copy(ld("X", I))]), in_place=(("X", "Y"),))
    assert not is_run(aliased, aliased.body[0])


RUNS = [
    ld("X", I),
    Number(I, F32),
    ap("add", ld("X", I), ap("mul", ld("X", A(I, 3)), ld("c"))),
    ap("sub", ld("X", ld("at", I, t=I64)), Number(A((3, "i_c"), (3, "i_v")), F32)),
    ld("X", A((2, "i_c"), (2, "i_v"))),
]


@pytest.mark.parametrize("expr", RUNS, ids=str)
@settings(max_examples=25, deadline=None)
@given(length=st_.integers(0, 40), cuts=st_.lists(st_.tuples(st_.integers(0, 40), st_.integers(1, 16)), max_size=4))
def test_a_run_may_be_cut_into_any_vectors_even_if_they_overlap(expr, length, cuts):
    row = strip("i", 16, "N", st(HERE, expr, stream=True))
    n = nest([tensor("X", 99), tensor("at", 99, t=I64), tensor("c"), Y], [row])
    assert is_run(n, row)
    vectors = [(a, min(a + w, length)) for a, w in cuts] + [(a, min(a + 7, length)) for a in range(0, length, 7)]
    other = replace(n, body=tuple(piece(row, a, b) for a, b in vectors if a < b))
    found = []
    for m in (n, other):
        y = np.zeros(length, np.float32)
        given_ = {"X": np.arange(99, dtype=np.float32) ** 2, "at": np.arange(99)[::-1].copy(), "c": np.full((), 2, np.float32)}
        interpret(m, {"N": length}, {}, given_ | {"Y": y})
        found.append(y)
    np.testing.assert_array_equal(*found)


def piece(row: For, begin: int, end: int) -> For:
    """One vector of `row` from `begin` on."""
    (vector,) = row.body
    body = replace(vector, upper=Affine(const=end - begin))
    return replace(row, lower=Affine(const=begin), upper=Affine(const=begin + 1), step=1, body=(body,))


def test_a_result_whose_unit_stride_is_not_known_is_none():
    assert not runs(copy(ld("X", I)), (X, tensor("Y", "N", unit=None)))


@each_target
@pytest.mark.parametrize("t", [F32, F64, I8, I16], ids=lambda t: t.name)
@pytest.mark.parametrize("past", [False, True])
def test_rows_of_all_lengths_and_beginnings_are_written_and_nothing_beside_them(target, t, past):
    made = replace(target, stream_bytes=0 if past else 1 << 40)
    n = copies(t)
    kernel = load(emit(n, made, Options()), made)
    far = FAR // t.bytes_
    for length in (*LENGTHS, *((far - 1, far, far + 77) if past else ())):
        for begin in (0, 1, 5):
            sizes = {"N": length, "M": 2, "K": length + 2, "L": length + begin + 3, "S": begin}
            check(n, sizes, made, kernel=kernel)


@each_target
def test_functions_past_the_caches_ask_for_what_they_read_early_and_compute_the_same(target):
    made, n = replace(target, stream_bytes=0), nest([X, Y], [copy(ap("exp", ld("X", I)))])
    assert is_run(n, n.body[0])
    kernel = load(emit(n, made, Options()), made)
    for length in (*LENGTHS, FAR // 4 - 1, FAR // 4, FAR // 4 + 77):
        check(n, {"N": length}, made, kernel=kernel, rtol=1e-6)


def test_of_runs_only_functions_past_the_caches_ask_for_what_they_read_early():
    def asked(expr) -> int:
        return emit(nest([X, Y], [copy(expr)]), V4, Options()).text.count("call void @llvm.prefetch")

    assert asked(ap("exp", ld("X", I))) == 5  # of four vectors, and of one
    assert asked(ap("mul", ld("X", I), ap("exp", ld("X", A(I, 1))))) == 5  # neighbours lie in one line
    assert asked(ld("X", I)) == asked(ap("add", ld("X", I), ld("X", A(I, 3)))) == asked(ap("exp", Number(I, F32))) == 0


@each_target
def test_what_is_computed_may_be_a_number_or_a_sum(target):
    made = replace(target, stream_bytes=0)
    for expr in (Number(I, F32), ap("add", ld("X", I), ap("mul", ld("X", A(I)), Const(2.0, F32)))):
        n = nest([X, Y], [copy(expr)])
        assert is_run(n, n.body[0])
        for length in LENGTHS:
            check(n, {"N": length}, made)


@pytest.mark.parametrize("string", [0, 256])
@pytest.mark.parametrize(("wide", "high"), [(40, 40), (41, 40), (40, 43)])
def test_runs_that_follow_each_other_in_memory_are_one(wide, high, string):
    made = replace(V4, string_bytes=string)
    if V4 not in RUNNABLE:
        pytest.skip("no such vectors here")
    n = copies()
    kernel = load(emit(n, made, Options()), made)
    for rows in (0, 1, 2, 30):
        check(n, {"N": 40, "M": rows, "K": wide, "L": high, "S": 0}, made, kernel=kernel)


@each_target
def test_runs_that_count_from_their_own_beginning_are_not_one(target):
    here = ld("Y", "m", I)
    for expr in (Number(I, F32), ap("add", ld("X", "m", I), Number(I, F32))):
        row = strip("i", 64, "N", st(here, expr, stream=True))
        n = nest([tensor("X", "M", "N"), tensor("Y", "M", "N")], [loop("m", "M", row)], ("M", "N"))
        for rows in (1, 3):
            check(n, {"N": 40, "M": rows}, target)


@wide
def test_long_rows_are_asked_where_they_begin_though_they_stay_in_the_caches():
    text = emit(copies(), replace(V4, stream_bytes=1 << 60, string_bytes=0), Options()).text
    assert any("icmp sge" in x and x.endswith(f", {SPLIT * 16}") for x in text.splitlines())


@pytest.mark.parametrize("behind", [0, 1, 16, 63, 64, 65, 4095])
def test_long_rows_are_copied_by_a_string_instruction(behind):
    made = replace(V4, string_bytes=8192)
    n = copies(I8, 256)
    module = emit(n, made, Options())
    assert "rep movsb" in module.text and "rep movsb" not in emit(n, V4, Options()).text
    kernel = load(module, made)
    rng = np.random.default_rng(behind)
    room = np.zeros(1 << 16, np.int8)
    start = -room.ctypes.data % 4096
    for length in (8191, 8192, 9001):
        x = room[start + 5: start + 5 + length].reshape(1, -1)
        x[...] = random_array(rng, I8, x.shape)
        begin = start + 20480 + 5 + behind
        y = room[begin: begin + length].reshape(1, -1)
        kernel({"N": length, "M": 1, "K": length, "L": length, "S": 0}, {}, {"X": x, "Y": y})
        np.testing.assert_array_equal(x, y)
        assert not room[begin - 3: begin].any() and not room[begin + length: begin + length + 3].any()


@each_target
def test_parts_of_a_run_that_threads_share_end_where_it_ends(target):
    made, pool = replace(target, stream_bytes=0), Pool()
    row = replace(copy(ld("X", I)), kind=Kind.PARALLEL)
    several = replace(copy(ld("X", "m", I), target=ld("Y", "m", I)), kind=Kind.PARALLEL)
    matrices = [tensor("X", "M", "N"), tensor("Y", "M", "N")]
    for n in (nest([X, Y], [row]), nest(matrices, [loop("m", "M", several, parallel=True)], ("M", "N"))):
        kernel = load(emit(n, made, Options(threads=True)), made)
        for length in LENGTHS:
            check(n, {"M": 3, "N": length}, made, kernel=kernel, parallel=pool.address, threads=3)
    assert pool.calls


def test_rows_at_computed_places_are_runs_too():
    row = strip("i", 16, "N", st(ld("Y", "m", I), ld("X", ld("at", "m", t=I64), I), stream=True))
    n = nest([tensor("X", "M", "N"), tensor("at", "M", t=I64), tensor("Y", "M", "N")], [loop("m", "M", row)], ("M", "N"))
    assert is_run(n, only(n))
    rng = np.random.default_rng(1)
    for target in RUNNABLE:
        for length in LENGTHS:
            x, y = random_array(rng, F32, (4, length)), np.zeros((4, length), np.float32)
            arrays = {"X": x, "at": np.array([3, 0, 3, 1]), "Y": y}
            check(n, {"M": 4, "N": length}, target, arrays=arrays)
