"""A sum over each fourth iteration counts these, and computes what it did."""

from __future__ import annotations

import numpy as np
import pytest

from polyop.compiler import compile_op
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.target import target
from polyop.rewrite.sums.thinned import thin
from polyop.runtime.layout import contiguous
from tests.rewrite.ops import op

PRODUCT = "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) {{ C[m, n] += A[m, k] * B[k, n] where {} }}"
CONDITIONS = {"k % 4 == 1": "k in 0:floor((K + 2)/4)", "k % 3 == 0, k > 2": "k in 1:floor((K + 2)/3)",
              "(k + 1) % 2 == 0": "k in 0:floor((K)/2)",
              "k % 5 >= 4, k + m <= 40": "k in 0:floor((K)/5)"}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_what_is_left_is_counted_and_adds_up_to_the_same(condition: str) -> None:
    whole = op(PRODUCT.format(condition))
    thinned = thin(whole)
    assert CONDITIONS[condition] in str(thinned) and "mod" not in str(thinned), str(thinned)
    for k in range(14):
        g, sizes = np.random.default_rng(k), {"M": 3, "N": 2, "K": k}
        arrays = {n: g.integers(-9, 9, s).astype(np.float32) for n, s in (("A", (3, k)), ("B", (k, 2)))}
        np.testing.assert_array_equal(evaluate(thinned, sizes, {}, arrays)["C"], evaluate(whole, sizes, {}, arrays)["C"])


@pytest.mark.parametrize("text", [
    PRODUCT.format("k % 4 <= 1"), PRODUCT.format("m % 3 == 2"), PRODUCT.format("(k + m) % 2 == 0"),
    "op f(X: f32[N]) -> (Y: f32[N]) { Y[i] = X[i] where i % 2 == 0; Y[i] = 0 where i % 2 == 1 }"])
def test_where_more_than_one_is_left_or_results_are_chosen_all_stays(text: str) -> None:
    whole = op(text)
    assert thin(whole) == whole


@pytest.mark.parametrize("where", ["cuda:sm_80", "hip:gfx942"])
@pytest.mark.parametrize("condition", ["k % 4 == 1", "k % 3 == 0, k > 2"])
def test_such_products_are_staged(condition: str, where: str) -> None:
    o = op(PRODUCT.format(condition))
    c = compile_op(o, contiguous(o), target(where), Options())
    assert c.rung == "tuned" and any("staged: rows" in x for x in c.chosen), c.notes
