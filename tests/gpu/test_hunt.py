"""A few calls of `scripts/hunt_gpus.py`, which makes them at random: all are right, and what is planted is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gpu_hunt
import gpu_sessions
import pytest
from gpu_calls import KINDS
from gpu_hunt import hunt
from gpu_sessions import here, session

from polyop.compiler import Compiled, compile_op
from polyop.ir.errors import UnsupportedError
from polyop.runtime import cxx, emulated
from polyop.runtime.emulated import Report

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

TARGETS = ("cuda:sm_80", "hip:gfx942")


@pytest.mark.parametrize("kind", KINDS)
def test_some_calls_of_each_sort_are_right(kind: str) -> None:
    for seed, where in enumerate(TARGETS):
        found = hunt(kind, seed, where)
        assert found and not found.fault, str(found)


@pytest.mark.parametrize(("seed", "where"), [(1, "cuda:sm_90a"), (6, "hip:gfx942")])
def test_sessions_are_right(seed: int, where: str) -> None:
    found = session(seed, where)
    assert found.calls and not found.fault, str(found)


def test_a_wrong_result_of_a_session_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sessions, "here", lambda x: here(x) + 1)
    assert "WRONG" in session(0, "cuda:sm_80").fault


def test_a_wrong_element_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = emulated.run

    def spoiled(module: Any, sizes: Any, scalars: Any, arrays: dict[str, Any], **how: Any) -> Report:
        report = run(module, sizes, scalars, arrays, **how)
        arrays["out"].flat[-1] += 1
        return report

    monkeypatch.setattr(emulated, "run", spoiled)
    found = hunt("einsum", 1, TARGETS[0])
    assert found and found.fault.startswith("WRONG: 1 of ")


def test_a_kernel_that_lost_the_tuned_rung_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fallen(*given: Any) -> Compiled:
        return replace(compile_op(*given), rung="default", notes=("it fell",))

    monkeypatch.setattr(gpu_hunt, "compile_op", fallen)
    found = hunt("einsum", 1, TARGETS[0], ("text",))
    assert found and found.fault == "REFUSED, rung default: it fell"
