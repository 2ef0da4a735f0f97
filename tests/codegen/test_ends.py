"""What only the first or last steps of a loop choose otherwise is done before and behind it."""

from __future__ import annotations

import islpy as isl
import pytest

from polyop.codegen.cpu.ends import cut_ends
from polyop.codegen.cpu.lower import rewrites
from polyop.ir.expr import Const, Test
from polyop.ir.loops import If, stores, walk
from polyop.poly.verify.rewrites import follows
from tests.codegen.harness import RUNNABLE, check
from tests.codegen.nests import F32, A, ap, ld, loop, nest, reg, st, tensor

C, X, FIRST = ld("c"), ld("x", "n"), Test((A("n") - 1,))
STEP = st(C, ap("mul", ap("select", FIRST, C, Const(1.0, F32)), X))
each_target = pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)


def running(*steps):
    body = [st(C, Const(0.0, F32)), loop("n", "N", *steps)]
    return nest([tensor("x", "N"), tensor("y", "N"), reg("c")], body, sizes=("N", "K"))


def product():
    return running(STEP, st(ld("y", "n"), C))


def test_the_step_after_which_the_choice_is_another_is_apart():
    n = rewrites(product(), 16)
    assert not any("?" in str(s.expr) for s in stores(n.body))
    assert follows(product(), n, isl.Set("[N, K] -> { : N >= 0 and K >= 0 }")).holds


def test_a_choice_that_other_things_decide_stays():
    for test in (Test((A("K") - 1,)), Test((A("n") * 2 - A("K"),))):
        n = running(st(ld("y", "n"), ap("select", test, X, Const(1.0, F32))))
        assert not any(isinstance(x, If) for x in walk(cut_ends(n).body))


@each_target
@pytest.mark.parametrize("size", [0, 1, 2, 17])
def test_a_running_product_comes_out_as_the_interpreter_says(target, size):
    check(product(), {"N": size, "K": 1}, target)
