"""Memory for results: aligned to 64 bytes, large ones to pages, and used again once no array refers to it.

The C library gives large blocks back to the system after each use, and a fresh one costs a page fault for every 4 KiB:
three times the kernel itself for a row-wise operator. So blocks are kept, in classes of size, up to a bound. Sizes that are new
take a block that is somewhat larger.
"""

from __future__ import annotations

from contextlib import suppress
from sys import getrefcount

import numpy as np
from numpy import ndarray

ALIGN = 64
PAGE = 4096
LARGE = 128 << 10     # bytes from which blocks begin with a page
LARGEST = 256 << 20   # bytes of a block worth keeping
MOST = 512 << 20      # bytes kept in all
TRIES = 4             # blocks that are looked at before a new one is made
LOANS = 16            # results of a class that lie upon blocks of larger ones, before it has a block of its own
_PER_CLASS = 16


_classes: dict[int, list[ndarray]] = {}
_loans: dict[int, int] = {}
_last = 0  # the class that last looked for a block of another one
_kept = 0  # bytes; approximate when threads meet, which the bound survives


def rounded(bytes_: int) -> int:
    """The size of class that `bytes_` belong to: at most an eighth more, a multiple of 64."""
    grain = max(ALIGN, 1 << max(0, bytes_.bit_length() - 4))
    return -(-max(1, bytes_) // grain) * grain


def empty(shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, int]:
    """An array with unset contents, and its address."""
    return fill(size_of(shape, dtype), shape, dtype)


def size_of(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """The size of class of an array."""
    elems = 1
    for n in shape:
        elems *= n
    return rounded(elems * dtype.itemsize)


def kept(size: int) -> list[np.ndarray]:
    """The blocks of a class, the one that was used last at the end: it is the first to be used again, as caches may have it.

    A block is free when only this list knows it, since arrays on top of it hold a reference. It is always the same list, which
    machine code reads as well (`@free` of entry_run.ll).
    """
    return _classes.setdefault(size, [])


def alignment(size: int) -> int:
    """Bytes at whose multiples an array of this class begins. The C library's large blocks begin just behind a page: what is
    copied would lie a few bytes ahead."""
    return PAGE if size >= LARGE else ALIGN


def fill(size: int, shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, int]:
    """`empty` where the size of class is known."""
    blocks = kept(size)
    found = _again(blocks, size, shape, dtype) or _borrowed(size, shape, dtype)
    if found is not None:
        return found
    raw = np.empty(size + alignment(size), np.uint8)
    found = _upon(raw, size, shape, dtype)
    _keep(blocks, raw, size)
    return found


def _again(blocks: list[np.ndarray], size: int, shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, int] | None:
    """An array upon a free block of the list; None if none of those that are looked at is free."""
    for _ in range(TRIES):
        try:
            raw = blocks.pop()  # whoever takes it from the list has it alone
        except IndexError:
            return None
        if getrefcount(raw) == 2:  # that of the name `raw`, and that of the question
            found = _upon(raw, size, shape, dtype)
            blocks.append(raw)
            return found
        blocks.insert(0, raw)
    return None


def _borrowed(size: int, shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, int] | None:
    """An array upon a free block of a larger class, at most twice as large, for a class that has few calls so far.

    Where each call has another size, nearly every one would touch memory for the first time: two hundred of up to 32 MiB spent
    more on page faults than on a row-wise operator. What comes twice in a row or again and again gets a block of its own.
    """
    global _last
    times, comes_twice, _last = _loans.get(size, 0), size == _last, size
    if size < LARGE or comes_twice or times >= LOANS:
        return None
    larger = rounded(size + 1)
    while larger <= 2 * size:
        found = _again(_classes.get(larger, []), size, shape, dtype)
        if found is not None:
            _loans[size] = times + 1
            return found
        larger = rounded(larger + 1)
    return None


def _upon(raw: np.ndarray, size: int, shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, int]:
    start = int(raw.__array_interface__["data"][0])
    offset = -start % alignment(size)
    return ndarray(shape, dtype, raw, offset), start + offset


def _keep(blocks: list[np.ndarray], raw: np.ndarray, size: int) -> None:
    global _kept
    if size > LARGEST:
        return
    if len(blocks) >= _PER_CLASS:
        with suppress(IndexError):  # another thread may have emptied it
            blocks.pop(0)
            _kept -= size
    if _kept + size > MOST:
        release()
    blocks.append(raw)
    _kept += size


def release() -> None:
    """Forget all blocks; those in use live on until their arrays die."""
    global _kept
    for blocks in list(_classes.values()):
        blocks.clear()
    _loans.clear()
    _kept = 0
