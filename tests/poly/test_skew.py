"""Steps of a recurrence over a grid go over its rows together, one row behind the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyop
from polyop.ir.loops import structure
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.poly import middle as middle_
from polyop.poly.middle import Middle, lower, scop_of
from polyop.poly.strategies.skew import STEPS
from polyop.poly.verify import first_failure, prove
from polyop.runtime.layout import contiguous

from .middles import op_of

HEAD = "op f(X: f32[M, N]; steps: int) -> (Y: f32[M, N]) {\n    A: f32[steps + 1, M, N]\n    A[0, i, j] = X[i, j]\n"
TAIL = "  where t >= 1\n    Y[i, j] = A[steps, i, j] }"


def grid(step: str) -> str:
    return f"{HEAD}    A[t, i, j] = {step}{TAIL}"


ONE = grid("A[t-1, i, j] + (A[t-1, i-1, j] else 0) - (A[t-1, i+1, j] else 1) + (A[t-1, i, j+1] else 2)")
TWO = grid("A[t-1, i, j] - (A[t-1, i-2, j] else 0) + (A[t-1, i+1, j] else 1) - (A[t-1, i, j-1] else 0)")
BORDER = grid("1 <= i < M - 1 and 1 <= j < N - 1 ? A[t-1, i-1, j] + A[t-1, i+1, j-1] : A[t-1, i, j]")


def made(text: str, options: Options | None = None) -> Middle:
    op = op_of(text)
    out = lower(scop_of(op), contiguous(op), target("x86:x86-64-v4"), options or Options(), "tuned")
    assert first_failure(prove(out.scop, out.nest, out.context)) is None
    return out


def padded(x, rows, fill):
    """x[i + rows], `fill` outside."""
    out = np.full_like(x, fill)
    inside = slice(max(0, -rows), max(0, min(len(x), len(x) - rows)))
    out[inside] = x[inside.start + rows : inside.stop + rows]
    return out


def one(x):
    return x + padded(x, -1, 0) - padded(x, 1, 1) + padded(x.T, 1, 2).T


def two(x):
    return x - padded(x, -2, 0) + padded(x, 1, 1) - padded(x.T, -1, 0).T


def border(x):
    y = x.copy()
    y[1:-1, 1:-1] = x[:-2, 1:-1] + x[2:, :-2]
    return y


def march(step, x, steps):
    for _ in range(steps):
        x = step(x)
    return x


@pytest.mark.parametrize(("text", "step", "slope"), [(ONE, one, 1), (TWO, two, 2), (BORDER, border, 1)])
def test_steps_go_together_and_results_stay_the_same(text, step, slope):
    m = made(text)
    assert any(n.startswith(f"{STEPS} steps of t go over") and f", {slope} behind" in n for n in m.notes)
    assert "t_c(t_w(" in structure(m.nest.body).replace(" ", "") and "t_p(" in structure(m.nest.body)
    run = polyop.op(text)
    for rows, columns in ((1, 1), (2, 3), (3, 2), (17, 15), (40, 65)):
        x = np.random.default_rng(rows).integers(-3, 4, (rows, columns)).astype(np.float32)
        for steps in (0, 1, 2, 7) if step is one else (0, 1, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS + 3):
            got = run(x, steps=steps)
            want = march(step, x, steps)
            np.testing.assert_array_equal(got, want, err_msg=f"{rows}x{columns}, {steps} steps")


def test_steps_that_reach_two_back_go_together_too():
    text = """op f(X: f32[M, N]; steps: int) -> (Y: f32[M, N]) {
        A: f32[steps + 1, M, N]
        A[t, i, j] = t < 2 ? X[i, j] : (A[t-1, i+1, j] else 0) - A[t-2, i, j] + (A[t-1, i, j+1] else 0)
        Y[i, j] = A[steps, i, j]
    }"""
    m = made(text)
    assert any("1 behind each other" in n for n in m.notes) and "A is kept for 3 steps of dimension 0 only" in m.notes
    x = np.random.default_rng(0).integers(-3, 4, (19, 18)).astype(np.float32)
    for steps in (0, 1, 2, 15, 16, 17, 35):
        a = [x, x]
        for _ in range(2, steps + 1):
            a.append(padded(a[-1], 1, 0) - a[-2] + padded(a[-1].T, 1, 0).T)
        np.testing.assert_array_equal(polyop.op(text)(x, steps=steps), a[steps])


@pytest.mark.parametrize("step", [
    "A[t-1, i, j] + (A[t-1, i, j+1] else 0)",                               # rows have nothing to do with each other
    "A[t-1, i, j] + A[t-1, M-1-i, j] + (A[t-1, i, j+1] else 0)",              # another distance for each row
    "A[t-1, i, j] + (A[t-1, i+1, j] else 0) + (A[t, i-1, j] else 0) + (A[t-1, i, j+1] else 0)",  # this very step
])
def test_other_recurrences_go_step_by_step(step):
    assert not any("behind each other" in n for n in made(grid(step)).notes)


def test_several_threads_share_the_rows_of_each_step():
    m = made(ONE, Options(threads=True))
    assert not any("behind each other" in n for n in m.notes) and "parallel" in structure(m.nest.body)


@pytest.mark.parametrize("slope", [0, -1])
def test_the_checker_refuses_a_slope_that_is_too_small(monkeypatch, slope):
    found = middle_.find_skew
    monkeypatch.setattr(middle_, "find_skew", lambda plan, node: replace(s, slope=slope) if (s := found(plan, node)) else None)
    op = op_of(ONE)
    m = lower(scop_of(op), contiguous(op), target("x86:x86-64-v4"), Options(), "tuned")
    failed = first_failure(prove(m.scop, m.nest, m.context))
    assert failed is not None and failed.witness
