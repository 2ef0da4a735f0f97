"""Machine code of x86 that is made on another core, while the loops that it is made of are proved."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from polyop.ir.module import Binary, Module
from polyop.ir.target import Target
from polyop.runtime import aside, cpu

TURN = 0.0005
"""Seconds after which a thread that waits for Python's lock gets it.

LLVM takes it ten times, each for an instant, beside proofs that never leave it: by turns of 5 ms, as is usual, it would wait for
as long as it works.
"""


class Ahead(aside.Ahead[Binary]):
    """LLVM at work on modules; behind the `with` block nothing is at work any more.

    Only one kernel is compiled at a time, so nobody else changes Python's turns meanwhile.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(lambda module: cpu.assemble(module, target))
        self._target = target
        self._turn = 0.0  # Python's own, once something has begun

    @property
    def is_worth_it(self) -> bool:
        """Whether there is a core for it beside that of the proofs."""
        return self._target.family == "x86" and len(os.sched_getaffinity(0)) > 1

    def begin(self, module: Module) -> None:
        """The same, by shorter turns, once LLVM is done with the module before."""
        self.wait()
        if self._begun is None:
            self._turn = sys.getswitchinterval()
            sys.setswitchinterval(min(TURN, self._turn))
        super().begin(module)

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._begun:
            self.wait()
            sys.setswitchinterval(self._turn)
            self._begun = None
