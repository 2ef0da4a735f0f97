"""Sequences that begin with what other statements write are turned, and read that first."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.compiler import compile_op
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime.layout import contiguous
from tests.rewrite.ops import op

HEAD = "op f(X: f64[M, N]) -> (Y: f64[M, N]) {} {{ "
TEXTS = {
    "chosen": (HEAD.format("") + "Y[m, n] = n == 0 ? X[m, 0] : 0.25*X[m, n] + 0.75*Y[m, n - 1] }", 1),
    "first": (HEAD.format("where N >= 1") + "Y[m, 0] = X[m, 0]; Y[m, n] = 0.25*X[m, n] + 0.75*Y[m, n - 1] where n in 1:N }", 1),
    "two": (HEAD.format("where N >= 2") + "Y[m, 0] = X[m, 0]; Y[m, 1] = X[m, 1];"
            " Y[m, n] = 0.5*X[m, n] + 0.25*Y[m, n - 1] - 0.5*Y[m, n - 2] where n in 2:N }", 2),
    "far": (HEAD.format("where N >= 3") + "Y[m, n] = X[m, n] where n in 0:3;"
            " Y[m, n] = 0.5*X[m, n] + 0.25*Y[m, n - 1] - 0.5*Y[m, n - 3] where n in 3:N }", 3),
}


def wanted(x, name):
    y = x.copy()
    for n in range(TEXTS[name][1], x.shape[1]):
        y[:, n] = (0.25 * x[:, n] + 0.75 * y[:, n - 1] if name in ("chosen", "first") else
                   0.5 * x[:, n] + 0.25 * y[:, n - 1] - 0.5 * y[:, n - TEXTS[name][1]])
    return y


def test_what_lies_further_back_than_a_square_is_wide_is_not_turned():
    o = op(TEXTS["far"][0])
    made = compile_op(o, contiguous(o), target("x86:x86-64-v2"), Options())
    assert made.rung == "tuned" and not made.notes and not any("turned" in x for x in made.chosen)


@pytest.mark.parametrize("name", TEXTS)
def test_what_comes_before_a_sequence_is_fetched(name, caplog):
    text, least = TEXTS[name]
    o = op(text)
    made = compile_op(o, contiguous(o), target("x86:sapphirerapids"), Options(check=False))
    assert any("turned" in x for x in made.chosen)
    f, rng = polyop.op(text), np.random.default_rng(0)
    for m, n in [(0, 5), (1, least), (1, least + 1), (7, 8), (8, 9), (9, 7), (17, 16), (16, 17), (33, 64), (5, 131)]:
        x = rng.integers(-8, 9, (m, n)).astype(np.float64)
        np.testing.assert_allclose(f(x), wanted(x, name), rtol=1e-13, atol=1e-12)
    assert not caplog.messages
