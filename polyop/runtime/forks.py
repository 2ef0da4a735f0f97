"""Locks and fork(): a child has only the thread that forked, so nobody else's lock would ever be released there."""

from __future__ import annotations

import os
import threading
from typing import Any


def rlock() -> Any:
    """A re-entrant lock that fork() waits for, so that what it guards is whole in the child.

    Notes   Locks are taken in the reverse order of their making: one that is held while another is taken comes after it.
    """
    lock = threading.RLock()
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock
