"""Work that a thread of its own does, and whose result somebody waits for.

That is a future, but not one of `concurrent.futures`: each fork() takes a lock of that module, and then waits for whoever is
compiling, who would wait for that lock to hand on work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import Generic, TypeVar

from polyop.ir.module import Module

T = TypeVar("T")


class Aside(Generic[T]):
    """`work`, which begins at once."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._done: list[T] = []
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="polyop-aside")
        self._thread.start()

    def result(self) -> T:
        """What the work returns.

        Raises what it raises.
        """
        self.wait()
        if self._error is not None:
            raise self._error
        return self._done[0]

    def wait(self) -> None:
        """Return when nothing is at work any more."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._done.append(self._work())
        except BaseException as e:  # whoever waits is told
            self._error = e


class Ahead(Generic[T]):
    """A compiler at work on a module's text while the loops of that are proved.

    What was begun of loops that are not proved is of no use, and is not used.

    assemble   what it makes of a module
    code       what of a module decides about that
    """

    def __init__(self, assemble: Callable[[Module], T], code: Callable[[Module], object] = lambda module: module) -> None:
        self._assemble, self._code = assemble, code
        self._begun: tuple[object, Aside[T]] | None = None

    def begin(self, module: Module) -> None:
        """Set it to work on `module`."""
        self._begun = self._code(module), Aside(partial(self._assemble, module))

    def assembled(self, module: Module) -> T:
        """What it makes of `module`: what was begun, if that is the same.

        Raises what it raises.
        """
        if self._begun is None or self._begun[0] != self._code(module):
            return self._assemble(module)
        return self._begun[1].result()

    def wait(self) -> None:
        """Return when nothing is at work any more."""
        if self._begun:
            self._begun[1].wait()
