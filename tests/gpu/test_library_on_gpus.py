"""Every operator of the library on some GPU: which one, in which dtype and at which small size is decided by its place there.

Operator k goes to target k mod 5, in f32 or f16 by turns, by the kernel that a call of these sizes gets. It is proved on the
tuned rung, computes on the emulator what NumPy says, and compiles for the machine itself without a warning and without a register
spilled to memory.
"""

from __future__ import annotations

import re

import pytest
from gpu_operators import OPERATORS, TARGETS, Call, by_turns, calls, with_one_text

from polyop.ir.errors import UnsupportedError
from polyop.ir.module import Binary
from polyop.runtime import amdgcn, cxx, emulated, nvrtc
from polyop.runtime.usage import Usage, usage

PARTS = 8
TOOLS = {"cuda": nvrtc, "hip": amdgcn}
ANGLES = re.compile(r"\bpop_(sin|cos|tan)\(")
"""Functions that keep the digits of a large angle in an array, which lies in local memory."""


@pytest.fixture(scope="module", params=[(t, p) for t in TARGETS for p in range(PARTS)], ids=lambda x: f"{x[0]}-{x[1]}")
def turn(request: pytest.FixtureRequest) -> list[Call]:
    """Calls with one text: tests of one fixture run beside each other, so it is made once."""
    return by_turns(*request.param, PARTS)


def test_an_operator_whose_turn_it_is_computes_what_numpy_says_and_is_tuned(turn: list[Call]) -> None:
    try:
        cxx.compiler()
    except UnsupportedError as e:
        pytest.skip(str(e))
    wrong = []
    for k, call in enumerate(turn):
        report = emulated.run(call.module, call.sizes, call.scalars, call.arrays, order=emulated.ORDERS[k % 3])
        try:
            assert call.rung == "tuned"
            assert str(report) == "no fault found"
            call.check()
        except AssertionError as error:
            wrong.append(f"{call.case}, {call.dtype}, {dict(call.given)}: {error}")
    assert not wrong, "\n".join(wrong)


def compiled(found: list[Call]) -> tuple[Usage, ...]:
    """What the kernels of a text take, which the target's compiler takes without a word."""
    module = found[0].module
    tool = TOOLS[module.target.partition(":")[0]]
    if tool.unavailable():
        pytest.skip(tool.unavailable())
    code, said = tool.compiled(module)
    assert not said
    return usage(Binary(module.name, module.target, code, module.signature, module.launch))


def spilled(found: list[Call], taken: tuple[Usage, ...]) -> list[str]:
    """The kernels that keep in memory what others have in registers."""
    text = {name: body for call in found for name, body in kernels(call.module.text).items()}
    return [str(u) for u in taken if u.spills or (u.local and not ANGLES.search(text[u.kernel]))]


def kernels(text: str) -> dict[str, str]:
    """The kernels of a text by name, each with its body."""
    pieces = re.split(r'extern "C" __global__ void (?:__\w+\([^()]*\) )*(\w+)\(', text)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def test_it_compiles_for_the_machine_without_a_warning_and_nothing_is_spilled(turn: list[Call]) -> None:
    assert spilled(turn, compiled(turn)) == []


@pytest.mark.parametrize("target", TARGETS)
def test_a_dozen_operators_compile_for_every_machine(target: str) -> None:
    found = with_one_text([calls(name, dtype, target, turn=-1)[0] for name, dtype in OPERATORS])
    assert spilled(found, compiled(found)) == []
