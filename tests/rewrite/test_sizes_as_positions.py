"""A position may be a size: an element of a known place, or, where index and size got one name, the user's mistake."""

import numpy as np
import pytest

import polyop

MEANT = [
    "C[a, b, c] += E[e, k, a, c] * F[i, j, e, b]",
    "q[b] max= E[a, k, b, c] + F[i, j, e, b] where k <= a; C[a, b, c] = q[b]",
    "C[a, b, c] = E[e, k, a, c] + F[i, j, e, b] where a < 3",
]


@pytest.mark.parametrize("body", MEANT)
def test_an_index_called_as_a_size_is_told_so(body):
    op = polyop.op("op f(E: f32[e, k, a, c], F: f32[i, j, e, b]) -> (C: f32[a, b, c]) { " + body + " }")
    with pytest.raises(polyop.PolyopError, match=r"E3\d\d"):
        op(np.zeros((2, 2, 2, 2), np.float32), np.zeros((2, 2, 2, 2), np.float32))


def test_terms_that_read_the_element_at_a_size_are_added_up():
    op = polyop.op("op f(X: f32[M], A: f32[K, N]) -> (Y: f32[N]) where N < M { Y[n] += A[k, n] * X[N] }")
    x, a = np.arange(9, dtype=np.float32), np.arange(15, dtype=np.float32).reshape(3, 5)
    np.testing.assert_allclose(op(x, a), a.sum(0) * x[5], rtol=1e-6)


def test_sums_go_to_the_element_at_a_size(caplog):
    op = polyop.op("op f(A: f32[M, N]) -> (Y: f32[N + 1, M]) { q[m] += A[m, n]; Y[N, m] = q[m]; Y[n, m] = A[m, n] }")
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_allclose(op(a), np.concatenate((a.T, a.sum(1)[None])), rtol=1e-6)
    t = polyop.op("op f(A: f32[M, N]) -> (Y: f32[N + 1, M]) { T: f32[N + 1, M] [N, m] max= A[m, n]; Y[i, m] = T[i, m] }")
    np.testing.assert_array_equal(t(a)[-1], a.max(1))
    assert not [r for r in caplog.records if "bug" in r.message]
