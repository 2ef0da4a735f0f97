"""Memory for results: aligned to 64 bytes, large ones to pages, and used again once no array refers to it.

The C library gives large blocks back to the system after each use, and a fresh one costs a page fault for every 4 KiB:
three times the kernel itself for a row-wise operator. So blocks are kept, in classes of size, up to a bound.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from sys import getrefcount

import numpy as np
from numpy import ndarray

ALIGN = 64
PAGE = 4096
LARGE = 128 << 10     # bytes from which blocks begin with a page
LARGEST = 256 << 20   # bytes of a block worth keeping
MOST = 512 << 20      # bytes kept in all
_PER_CLASS = 16
_TRIES = 3


_Block = tuple[np.ndarray, int, int]  # raw bytes, where in them the aligned part starts, and its address
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
    return fill(size_of(shape, dtype), shape, dtype)


def size_of(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """The size of class of an array."""
    elems = 1
    for n in shape:
        elems *= n
    return rounded(elems * dtype.itemsize)


def fill(size: int, shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, int]:
    """`empty` where the size of class is known."""
    blocks = _classes.get(size)
    if blocks is None:
        blocks = _classes.setdefault(size, deque())
    for _ in range(_TRIES):
        try:
            block = blocks.popleft()
        except IndexError:
            break
        raw, offset, address = block
        if getrefcount(raw) == 3:  # the block's own, that of the name `raw`, and that of the question
            array: np.ndarray = ndarray(shape, dtype, raw, offset)
            blocks.append(block)
            return array, address
        blocks.append(block)
    align = PAGE if size >= LARGE else ALIGN  # the C library's begin just behind one: what is copied would lie a few bytes ahead
    raw = np.empty(size + align, np.uint8)
    start = int(raw.__array_interface__["data"][0])
    offset = -start % align
    array = ndarray(shape, dtype, raw, offset)
    _keep(blocks, (raw, offset, start + offset), size)
    return array, start + offset


def _keep(blocks: deque[_Block], block: _Block, size: int) -> None:
    global _kept
    if size > LARGEST:
        return
    if len(blocks) >= _PER_CLASS:
        with suppress(IndexError):  # another thread may have emptied it
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
