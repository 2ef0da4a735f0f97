"""Operands, and results, that lie along different loops: squares of some are turned in registers."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.ir.options import Options
from polyop.ir.target import target

from .middles import middle, proved, run

X, Y = "X: f32[A, B, C]", "Y: f32[A, C, B]"
CASES = {  # inputs and result, statements, lanes along, rows along, what NumPy says of it
    "both are added up": (f"{X}, {Y}", "Z: f32[A]", "Z[a] += X[a, b, c] * Y[a, c, b]", "c", "b", "abc,acb->a"),
    "the batch lies between": (f"{X}, Y: f32[C, A, B]", "Z: f32[A]", "Z[a] += X[a, b, c] * Y[c, a, b]", "c", "b", "abc,cab->a"),
    "a diagonal": ("X: f32[A, B], Y: f32[B, A]", "Z: f32[A]", "Z[a] += X[a, b] * Y[b, a]", "a (shell)", "b", "ab,ba->a"),
    "the first index": (X + ", Y: f32[C, B, A]", "Z: f32[A]", "Z[a] += X[a, b, c] * Y[c, b, a]", "a (shell)", "c", "abc,cba->a"),
    "across the result": ("X: f32[A, C, B, D], Y: f32[A, C, D, B]", "Z: f32[B, A]", "Z[b, a] += X[a, c, b, d] * Y[a, c, d, b]",
                          "b (shell)", "d", "acbd,acdb->ba"),
    "three": (f"{X}, {Y}, W: f32[A, B, C]", "Z: f32[A]", "Z[a] += X[a, b, c] * Y[a, c, b] * W[a, b, c]", "c", "b",
              "abc,acb,abc->a"),
    "with more around": (f"{X}, {Y}", "Z: f32[A]", "t[a] += X[a, b, c] * Y[a, c, b]; Z[a] = 2 * t[a]", "c", "b", "abc,acb->a"),
}
SIZES = (0, 1, 3), (2, 8, 16), (3, 7, 9), (5, 17, 1), (1, 16, 8), (9, 1, 33), (17, 15, 31)
V3 = target("x86:x86-64-v3")


def text(name: str) -> str:
    inputs, result, body, *_ = CASES[name]
    return f"op f({inputs}) -> ({result}) {{ {body} }}"


def expected(name: str, arrays) -> np.ndarray:
    spec = CASES[name][-1]
    wide = [x.astype(np.float64) for x in arrays]
    return np.einsum(spec, *wide) * (2 if name == "with more around" else 1)


@pytest.mark.parametrize("name", CASES)
def test_squares_of_what_lies_along_another_loop_of_a_sum_are_turned(name):
    *_, lanes, rows, _ = CASES[name]
    m = middle(text(name), "tuned", t=V3)
    assert f"{lanes}, " in m.chosen[0] and f"squares with 8 {rows}" in m.chosen[0] and proved(m)
    for a, b, c in SIZES[1:]:
        arrays, got = run(m, {"A": a, "B": b, "C": c, "D": 11})
        np.testing.assert_allclose(got, expected(name, arrays.values()), rtol=1e-5)


@pytest.mark.parametrize("arch", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("name", CASES)
def test_no_element_of_such_a_square_is_read_by_itself(name, arch):
    made = polyop.op(text(name)).compile(target=f"x86:{arch}")
    assert "shufflevector" in made.trace["source"] and "gather" not in made.trace["source"]


@pytest.mark.parametrize("name", CASES)
def test_sums_of_turned_squares_are_right_at_their_edges(name):
    f, g = polyop.op(text(name)), np.random.default_rng(1)
    for a, b, c in SIZES:
        sizes, spec = {"a": a, "b": b, "c": c, "d": 11}, CASES[name][-1]
        arrays = [g.standard_normal([sizes[i] for i in x]).astype(np.float32) for x in spec.split("->")[0].split(",")]
        np.testing.assert_allclose(f(*arrays), expected(name, arrays), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("statement", "reference"), [
    ("Z[a] max= X[a, b, c] + Y[a, c, b]", lambda x, y: (x + y.swapaxes(1, 2)).max((1, 2))),
    ("Z[a] += X[a, b, c] * Y[a, c, b] where c <= b", lambda x, y: (np.tril(x * y.swapaxes(1, 2))).sum((1, 2))),
    ("Z[a] += X[a, b, c] > Y[a, c, b] ? X[a, b, c] : 0", lambda x, y: np.where(x > y.swapaxes(1, 2), x, 0).sum((1, 2)))])
def test_other_sums_and_domains_are_turned_too(statement, reference):
    f, g = f"op f({X}, {Y}) -> (Z: f32[A]) {{ {statement} }}", np.random.default_rng(2)
    m = middle(f, "tuned", t=V3)
    assert "squares with 8" in m.chosen[0] and proved(m)
    for a, b, c in SIZES[1:]:
        x, y = g.standard_normal((a, b, c)).astype(np.float32), g.standard_normal((a, c, b)).astype(np.float32)
        want = reference(x.astype(np.float64), y.astype(np.float64))
        np.testing.assert_allclose(polyop.op(f)(x, y), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "turned"), [("both are added up", False), ("a diagonal", True)])
def test_strict_sums_stay_in_order(name, turned):
    """Lanes along what is added up would not; along another loop they do."""
    m = middle(text(name), "tuned", Options(numerics="strict"), t=V3)
    assert ("squares" in m.chosen[0]) is turned and proved(m)


@pytest.mark.parametrize("term", [
    "X[a, b, c] * V[a, b, c]", "X[a, b, c]", "X[a, b, c] * Y[a, c, 0]", "X[a, b, c] * Y[a, c, b] * W[b, c, a]"])
def test_what_lies_along_one_loop_or_along_three_is_not(term):
    m = middle(f"op f({X}, {Y}, V: f32[A, B, C], W: f32[B, C, A]) -> (Z: f32[A]) {{ Z[a] += {term} }}", "tuned")
    assert "squares" not in m.chosen[0]


PAIR = "X: f32[A, B], Y: f32[A, B]"
PLAIN = {  # inputs and result, statements, what NumPy says of it
    "two": (PAIR, "Z: f32[B, A]", "Z[b, a] = X[a, b] * Y[a, b]", lambda x, y: (x * y).T),
    "three": (f"{PAIR}, W: f32[A, B]", "Z: f32[B, A]", "Z[b, a] = X[a, b] * Y[a, b] * W[a, b]", lambda x, y, w: (x * y * w).T),
    "several steps": (f"{PAIR}, W: f32[A, B]", "Z: f32[B, A]", "t[a, b] = exp(X[a, b] - Y[a, b]); Z[b, a] = t[a, b] * W[a, b]",
                      lambda x, y, w: (np.exp(x - y) * w).T),
    "a number for each row": (f"{PAIR}, v: f32[A]", "Z: f32[B, A]", "t[a, b] = X[a, b] + Y[a, b]; Z[b, a] = t[a, b] * v[a]",
                              lambda x, y, v: ((x + y) * v[:, None]).T),
    "one of them lies across": (f"{PAIR}, W: f32[B, A]", "Z: f32[A, B]",
                                "t[a, b] = X[a, b] + Y[a, b]; Z[a, b] = t[a, b] * W[b, a]",
                                lambda x, y, w: (x + y) * w.T),
    "a batch around": ("X: f32[A, C, B], Y: f32[A, C, B]", "Z: f32[C, B, A]",
                       "t[a, c, b] = X[a, c, b] * Y[a, c, b]; Z[c, b, a] = 2 * t[a, c, b]",
                       lambda x, y: (2 * x * y).transpose(1, 2, 0)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_values_of_any_number_of_steps_are_turned_where_the_result_lies_across(name):
    inputs, result, body, reference = PLAIN[name]
    f = f"op f({inputs}) -> ({result}) {{ {body} }}"
    m = middle(f, "tuned", t=V3)
    assert "lanes b (shell), 1 x 8, rows a x 8" in m.chosen[0] and len(m.chosen) == 1 and proved(m)
    g, made = np.random.default_rng(3), polyop.op(f)
    for a, b, c in SIZES:
        sizes = {"A": a, "B": b, "C": c}
        shapes = [[sizes[e] for e in x.split("]")[0].split(", ")] for x in inputs.split("[")[1:]]
        arrays = [g.standard_normal(x).astype(np.float32) for x in shapes]
        np.testing.assert_allclose(made(*arrays), reference(*(x.astype(np.float64) for x in arrays)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("body", [
    "Z[a, b] = X[a, b] * Y[a, b]", "Z[a, b] = X[a, b] * v[a]", "t[a, b] = X[a, b] * v[a]; Z[a, b] = t[a, b] + Y[a, b]",
    "Z[a, b] = X[a, b] * W[a, 0]"])
def test_what_lies_along_the_result_has_no_rows(body):
    m = middle(f"op f(X: f32[A, B], Y: f32[A, B], v: f32[A], W: f32[A, 1]) -> (Z: f32[A, B]) {{ {body} }}", "tuned", t=V3)
    assert "rows a" not in m.chosen[0] and "lanes b" in m.chosen[0]
