"""Memory for results: aligned to 64 bytes, and used again once no array refers to it.

The C library gives large blocks back to the system after each use, and a fresh one costs a page fault for every 4 KiB:
three times the kernel itself for a row-wise operator. So blocks are kept, in classes of size, up to a bound.
"""

from __future__ import annotations

import sys
from collections import deque

import numpy as np

ALIGN = 64
LARGEST = 256 << 20   # bytes of a block worth keeping
MOST = 512 << 20      # bytes kept in all
_PER_CLASS = 16
_TRIES = 3


class _Block:
    """Raw bytes, where in them the aligned part starts, and its address."""

    __slots__ = ("raw", "offset", "address")

    def __init__(self, bytes_: int) -> None:
        self.raw = np.empty(bytes_ + ALIGN, np.uint8)
        start = int(self.raw.__array_interface__["data"][0])
        self.offset = -start % ALIGN
        self.address = start + self.offset


_classes: dict[int, deque[_Block]] = {}
_kept = 0  # bytes; approximate when threads meet, which the bound survives


def rounded(bytes_: int) -> int:
    """The size of class that `bytes_` belong to: at most an eighth more, a multiple of 64."""
    grain = max(ALIGN, 1 << max(0, bytes_.bit_length() - 4))
    return -(-max(1, bytes_) // grain) * grain


def empty(shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, int]:
    """An array with unset contents, and its address.

    A block is free when only its list knows it: whoever takes it from the list first has it alone, and arrays on top of
    it hold a reference to `raw`.
    """
    elems = 1
    for n in shape:
        elems *= n
    size = rounded(elems * dtype.itemsize)
    blocks = _classes.get(size)
    if blocks is None:
        blocks = _classes.setdefault(size, deque())
    for _ in range(_TRIES):
        try:
            block = blocks.popleft()
        except IndexError:
            break
        if sys.getrefcount(block.raw) == 2:  # the block's own, and that of the question
            array = np.ndarray(shape, dtype, block.raw, block.offset)
            blocks.append(block)
            return array, block.address
        blocks.append(block)
    block = _Block(size)
    array = np.ndarray(shape, dtype, block.raw, block.offset)
    _keep(blocks, block, size)
    return array, block.address


def _keep(blocks: deque[_Block], block: _Block, size: int) -> None:
    global _kept
    if size > LARGEST:
        return
    if len(blocks) >= _PER_CLASS:
        blocks.popleft()
        _kept -= size
    if _kept + size > MOST:
        release()
    blocks.append(block)
    _kept += size


def release() -> None:
    """Forget all blocks; those in use live on until their arrays die."""
    global _kept
    for blocks in list(_classes.values()):
        blocks.clear()
    _kept = 0
