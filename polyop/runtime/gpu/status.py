"""How a kernel on a GPU tells that a position computed from data was outside its tensor, although nobody waits for it.

Each kernel that checks positions has a word in pinned memory on each device. It writes there the number of the first site
that failed, and goes on without that element; where all is well, it writes nothing, so this costs nothing. The host looks at
the word, which is a plain read, before each call of the kernel, and for all kernels in `synchronize`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from polyop.ir.errors import CallError
from polyop.ir.module import Signature
from polyop.ir.op import Op
from polyop.runtime import forks, outside
from polyop.runtime.gpu.driver import Device, on, relaxed

_PAGE = 4096


@dataclass(frozen=True, eq=False, slots=True)
class Word:
    """Where a kernel of `op` on `device` writes the number of a site; `at` is its address there."""

    op: Op
    signature: Signature
    device: Device
    cell: Any
    at: int

    def look(self) -> None:
        """Raises CallError, once, if an earlier call met a position outside."""
        if self.cell.value:
            site, self.cell.value = self.signature.sites[self.cell.value - 1], 0
            raise outside.late(self.op, site, str(self.device))


_lock = forks.rlock()
_words: list[Word] = []
_rooms: dict[Device, list[tuple[int, int]]] = {}  # cells of pages that are not used yet: their address here, and there


def word(op: Op, signature: Signature, device: Device) -> Word:
    """A new word. It stays for as long as this process lives: a graph may run the kernel long after it was forgotten."""
    with _lock:
        room = _rooms.setdefault(device, [])
        if not room:
            with on(device) as d, relaxed(d):
                here = d.ask("pin", _PAGE, 3)  # portable and mapped
                there = d.ask("mapped", here, 0)
            ctypes.memset(here, 0, _PAGE)
            room += [(here + k, there + k) for k in range(0, _PAGE, 64)]
        here, there = room.pop()
        made = Word(op, signature, device, ctypes.c_uint32.from_address(here), there)
        _words.append(made)
        return made


def used() -> tuple[Device, ...]:
    """The devices that kernels have been loaded on."""
    with _lock:
        return tuple(_loaded)


_loaded: dict[Device, None] = {}


def note(device: Device) -> None:
    """`device` is one to wait for."""
    with _lock:
        _loaded[device] = None


def synchronize() -> None:
    """Wait until every device has done what it was given.

    Raises CallError, if a kernel met a position outside its tensor and no later call has told so; InternalError, if a
    kernel failed.
    """
    for device in used():
        with on(device) as d:
            d.do("wait_all")
    with _lock:
        words = tuple(_words)
    failed: CallError | None = None
    for w in words:
        try:
            w.look()
        except CallError as e:
            failed = failed or e
    if failed:
        raise failed
