"""Python's collector of cycles, while something is made of many objects that are soon gone again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = 1 << 30
_YOUNG = 20_000
"""New objects after which the young are looked through: after 700, as is usual, that takes 1 to 4 % of compiling."""


@contextmanager
def old_objects_spared() -> Iterator[None]:
    """Inside, only young objects are looked through for cycles, and seldom: all of them take 30 ms, with large frameworks 100.

    Notes   The threshold is the whole process's, and put back at the end unless somebody else has set it meanwhile. Whoever
            is inside holds a lock, for which fork() waits too. What is off or asked for (`gc.disable`, `gc.collect`) stays so.
    Source  https://docs.python.org/3/library/gc.html#gc.set_threshold
    """
    before = gc.get_threshold()
    inside = max(before[0], _YOUNG) if before[0] else 0, before[1], _NEVER
    gc.set_threshold(*inside)
    try:
        yield
    finally:
        if gc.get_threshold() == inside:
            gc.set_threshold(*before)
