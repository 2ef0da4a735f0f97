"""Data that point outside a tensor, and operators that are evaluated because they have no code."""

import numpy as np
import pytest

from polyop.ir.dtypes import F32, I64
from polyop.ir.errors import CallError
from polyop.ir.expr import Load, affine
from polyop.ir.op import Op, Step
from polyop.runtime import cpu, outside
from polyop.runtime.bind import bind
from polyop.runtime.interpreted import Interpreted
from polyop.runtime.kernel import kernel
from tests.runtime import modules
from tests.runtime.modules import ranges, read, tensor

AT = Load("E", (read("ids", "b", dtype=I64), affine("d")), F32)
TAKE = Op("take", (tensor("ids", "in", "B", dtype=I64), tensor("E", "in", "V", "D"), tensor("Y", "out", "B", "D")), (),
          ("B", "D", "V"),
          (Step(read("Y", "b", "d"), None, AT, ranges(b="B", d="D")),))
TILED = Load("E", (read("ids", "b_t", dtype=I64), affine("d_t") + affine("d_v")), F32)


def bound(*ids):
    return bind(TAKE, {"ids": np.array(ids), "E": np.zeros((5, 2), np.float32)})


def text(e):
    return f"{e.diagnostic.code}: {e.diagnostic.message}"


def test_the_first_element_that_points_outside_is_named():
    assert text(outside.report(bound(0, 7, -1), TILED)) == "E610: ids[1] = 7 reads outside `E`, which has V = 5 rows"


def test_where_looking_again_would_be_slow_the_range_of_the_data_is_told(monkeypatch):
    monkeypatch.setattr(outside, "_SLOW", 0)
    assert text(outside.report(bound(0, 7, -1), TILED)) == \
        "E610: `E[ids[b], d]` reads outside `E`, which has V = 5 rows; `ids` has values from -1 to 7"


def test_a_status_that_is_not_0_raises_for_its_site():
    text_ = "define i64 @take(ptr %args) {\n  ret i64 1\n}"
    k = kernel(cpu.assemble(modules.module(TAKE, text_, (TILED,)), cpu.host()))
    with pytest.raises(CallError, match=r"ids\[1\] = 7 reads outside `E`, which has V = 5 rows"):
        k(bound(0, 7))


def test_an_operator_without_code_is_evaluated():
    b = bound(4, 0)
    b.views["E"].owner[4] = [1, 2]
    assert Interpreted(TAKE, ())(b).tolist() == [[1, 2], [0, 0]]
    with pytest.raises(CallError, match=r"ids\[0\] = 5 reads outside `E`"):
        Interpreted(TAKE, ())(bound(5))


def test_an_evaluated_inout_is_written_in_place():
    op = Op("reverse", (tensor("X", "in", "N"), tensor("X_out", "out", "N")), (), ("N",),
            (Step(read("X_out", "i"), None, read("X", affine("N") - affine("i") - 1), ranges(i="N")),), updates=(("X", "X_out"),))
    x = np.arange(4, dtype=np.float32)
    assert Interpreted(op, ())(bind(op, {"X": x})) is x
    assert x.tolist() == [3, 2, 1, 0]
