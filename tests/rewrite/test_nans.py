"""Choices of NaN that another operand makes anyway are not made again, nor is a row asked whether it has what it always has."""

from __future__ import annotations

import numpy as np
import pytest

from polyop.ir.affine import evaluate as value
from polyop.ir.expr import Affine, affine, quasi
from polyop.ir.reference import evaluate
from polyop.rewrite.bounds import least_sizes, never_negative
from polyop.rewrite.sums.cascade import cascaded
from polyop.rewrite.sums.nans import chosen_once
from tests.rewrite.ops import library, op

TEXT = """op f(c: f32[N], x: f32[N, E], y: f32[N]) -> (O: f32[N, E]) {{
    z[i]    = c[i] > 0 ? nan : y[i]
    O[i, v] = {} }}"""


def selects(o) -> int:
    return sum(str(s.expr).count("? f32(nan)") for s in o.steps)


def values(o, n: int):
    g = np.random.default_rng(n)
    x, y = g.choice([0.0, 1.5, np.inf, np.nan, -2.0], (n, 5)), g.choice([0.0, 3.0, np.inf], n)
    arrays = {"c": g.integers(-1, 2, n), "x": x, "y": y}
    arrays = {t.name: arrays[t.name].astype(np.float32) for t in o.inputs}
    with np.errstate(all="ignore"):
        return evaluate(o, {"N": n, "E": 5}, {}, arrays, wide=True)["O"]


@pytest.mark.parametrize(("text", "left"), [
    ("(c[i] > 0 ? nan : x[i, v]) / z[i]", 1), ("z[i] * (c[i] > 0 ? nan : x[i, v])", 1),
    ("z[i] - (c[i] > 0 ? nan : x[i, v]) + 1", 1),
    ("(c[i] > 0 ? nan : x[i, v]) / (c[i] > 0 ? nan : y[i])", 2), ("(c[i] > 1 ? nan : x[i, v]) / z[i]", 2),
    ("max(c[i] > 0 ? nan : x[i, v], z[i])", 2), ("(c[i] > 0 ? nan : x[i, v]) / z[N - 1 - i]", 2),
    ("(c[i] > 0 ? nan : x[i, v]) / y[i]", 2)])
def test_a_choice_of_nan_goes_where_the_other_operand_makes_the_same(text, left):
    o = op(TEXT.format(text))
    o = chosen_once(o)
    assert selects(o) == left
    for n in (0, 1, 7, 33):
        np.testing.assert_array_equal(values(o, n), values(op(TEXT.format(text)), n))


@pytest.mark.parametrize("name", ["attention", "attention_causal", "attention_window"])
def test_attention_asks_of_no_result_whether_its_row_has_keys(name):
    o = library("attention", name)
    some, all_ = (cascaded(o, 64, least=least) for least in (0, 1))
    (last,) = (s for s in all_.steps if s.target.source == o.outputs[0].name)
    assert "nan" not in str(last.expr) and ">= 0" not in str(last.expr)
    assert any(">= 0 ?" in str(s.expr) or ">= 0)" in str(s.expr) for s in some.steps)


def test_what_a_call_must_have_at_least_is_known_of_its_sizes():
    o = op("op f(X: f32[N]; w: int) -> (Y: f32[N]) where w >= 3, N >= w { Y[i] = X[i] }")
    assert least_sizes(o) == {"N": 0, "w": 3} and least_sizes(o, 1) == {"N": 1, "w": 3}
    assert never_negative(affine("N") + affine("w") - 4, least_sizes(o, 1))
    assert not never_negative(affine("N") + affine("w") - 5, least_sizes(o, 1))
    assert not never_negative(affine("N") + affine("w") - 4, o.sizes)


def test_of_quotients_that_are_subtracted_no_more_is_known_than_holds():
    def half(n: str) -> Affine:
        return quasi("div", affine(n) + 1, affine(2))

    for x in (affine("N") - half("N") + c for c in (-1, 0, 1)):
        holds = all(value(x, {"N": n}) >= 0 for n in range(1, 9))
        assert never_negative(x, {"N": 1}) == holds
