"""Rows whose powers are added up say how large these and their sum may be, and where NaN need not be looked for."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.forms import Form, rounded
from polyop.ir.dtypes import F32
from polyop.ir.expr import Apply, walk
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.target import target
from polyop.poly.wellformed import check
from polyop.rewrite.sums.capped import capped
from polyop.rewrite.sums.normalised import told_of_rows
from tests.codegen.harness import V3, V4
from tests.rewrite.ops import op

GPU = target("cuda:sm_80")
HEAD = "op f(X: f32[M, N]) -> (Y: f32[M, N]) { top[i] max= X[i, j]; "
SOFTMAX = HEAD + "e[i, j] = exp(X[i, j] - top[i]); z[i] += e[i, j]; Y[i, j] = e[i, j] / z[i] }"
LOG = HEAD + "z[i] += exp(X[i, j] - top[i]); Y[i, j] = X[i, j] - top[i] - log(z[i]) }"
TOLD = {  # how many powers, divisors and maxima are told
    "softmax": (SOFTMAX, 1, 1, 1),
    "softmax, f64": (SOFTMAX.replace("f32", "f64"), 1, 1, 1),
    "powers of two": (SOFTMAX.replace("exp", "exp2"), 1, 1, 1),
    "other letters": (SOFTMAX.replace("z[i] += e[i, j]", "z[a] += e[a, b]").replace("max= X[i, j]", "max= X[i, l]"), 1, 1, 1),
    "down columns": (SOFTMAX.replace("top[i]", "top[j]").replace("z[i]", "z[j]"), 1, 1, 1),
    "log softmax": (LOG, 1, 0, 1),
    "powers that are a result": (SOFTMAX.replace("(Y: f32[M, N])", "(Y: f32[M, N], e: f32[M, N])"), 1, 0, 0),
    "a maximum that is a result": (SOFTMAX.replace("(Y: f32[M, N])", "(Y: f32[M, N], top: f32[M])"), 1, 0, 0),
    "a maximum that is read elsewhere": (SOFTMAX.replace("e[i, j] / z[i]", "e[i, j] / z[i] + (top[i] > 0 ? 1.0 : 0.0)"), 1, 1, 1),
    "a choice by the maximum": (SOFTMAX.replace("e[i, j] / z[i]", "top[i] > 0 ? e[i, j] / z[i] : 0.0"), 1, 1, 0),
    "the sum of another row": (SOFTMAX.replace("e[i, j] / z[i]", "e[i, j] / z[M - 1 - i]"), 1, 1, 0),
    "some columns": (SOFTMAX.replace("z[i] += e[i, j]", "z[i] += e[i, j] where j >= 1"), 1, 0, 0),
    "products": (SOFTMAX.replace("X[i, j]", "X[i, j] * 3"), 1, 0, 0),
    "products kept": (SOFTMAX.replace("X[i, j]", "t[i, j]").replace("top[i] m", "t[i, j] = X[i, j] * 3; top[i] m"), 1, 0, 0),
    "the least": (SOFTMAX.replace("max=", "min="), 0, 0, 0),
    "the greatest of something else": (SOFTMAX.replace("max= X[i, j]", "max= X[i, j] * 2"), 0, 0, 0),
}


def told(o):
    made = told_of_rows(capped(o))
    exprs = [x for s in made.steps for x in walk(s.expr) if isinstance(x, Apply)]
    powers = sum(x.fn in ("exp", "exp2") and len(x.args) > 1 for x in exprs)
    maxima = sum(s.reduce is not None and s.reduce.fn is None for s in made.steps)
    return made, (powers, sum(x.fn == "min" for x in exprs), maxima)


@pytest.mark.parametrize("name", TOLD)
def test_what_is_known_of_rows_is_told_and_changes_no_result(name):
    text, *counts = TOLD[name]
    o = op(text)
    made, found = told(o)
    assert list(found) == counts
    check(made)
    rng = np.random.default_rng(0)
    for m, n in ((1, 1), (3, 4), (2, 0)):
        x = rng.uniform(-200, 100, (m, n)).astype(o.inputs[0].dtype.numpy)
        for bad in (None, np.nan, -np.inf, np.inf) if n else (None,):
            if bad is not None:
                x[m // 2, n // 2] = bad
            with np.errstate(all="ignore"):
                want, got = (evaluate(p, {"M": m, "N": n}, {}, {"X": x}, wide=True) for p in (o, made))
            for k in want:
                np.testing.assert_array_equal(got[k], want[k])


@pytest.mark.parametrize(("text", "where", "bounds"), [
    (SOFTMAX, V3, 1), (SOFTMAX, V4, 1), (SOFTMAX, GPU, 0), (LOG, V3, 2), (LOG, V4, 2), (LOG, GPU, 2)])
def test_processors_are_told_of_all_rows_and_gpus_of_powers_that_may_be_left_out(text, where, bounds):
    steps = rounded(Form(op(text)), Options(), where).op.steps
    assert {len(x.args) - 1 for s in steps for x in walk(s.expr) if isinstance(x, Apply) and x.fn == "exp"} == {bounds}
    assert all(s.reduce is None or s.reduce.fn is not None for s in steps) is (where is GPU)  # a maximum that need not be NaN


@pytest.mark.parametrize("dtype", ("f4", "f8"))
@pytest.mark.parametrize("text", (SOFTMAX, LOG))
@pytest.mark.parametrize("n", (1, 7, 33, 100, 1024))
def test_a_row_with_nan_or_plus_infinity_is_nan_and_others_are_right(n, text, dtype):
    rng = np.random.default_rng(n)
    x = rng.uniform(-130, 0, (6, n)).astype(dtype)
    x[0, n - 1], x[1, 0], x[2, n // 2], x[3] = np.nan, np.inf, -np.inf, -np.inf
    got = polyop.op(text.replace("f32", "f64") if dtype == "f8" else text)(x)
    with np.errstate(all="ignore"):
        wide = x.astype(np.longdouble)
        d = wide - wide.max(1, keepdims=True)
        want = np.exp(d) / np.exp(d).sum(1, keepdims=True) if text is SOFTMAX else d - np.log(np.exp(d).sum(1, keepdims=True))
        want = want.astype(dtype)
    assert np.isnan(got[[0, 1, 3]]).all() and np.isnan(want[[0, 1, 3]]).all()
    some = [k for k in (2, 4, 5) if not np.isnan(want[k]).any()]
    rtol, atol = (2e-5, 1e-6 if text is LOG else 3e-45) if dtype == "f4" else (1e-12, 1e-13)
    np.testing.assert_allclose(got[some], want[some], rtol=rtol, atol=atol)
    assert np.array_equal(np.isnan(got), np.isnan(want))


def test_powers_keep_their_denormal_results():
    x = np.array([[0.0, -95.0, -100.0, -103.5, -110.0]], "f4")
    got = polyop.op(SOFTMAX)(x)
    want = np.exp(x.astype("f8")).astype("f4")
    np.testing.assert_allclose(got[0, 1:], want[0, 1:], rtol=0, atol=1.5e-45)
    assert got[0, 2] > 0 and got[0, 4] == 0 and got.dtype == F32.numpy
