"""Sums of exponentials by their logarithms: which texts are told to be associative, and their scans on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_texts import compiled

import polyop
from polyop.compiler import Compiled, compile_op
from polyop.ir.dtypes import F32
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Load, affine
from polyop.ir.logsums import is_logaddexp
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import cxx, emulated
from polyop.runtime.layout import contiguous

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

EQUAL, EMPTY = "a == b ? a + 0.6931471805599453 : {}", "max(a, b) == -inf ? -inf : {}"
WAYS = ("max(a, b) + log1p(exp(-abs(a - b)))", "log1p(exp(min(a, b) - max(b, a))) + max(b, a)",
        "max(a, b) + log(exp(a - max(a, b)) + exp(b - max(a, b)))", "a + log(exp(b - a) + exp(a - a))",
        "abs(b - a) + min(a, b) + log1p(exp(-abs(b - a)))", "log(exp(a) + exp(b))")
OTHERS = ("max(a, b) + log1p(exp(abs(a - b)))", "max(a, b) + log1p(exp(-abs(a + b)))", "min(a, b) + log1p(exp(-abs(a - b)))",
          "max(a, b) + log(exp(-abs(a - b)))", "max(a, b) + log1p(exp(-abs(a - b))) + a", "log(exp(a) + exp(a))", "max(a, b)")


def told(body: str) -> bool:
    """Whether the function of two elements is told to be log(exp(a) + exp(b))."""
    o = polyop.op(f"fn f(a, b) = {body}\nop t(A: f32[N], B: f32[N]) -> (Y: f32[N]) {{ Y[n] = f(A[n], B[n]) }}")
    a, b = (Load(x, (affine("n"),), F32) for x in "AB")
    return is_logaddexp(o._op(o.choice()).steps[0].expr, a, b)


def summed(options: Options | None = None, on: str = "cuda:sm_80", dtype: str = "f32") -> Compiled:
    o = polyop.library("logcumsumexp")
    op = o._op(o.choice(dtypes={"T": dtype}))
    return compile_op(op, contiguous(op), target(on), options or Options())


def ran(c: Compiled, x: np.ndarray, order: str = "forward") -> np.ndarray:
    assert c.module and c.rung == "tuned" and "scanned" in str(c.chosen)
    arrays = {"X": x, "Y": np.zeros_like(x)}
    report = emulated.run(c.module, {"dim0": x.shape[0], "N": x.shape[1]}, {}, arrays, order=order)
    assert str(report) == "no fault found"
    return arrays["Y"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("test", [EQUAL, EMPTY])
def test_a_logarithm_of_a_sum_of_two_exponentials_is_told_however_it_is_written(way: str, test: str) -> None:
    assert told(test.format(way))


@pytest.mark.parametrize("body", [*map(EQUAL.format, OTHERS), *WAYS, "a == b ? a + 0.7 : " + WAYS[0], "a == b ? b : " + WAYS[0],
                                  "min(a, b) == -inf ? -inf : " + WAYS[0], "max(a, b) == -inf ? 0 : " + WAYS[0]])
def test_nothing_else_is_told_so_nor_what_knows_no_empty_sum(body: str) -> None:
    assert not told(body)


@pytest.mark.parametrize("on", ["cuda:sm_80", "hip:gfx942", "hip:gfx1100"])
def test_threads_share_a_row_of_logarithms(on: str) -> None:
    c, g = summed(on=on), np.random.default_rng(0)
    for n, order in ((1, "forward"), (9, "backward"), (33, "shuffled"), (1025, "backward"), (2200, "forward")):
        x = g.uniform(-40, 40, (3, n)).astype(np.float32)
        np.testing.assert_allclose(ran(c, x, order), np.logaddexp.accumulate(x.astype(float), 1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("options", [Options(), Options(apart=True)])
def test_empty_sums_and_infinite_ones_stay_what_they_are(options: Options) -> None:
    x = np.random.default_rng(1).uniform(-4, 4, (4, 4100)).astype(np.float32)
    x[0, :1500] = x[1] = -np.inf
    x[2, 700] = np.inf
    x[3, ::2] = -np.inf
    np.testing.assert_allclose(ran(summed(options), x), np.logaddexp.accumulate(x.astype(float), 1), rtol=1e-4, atol=1e-4)


def test_strict_numerics_add_up_in_the_order_of_the_text() -> None:
    assert "scanned" not in str(summed(Options(numerics="strict")).chosen)


def test_a_text_of_ones_own_is_scanned_too() -> None:
    c = compiled("fn lse(a, b) = max(a, b) == -inf ? -inf : max(a, b) + log(exp(a - max(a, b)) + exp(b - max(a, b)))\n"
                 "op f(X: f32[dim0, N]) -> (Y: f32[dim0, N]) { Y[r, n] = lse(X[r, n] * 2, (Y[r, n - 1] else -inf)) }")
    x = np.random.default_rng(2).uniform(-20, 20, (2, 700)).astype(np.float32)
    np.testing.assert_allclose(ran(c, x), np.logaddexp.accumulate(2 * x.astype(float), 1), rtol=1e-5, atol=1e-4)
