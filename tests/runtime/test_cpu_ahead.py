"""LLVM works while the loops of its text are proved, and what it makes of loops that are not proved is not used."""

import concurrent.futures.thread
import os
import sys
import threading
from dataclasses import replace

import pytest

import polyop
from polyop import compiler, making
from polyop.ir.errors import InternalError
from polyop.ir.module import Module, Proof, Signature
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import cpu
from polyop.runtime.cpu_ahead import Ahead
from polyop.runtime.layout import contiguous

V3 = target("x86:x86-64-v3")


def compiled() -> compiler.Compiled:
    operator = polyop.op("op f(X: f32[N, M]) -> (Y: f32[N]) { Y[i] += X[i, j] * X[i, j] }")
    op = operator._op(operator.choice())
    return compiler.compile_op(op, contiguous(op), V3, Options())


@pytest.fixture
def seen(monkeypatch) -> list[object]:
    """What happens in turn: the thread of each module that is assembled, and "proved"."""
    order: list[object] = []
    assemble, proved = cpu.assemble, making._proved
    monkeypatch.setattr(cpu, "assemble", lambda *x: (order.append(threading.current_thread()), assemble(*x))[1])
    monkeypatch.setattr(making, "_proved", lambda *x: (order.append("proved"), proved(*x))[1])
    return order


def cores(monkeypatch, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)))


def test_machine_code_is_the_same_whether_it_was_begun_or_not(monkeypatch, seen):
    cores(monkeypatch, 1)
    alone = compiled()
    assert seen == ["proved", threading.current_thread()]
    seen.clear()
    cores(monkeypatch, 2)
    beside = compiled()
    assert len(seen) == 2 and "proved" in seen and threading.current_thread() not in seen
    assert beside.binary.code == alone.binary.code and beside.module.text == alone.module.text
    assert [(p.claim, p.holds) for p in beside.proofs] == [(p.claim, True) for p in alone.proofs]


def test_loops_that_are_not_proved_are_not_those_that_are_assembled(monkeypatch, seen):
    cores(monkeypatch, 2)
    asked, made = list[int](), list[Module]()

    def failing(proofs):
        asked.append(1)
        return Proof("planted", False) if len(asked) < 3 else None

    monkeypatch.setattr(making, "first_failure", failing)
    assemble = cpu.assemble
    monkeypatch.setattr(cpu, "assemble", lambda m, t: (made.append(m), assemble(m, t))[1])
    found = compiled()
    assert any("planted" in n for n in found.notes)
    assert len(made) == 2 and made[-1] is found.module and made[0] is not found.module
    assert found.binary.code == assemble(found.module, V3).code


def test_what_was_begun_is_not_taken_for_another_module():
    module = compiled().module
    with Ahead(V3) as ahead:
        ahead.begin(replace(module, text="define nonsense"))
        assert ahead.assembled(module).code == cpu.assemble(module, V3).code


def test_what_llvm_refuses_is_told_who_waits_and_nothing_is_left_behind():
    turn, module = sys.getswitchinterval(), Module("f", "x86", "define nonsense", Signature("f", (), (), (), ()))
    with Ahead(V3) as ahead:
        ahead.begin(module)
        assert sys.getswitchinterval() < turn
        with pytest.raises(InternalError, match="LLVM refuses f"):
            ahead.assembled(module)
    assert sys.getswitchinterval() == turn and not any("polyop-aside" in t.name for t in threading.enumerate())


def test_two_that_compile_by_turns_leave_pythons_turns_as_they_were():
    turn, module = sys.getswitchinterval(), compiled().module
    first = Ahead(V3)
    with first:
        first.begin(module)
        second = Ahead(V3)  # another thread's, which waits for this one to end
    with second:
        second.begin(module)
    assert sys.getswitchinterval() == turn


def test_a_fork_waits_for_a_compiler_that_sets_llvm_to_work():
    """It takes the lock of `concurrent.futures` before ours, so a compiler must do without that module's threads."""
    module = compiled().module
    lock = concurrent.futures.thread._global_shutdown_lock
    begun = threading.Event()

    def begin():
        with Ahead(V3) as ahead:
            ahead.begin(module)
            begun.set()

    with lock:
        thread = threading.Thread(target=begin)
        thread.start()
        assert begun.wait(20)
    thread.join()


def test_a_gpus_text_is_none_of_llvms_here():
    assert not Ahead(target("cuda:sm_80")).is_worth_it
