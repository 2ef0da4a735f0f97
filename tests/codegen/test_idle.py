"""Updates that change nothing are left out, unless numerics are strict, and the checker follows no other omission."""

from __future__ import annotations

from dataclasses import replace

import islpy as isl
import numpy as np
import pytest

import polyop
from polyop.codegen.cpu.passes import split_full_tiles
from polyop.codegen.cpu.unguard import unguard
from polyop.ir.dtypes import F32
from polyop.ir.expr import Const, Expr, Test
from polyop.ir.idle import idle_without
from polyop.ir.interpret import interpret
from polyop.ir.loops import If, LoopNest, rebuild, walk
from polyop.poly.verify.rewrites import difference
from tests.codegen import nests
from tests.codegen.nests import A, ap, lanes, ld, least, loop, nest, reg, rows, tensor

LANES, ROWS = 8, 3
SIZES = isl.Set("[N, R] -> { : N >= 1 and R >= 1 }")
DOWN, ALONG = A("p", "r", -1), A("q_c", "q_p", "s", -1)
INSIDE = (DOWN, A("N", -1) - DOWN, ALONG, A("N", -1) - ALONG)
X, F = ld("X", DOWN, ALONG, "k", guard=INSIDE), ld("F", "r", "s", "k", "v")


PRODUCT = ap("mul", X, F)


def image(value: Expr = PRODUCT, by: str = "add") -> LoopNest:
    """Y[p, q, v] = the sum over r, s and k of X[p + r - 1, q + s - 1, k] * F[r, s, k, v], in tiles of 3 x 8."""
    acc = ld("acc", "q_p", "v")
    body = rows("q_p", ROWS, least(ROWS, A("N", (-1, "q_c"))), nests.st(acc, value, by))
    start, end = (rows("q_p", ROWS, least(ROWS, A("N", (-1, "q_c"))), x) for x in (
        nests.st(acc, Const(0.0, F32)), nests.st(ld("Y", "p", A("q_c", "q_p"), "v"), acc)))
    tile = lanes("v", LANES, None, start, loop("r", 3, loop("s", 3, loop("k", "R", body))), end)
    buffers = [tensor("X", "N", "N", "R"), tensor("F", 3, 3, "R", LANES), tensor("Y", "N", "N", LANES), reg("acc", ROWS, LANES)]
    return nest(buffers, [loop("p", "N", loop("q_c", "N", tile, step=ROWS))], sizes=("N", "R"))


def results(n: LoopNest, size: int, depth: int, filters: np.ndarray | None = None) -> np.ndarray:
    rng = np.random.default_rng(size)
    f = rng.integers(-9, 9, (3, 3, depth, LANES)).astype(np.float32) if filters is None else filters
    arrays = {"X": rng.integers(-9, 9, (size, size, depth)).astype(np.float32), "F": f,
              "Y": np.zeros((size, size, LANES), np.float32)}
    interpret(n, {"N": size, "R": depth}, {}, arrays)
    return arrays["Y"]


def skips(n: LoopNest) -> int:
    """Tests of which one branch does nothing."""
    return sum(isinstance(x, If) and not x.other and A("p", "r", -1) in x.tests for x in walk(n.body))


@pytest.mark.parametrize(("value", "by", "strict", "count"), [
    (PRODUCT, "add", False, 2), (PRODUCT, "add", True, 0), (X, "add", False, 2), (X, "add", True, 0),
    (ap("add", X, F), "add", False, 0), (PRODUCT, "max", False, 0),
    (ap("select", Test(INSIDE), X, Const(float("-inf"), F32)), "max", True, 2),
    (ap("select", Test(INSIDE), X, Const(-1.0, F32)), "max", False, 0)])
def test_steps_outside_are_left_out_where_they_change_nothing(value, by, strict, count):
    """`count` of the two tiles, one with all its rows and one without."""
    n = split_full_tiles(image(value, by), 4)
    cut = unguard(n, strict)
    assert skips(cut) == count
    assert difference(n, cut, SIZES, strict) is None
    for size, depth in ((1, 1), (2, 3), (3, 2), (7, 1)):
        np.testing.assert_array_equal(results(cut, size, depth), results(n, size, depth))


def test_only_what_is_0_is_left_out():
    n = split_full_tiles(image(), 4)
    cut = unguard(n)
    assert "nothing runs" in (difference(n, cut, SIZES, strict=True) or "")

    def wrong(body):
        """Steps that are asked about once more, of which the last is left out, too."""
        return tuple(replace(x, tests=(*x.tests, A("N", -1) - DOWN - 1)) if isinstance(x, If) and not x.other and DOWN in x.tests
                     else rebuild(x, wrong) for x in body)

    less = replace(cut, body=wrong(cut.body))
    assert less != cut and "nothing runs" in (difference(n, less, SIZES) or "")


def test_updates_that_read_from_a_computed_place_are_all_carried_out():
    """An index from data may be wrong, which a call has to say."""
    s = nests.st(ld("acc", "q_p", "v"), PRODUCT, "add")
    assert idle_without(s, False) == set(INSIDE) and not idle_without(s, True)
    assert not idle_without(replace(s, expr=ap("mul", X, ld("F", ld("I", "r"), "s", "k", "v"))), False)


def test_an_infinite_filter_meets_no_border_unless_numerics_are_strict():
    """`(X[..] else 0) * F[..]` beyond an image: next to nothing for PyTorch, too, but no number as it is written."""
    x, f = np.ones((1, 3, 3, 2), np.float32), np.ones((3, 3, 2, 8), np.float32)
    f[2] = np.inf
    fast, strict = (polyop.library("conv2d_nhwc", options=polyop.Options(numerics=n))(x, f, pad=1) for n in ("fast", "strict"))
    assert np.isinf(fast[0, :2, 1]).all() and np.isfinite(fast[0, 2]).all() and np.isnan(strict[0, 2]).all()
