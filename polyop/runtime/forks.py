"""Locks and fork(): a child has only the thread that forked, so nobody else's lock would ever be released there."""

from __future__ import annotations

import logging  # noqa: F401  its hook is to stand before ours: what is imported late asks for loggers
import os
import threading
from typing import Any

_made: list[Any] = []
_taken: list[Any] = []  # by the fork that is going on

IMPORTS = threading.RLock()
"""Held while something is imported on first use: Python's own locks of half imported modules would stay held in a child.

fork() takes it first, and what an import makes is then known; so nobody takes it who holds another lock of this file.
"""


def rlock() -> Any:
    """A re-entrant lock that fork() waits for, so that what it guards is whole in the child.

    Notes   Locks are taken in the reverse order of their making: one that is held while another is taken comes after it.
    """
    lock = threading.RLock()
    _made.append(lock)
    return lock


def _before() -> None:
    IMPORTS.acquire()
    for lock in reversed(_made.copy()):
        lock.acquire()
        _taken.append(lock)


def _after() -> None:
    while _taken:
        _taken.pop().release()
    IMPORTS.release()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
