"""A reduction over all that comes before, or behind, a position goes on from the neighbour's."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.target import target
from polyop.poly.wellformed import check
from polyop.rewrite.regimes.regimes import regime, regimes_of
from polyop.rewrite.sums.prefixes import as_recurrences
from tests.rewrite.ops import arguments, op

HEAD = "op f(X: f32[M, N]) -> (Y: f32[M, N]) "
TEXTS = {
    "sums": HEAD + "{ Y[m, n] += X[m, k] * X[m, k] where k <= n }",
    "down columns": HEAD + "{ Y[m, n] += X[k, n] where k <= m }",
    "before": HEAD + "{ Y[m, n] += X[m, k] where k < n }",
    "from here": HEAD + "{ Y[m, n] += X[m, k] where k >= n }",
    "behind": HEAD + "{ Y[m, n] max= X[m, k] where n < k }",
    "products": HEAD + "{ Y[m, n] *= X[m, k] where k <= n }",
    "positions": HEAD + "{ Y[m, n] += X[m, k] * f32(k + 1) where k <= n }",
    "of sums": "op f(X: f32[M, N], Z: f32[M, M]) -> (Y: f32[N, M]) { Y[n, m] += X[r, k] * Z[m, r] where k <= n }",
    "bytes": "op f(X: u8[N]) -> (Y: u32[N]) { Y[n] += X[k] where k <= n }",
    "any": "op f(X: bool[N]) -> (Y: bool[N]) { Y[n] or= X[k] where k < n }",
    "squares": HEAD + "{ Y[m, n] += X[i, j] where i <= m, j <= n }",
    "corners": HEAD + "{ Y[m, n] max= X[i, j] where i > m, j <= n }",
    "cubes": "op f(X: f32[M, N, 3]) -> (Y: f32[M, N, 3]) { Y[m, n, c] += X[i, j, k] where i <= m, j >= n, k < c }",
    "both": "op f(X: f32[N]) -> (Y: f32[N]) { s: f32[N]; s[n] += X[k] where k <= n; Y[n] += s[k] where k >= n }",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_recurrences_compute_what_the_reductions_do(text, n):
    whole = op(text)
    made = as_recurrences(whole)
    assert not any(s.where for s in made.steps)
    check(made)
    values, arrays = arguments(whole, {"M": 3, "N": n})
    whole_numbers = {k: np.rint(3 * x).astype(x.dtype) if x.dtype.kind == "f" else x for k, x in arrays.items()}
    want, got = (evaluate(x, {"M": 3, "N": n}, values, whole_numbers)["Y"] for x in (whole, made))
    assert np.array_equal(want, got)


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_other_conditions_stay_with_the_terms_that_are_reduced_first(n):
    text = HEAD + "{ Y[m, n] += X[i, k] where k <= n, i < m - 1 }"
    whole, made = op(text), as_recurrences(op(text))
    assert [str(s.where) != "()" for s in made.steps] == [False, True, False]
    check(made)
    x = np.arange(4 * n, dtype=np.float32).reshape(4, n)
    want, got = (evaluate(o, {"M": 4, "N": n}, {}, {"X": x})["Y"] for o in (whole, made))
    assert np.array_equal(want, got) and np.array_equal(polyop.op(text)(x), want)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (2, 17), (15, 16), (16, 15), (17, 33), (67, 131)])
def test_sums_over_all_above_and_before_are_two_running_ones(shape):
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
    assert np.array_equal(polyop.op(TEXTS["squares"])(x), x.astype(np.float64).cumsum(0).cumsum(1))


@pytest.mark.parametrize("text", [
    HEAD + "{ Y[m, n] += X[m, k] where k <= n, m >= 2 }",
    HEAD + "{ Y[m, n] += X[m, k] where k <= n, k > n - 3 }",
    HEAD + "{ Y[m, n] += X[m, k] where k <= n + 1 }",
    HEAD + "{ Y[m, n] += X[m, k] * X[m, n] where k <= n }",
    HEAD + "{ Y[m, n] += X[m, k] where 2*k <= n }",
    HEAD + "where M <= N { Y[m, n] += X[k, n] where k <= n, k in 0:M }",
    "op f(X: f32[M, N], i: i64[N]) -> (Y: f32[M, N]) { Y[m, i[n]] += X[m, k] where k <= n }",
    "op f(X: f32[M], Z: f32[N]) -> (Y: f32[N]) where M <= N { Y[n] += X[k] where k <= n, k in 0:M }",
    "op f(X: f32[N]) -> (Y: f32[N]) { Y[n] += X[k] where k <= n, k in 1:N }",
], ids=["some rows", "a window", "one more", "with the position", "every second", "another range", "scattered", "another size",
        "from 1 on"])
def test_other_reductions_stay(text):
    whole = op(text)
    assert as_recurrences(whole) == whole


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 67])
def test_a_call_adds_up_along_a_row(n):
    x = np.random.default_rng(n).integers(-9, 9, (5, n)).astype(np.float32)
    f = polyop.op(HEAD + "{ Y[m, n] += X[m, k] where k <= n }")
    assert np.array_equal(f(x), x.cumsum(1))
    assert not n or "k*" not in f.compile().explain()


def test_sums_of_all_before_are_abreast_as_running_sums_are():
    for text in (HEAD + "{ Y[m, n] += X[m, k] where k <= n }", HEAD + "{ Y[m, n] = (Y[m, n - 1] else 0) + X[m, n] }"):
        t = target("x86:sapphirerapids")
        assert regime(regimes_of(op(text)), {"M": 8, "N": 100}, Options(), t).abreast
        assert not regime(regimes_of(op(text)), {"M": 7, "N": 100}, Options(), t).abreast
