"""Powers that are next to nothing beside the greatest one are 0 in sums, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.forms import before_scop
from polyop.ir.dtypes import F32
from polyop.ir.expr import Apply, walk
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.poly.wellformed import check
from polyop.rewrite.sums.cascade import cascaded
from polyop.rewrite.sums.faint import LEAST, without_faint
from tests.codegen.harness import V4
from tests.rewrite.ops import op

TOP = "top[i] max= X[i, j]; "
SUMS = "z[i] += e[i, j]; o[i, d] += e[i, j] * V[j, d]; Y[i, d] = o[i, d] / z[i] }"
HEAD = "op f(X: f32[M, N], V: f32[N, D]) -> (Y: f32[M, D]) { "
POWERS = HEAD + TOP + "e[i, j] = exp(X[i, j] - top[i]); " + SUMS
CLEARED = {
    "powers": POWERS,
    "powers of two, f64": POWERS.replace("exp", "exp2").replace("f32", "f64"),
    "other letters": POWERS.replace("top[i] max= X[i, j]", "top[a] max= X[a, b]"),
    "conditions": POWERS.replace("X[i, j];", "X[i, j] where j <= i;").replace("top[i]);", "top[i]) where j <= i;")
                        .replace("z[i] += e[i, j]", "z[i] += e[i, j] where j <= i").replace("V[j, d]", "V[j, d] where j <= i"),
    "made before": POWERS.replace("top[i] max= X", "t[i, j] = 2 * X[i, j]; top[i] max= t").replace("exp(X", "exp(t"),
    "in the sum": "op f(X: f32[M, N]) -> (Y: f32[M]) { " + TOP + "Y[i] += exp(X[i, j] - top[i]) }",
}
STAY = [
    POWERS.replace("top[i] max= X[i, j]", "top[i] min= X[i, j]"),
    POWERS.replace("top[i] max= X[i, j]", "top[i] max= X[i, j] * 2"),                          # of something else
    POWERS.replace("; e[i, j]", " where j >= i; e[i, j]"),                                     # of others
    "op f(X: f32[M, N]) -> (Y: f32[M, N]) { " + TOP + "e[i, j] = exp(X[i, j] - top[i]); z[i] += e[i, j];"
    " Y[i, j] = e[i, j] / z[i] }",
    POWERS.replace("z[i] += e[i, j]", "z[i] += 1 / e[i, j]"),
    POWERS.replace("z[i] += e[i, j]", "z[i] += e[i, j] where j >= 1"),                         # the greatest may be left out
]


def count(o):
    return sum(a is not b for a, b in zip(without_faint(o).steps, o.steps, strict=True))


@pytest.mark.parametrize("name", CLEARED)
def test_such_powers_may_be_zero_and_sums_are_those_of_the_text(name):
    o = op(CLEARED[name])
    assert count(o) == 1
    for made in (without_faint(o), without_faint(cascaded(o))):
        check(made)
    for m, n, d in ((1, 1, 1), (2, 3, 2), (4, 2, 1)):
        sizes = {k: v for k, v in (("M", m), ("N", n), ("D", d)) if k in o.sizes}
        rng = np.random.default_rng(m)
        arrays = {t.name: rng.uniform(-99, 99, [sizes[e.name] for e in t.shape]).astype(t.dtype.numpy) for t in o.inputs}
        want, got = (evaluate(x, sizes, {}, arrays, wide=True) for x in (o, without_faint(o)))
        np.testing.assert_allclose(got["Y"], want["Y"], rtol=1e-12)


@pytest.mark.parametrize("text", STAY)
def test_other_powers_stay(text):
    assert count(op(text)) == 0


def test_powers_in_blocks_of_one_pass_are_cleared():
    assert count(cascaded(op(POWERS))) >= 1


@pytest.mark.parametrize(("m", "n", "d"), [(1, 1, 1), (3, 17, 5), (2, 1031, 16)])
def test_calls_leave_out_what_is_next_to_nothing(m, n, d):
    rng = np.random.default_rng(n)
    x, v = rng.uniform(-150, 0, (m, n)).astype("f4"), rng.standard_normal((n, d)).astype("f4")
    x[:, n // 2] = 0
    if n > 1:
        x[0, 0] = -np.inf
    e = np.exp(x.astype("f8"))
    want = e @ v / e.sum(1, keepdims=True)
    np.testing.assert_allclose(polyop.op(POWERS)(x, v), want, rtol=1e-5, atol=1e-6)
    x[0, 0] = np.nan
    assert np.isnan(polyop.op(POWERS)(x, v)[0]).all()


def test_a_power_next_to_nothing_is_exactly_zero_unless_sums_go_in_the_order_of_the_text():
    text = "op f(X: f32[M, N], V: f32[N]) -> (Y: f32[M]) { " + TOP + "Y[i] += exp(X[i, j] - top[i]) * V[j] }"
    x, v = np.array([[0, LEAST["exp", F32] - 1]] * 2, "f4"), np.array([0, 1], "f4")
    assert polyop.op(text)(x, v)[0] == 0.0 < polyop.op(text, options=Options(numerics="strict"))(x, v)[0]


LONG = HEAD.replace("X: f32[M, N]", "X: f32[N]").replace("Y: f32[M, D]", "Y: f32[D]") + \
    "top max= X[j]; e[j] = exp(X[j] - top); z += e[j]; o[d] += e[j] * V[j, d]; Y[d] = o[d] / z }"


IN_SHARES = [(LONG, ()), (LONG, (("o", 512),)), (CLEARED["in the sum"], (("top", 512), ("Y", 512)))]


@pytest.mark.parametrize(("text", "shares"), IN_SHARES)
def test_powers_of_rows_in_shares_are_cleared(text, shares):
    made = before_scop(op(text), Options(threads=True, shares=shares), V4)
    check(made)
    powers = [x for s in made.steps for x in walk(s.expr) if isinstance(x, Apply) and x.fn == "exp"]
    assert [len(x.args) for x in powers] == [3]


@pytest.mark.parametrize("n", [1, 16384, 70001])
def test_one_long_row_on_two_threads_leaves_out_what_is_next_to_nothing(n):
    rng = np.random.default_rng(n)
    x, v = rng.uniform(-150, 0, n).astype("f4"), rng.standard_normal((n, 3)).astype("f4")
    x[n // 2], x[0] = 0, -np.inf if n > 1 else 0
    e = np.exp(x.astype("f8"))
    before = polyop.get_num_threads()
    try:
        polyop.set_num_threads(2)
        np.testing.assert_allclose(polyop.op(LONG)(x, v), e @ v / e.sum(), rtol=1e-5, atol=1e-6)
        x[-1] = np.nan
        assert np.isnan(polyop.op(LONG)(x, v)).all()
    finally:
        polyop.set_num_threads(before)
