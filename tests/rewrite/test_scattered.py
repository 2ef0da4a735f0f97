"""Rows that are added up at places from data: their width is known once such a call comes again, and nothing has a mask then."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest

import polyop
from polyop.codegen.x86 import emit
from polyop.ir.options import Options
from polyop.rewrite.copies.strung import few_of, find_ends
from polyop.rewrite.regimes.regimes import kinds
from tests.poly.middles import V4, middle

from .ops import op

ADD = "op f(X: {t}[N, C], ids: i64[N]; R: int) -> (Y: {t}[R, C]) where R >= 1 {{ Y[ids[n], c] {by} X[n, c] }}"
WIDTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 48, 50, 63, 64, 65, 70)
TYPES = {"f32": "f4", "f64": "f8", "f16": "f2", "i32": "i4", "i16": "i2", "u8": "u1", "i64": "i8"}


@pytest.mark.parametrize("t", TYPES)
def test_rows_of_any_width(t, caplog):
    f, g = (polyop.op(ADD.format(t=t, by=by)) for by in ("+=", "max="))
    for c in WIDTHS:
        rng = np.random.default_rng(c)
        for ids in (np.zeros(40, int), np.sort(rng.integers(0, 5, 40)), rng.integers(0, 5, 40)):
            x = rng.integers(0, 5, (40, c)).astype(TYPES[t])
            least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
            total, most = np.zeros((5, c), x.dtype), np.full((5, c), least, x.dtype)
            np.add.at(total, ids, x)
            np.maximum.at(most, ids, x)
            for rows in (x, np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2]):
                np.testing.assert_array_equal(f(rows, ids, R=5), total, err_msg=f"{c} columns")
            np.testing.assert_array_equal(g(x, ids, R=5), most)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_condition_and_a_place_outside():
    f = polyop.op("op f(X: f32[N, C], ids: i64[N]; R: int) -> (Y: f32[R, C]) where R >= 1 "
                  "{ Y[ids[n], c] += X[n, c] where c <= n }")
    for c in (3, 5, 17):
        x, ids = np.ones((20, c), "f4"), np.arange(20) % 4
        want = np.zeros((4, c), "f4")
        np.add.at(want, ids, np.tril(x))
        for _ in range(3):
            np.testing.assert_array_equal(f(x, ids, R=4), want)
        for bad in (4, -1):
            with pytest.raises(polyop.PolyopError, match=str(bad)):
                f(x, np.where(np.arange(20) == 7, bad, ids), R=4)


@pytest.mark.parametrize(("text", "found"), [
    (ADD.format(t="f32", by="+="), {"C"}),
    ("op f(X: f32[N], ids: i64[N]; R: int) -> (Y: f32[R]) where R >= 1 { Y[ids[n]] += X[n] }", set()),
    ("op f(X: f32[N, C], ids: i64[N, C]; R: int) -> (Y: f32[R]) where R >= 1 { Y[ids[n, c]] += X[n, c] }", set())])
def test_which_widths_are_known(text, found):
    o = op(text)
    ends = find_ends(o)
    assert {e.size for e in ends if any(2 in r and 64 in r and 17 in r for r in e.short)} == found
    assert any("2, 3 to 64" in k or "2 to 64" in k for k in kinds(o)) == bool(found)
    if found:
        assert [few_of(ends, dict.fromkeys(o.sizes, 9) | {"C": c}) for c in (1, 2, 64, 65)] == [(), (("C", 2),), (("C", 64),), ()]


@pytest.mark.parametrize("c", [3, 6, 17, 50])
def test_nothing_that_is_known_has_a_mask(c):
    n = middle(ADD.format(t="f32", by="+=").replace("C]", f"{c}]"), "tuned").nest
    text = emit(n, V4, Options()).text
    assert not re.search(r"masked\.store\.\w+\.p0\(<\d+ x float> %", text)  # but of zeros
    assert ("masked.load" in text) == (c % 16 > 0)  # of X
