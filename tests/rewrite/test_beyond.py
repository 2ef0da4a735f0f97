"""A test that guards zeros twice is left out, and changes no value."""

from __future__ import annotations

import numpy as np
import pytest

from polyop.compiler import compile_op
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.target import target
from polyop.rewrite.beyond import read_beyond
from polyop.runtime.layout import contiguous
from tests.rewrite.ops import op

CONV = "op f(X: f16[C, W], F: f16[K, C, 3]) -> (Y: f16[K, W]) { Y[k, p] += (X[c, p + r - 1] else 0) * F[k, c, r] }"


@pytest.mark.parametrize("zero", ["0", "0.0"])
def test_what_is_zero_outside_is_read_so(zero: str) -> None:
    whole = op(CONV.replace("else 0", f"else {zero}"))
    plain = read_beyond(whole)
    assert "?" in str(whole) and "?" not in str(plain)
    for w in (1, 2, 7):
        g, sizes = np.random.default_rng(w), {"C": 3, "W": w, "K": 2}
        arrays = {n: g.integers(-9, 9, s).astype(np.float16) for n, s in (("X", (3, w)), ("F", (2, 3, 3)))}
        arrays["F"][0, 0, 0] = np.inf  # times the zeros outside
        np.testing.assert_array_equal(evaluate(plain, sizes, {}, arrays)["Y"], evaluate(whole, sizes, {}, arrays)["Y"])


@pytest.mark.parametrize("value", ["1", "-0.0", "f16(1e-9) + 0"])
def test_what_is_something_else_outside_keeps_its_test(value: str) -> None:
    whole = op(CONV.replace("else 0", f"else {value}"))
    assert read_beyond(whole) is whole


def test_a_test_of_something_else_stays() -> None:
    whole = op("op f(X: f32[N]) -> (Y: f32[N]) { Y[i] = X[i] > 1 ? X[i] : 0 }")
    assert read_beyond(whole) is whole


@pytest.mark.parametrize(("where", "unit"), [("cuda:sm_80", "mma_m16n8k16_f16"), ("cuda:sm_90a", "wgmma_m64n256k16_f16"),
                                             ("hip:gfx942", "mfma"), ("hip:gfx1100", "wmma")])
def test_convolutions_with_borders_take_the_matrix_units(where: str, unit: str) -> None:
    o = op("op f(X: f16[B, H, W, C], F: f16[3, 3, C, K]) -> (Y: f16[B, H, W, K]) {\n"
           "  Y[b, p, q, k] += (X[b, p + r - 1, q + s - 1, c] else 0) * F[r, s, c, k] }")
    c = compile_op(o, contiguous(o), target(where), Options())
    assert c.rung == "tuned" and f" by {unit}" in c.chosen[0], c.chosen
