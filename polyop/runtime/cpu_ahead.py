"""Machine code of x86 that is made on another core, while the loops that it is made of are proved."""

from __future__ import annotations

import os
import sys
from functools import partial
from types import TracebackType

from polyop.ir.module import Binary, Module
from polyop.ir.target import Target
from polyop.runtime import cpu
from polyop.runtime.aside import Aside

TURN = 0.0005
"""Seconds after which a thread that waits for Python's lock gets it.

LLVM takes it ten times, each for an instant, beside proofs that never leave it: by turns of 5 ms, as is usual, it would wait for
as long as it works.
"""


class Ahead:
    """LLVM at work on modules, from `begin` to `assembled`; behind the `with` block nothing is at work any more.

    What was begun of loops that are not proved is of no use, and is not used. Only one kernel is compiled at a time, so nobody
    else changes Python's turns meanwhile.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._begun: tuple[Module, Aside[Binary]] | None = None
        self._turn = 0.0  # Python's own, once something has begun

    @property
    def is_worth_it(self) -> bool:
        """Whether there is a core for it beside that of the proofs."""
        return self._target.family == "x86" and len(os.sched_getaffinity(0)) > 1

    def begin(self, module: Module) -> None:
        """Set LLVM to work on `module`, once it is done with the one before."""
        if self._begun is None:
            self._turn = sys.getswitchinterval()
            sys.setswitchinterval(min(TURN, self._turn))
        else:
            self._begun[1].wait()
        self._begun = module, Aside(partial(cpu.assemble, module, self._target))

    def assembled(self, module: Module) -> Binary:
        """Machine code for `module`: what was begun, if that is the same.

        Raises  InternalError, if LLVM refuses the text.
        """
        if self._begun is None or self._begun[0] is not module:
            return cpu.assemble(module, self._target)
        return self._begun[1].result()

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._begun:
            self._begun[1].wait()
            sys.setswitchinterval(self._turn)
            self._begun = None
