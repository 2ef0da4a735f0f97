"""Vectors are half as wide where tensors are moved and hardly computed, on machines whose L2 is large and slow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyop.codegen.cpu.weight import vector_width
from polyop.codegen.x86 import emit
from polyop.ir.dtypes import BF16, F32, F64, I32
from polyop.ir.options import Options
from polyop.ir.registers import SLOW
from tests.codegen.harness import V4, check, load, wide
from tests.codegen.nests import A, ap, ld, loop, nest, rows, st, strip, tensor

I = A("i_c", "i_v")
FAR = replace(V4, l2=SLOW)


def sums(t=F32, expr=None, **more):
    """Z[i] = X[i] + Y[i], or what else is given."""
    expr = expr or ap("add", ld("X", I, t=t), ld("Y", I, t=t), t=t)
    row = strip("i", 64, "N", st(ld("Z", I, t=t), expr, **more))
    return nest([tensor(x, "M", t=t) for x in "XY"] + [tensor("Z", "N", t=t)], [row], ("M", "N"))


@pytest.mark.parametrize(("t", "lanes"), [(F32, 16), (I32, 16), (F64, 8)], ids=str)
def test_tensors_that_are_moved_and_hardly_computed_take_halves_where_l2_is_slow(t, lanes):
    assert (vector_width(sums(t), FAR), vector_width(sums(t), V4)) == (lanes // 2, lanes)


@pytest.mark.parametrize("expr", [
    ld("X", I),
    ap("exp", ld("X", I)),
    ap("add", ld("X", I), ld("X", A(I, 1))),
    ap("neg", ld("X", A((2, "i_c"), (2, "i_v")))),
    ap("neg", ld("X", I, guard=(A(I, -1),))),
    ap("neg", ld("X", ld("at", I, t=I32))),
    ap("neg", ld("X", 0)),
], ids=["copied", "a function", "overlapping", "apart", "guarded", "at computed places", "one number"])
def test_what_else_lanes_do_takes_whole_vectors(expr):
    assert vector_width(sums(expr=expr), FAR) == 16


def test_sums_narrow_numbers_and_squares_take_whole_vectors():
    assert vector_width(sums(reduce="add"), FAR) == 16 == vector_width(sums(BF16), FAR)
    square = strip("i", 16, "N", rows("p", 16, None, st(ld("Z", I), ap("neg", ld("X", I)))))
    assert vector_width(nest([tensor("X", "N"), tensor("Z", "N")], [square]), FAR) == 16


@wide
@pytest.mark.parametrize("t", [F32, F64], ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_rows_of_all_lengths_are_those_of_the_interpreter(t, stream):
    for past in (0, 1 << 40) if stream else (0,):
        made = replace(FAR, stream_bytes=past)
        n = sums(t, stream=stream)
        module = emit(n, made, Options())
        assert f"<{32 // t.bytes_} x" in module.text and f"<{64 // t.bytes_} x" not in module.text
        kernel = load(module, made)
        for length in (0, 1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 255, 257, 1031):
            check(n, {"M": length + 1, "N": length}, made, kernel=kernel)


def test_rows_beside_others_may_be_short_and_take_whole_vectors():
    row = strip("i", 64, "N", st(ld("Z", "m", I), ap("mul", ld("X", "m", I), ld("X", "m", 0)), stream=True))
    n = nest([tensor("X", "M", "N"), tensor("Z", "M", "N")], [loop("m", "M", row)], ("M", "N"))
    assert vector_width(n, FAR) == 16
