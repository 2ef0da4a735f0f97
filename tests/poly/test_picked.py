"""Few places that are looked up along rows: each is read and checked once for rows that run in lock step, without lanes."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.ir.options import Options
from polyop.rewrite.regimes.regimes import kinds, regime, regimes_of
from polyop.rewrite.regimes.row_regimes import PICKED, find_picked

from .middles import V4, middle, op_of, proved

PICK = "op f(X: f32[A, B], ids: i64[P]) -> (Y: f32[A, P]) { Y[a, p] = X[a, ids[p]] }"
SUMS = "op f(X: f32[A, B, C], Z: f32[A, B], ids: i64[P]) -> (Y: f32[A, B, P]) { Y[a, b, p] = X[a, b, ids[p]] + Z[a, b] }"


@pytest.mark.parametrize("text", [PICK, SUMS])
def test_few_places_are_read_one_by_one(text):
    m = middle(text, "tuned", Options(picked=True))
    assert proved(m) and "lanes" not in str(m.nest) and "rows 4" in str(m.nest)
    assert "lanes" in str(middle(text, "tuned").nest)


@pytest.mark.parametrize(("text", "found"), [
    (PICK, True), (SUMS, True),
    ("op f(X: f32[A, B], ids: i64[A, P]) -> (Y: f32[A, P]) { Y[a, p] = X[a, ids[a, p]] }", False),      # each row has its own
    ("op f(X: f32[B], ids: i64[P]) -> (Y: f32[P]) { Y[p] = X[ids[p]] }", False),                        # there are no rows
    ("op f(X: f32[B, C], ids: i64[P]) -> (Y: f32[P, C]) { Y[p, c] = X[ids[p], c] }", False),            # whole rows
    ("op f(X: f32[A, B], ids: i64[P]) -> (Y: f32[A]) { Y[a] += X[a, ids[p]] }", False)])
def test_where_rows_share_places(text, found):
    o = op_of(text)
    assert bool(find_picked(o)) is found is any("looked up along rows" in k for k in kinds(o))
    sizes = dict.fromkeys(o.sizes, 100)
    assert [regime(regimes_of(o), sizes | {"P": n}, Options(), V4).picked for n in (PICKED, PICKED + 1)] == [found, False]


@pytest.mark.parametrize("dtype", ["f32", "f64", "u8", "i64", "f16"])
def test_columns_come_as_they_are_asked_for(dtype):
    f = polyop.op(PICK.replace("f32", dtype))
    for a, p in ((1, 1), (3, 2), (4, 3), (5, 16), (9, 7), (6, 17), (0, 2), (7, 0)):
        rng = np.random.default_rng(a + p)
        x, ids = rng.integers(0, 99, (a, 9)).astype(f"{dtype[0]}{int(dtype[1:]) // 8}"), rng.integers(0, 9, p)
        for rows in (x, x[:, ::-1], x[::-1], np.asfortranarray(x)):
            np.testing.assert_array_equal(f(rows, ids), np.take(rows, ids, 1))


def test_a_place_outside_is_told_wherever_it_stands():
    f = polyop.op(PICK)
    x = np.ones((6, 9), np.float32)
    for at in range(3):
        for bad in (9, -1):
            ids = np.zeros(3, np.int64)
            ids[at] = bad
            with pytest.raises(polyop.PolyopError, match=f"{bad}"):
                f(x, ids)
