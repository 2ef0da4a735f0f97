"""Lanes with functions are written vector by vector where registers are few."""

from itertools import pairwise

import pytest

from polyop.codegen.x86 import emit
from polyop.ir.options import Options
from tests.codegen.harness import RUNNABLE, V3, V4, check
from tests.codegen.nests import A, ap, lanes, ld, loop, nest, st, tensor

AT = A("i_c", "i_v")


def two(fn: str):
    """y[i] = fn(x[i]); z[i] = y[i] x[i], for 192 elements, 64 at a time."""
    first, second = st(ld("y", AT), ap(fn, ld("x", AT))), st(ld("z", AT), ap("mul", ld("y", AT), ld("x", AT)))
    strips = loop("i_c", 192, lanes("i_v", 64, 64, first, second), step=64)
    return nest([tensor("x", 192), tensor("y", 192), tensor("z", 192)], [strips], sizes=())


@pytest.mark.parametrize(("target", "fn", "functions"), [(V3, "exp", [1, 0, 1, 0]), (V3, "sqrt", [1] * 4), (V4, "exp", [1] * 4)])
def test_a_vector_is_used_before_the_next_one_is_computed_where_registers_are_few(target, fn, functions):
    """How often a function stands before the first store of a vector, between that and the second one, and so on."""
    lines = emit(two(fn), target, Options()).text.splitlines()
    places = [0, *(k for k, x in enumerate(lines) if f"store <{target.vector_bytes // 4} x float>" in x)][:5]
    own = "0x3FF7154760000000" if fn == "exp" else "@llvm.sqrt"
    assert [sum(own in x for x in lines[a:b]) for a, b in pairwise(places)] == functions


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
def test_written_so_it_does_the_same(target):
    check(two("exp"), {}, target=target)
