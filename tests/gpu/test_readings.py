"""Statements that read the same elements at the same points share loops on a GPU, and read them once."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_texts import Array, compiled, values

from polyop.compiler import Compiled
from polyop.ir.errors import UnsupportedError
from polyop.ir.module import launches
from polyop.ir.options import Options
from polyop.runtime import cxx, emulated

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

SUMS = "op s(x: f32[R, N], z: f32[R, N]) -> (s: f32[R], t: f32[R]) { s[r] += x[r, i] * z[r, i]; t[q] max= x[q, j] }"
HALVES = """
op h(X: f32[B, D], c: f32[D / 2], s: f32[D / 2]) -> (Y: f32[B, D]) where D % 2 == 0 {
  Y[b, i]         = X[b, i] * c[i] - X[b, i + D / 2] * s[i]
  Y[b, i + D / 2] = X[b, i + D / 2] * c[i] + X[b, i] * s[i]
}
"""
TWO = "op t(x: f32[A, B]) -> (y: f32[A, B], z: f32[A, B]) { y[i, j] = exp(x[i, j]); z[k, l] = x[k, l] + 1 }"
APART = (
    "op t(x: f32[A, B]) -> (y: f32[B, A], z: f32[A, B]) { y[j, i] = exp(x[i, j]); z[i, j] = x[i, j] + 1 }",  # lie otherwise
    "op t(x: f32[A, B]) -> (y: f32[A], z: f32[B]) { y[i] += x[i, j]; z[j] += x[i, j] }",
    "op t(x: f32[A, B]) -> (y: f32[A, B], z: f32[A, B]) { y[i, j] = exp(x[i, j]); z[i, j] = x[A - 1 - i, j] + 1 }",
    "op t(x: f32[A, A]) -> (y: f32[A, A], z: f32[A, A]) { y[i, j] = exp(x[i, j]); z[i, j] = x[j, i] + 1 }",
    "op t(x: f32[B], a: f32[A, B]) -> (y: f32[A, B], z: f32[A, B]) { y[i, j] = a[i, j] * x[j]; z[i, j] = exp(x[j]) }",
    "op t(x: f32[A, B]) -> (y: f32[A, B], s: f32[A]) { y[i, j] = x[i, j] + 1; s[i] += x[i, j] }",
)


def parts(c: Compiled) -> int:
    assert c.rung == "tuned" and c.proofs and c.module
    return sum(1 + len(x.more) for x in launches(c.module.launch))


def rotated(a: dict[str, Array]) -> Array:
    x, half = a["X"].astype(float), a["c"].size
    one, two = x[:, :half], x[:, half:]
    return np.concatenate([one * a["c"] - two * a["s"], two * a["c"] + one * a["s"]], axis=1)


@pytest.mark.parametrize("on", ["cuda:sm_80", "hip:gfx942"])
@pytest.mark.parametrize("text", [SUMS, HALVES, TWO])
def test_what_reads_the_same_elements_in_step_is_one_loop(text: str, on: str) -> None:
    c = compiled(text, on=on)
    assert parts(c) == 1 and len(c.chosen) == 1


@pytest.mark.parametrize("text", APART)
def test_what_reads_or_writes_them_otherwise_stays_apart(text: str) -> None:
    c = compiled(text)
    assert c.rung == "tuned" and len(c.chosen) == 2


def test_an_element_is_loaded_once_for_all_statements_of_a_loop() -> None:
    for text, loads in ((SUMS, 2), (HALVES, 4), (TWO, 1)):
        module = compiled(text).module
        assert module
        wide = module.text.partition("} else {")[0]
        assert wide.count("pop_wide<4>(pop_a") == loads
        assert wide.count(", pop_b") == (0 if text is SUMS else 2)


@pytest.mark.parametrize("order", emulated.ORDERS)
@pytest.mark.parametrize(("r", "n"), [(1, 1), (3, 5), (2, 1024), (2, 1500)])
def test_two_sums_in_one_loop_are_right(r: int, n: int, order: str) -> None:
    a = values(compiled(SUMS), {"R": r, "N": n}, order)
    np.testing.assert_allclose(a["s"], (a["x"].astype(float) * a["z"]).sum(1), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(a["t"], a["x"].max(1))


@pytest.mark.parametrize("options", [Options(), Options(numerics="strict"), Options(regime="any")])
@pytest.mark.parametrize(("b", "d"), [(1, 2), (3, 6), (5, 64), (2, 34), (200, 8)])
def test_two_halves_in_one_loop_are_right_wherever_they_begin(b: int, d: int, options: Options) -> None:
    for order in emulated.ORDERS:
        a = values(compiled(HALVES, options), {"B": b, "D": d}, order)
        np.testing.assert_allclose(a["Y"], rotated(a), rtol=1e-5, atol=1e-5)


def test_sums_of_shares_are_read_together_too() -> None:
    c = compiled("op s(X: f32[N]) -> (s: f32, t: f32, u: f32) { s += X[i]; t max= X[i]; u += X[i] * X[i] }")
    a = values(c, {"N": 40_000}, "shuffled")
    assert "S0 S2 S4" in str(c.chosen) and parts(c) == 2
    x = a["X"].astype(float)
    np.testing.assert_allclose([a["s"], a["t"], a["u"]], [x.sum(), x.max(), (x * x).sum()], rtol=1e-3, atol=1e-2)


def test_neighbours_that_a_later_statement_reads_are_not_held_back() -> None:
    text = "op t(x: f32[N]) -> (y: f32[N], z: f32[N]) { y[i] = exp(x[i]); z[i] = y[i] * y[i] + x[i] }"
    for n in (4, 7, 600):
        a = values(compiled(text), {"N": n}, "backward")
        np.testing.assert_allclose(a["z"], np.exp(2 * a["x"].astype(float)) + a["x"], rtol=1e-5)
