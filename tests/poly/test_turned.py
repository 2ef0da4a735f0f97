"""Recurrences along unit stride run for a vector of sequences at once, and each sequence stays as it was written."""

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
from polyop.runtime.layout import contiguous

HEAD = "op f(X: f32[C, N], D: f32[C], Z: f32[N, C]) -> (Y: f32[C, N]) "
RUNNING = HEAD + "{ Y[c, n] = max((Y[c, n-1] else X[c, n]), X[c, n]) }"
SECOND = HEAD + "{ Y[c, n] = D[c] * (Y[c, n-1] else 0) - 0.5 * (Y[c, n-2] else D[c]) + X[c, n] * X[c, n] }"
FAR = HEAD + "{ Y[c, n] = max((Y[c, n-1] else 0), (Y[c, n-21] else D[c])) - X[c, n] }"
BATCH = "op f(X: f32[B, C, N]) -> (Y: f32[B, C, N]) { Y[b, c, n] = abs((Y[b, c, n-1] else 0) - X[b, c, n]) }"
SUM = HEAD + "{ Y[c, n] = (Y[c, n-1] else 0) + X[c, n] }"
PRODUCT = HEAD + "{ Y[c, n] = (Y[c, n-1] else 1) * X[c, n] }"
BEHIND = HEAD + "{ Y[c, n] = max((Y[c, n-1] else 0), (X[c, n-1] else 0)) }"
BACKWARDS = HEAD + "{ Y[c, n] = max((Y[c, n+1] else 0), X[c, n]) }"
CROSSED = HEAD + "{ Y[c, n] = max((Y[c, n-1] else 0), Z[n, c]) }"
APART = "op f(X: f32[N, C, 2]) -> (Y: f32[C, N]) { Y[c, n] = max((Y[c, n-1] else 0), X[n, c, 1]) }"
ALONE = "op f(X: f32[N]) -> (Y: f32[N]) { Y[n] = max((Y[n-1] else 0), X[n]) }"


def middle(text: str, arch: str = "x86-64-v4", abreast: bool = False) -> Middle:
    op = instantiate(parse(Source("t.pop", text)), "f")
    return lower(scop_of(op), contiguous(op), target(f"x86:{arch}"), Options(regime="positive", abreast=abreast), "tuned")


@pytest.mark.parametrize("arch", ["x86-64-v4", "x86-64-v3", "x86-64-v2"])
@pytest.mark.parametrize("text", [RUNNING, SECOND, FAR, BATCH, CROSSED])
def test_sequences_side_by_side_are_turned_and_proved(text, arch):
    made = middle(text, arch)
    assert "turned: lanes c" in made.chosen[0]
    assert first_failure(prove(made.scop, made.nest, made.context)) is None


@pytest.mark.parametrize(("text", "back"), [(RUNNING, 1), (SECOND, 2), (FAR, 21)])
def test_of_a_sequence_a_square_is_kept_and_what_the_next_one_reads(text, back):
    """However long sequences are, what is kept of them stays in L1."""
    kept = next(b for b in middle(text).nest.buffers if b.name == "Y_turned")
    assert [str(e) for e, _ in kept.dims] == [str(back + 16), "16"]


@pytest.mark.parametrize("text", [SUM, BEHIND, BACKWARDS, APART, ALONE])
def test_others_stay_as_they_are(text):
    """A step of one addition, a read of another step, the last one first, neighbours that lie apart, a single sequence."""
    assert "turned" not in middle(text).chosen[0]


@pytest.mark.parametrize("text", [SUM, PRODUCT])
def test_sums_and_products_of_many_rows_are_turned_where_a_call_has_them(text):
    made = middle(text, abreast=True)
    assert "turned: lanes c" in made.chosen[0]
    assert first_failure(prove(made.scop, made.nest, made.context)) is None


def running(x, d):
    return np.maximum.accumulate(x, axis=1)


def second(x, d):
    y = np.zeros_like(x)
    for n in range(x.shape[1]):
        y[:, n] = d * (y[:, n - 1] if n >= 1 else 0) - 0.5 * (y[:, n - 2] if n >= 2 else d) + x[:, n] * x[:, n]
    return y


def far(x, d):
    y = np.zeros_like(x)
    for n in range(x.shape[1]):
        y[:, n] = np.maximum(y[:, n - 1] if n >= 1 else 0, y[:, n - 21] if n >= 21 else d) - x[:, n]
    return y


SHAPES = [(1, 1), (1, 40), (5, 101), (2, 15), (15, 16), (16, 17), (17, 1), (33, 31), (40, 2), (16, 16), (0, 3), (3, 0)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("text", "reference"), [(RUNNING, running), (SECOND, second), (FAR, far)])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_results_at_every_border(text, reference, dtype, shape):
    f = polyop.op(text.replace("f32", dtype))
    rng = np.random.default_rng(sum(shape))
    x, d = (rng.uniform(-1, 1, s).astype(np.dtype(dtype.replace("f", "float"))) for s in (shape, shape[:1]))
    got = f(x, d, np.zeros(shape[::-1], x.dtype))
    np.testing.assert_allclose(got, reference(x.astype(np.float64), d.astype(np.float64)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_lies_along_the_sequences_side_by_side_is_read_as_it_lies(shape):
    f, rng = polyop.op(CROSSED), np.random.default_rng(sum(shape))
    z = rng.uniform(-1, 1, shape[::-1]).astype(np.float32)
    got = f(np.zeros(shape, np.float32), np.zeros(shape[0], np.float32), z)
    np.testing.assert_array_equal(got, np.maximum.accumulate(np.maximum(z, 0), axis=0).T if z.size else z.T)


def test_numbers_that_are_none_spread_along_their_own_sequence_only():
    x = np.random.default_rng(0).uniform(-1, 1, (20, 30)).astype(np.float32)
    x[7, 11] = np.nan
    got = polyop.op(RUNNING)(x, x[:, 0].copy(), np.ascontiguousarray(x.T))
    np.testing.assert_array_equal(got, np.maximum.accumulate(x, axis=1))
