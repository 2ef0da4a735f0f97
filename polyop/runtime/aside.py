"""Work that a thread of its own does, and whose result somebody waits for.

That is a future, but not one of `concurrent.futures`: each fork() takes a lock of that module, and then waits for whoever is
compiling, who would wait for that lock to hand on work.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Generic, TypeVar

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
