"""Room for recursion: expressions may be thousands of levels deep, which Python's own stack does not hold."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

STACK_BYTES = 512 << 20
FRAMES = 200_000
_lock = threading.Lock()


def with_room(work: Callable[[], T]) -> T:
    """`work()`, on a thread with a large stack and a recursion limit to match; its exceptions come through.

    Notes   The memory is only reserved; pages are used as deep as the recursion goes. Inside such a thread this is
            just a call.
    """
    if threading.current_thread().name == "polyop-deep":
        return work()
    out: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            out.append(work())
        except BaseException as error:
            errors.append(error)

    with _lock:
        old_size, old_limit = threading.stack_size(STACK_BYTES), sys.getrecursionlimit()
        try:
            sys.setrecursionlimit(max(old_limit, FRAMES))
            thread = threading.Thread(target=run, name="polyop-deep")
            thread.start()
        finally:
            threading.stack_size(old_size)
    thread.join()
    with _lock:
        sys.setrecursionlimit(old_limit)
    if errors:
        raise errors[0]
    return out[0]
