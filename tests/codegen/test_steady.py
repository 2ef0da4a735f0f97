"""Functions of registers that a loop does not write stand before it."""

import numpy as np
import pytest

from polyop.codegen.llvm.steady import steady
from polyop.ir.expr import Number
from tests.codegen.harness import RUNNABLE, check, compiled
from tests.codegen.nests import A, ap, ld, loop, nest, reg, st, strip, tensor

I = A("i_c", "i_v")
X, TOP = ld("x", I), ld("top")
LOG = ap("log", TOP)


def rows(e, *inside):
    """Of each row, `e` for its elements."""
    body = [st(TOP, ld("t", "r")), strip("i", 32, "N", st(ld("y", "r", I), e), *inside)]
    buffers = [tensor("x", "N"), tensor("t", "M"), tensor("y", "M", "N"), reg("top")]
    return nest(buffers, [loop("r", "M", *body)], sizes=("M", "N"))


def of_loop(n):
    return steady(n, n.body[0].body[1])


def test_a_long_function_of_registers_is_steady_in_a_loop_that_does_not_write_them():
    assert of_loop(rows(ap("sub", X, ap("mul", LOG, LOG)))) == (LOG,)
    assert of_loop(rows(ap("sub", X, ap("exp", LOG)))) == (ap("exp", LOG),)


@pytest.mark.parametrize("e", [
    ap("add", X, TOP),
    ap("log", X),
    ap("log", ap("add", TOP, X)),
    ap("log", ap("mul", TOP, ap("cast", Number(A("i_c"), TOP.dtype)))),
    ap("log", ld("t", "r")),
], ids=["short", "of elements", "of both", "of the loop's index", "of memory"])
def test_what_is_short_or_changes_is_not(e):
    assert of_loop(rows(e)) == ()


def test_what_the_loop_writes_is_not():
    assert of_loop(rows(ap("sub", X, LOG), st(TOP, X, "max"))) == ()


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
def test_what_is_computed_ahead_is_the_same(target):
    n = rows(ap("sub", X, ap("mul", LOG, ap("exp", ap("add", LOG, X)))))
    k = compiled(n, target)
    for size in (0, 1, 31, 33, 100):
        rng = np.random.default_rng(size)
        arrays = {"x": rng.random(size, np.float32), "t": rng.random(3, np.float32) + 1, "y": np.zeros((3, size), np.float32)}
        check(n, {"M": 3, "N": size}, arrays=arrays, kernel=k, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
def test_a_value_of_one_loop_is_not_taken_in_the_next(target):
    body = [st(TOP, ld("t", "r")), strip("i", 32, "N", st(ld("y", "r", I), ap("sub", X, LOG))), st(TOP, ap("add", TOP, TOP)),
            strip("j", 32, "N", st(ld("y", "r", A("j_c", "j_v")), ap("add", ld("y", "r", A("j_c", "j_v")), LOG)))]
    n = nest([tensor("x", "N"), tensor("t", "M"), tensor("y", "M", "N"), reg("top")], [loop("r", "M", *body)], sizes=("M", "N"))
    rng = np.random.default_rng(1)
    arrays = {"x": rng.random(50, np.float32), "t": rng.random(3, np.float32) + 1, "y": np.zeros((3, 50), np.float32)}
    check(n, {"M": 3, "N": 50}, arrays=arrays, kernel=compiled(n, target), rtol=1e-5, atol=1e-5)
