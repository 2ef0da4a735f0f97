"""Room for recursion: expressions may be thousands of levels deep, which Python's own stack does not hold."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

STACK_BYTES = 512 << 20
FRAMES = 200_000
_NAME = "polyop-deep"
_lock = threading.Lock()
_ordinary: list[int] = []  # the limit to go back to, then one entry for each thread that runs


def with_room(work: Callable[[], T]) -> T:
    """`work()`, on a thread with a large stack and a recursion limit to match; its exceptions come through.

    Notes   The memory is only reserved; pages are used as deep as the recursion goes. Inside such a thread this is
            just a call.
    """
    if threading.current_thread().name == _NAME:
        return work()
    out: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            out.append(work())
        except BaseException as error:
            errors.append(error)

    with _lock:
        if not _ordinary:
            _ordinary.append(sys.getrecursionlimit())
            sys.setrecursionlimit(max(FRAMES, _ordinary[0]))
        _ordinary.append(0)
        old_size = threading.stack_size(STACK_BYTES)
        try:
            thread = threading.Thread(target=run, name=_NAME)
            thread.start()
        finally:
            threading.stack_size(old_size)
    thread.join()
    with _lock:
        _ordinary.pop()
        if len(_ordinary) == 1:
            sys.setrecursionlimit(_ordinary.pop())
    if errors:
        raise errors[0]
    return out[0]
