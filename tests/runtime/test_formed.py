"""Calls of new sizes in a known form: they come to what the long way comes to, and it is asked again where a look comes again."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.operator import Operator
from polyop.runtime import entry
from tests.runtime import test_entry_sizes as texts
from tests.runtime.calling import outcome, python_calls

pytestmark = pytest.mark.skipif(entry.entry(Operator) is None, reason="no native entry here")

PRODUCT = "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }"
SIZES = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 61, 127, 128, 129, 131)


class Nothing(dict):
    """Forms that are forgotten at once, so that all calls of new sizes go the long way."""

    def __setitem__(self, *_):
        pass


def pair(text):
    """An operator, and the same without forms."""
    one, other = polyop.op(text), polyop.op(text)
    other._forms = Nothing()
    return one, other


@pytest.mark.parametrize("name", texts.TEXTS)
def test_new_sizes_in_a_known_form_come_to_the_same_as_the_long_way(name):
    f, plain = pair(texts.TEXTS[name])
    texts.made[name] = f, [np.dtype(t) for t in texts.DTYPES.get(name, ("f4", "f4"))]
    try:
        for k, n in enumerate((35, 46, 57, 49, 38, 62, *SIZES, *SIZES[::-1], 0)):
            for view in (0, 1, 2, 3) if k < 6 else (k % 4,):
                m, d = (n, n + k % 3, n + k % 5)[k % 3], n + k % 2
                wrong = (k % 2, k % 2) if k % 7 == 6 else None  # an extent that contradicts others, where there are such
                args, again = ([texts.arguments(name, n, m, d, view, wrong) for _ in range(2)])
                assert outcome(f._general, *args) == outcome(plain._general, *again)
                assert [x.tobytes() for x in args] == [x.tobytes() for x in again]
    finally:
        del texts.made[name]
    assert f._forms or name == "even"


def test_a_look_that_comes_again_goes_the_long_way_once():
    f = polyop.op("op f(X: f32[R, C]) -> (Y: f32[R, C]) { Y[r, c] = 2 * X[r, c] }")

    def calls(n):
        x = np.ones((n, 3 * n), np.float32)
        return python_calls(lambda: f(x))
    assert all("_long" in calls(1 << k) for k in range(3, 3 + entry.LOOKS))
    found = [calls(100) for _ in range(4)]
    assert ["_long" in x for x in found] == [False, True, False, False] and found[3] == []


def test_one_record_serves_short_and_long_calls():
    f = polyop.op("op f(X: f32[R, C]) -> (Y: f32[R, C]) { Y[r, c] = 2 * X[r, c] }")
    for n in (3, 7, 63, 65, 100, 127, 129, 5, 180, 6):  # 64 x 64 is where a call lasts; from 182 x 182 on several threads run
        x = np.random.default_rng(n).standard_normal((n, n), np.float32)
        np.testing.assert_array_equal(f(x), 2 * x)
    (form,) = f._forms.values()
    assert len(form.records) == 1


def test_forms_change_neither_which_kernels_are_made_nor_what_is_lent():
    f, plain = pair(PRODUCT)
    rng = np.random.default_rng(1)
    sizes = [tuple(int(x) for x in rng.integers(1, 60, 3)) for _ in range(60)]
    for m, n, k in (*sizes, *sizes[:3], *sizes[:3], *sizes[:3], *((x, 40, 40) for x in range(30, 60))):
        a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
        c = f._general(a, b)
        np.testing.assert_array_equal(c, plain._general(a, b))
        np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)
    (mine, theirs) = ([x for k in g._known._values.values() for x in k._merged._values.values()] for g in (f, plain))
    assert [x.kernels.keys() for x in mine] == [x.kernels.keys() for x in theirs]
