"""Steps over an index that others know by its groups."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.rewrite.grouped import in_groups

from .ops import assert_same, library, op

TEXT = """op f(X: f32[B, C, H]) -> (Y: f32[B, C, H]) {facts} {{
    t[b, k] += X[b, 4*k + i, h]  where k in 0:C / 4, i in 0:4
    {what}
}}"""


def cut(what: str, facts: str = "where C % 4 == 0") -> tuple[str, ...]:
    """The last step of an operator whose sums are of groups of 4, and of it in groups."""
    before = op(TEXT.format(what=what, facts=facts))
    after = in_groups(before)
    for b, c, h in ((2, 8, 3), (1, 4, 1), (0, 4, 2), (3, 12, 5)):
        if "8 ==" not in facts:
            assert_same(before, after, {"B": b, "C": c, "H": h})
    return str(before.steps[-1]), str(after.steps[-1])


def test_an_index_that_is_divided_is_a_group_and_a_place_in_it() -> None:
    _, after = cut("Y[b, c, h] = X[b, c, h] - t[b, c / 4]")
    at = "[b, 4*c_group + c_in, h]"
    assert after == f"Y{at} = (X{at} - t[b, c_group])  where b in 0:B, c_group in 0:floor((C)/4), c_in in 0:4, h in 0:H"
    _, after = cut("Y[b, c, h] = X[b, c, h] * t[b, c / 4] + X[b, c % 4, h]")
    assert "X[b, c_in, h]" in after and "t[b, c_group]" in after


@pytest.mark.parametrize(("what", "facts"), [
    ("Y[b, c, h] = X[b, c, h] - t[b, c / 4]", ""),                             # C may be 5
    ("Y[b, c, h] = X[b, c, h] - t[b, c / 4]", "where C % 8 == 1"),
    ("Y[b, c, h] = X[b, c, h] - t[b, c / 4] * f32(c / 2)", "where C % 4 == 0"),  # two ways of dividing
    ("Y[b, c, h] = X[b, c, h] - (t[b, (c + 1) / 4] else 0)", "where C % 4 == 0"),
    ("Y[b, c, h] = X[b, c / 4, h]", "where C % 4 == 0"),                       # nothing that was made by groups
    ("Y[b, c, h] = X[b, c, h] - t[b, c / 4] where c in 0:C", "where C % 2 == 0"),
])
def test_other_steps_stay(what: str, facts: str) -> None:
    before, after = cut(what, facts)
    assert before == after


def test_extents_that_are_numbers_need_no_fact() -> None:
    text = TEXT.replace("C", "12").format(what="Y[b, c, h] = X[b, c, h] - t[b, c / 4]", facts="")
    assert "c_group in 0:3" in str(in_groups(op(text)).steps[-1])


@pytest.mark.parametrize("target", ["x86", "cuda:sm_90a"])
def test_group_normalisation_has_a_loop_of_groups(target: str) -> None:
    explained = polyop.library("groupnorm").compile(target=target, consts={"channels": 8}).explain()
    assert "[b k : " in explained.split("order and fusion")[1].split("\n")[1]


@pytest.mark.parametrize(("shape", "channels"), [
    ((2, 24, 5, 7), 8), ((1, 3, 1, 1), 1), ((3, 6, 17, 3), 2), ((2, 32, 9, 31), 32), ((0, 8, 3, 3), 4)])
def test_group_normalisation_is_right(shape: tuple[int, ...], channels: int) -> None:
    g = np.random.default_rng(1)
    x, w, b = g.standard_normal(shape, np.float32), *g.standard_normal((2, shape[1]), np.float32)
    y = x.astype(float).reshape(shape[0], shape[1] // channels, channels * shape[2] * shape[3])
    y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
    want = y.reshape(shape) * w[:, None, None] + b[:, None, None]
    np.testing.assert_allclose(polyop.library("groupnorm")(x, w, b, channels=channels), want, rtol=1e-4, atol=1e-4)


def test_the_librarys_is_the_same_in_groups() -> None:
    before = library("norm", "groupnorm", consts={"channels": 4})
    after = in_groups(before)
    assert_same(before, after, {"B": 2, "C": 12, "H": 3, "W": 5})
    assert before != after
