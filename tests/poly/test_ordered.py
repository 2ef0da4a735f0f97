"""With `numerics="strict"` a nest is refused unless it adds up floats term by term in the order of the text, for every size."""

from __future__ import annotations

import pytest

from polyop.ir.options import Options
from polyop.poly.scop import extract
from polyop.poly.verify import first_failure, prove

from . import nests as n
from .middles import middle
from .test_verify import DOT_OP, RIGHT, SCATTER_OP
from .texts import nest, operator

CLAIM = "floats are added up in the order of the text"

BOTH = operator("Y[m] += X[m, j, k]", inputs="X[M, J, K]", outputs="Y[M]", ranges="m:M j:J k:K")
FEW = operator("Y[m] += X[m, j, k]", inputs="X[M, J, K]", outputs="Y[M]", ranges="m:M j:J k:K", where="J <= 4")
TWO = operator("""Y[m] += X[m, k]
                  Y[m] += Z[m]""", inputs="X[M, K], Z[M]", outputs="Y[M]", ranges="m:M k:K")
WHOLE = operator("C += A[k]", inputs="A: i64[K]", outputs="C: i64", ranges="k:K", where="K <= 64")
MOST = operator("Y[m] max= X[m, k]", inputs="X[M, K]", outputs="Y[M]", ranges="m:M k:K")

IN_ORDER = {
    "matmul_loops": (n.MATMUL, n.MATMUL_LOOPS),
    "matmul_packed": (n.MATMUL, n.MATMUL_PACKED),
    "bias_relu_packed": (n.BIAS_RELU, n.BIAS_RELU_PACKED),
    "blocks of terms around rows": (BOTH, nest(BOTH, """
        for m in 0, M:
            Y_init(m): Y[m] = 0.0
        for j in 0, J:
            for k_c in 0, K, 8:
                for m in 0, M:
                    for k_p in 0, min(8, K - k_c): rows 8
                        S0(m, j, k_c + k_p): Y[m] += X[m, j, k_c + k_p]""")),
    "one statement after the other": (TWO, nest(TWO, """
        for m in 0, M: parallel
            Y_init(m): Y[m] = 0.0
            for k in 0, K:
                S0(m, k): Y[m] += X[m, k]
            S1(m): Y[m] += Z[m]""")),
    "places from data, one after the other": RIGHT["scatter"],
    "the greatest in any order": (MOST, nest(MOST, """
        for m in 0, M: parallel
            Y_init(m): Y[m] = -inf
            for k in 0, K:
                S0(m, K - 1 - k): Y[m] max= X[m, K - 1 - k]""")),
    "whole numbers in any order": (WHOLE, nest(WHOLE, """
        C_init(): C = 0
        for k in 0, K: lanes 64
            S0(K - 1 - k): C += A[K - 1 - k]""")),
}

