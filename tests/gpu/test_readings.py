"""Statements that read the same elements at the same points share loops on a GPU, and read them once."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_texts import Array, compiled, values

from polyop.compiler import Compiled
from polyop.ir.dtypes import F32
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Load, affine
from polyop.ir.module import launches
from polyop.ir.options import Options
from polyop.ir.residues import runs_of
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
WOVEN = "op w(A: T[R, N], B: T[R, N]) -> (Y: T[R, 2*N]) { Y[q, 2*i] = A[q, i]; Y[r, 2*j + 1] = B[r, j] }"
PAIRS = """
op c(X: f32[R, 2*N], Z: f32[R, 2*N]; N: int) -> (Y: f32[R, 2*N]) {
  Y[r, 2*i]     = X[r, 2*i] * Z[r, 2*i] - X[r, 2*i + 1] * Z[r, 2*i + 1]
  Y[r, 2*i + 1] = X[r, 2*i] * Z[r, 2*i + 1] + X[r, 2*i + 1] * Z[r, 2*i]
}
"""
COLOURS = "op g(X: f32[3*N]; N: int) -> (y: f32[N]) { y[i] = X[3*i] * 0.25 + X[3*i + 1] * 0.5 + X[3*i + 2] * 0.25 }"
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


@pytest.mark.parametrize("on", ["cuda:sm_80", "hip:gfx942"])
@pytest.mark.parametrize("t", ["f32", "f16", "i8"])
def test_what_is_written_by_turns_is_one_loop_that_writes_it_whole(t: str, on: str) -> None:
    c = compiled(WOVEN.replace("T[", f"{t}["), on=on)
    assert parts(c) == 1 and c.module and "pop_wide<" in c.module.text
    for n, order in ((1, "forward"), (7, "backward"), (64, "shuffled"), (1030, "backward")):
        a = values(c, {"R": 3, "N": n}, order)
        np.testing.assert_array_equal(a["Y"][:, 0::2], a["A"])
        np.testing.assert_array_equal(a["Y"][:, 1::2], a["B"])


def test_pairs_are_read_and_written_as_neighbours() -> None:
    c = compiled(PAIRS)
    assert parts(c) == 1 and c.module and c.module.text.count("pop_wide<8>(") == 3
    for n, order in ((1, "forward"), (6, "backward"), (64, "shuffled"), (257, "backward")):
        a = values(c, {"R": 2, "N": n}, order)
        x, z, y = (a[k][:, 0::2] + 1j * a[k][:, 1::2] for k in "XZY")
        np.testing.assert_allclose(y, x * z, rtol=1e-4, atol=1e-5)


def test_three_that_leave_nothing_out_are_neighbours_and_two_of_three_are_not() -> None:
    c = compiled(COLOURS)
    assert c.module and "pop_wide<12>(" in c.module.text
    for n in (1, 4, 33, 600):
        x = (a := values(c, {"N": n}, "backward"))["X"].reshape(-1, 3)
        np.testing.assert_allclose(a["y"], x @ [0.25, 0.5, 0.25], rtol=1e-5, atol=1e-6)
    two = compiled("op g(X: f32[3*N]; N: int) -> (y: f32[N]) { y[i] = X[3*i] + X[3*i + 2] }")
    assert two.module and "pop_wide<12>(" not in two.module.text
    x = (a := values(two, {"N": 37}))["X"].reshape(-1, 3)
    np.testing.assert_array_equal(a["y"], x[:, 0] + x[:, 2])


def test_runs_of_accesses_have_each_residue_once() -> None:
    def at(*consts: int, step: int = 2) -> list[tuple[Load, int]]:
        return [(Load("X", (affine("r"), affine("i") * step + c), F32), 1) for c in consts]

    def found(given: list[tuple[Load, int]]) -> list[list[int]]:
        return [[p.const for x in run if isinstance(p := x.index[1], Affine)] for run in runs_of(given, "i")]

    assert found(at(0, 1)) == found(at(1, 0)) == [[0, 1]]
    assert found(at(0, 2)) == found(at(1)) == found(at(0, 1, step=5)) == found(at(0, step=-1)) == []
    assert found(at(-1, 0, 1, 2)) == [[-1, 0], [1, 2]]
    assert found(at(0, 1, 2, step=3)) == [[0, 1, 2]]
    assert found(at(0, 4, step=1)) == [[0], [4]]
    assert found([*at(0), (Load("X", (affine("q"), affine("i") * 2 + 1), F32), 1)]) == []


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
