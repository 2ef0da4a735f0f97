"""The first operators of the language become Ops."""

from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.span import Source


def op(text, name="f", **given):
    return instantiate(parse(Source("t.pop", text)), name, **given)


def test_an_index_that_stands_only_on_the_right_of_a_reduction_is_summed():
    made = op("op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }")
    assert str(made.steps[0]) == "C[m, n] += (A[m, k] * B[k, n])  where m in 0:M, n in 0:N, k in 0:K"
