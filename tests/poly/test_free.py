"""Loops about which isl is not asked are those that it would write."""

from __future__ import annotations

import islpy as isl
import pytest

import polyop
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.poly import middle
from polyop.poly.generate import generate
from polyop.poly.generate.free import Free, free, without
from polyop.runtime.layout import contiguous

from .test_generate import library, nest

ATTENTION = "op f(Q: f16[B, H, S, 64], K: f16[B, H, S, 64], V: f16[B, H, S, 64]) -> (O: f16[B, H, S, 64]) " \
            "{ O = attention_causal(Q, K, V, scale=0.5) }"


@pytest.mark.parametrize("said, found", [
    ("0 <= i < N and 0 <= p < 8", [(3, 1, 8)]), ("0 <= i < 4 and 0 <= p < 8", [(1, 0, 4), (3, 1, 8)]),
    ("0 <= i < 4 and 0 <= p < 8 and i + p < N", []), ("0 <= i <= p and 0 <= p < 8", []), ("i = 2 and 0 <= p < 1", []),
    ("1 <= i < 4 and -1 <= p < 8", []), ("0 <= i < 4 and 0 <= p < 8 and p < N", [(1, 0, 4)]),
    ("0 <= i < 4 and 0 <= p < 8 and p mod 2 = 0", [(1, 0, 4)]),
    ("0 <= i < 4 and 0 <= p <= 2*floor(N/2) + 3", [(1, 0, 4)]), ("(0 <= i < 4 or 6 <= i < 9) and 0 <= p < 8", []),
])
def test_a_loop_is_free_that_runs_over_all_of_a_coordinate_of_which_no_more_is_said(said, found):
    m = isl.Map(f"[N] -> {{ S[i, p] -> [i, 0, p] : {said} }}")
    assert free(m, 1, (0, -1, 1)) == tuple(Free(*x) for x in found)


def test_what_is_left_is_said_of_the_others():
    m = isl.Map("[N] -> { S[i, p, j] -> [j, p, i] : 0 <= p < 8 and 0 <= i < N and i <= j < N }")
    assert without(m, free(m, 4, (2, 1, 0)), 4).is_equal(isl.Map("[N] -> { [i, j] -> [j, i] : 0 <= i < N and i <= j < N }"))


@pytest.mark.parametrize("name", ["softmax", "matmul", "conv2d", "attention_causal", "lstm", "jacobi2d"])
def test_nests_are_those_that_isl_writes_alone(name, monkeypatch):
    op = library(name)
    here = str(nest(op, Options()))
    monkeypatch.setattr(generate, "free", lambda *_: ())
    assert here == str(nest(op, Options()))


@pytest.mark.parametrize("where", ["cuda:sm_80", "hip:gfx942"])
def test_nests_of_threads_are_those_that_isl_writes_alone(where, monkeypatch):
    operator = polyop.op(ATTENTION)
    op = operator._op(operator.choice())
    asked, real = list[int](), generate._Writer.ast

    def counted(self, p, times, places):
        asked.append(len(places))
        return real(self, p, times, places)

    def made():
        return str(middle.lower(middle.scop_of(op), contiguous(op), target(where), Options(), "tuned").nest)

    monkeypatch.setattr(generate._Writer, "ast", counted)
    here, few = made(), sum(asked)
    monkeypatch.setattr(generate, "free", lambda *_: ())
    assert here == made()
    assert few < 0.8 * (sum(asked) - few)
