"""What no result is made of is nobody's work."""

from __future__ import annotations

import numpy as np
import pytest

from polyop.compiler import compile_op
from polyop.ir.expr import loads
from polyop.ir.loops import stores
from polyop.ir.reference import evaluate
from polyop.ir.target import target
from polyop.rewrite.unread import without_unread
from polyop.runtime.layout import contiguous
from tests.rewrite.ops import op

TEXTS = {
    "one": "T[i] = X[i]; Y[i] = 2 * X[i]",
    "through another": "T[i] = X[i]; S[i] = T[i] + 1; s += S[i]; Y[i] = X[i]",
    "itself": "T[i] = (T[i-1] else 0) + X[i]; Y[i] = X[i]",
    "a choice that is never made": "T[i] = X[i] + 1; Y[i] = 1 < 0 ? T[i] : X[i]",
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_nobody_reads_is_gone(name):
    whole = op(f"op f(X: f64[N]) -> (Y: f64[N]) {{ {TEXTS[name]} }}")
    rest = without_unread(whole)
    assert [s.target.source for s in rest.steps] == ["Y"] and not rest.temporaries
    x = np.arange(5.0)
    np.testing.assert_array_equal(*(evaluate(o, {"N": 5}, {}, {"X": x})["Y"] for o in (rest, whole)))


@pytest.mark.parametrize("body", ["T: f64[N]; T[i] = X[i]; Y[i] = T[i] + 1", "T: f64[N]; T[p[i]] += X[i]; Y[i] = T[i]",
                                  "S[i] = p[i]; Y[S[i]] += X[i]"])
def test_what_is_read_stays(body):
    whole = op(f"op f(X: f64[N], p: i64[N]) -> (Y: f64[N]) {{ {body} }}")
    assert without_unread(whole) is whole


@pytest.mark.parametrize("where", ["x86:x86-64-v4", "cuda:sm_80"])
def test_a_square_that_nobody_reads_is_not_computed(where):
    whole = op("""op f(A: f32[M, N], B: f32[N, M]) -> (Y: f32[N, M]) {
        T[n, m] = A[m, n] * B[n, m]
        Y[n, m] = 1 < 0 ? T[n, m] : B[n, m]
    }""")
    c = compile_op(whole, contiguous(whole), target(where))
    assert c.rung == "tuned" and c.nest is not None and all(x.source != "A" for s in stores(c.nest.body) for x in loads(s.expr))
