"""Numbers that are known."""

from __future__ import annotations


def power_of_two(n: int) -> int:
    """The least power of 2 that is no less than `n`, which is at least 1."""
    return 1 << (n - 1).bit_length()


def filled(count: int, lanes: int) -> float:
    """How much of the lanes of vectors so many elements fill."""
    return count / (-(-count // lanes) * lanes) if count else 0.0
