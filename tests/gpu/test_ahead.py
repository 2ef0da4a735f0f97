"""A GPU's compiler works while the loops of its text are proved, and what it makes of loops that are not proved is not used."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

import polyop
from polyop import compiler, making
from polyop.ir.errors import InternalError
from polyop.ir.module import Binary, Module, Proof
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import device
from polyop.runtime.layout import contiguous

TEXT = "op f(X: f32[N, M]) -> (Y: f32[N]) { Y[i] += X[i, j] * X[i, j] }"


def compiled(ahead, where: str = "cuda:sm_80") -> compiler.Compiled:
    operator = polyop.op(TEXT)
    op = operator._op(operator.choice())
    return compiler.compile_op(op, contiguous(op), target(where), Options(), ahead)


class Tool:
    """A compiler that notes what it is given, and on which thread."""

    def __init__(self, refuses: str = "") -> None:
        self.given: list[Module] = []
        self.threads: list[threading.Thread] = []
        self.refuses = refuses

    def unavailable(self) -> str:
        return ""

    def assemble(self, module: Module, numerics: str) -> Binary:
        self.given.append(module)
        self.threads.append(threading.current_thread())
        if self.refuses:
            raise InternalError(self.refuses)
        return Binary(module.name, module.target, numerics.encode(), module.signature, module.launch)


@pytest.fixture
def tool(monkeypatch) -> Tool:
    made = Tool()
    monkeypatch.setattr(device, "_TOOLS", {"cuda": made, "hip": made})
    return made


@pytest.mark.parametrize("where", ["cuda:sm_80", "hip:gfx942"])
def test_the_text_is_told_before_its_loops_are_proved(monkeypatch, where):
    order: list[object] = []
    proved = making._proved
    monkeypatch.setattr(making, "_proved", lambda *x: (order.append("proved"), proved(*x))[1])
    made = compiled(order.append, where)
    told, then = order
    assert then == "proved" and made.proofs and all(p.holds for p in made.proofs)
    assert isinstance(told, Module) and device._code(told) == device._code(made.module)
    assert "// proved of its loops" in made.module.text and "// proved of its loops" not in told.text


def test_what_was_begun_is_compiled_once_on_another_thread(tool):
    ahead = device.Ahead("strict")
    made = compiled(ahead.begin)
    binary, missing = ahead.assembled(made.module)
    assert not missing and binary.code == b"strict" and binary.launch == made.module.launch
    assert len(tool.given) == 1 and tool.threads != [threading.current_thread()]


def test_loops_that_are_not_proved_are_not_those_that_are_compiled(monkeypatch, tool):
    turns: list[int] = []

    def failing(proofs):
        turns.append(1)
        return Proof("planted", False) if len(turns) < 4 else None

    monkeypatch.setattr(making, "first_failure", failing)
    ahead = device.Ahead()
    made = compiled(ahead.begin)
    binary, _ = ahead.assembled(made.module)
    assert made.rung != "tuned" or any("planted" in n for n in made.notes)
    assert len(tool.given) > 1 and device._code(tool.given[-1]) == device._code(made.module)
    other = replace(made.module, text=made.module.text + "int more;\n")
    ahead.assembled(other)
    assert tool.given[-1] is other and tool.threads[-1] is threading.current_thread()
    assert binary.signature == made.module.signature


def test_what_a_compiler_refuses_is_told_who_waits_for_it(monkeypatch):
    tool = Tool("no such word")
    monkeypatch.setattr(device, "_TOOLS", {"cuda": tool})
    ahead = device.Ahead()
    made = compiled(ahead.begin)
    with pytest.raises(InternalError, match="no such word"):
        ahead.assembled(made.module)


def test_without_a_compiler_nothing_is_begun(monkeypatch, tool):
    monkeypatch.setattr(tool, "unavailable", lambda: "there is none")
    ahead = device.Ahead()
    made = compiled(ahead.begin)
    assert ahead.assembled(made.module) == (None, "there is none") and not tool.given
