"""Numbers that are known."""

from __future__ import annotations


def power_of_two(n: int) -> int:
    """The least power of 2 that is no less than `n`, which is at least 1."""
    return 1 << (n - 1).bit_length()
