"""The launches of one call as a table in memory, which machine code (`launch.ll`) carries out in one go.

    %table            how many, the driver's calls, the context
    a record each     function, grid, block, shared memory, where its arguments are listed
    a list each       the addresses of the arguments, then 0
    values            8 bytes each: first those that differ from call to call, then those that the look of the call fixes
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

_HEAD, _RECORD = 40, 32  # bytes


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
    """A table, and where in it the open values stand: `put` is for `struct.Struct.pack_into(memory, at, ...)`."""

    memory: Any
    address: int
    at: int


@dataclass(frozen=True, eq=False, slots=True)
class Given:
    """A table with a program that fills it in (`launch.ll`), and room for what a call gives: `put` to `memory`, at `FRONT`."""

    table: Table
    memory: Any
    address: int


FRONT = 24  # bytes before the values given
LONG = -1   # what a caller returns where the program finds that the table is none for these values


def given(table: Table, program: bytes, count: int) -> Given:
    """Room for `count` values, which `program` puts into `table`. Whoever has it keeps `program`, too."""
    memory = ctypes.create_string_buffer(FRONT + 8 * count)
    words = ctypes.cast(ctypes.c_char_p(program), ctypes.c_void_p).value or 0
    struct.pack_into("<QQQ", memory, 0, words, table.address, ctypes.addressof(table.memory) + table.at)
    return Given(table, memory, ctypes.addressof(memory))


def program(checks: Sequence[tuple[int, int]], pairs: Sequence[tuple[int, int, int, int, int, int]],
            copies: Sequence[tuple[int, int, int]]) -> bytes:
    """The words of a program: see `launch.ll`."""
    words = [len(checks), len(pairs), len(copies), *chain(*checks, *pairs, *copies)]
    return struct.pack(f"<{len(words)}q", *words)


@lru_cache(maxsize=1)
def _code() -> tuple[Any, Any, cpu.Loaded]:
    """`launch.ll` in this process; other threads run Python meanwhile, since a launch waits where the queue is full."""
    text = Path(__file__).with_name("launch.ll").read_text(encoding="utf-8")
    module = Module("polyop_launch", "x86:host", text, Signature("polyop_launch", (), (), (), ()))
    key = cache.key("launch", cpu.VERSION, text, str(cpu.host()))
    names = "polyop_launch", "polyop_run"
    made = cpu.link(cache.remember_code(key, lambda: cpu.assemble(module, cpu.host()).code), names).keep()
    prototype = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
    return prototype(made.addresses[names[0]]), native.function(names[1], made.addresses[names[1]], native.FAST), made


def launcher() -> Any:
    """A function of a table's address and a stream: 0, or what failed, for `refused`."""
    return _code()[0]


def caller() -> Any:
    """A function of the address of what is Given and a stream: 0, LONG, or what failed, for `refused`."""
    return _code()[1]


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
    values = lists + 8 * sum(len(s.values) + 1 for s in starts)
    memory = ctypes.create_string_buffer(values + 8 * (count + len(fixed)) + 8)
    address = ctypes.addressof(memory)
    struct.pack_into("<qQQQQ", memory, 0, len(starts), *_calls(d), context(d, device))
    at = lists
    for k, s in enumerate(starts):
        record = (s.function, s.blocks, s.threads, s.shared, 0, address + at)
        struct.pack_into("<QIIIIQ", memory, _HEAD + _RECORD * k, *record)
        places = [v[1] if isinstance(v, tuple) else fixed[v] for v in s.values]
        struct.pack_into(f"<{len(places) + 1}Q", memory, at, *(address + values + 8 * p for p in places), 0)
        at += 8 * (len(places) + 1)
    for v, p in fixed.items():
        struct.pack_into("8s", memory, values + 8 * p, v)
    return Table(memory, address, values)


def _calls(d: Driver) -> list[int]:
    return [ctypes.cast(d.calls[verb], ctypes.c_void_p).value or 0 for verb in ("launch", "current", "enter")]
