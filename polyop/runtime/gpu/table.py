"""The launches of one call as a table in memory, which machine code (`launch.ll`) carries out in one go.

    %table            how many, the driver's calls, the context, the most arguments of a launch
    a record each     function, grid, block, shared memory, how many arguments, where their slots are listed
    a list each       the slots

A table is the same in all calls of a look. Values stand in a row, 8 bytes a slot: first those that differ from call to call, then
those that the look of the call fixes.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from polyop.ir.errors import InternalError
from polyop.ir.module import Module, Signature
from polyop.runtime import cache, cpu, native
from polyop.runtime.gpu.driver import Device, Driver, context, driver

_HEAD, _RECORD = 48, 32  # bytes


@dataclass(frozen=True, slots=True)
class Start:
    """One launch: a kernel of a loaded module, and its arguments.

    name     of the kernel, for messages
    values   an argument each: `("open", k)` is the k-th of the values that differ from call to call, else 8 bytes
    """

    name: str
    function: int
    blocks: int
    threads: int
    shared: int
    values: tuple[tuple[str, int] | bytes, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Table:
    """A table; `count`: how many values of a row are open, and `fixed`: those behind them."""

    memory: Any
    address: int
    count: int
    fixed: bytes

    def row(self) -> Row:
        """A row for one call at a time, whose open values are 0."""
        memory = ctypes.create_string_buffer(bytes(8 * self.count) + self.fixed, max(8, 8 * self.count + len(self.fixed)))
        return Row(memory, ctypes.addressof(memory))


@dataclass(frozen=True, eq=False, slots=True)
class Row:
    """The values of a call's launches: `memory` is for `struct.Struct.pack_into`."""

    memory: Any
    address: int


@dataclass(frozen=True, eq=False, slots=True)
class Given:
    """A row with a program that fills it in (`launch.ll`), and room for what a call gives: `put` to `memory`, at `FRONT`."""

    row: Row
    memory: Any
    address: int


FRONT = 24  # bytes before the values given
LONG = -1   # what a caller returns where the program finds that the table is none for these values


def given(table: Table, row: Row, program: bytes, count: int) -> Given:
    """Room for `count` values, which `program` puts into `row`. Whoever has it keeps `table` and `program`, too."""
    memory = ctypes.create_string_buffer(FRONT + 8 * count)
    words = ctypes.cast(ctypes.c_char_p(program), ctypes.c_void_p).value or 0
    struct.pack_into("<QQQ", memory, 0, words, table.address, row.address)
    return Given(row, memory, ctypes.addressof(memory))


def program(checks: Sequence[tuple[int, int]], pairs: Sequence[tuple[int, int, int, int, int, int]],
            copies: Sequence[tuple[int, int, int]]) -> bytes:
    """The words of a program: see `launch.ll`."""
    words = [len(checks), len(pairs), len(copies), *chain(*checks, *pairs, *copies)]
    return struct.pack(f"<{len(words)}q", *words)


@dataclass(frozen=True, eq=False, slots=True)
class Code:
    """`launch.ll` in this process.

    launch   (address of a table, of a row, stream) -> 0, or what failed, for `refused`; other threads run Python meanwhile
    run      (address of what is Given, stream) -> 0, LONG, or what failed; others run Python meanwhile, since a launch waits
             where the queue is full
    follow   the address of what the native front of calls jumps to
    loaded   what all of this is in
    """

    launch: Any
    run: Any
    follow: int
    loaded: cpu.Loaded


@lru_cache(maxsize=1)
def code() -> Code:
    """The code, loaded once."""
    text = Path(__file__).with_name("launch.ll").read_text(encoding="utf-8")
    module = Module("polyop_launch", "x86:host", text, Signature("polyop_launch", (), (), (), ()))
    key = cache.key("launch", cpu.VERSION, text, str(cpu.host()))
    launch, run, follow = names = "polyop_launch", "polyop_run", "polyop_follow"
    made = cpu.link(cache.remember_code(key, lambda: cpu.assemble(module, cpu.host()).code), names).keep()
    prototype = ctypes.CFUNCTYPE(ctypes.c_int64, *(ctypes.c_void_p,) * 3)
    at = made.addresses
    return Code(prototype(at[launch]), native.function(run, at[run], native.FAST), at[follow], made)


def refused(device: Device, starts: Sequence[Start], code: int) -> InternalError:
    """The error for what a launcher returned."""
    place = code >> 32
    error = driver(device.family).error("launch", code & 0xFFFFFFFF)
    what = f" for {starts[place - 1].name} with {starts[place - 1].blocks} blocks" if place else ""
    return InternalError(f"{error}{what} on {device}")


def table(device: Device, starts: Sequence[Start], count: int) -> Table:
    """The table of `starts`, whose values have `count` open ones among them."""
    d = driver(device.family)
    fixed: dict[bytes, int] = {}
    for s in starts:
        for v in s.values:
            if isinstance(v, bytes):
                fixed.setdefault(v, count + len(fixed))
    lists = _HEAD + _RECORD * len(starts)
    memory = ctypes.create_string_buffer(lists + 8 * sum(len(s.values) for s in starts) + 8)
    address, most = ctypes.addressof(memory), max((len(s.values) for s in starts), default=0)
    struct.pack_into("<qQQQQq", memory, 0, len(starts), *_calls(d), context(d, device), most)
    at = lists
    for k, s in enumerate(starts):
        record = (s.function, s.blocks, s.threads, s.shared, len(s.values), address + at)
        struct.pack_into("<QIIIIQ", memory, _HEAD + _RECORD * k, *record)
        slots = [v[1] if isinstance(v, tuple) else fixed[v] for v in s.values]
        struct.pack_into(f"<{len(slots)}Q", memory, at, *slots)
        at += 8 * len(slots)
    return Table(memory, address, count, b"".join(fixed))


def _calls(d: Driver) -> list[int]:
    return [ctypes.cast(d.calls[verb], ctypes.c_void_p).value or 0 for verb in ("launch", "current", "enter")]