OUT_OF_ORDER = {
    "across lanes": (DOT_OP, nest(DOT_OP, """
        C_init(): C = 0.0
        for k in 0, K: lanes 64
            S0(k): C += A[k] * B[k]"""), "K = 2: S0[0] may be added after S0[1]"),
    "backwards": (DOT_OP, nest(DOT_OP, """
        C_init(): C = 0.0
        for k in 0, K:
            S0(K - 1 - k): C += A[K - 1 - k] * B[K - 1 - k]"""), "K = 2: S0[0] may be added after S0[1]"),
    "odd terms after even ones": (DOT_OP, nest(DOT_OP, """
        C_init(): C = 0.0
        for k in 0, (K + 1) // 2:
            S0(2 * k): C += A[2 * k] * B[2 * k]
        for k in 0, K // 2:
            S0(2 * k + 1): C += A[2 * k + 1] * B[2 * k + 1]"""), "K = 3: S0[1] may be added after S0[2]"),
    "partial sums": (DOT_OP, nest(DOT_OP, """
        buffer part[2] reg
        C_init(): C = 0.0
        for p in 0, 2: rows 2
            - part[p] = 0.0
        for k in 0, K, 2:
            for p in 0, min(2, K - k): rows 2
                S0(k + p): part[p] += A[k + p] * B[k + p]
        for p in 0, 2:
            - C += part[p]"""), "gets a partial sum added to it"),
    "the inner index outside": (BOTH, nest(BOTH, """
        for m in 0, M: parallel
            Y_init(m): Y[m] = 0.0
            for k in 0, K:
                for j in 0, J:
                    S0(m, j, k): Y[m] += X[m, j, k]"""), "J = 2, K = 2, M = 1: S0[0, 0, 1] may be added after S0[0, 1, 0]"),
    "blocks of the inner index outside": (BOTH, nest(BOTH, """
        for m in 0, M: parallel
            Y_init(m): Y[m] = 0.0
            for k_c in 0, K, 8:
                for j in 0, J:
                    for k in 0, min(8, K - k_c):
                        S0(m, j, k_c + k): Y[m] += X[m, j, k_c + k]"""), "J = 2, K = 9, M = 1: S0[0, 0, 8] may be added after"),
    "rows around a loop, which go through it together": (FEW, nest(FEW, """
        for m in 0, M: parallel
            Y_init(m): Y[m] = 0.0
            for j in 0, J: rows 4
                for k in 0, K:
                    S0(m, j, k): Y[m] += X[m, j, k]"""), "J = 2, K = 1, M = 1: S0[0, 0, 0] may be added after S0[0, 1, 0]"),
    "blocks of channels around the window": (n.CONV, n.CONV_PACKED,
                                             "C = 65, H = 1, O = 1, W = 1: S0[0, 0, 0, 0, 0, 0, 64] may be added after"),
    "the second statement first": (TWO, nest(TWO, """
        for m in 0, M: parallel
            Y_init(m): Y[m] = 0.0
            S1(m): Y[m] += Z[m]
            for k in 0, K:
                S0(m, k): Y[m] += X[m, k]"""), "K = 1, M = 1: S0[0, 0] may be added after S1[0]"),
    "the second statement between": (TWO, nest(TWO, """
        for m in 0, M:
            Y_init(m): Y[m] = 0.0
            for k in 0, K:
                S0(m, k): Y[m] += X[m, k]
                if k <= 0:
                    S1(m): Y[m] += Z[m]
            if K <= 0:
                S1(m): Y[m] += Z[m]"""), "K = 2, M = 1: S0[0, 1] may be added after S1[0]"),
    "places from data, backwards": (SCATTER_OP, nest(SCATTER_OP, """
        for v in 0, V: parallel
            for d in 0, D:
                Y_init(v, d): Y[v, d] = 0.0
        for d in 0, D: parallel
            for b in 0, B:
                S0(B - 1 - b, d): Y[ids[B - 1 - b], d] += X[B - 1 - b, d]"""), "may be added after S0[1, 0]"),
}


@pytest.mark.parametrize("name", IN_ORDER)
def test_a_nest_that_keeps_the_order_is_proved(name):
    op, given = IN_ORDER[name]
    proofs = prove(extract(op), given, strict=True)
    assert first_failure(proofs) is None, first_failure(proofs)
    assert CLAIM in [p.claim for p in proofs]


@pytest.mark.parametrize("name", OUT_OF_ORDER)
def test_a_nest_in_another_order_is_refused_where_numerics_are_strict(name):
    op, given, witness = OUT_OF_ORDER[name]
    fast = prove(extract(op), given)
    assert first_failure(fast) is None, first_failure(fast)
    assert CLAIM not in [p.claim for p in fast]
    failed = first_failure(prove(extract(op), given, strict=True))
    assert failed is not None and failed.claim == CLAIM
    assert witness in failed.witness


@pytest.mark.parametrize("rung", ["tuned", "default", "naive"])
@pytest.mark.parametrize("text", [
    "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }",
    "op f(X: f32[M, J, K]) -> (Y: f32[M]) { Y[m] += X[m, j, k] }",
    "op f(X: f32[M, K]) -> (Y: f32[K]) { Y[k] += X[m, k] }",
    "op f(X: f32[N, C, H], F: f32[D, C, R]) -> (Y: f32[N, D, H - R + 1]) { Y[n, d, p] += X[n, c, p + r] * F[d, c, r] }",
])
def test_what_is_made_for_strict_numerics_keeps_the_order(text, rung):
    m = middle(text, rung, Options(numerics="strict"))
    assert first_failure(prove(m.scop, m.nest, m.context, strict=True)) is None
