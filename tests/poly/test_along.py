"""Recurrences down the rows of an array take whole rows, or runs of them, and not a few columns down all rows."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.options import Options
from polyop.ir.span import Source
from polyop.ir.target import target
from polyop.poly.middle import Middle, lower, scop_of
from polyop.poly.verify import first_failure, prove
from polyop.rewrite.regimes.regimes import kinds, regime, regimes_of
from polyop.rewrite.regimes.row_regimes import find_carried
from polyop.runtime.layout import contiguous

HEAD = "op f(X: f32[N, C], D: f32[C]) -> (Y: f32[N, C]) "
SUM = HEAD + "{ Y[n, c] = (Y[n-1, c] else D[c]) + X[n, c] }"
SECOND = HEAD + "{ Y[n, c] = X[n, c] * (Y[n-1, c] else 0) - 0.5 * (Y[n-2, c] else D[c]) }"
BACK = HEAD + "{ Y[n, c] = max((Y[n+1, c] else D[c]), X[n, c]) }"
TWO = """op f(X: f32[N, C], D: f32[C]) -> (Y: f32[N, C], Z: f32[N, C]) {
    Y[n, c] = (Z[n-1, c] else D[c]) + X[n, c]
    Z[n, c] = (Y[n-1, c] else 0) - X[n, c] }"""
BESIDE = HEAD + "{ Y[n, c] = (Y[n-1, c-1] else D[c]) + X[n, c] }"
KEPT = HEAD + "{ h: f32[N, C]\n h[n, c] = (h[n-1, c] else D[c]) + X[n, c]\n Y[n, c] = h[n, c] * h[n, c] }"


def op_of(text: str):
    return instantiate(parse(Source("t.pop", text)), "f")


def middle(text: str, along: int) -> Middle:
    op = op_of(text)
    return lower(scop_of(op), contiguous(op), target("x86:x86-64-v4"), Options(regime="positive", along=along), "tuned")


@pytest.mark.parametrize("text", [SUM, SECOND, BACK, TWO])
def test_rows_stand_inside_the_recurrence_and_that_is_proved(text):
    made = middle(text, 1024)
    assert "256 in each turn" in made.chosen[0]
    assert "each turn" not in middle(text, 0).chosen[0]
    assert first_failure(prove(made.scop, made.nest, made.context)) is None


def test_what_is_handed_on_in_no_result_stays_in_registers():
    assert "each turn" not in "".join(middle(KEPT, 1024).chosen)


def steps(step, back=False):
    """A recurrence in float64 over the rows of x: `step(x[n], rows so far, d)`."""
    def reference(x, d):
        rows = []
        for row in x[::-1] if back else x:
            rows.append(step(row, rows, d))
        return np.array(rows[::-1] if back else rows).reshape(x.shape)
    return reference


REFERENCES = {SUM: steps(lambda x, y, d: (y[-1] if y else d) + x),
              SECOND: steps(lambda x, y, d: x * (y[-1] if y else 0) - 0.5 * (y[-2] if len(y) > 1 else d)),
              BACK: steps(lambda x, y, d: np.maximum(y[-1] if y else d, x), back=True)}


@pytest.mark.parametrize("shape", [(0, 300), (1, 1), (2, 63), (5, 64), (3, 255), (4, 256), (7, 257), (2, 521), (3, 0)])
@pytest.mark.parametrize("text", REFERENCES)
def test_results_at_every_border_of_runs(text, shape):
    rng = np.random.default_rng(sum(shape))
    x, d = (rng.uniform(-1, 1, s).astype(np.float32) for s in (shape, shape[1:]))
    got = polyop.op(text, options=Options(along=1024))(x, d)
    np.testing.assert_allclose(got, REFERENCES[text](x.astype(np.float64), d.astype(np.float64)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("columns", "threads", "along"), [
    (127, 1, 0), (128, 1, 256 << 10), (100000, 1, 256 << 10), (511, 2, 0), (512, 2, 1024), (2047, 2, 1024), (2048, 2, 4096),
    (2048, 4, 1024), (100000, 4, 32768)])
def test_long_rows_are_taken_whole_by_one_thread_and_in_runs_by_several(columns, threads, along):
    found = regime(regimes_of(op_of(SUM)), {"N": 50, "C": columns}, Options(), target("x86:sapphirerapids"), threads)
    assert found.along == along


@pytest.mark.parametrize("text", [BESIDE, KEPT])
def test_rows_that_wait_for_their_neighbours_or_are_no_result_ask_nothing(text):
    assert not find_carried(op_of(text))
    assert not any("rows before" in k for k in kinds(op_of(text)))
    assert any("rows before" in k for k in kinds(op_of(SUM)))
