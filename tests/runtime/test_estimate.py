"""What calls of many sizes ask again and again comes to the same as what a single call asks."""

from __future__ import annotations

import random
from math import prod

import pytest

import polyop
from polyop.ir.expr import evaluate
from polyop.runtime.bind import bind
from polyop.runtime.estimate import elements_of, points_of, work
from polyop.trial import trial

TEXTS = {
    "product": "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }",
    "one index": "op f(X: f32[N]) -> (Y: f32[N]) { Y[i] = 2 * X[i] }",
    "no index": "op f(X: f32) -> (Y: f32) { Y = 2 * X }",
    "a window": "op f(X: f32[C, N], F: f32[C, 3]) -> (Y: f32[C, N - 2]) { Y[c, i] += X[c, i + r] * F[c, r] }",
    "a triangle": "op f(A: f32[N, N], X: f32[N]) -> (Y: f32[N]) { Y[i] += A[i, j] * X[j] where j <= i }",
    "several steps": "op f(X: f32[R, C]) -> (Y: f32[R, C]) { m[r] max= X[r, c]\n"
                     " s[r] += X[r, c]\n Y[r, c] = X[r, c] - m[r] * s[r] }",
    "halves": "op f(X: f32[2*N + 1], Z: f32[N]) -> (Y: f32[N]) { Y[i] = X[2*i + 1] + Z[i] }",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_points_are_those_that_are_counted_one_by_one(text):
    f, rng = polyop.op(text), random.Random(1)
    op = f._op(f.choice())
    count = points_of(op)
    for _ in range(50):
        sizes = {n: rng.choice((1, 2, 3, 7, 64, 1000)) for n in op.sizes}
        assert count(sizes) == work(op, sizes)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_elements_are_those_of_the_arrays_of_a_call(text):
    f = polyop.op(text)
    op = f._op(f.choice())
    for size in (5, 8, 13):
        call = trial(f.interface, lambda *_: op, dict.fromkeys(op.sizes, size), None, 0)
        bound = bind(op, call.arguments)
        assert elements_of(op)(bound.sizes) == sum(prod(v.shape) for v in bound.views.values())
        assert all(evaluate(e, bound.sizes) == n for t in op.inputs
                   for e, n in zip(t.shape, bound.views[t.name].shape, strict=True))
