"""Loops of threads with what their rows ask: once where all elements answer yes, and before each row else."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from polyop.codegen.gpu.whole import split
from polyop.compiler import Compiled
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, affine, quasi
from polyop.ir.interpret import interpret
from polyop.ir.loops import For, If, Kind, LoopNest
from polyop.runtime import cxx, emulated
from tests.codegen.nests import A, ap, ld, least, loop, nest, rows, st, tensor, when
from tests.gpu.gpu_texts import compiled

TRIANGLE = A("i", (4, "t"), "p", (-1, "k"))  # k <= i + 4 t + p
PRODUCT = "op t(L: f32[M, M], B: f32[M, N]) -> (C: f32[M, N]) { C[i, n] += L[i, k] * B[k, n] where k <= i }"
RESULTS = "op s(A: f32[N, K]) -> (C: f32[N, N]) { C[i, j] += A[i, k] * A[j, k] where j <= i }"


@cache
def kernel(text: str) -> Compiled:
    return compiled(text, on="cuda:sm_90a")


def of(*tests: Affine) -> LoopNest:
    """Sums of four rows in each thread, of what `tests` say."""
    row = A((4, "t"), "p")
    term = st(ld("y", row, "q"), ap("mul", ld("x", row, "k"), ld("z", "k", "q")), "add")
    inside = loop("k", least(5, A("N")), rows("p", 4, None, rows("q", 2, None, when(tests, [term]))))
    return nest([tensor("x", 8, 5), tensor("z", 5, 2), tensor("y", 8, 2)],
                [For("t", Affine(), A(2), (inside,), 1, Kind.THREADS, 2, 1)])


def test_the_least_of_all_that_is_asked_is_asked_once():
    (threads,) = split(of(TRIANGLE)).body
    (either,) = threads.body
    assert either.tests == (A("N", -5), A("i", (4, "t"), -4))
    (whole,), (other,) = either.then, either.other
    assert whole.upper == affine(5) and not any(isinstance(n, If) for n in whole.body[0].body[0].body)
    (row,) = other.body
    assert row.index == "p" and row.body[0].tests == (TRIANGLE,) and row.body[0].then[0].index == "q"


def test_what_is_not_plain_to_see_is_asked_as_it_was():
    strange = of(quasi("mod", A("p", "k"), A(2)) - 1)
    (threads,) = split(strange).body
    (either,) = threads.body
    assert either.tests == (A("N", -5),) and either.other == strange.body[0].body


@pytest.mark.parametrize("n", [0, 1, 4, 5, 6])
@pytest.mark.parametrize("i", [-9, -4, -1, 0, 3, 4, 9])
@pytest.mark.parametrize("tests", [(TRIANGLE,), (TRIANGLE, A("i", "q", -3)), (A("q", "i", (-1, "p")),)])
def test_the_same_terms_are_added_up(tests, i, n):
    given, rng = of(*tests), np.random.default_rng(1)
    x, z = rng.standard_normal((8, 5)).astype(np.float32), rng.standard_normal((5, 2)).astype(np.float32)
    found = [np.zeros((8, 2), np.float32) for _ in range(2)]
    for each, y in zip((given, split(given)), found, strict=True):
        interpret(each, {"N": n, "i": i}, {}, {"x": x, "z": z, "y": y})
    assert (found[0] == found[1]).all()


@pytest.mark.parametrize("m", [1, 17, 131])
@pytest.mark.parametrize("text", [PRODUCT, RESULTS])
def test_triangles_have_no_term_that_their_text_does_not_have(text, m):
    try:
        cxx.compiler()
    except UnsupportedError as e:
        pytest.skip(str(e))
    c, rng = kernel(text), np.random.default_rng(1)
    sizes = {"M": m, "N": 5} if text is PRODUCT else {"N": m, "K": 18}
    first, *rest = (rng.standard_normal((m, k)).astype(np.float32) for k in ((m, 5) if text is PRODUCT else (18,)))
    r = m // 2
    (rest[0] if rest else first)[r] = np.inf  # which rows above do not add up
    want = np.tril(first.astype(float)[:r, :r]) @ rest[0][:r] if rest else np.tril(first[:r].astype(float) @ first[:r].T)
    found = np.zeros((m, 5) if rest else (m, m), np.float32)
    names = ("L", "B", "C") if rest else ("A", "C")
    assert str(emulated.run(c.module, sizes, {}, dict(zip(names, (first, *rest, found), strict=True)))) == "no fault found"
    np.testing.assert_allclose(found[:r, :want.shape[1]], want, rtol=1e-4, atol=1e-4)
    assert not np.isfinite(found[r]).any() if rest else not found[:r, r:].any()
