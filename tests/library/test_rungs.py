"""Every operator of the library is compiled for GPUs by a strategy of its own, and proved: none falls down the ladder."""

import pytest

from polyop.compiler import compile_op
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime.layout import contiguous
from tests.library.catalog import CASES, IDS, instance

TARGETS = ("cuda:sm_80", "hip:gfx942")
OWN = sorted({(name, case.op): k for k, (name, case) in reversed(list(enumerate(CASES)))}.values())
"""The number of the first case of each operator."""


def rung(name, case, dtype, on):
    sizes = case.tiny[0]
    op = instance(name, case, dtype, case.arguments(dtype, sizes), case.keywords(sizes))
    return compile_op(op, contiguous(op), target(on), Options()).rung


def in_turn(case, number):
    """f32 or f16, if the case has both; else its first dtype."""
    wanted = ("f32", "f16")[number % 2]
    return wanted if wanted in case.dtypes else case.dtypes[0]


@pytest.mark.parametrize("first", range(0, len(OWN), 8), ids=lambda k: IDS[OWN[k]])
def test_operators_are_on_the_tuned_rung_of_nvidia_and_of_amd_by_turns(first):
    for k in range(first, min(first + 8, len(OWN))):
        name, case = CASES[OWN[k]]
        assert rung(name, case, in_turn(case, k // 2), TARGETS[k % 2]) == "tuned", IDS[OWN[k]]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(IDS)), ids=lambda k: IDS[k])
def test_and_so_they_are_on_both(number):
    name, case = CASES[number]
    for dtype in {"f32", "f16"}.intersection(case.dtypes) or {case.dtypes[0]}:
        assert [rung(name, case, dtype, on) for on in TARGETS] == ["tuned"] * 2
