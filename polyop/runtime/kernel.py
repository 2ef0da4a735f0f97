"""Kernel: machine code that can be called, with what is known about it."""

from __future__ import annotations

import ctypes
import struct
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.loops import IS_FIRST
from polyop.ir.module import Binary, Proof, room
from polyop.runtime import cpu, threads
from polyop.runtime.arrays import refuse
from polyop.runtime.bind import Bound
from polyop.runtime.lasting import FILLING, Held, Lasting
from polyop.runtime.outside import outside

_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p)  # ctypes lets other Python threads run during the call
_LINE = 64


class _Arena(threading.local):
    """Work memory of one thread, kept between its calls."""

    def __init__(self) -> None:
        self.memory = np.empty(0, np.uint8)
        self.address = 0

    def take(self, bytes_: int) -> int:
        """The address of at least `bytes_` bytes, aligned to a cache line.

        Raises CallError, if there is not enough memory.
        """
        if self.memory.nbytes < bytes_ + _LINE:
            try:
                self.memory = np.empty(bytes_ + bytes_ // 4 + _LINE, np.uint8)
            except (MemoryError, ValueError) as e:
                raise refuse("E606", f"no memory for {bytes_} bytes of work space") from e
            start = int(self.memory.__array_interface__["data"][0])
            self.address = start + -start % _LINE
        return self.address


arena = _Arena()


@dataclass(frozen=True, eq=False, slots=True)
class Prepared:
    """A call whose sizes, strides and scalars are fixed; only addresses change.

    row        the slots of the calling convention, in order
    pointers   where in `row` the address of each tensor stands, in the order of Signature.tensors
    work       where in `row` the address of each work buffer stands, and its distance from the arena's start
    bytes_     work memory in all
    held       what the kernel keeps from call to call, if it does
    first_at   where in `row` it says whether this call has to fill that
    """

    kernel: Kernel
    row: tuple[int, ...]
    pointers: tuple[int, ...]
    work: tuple[tuple[int, int], ...]
    bytes_: int
    pack: Any
    held: Held | None = None
    first_at: int = 0

    def run(self, addresses: tuple[int, ...] | list[int]) -> int:
        """Call the kernel; 0, or the number of the site that left its tensor."""
        row = list(self.row)
        for slot, at in zip(self.pointers, addresses, strict=True):
            row[slot] = at
        if self.work:
            start = arena.take(self.bytes_)
            for slot, distance in self.work:
                row[slot] = start + distance
        if self.held is None or self.held.is_filled:
            return int(self.kernel.entry(self.pack(*row)))
        with FILLING:
            row[self.first_at] = int(not self.held.is_filled)
            status = int(self.kernel.entry(self.pack(*row)))
            self.held.is_filled |= status == 0
        return status


@dataclass(frozen=True, eq=False, slots=True)
class Kernel:
    """One compiled operator for one target and layout.

    proofs    what was proved about its loops
    notes     how it was compiled: the strategies chosen, and what was refused and why
    entry     the code; it is linked into this process, and lives as long as the kernel
    """

    binary: Binary
    proofs: tuple[Proof, ...] = ()
    notes: tuple[str, ...] = ()
    loaded: cpu.Loaded | None = field(default=None, repr=False)
    entry: Any = field(default=None, repr=False)

    @property
    def address(self) -> int:
        """Where the code is.

        Raises InternalError, if it is not loaded.
        """
        if self.loaded is None:
            raise InternalError(f"load: {self.binary.name} has no code in this process")
        return self.loaded.addresses[self.binary.name]

    def prepare(self, bound: Bound, count: int, lasting: Lasting | None = None) -> Prepared:
        """Everything about a call on up to `count` threads that does not depend on where its arrays lie.

        lasting   where the operator keeps what is made of frozen inputs; without it each call makes all of that
        """
        signature = self.binary.signature
        kept = tuple(b for b in signature.work if b.lasting)
        held = lasting.of(signature.first_call, kept, bound.sizes) if lasting is not None and signature.first_call else None
        row = [threads.parallel_address() if count > 1 else 0, count]
        first_at = len(row) + signature.sizes.index(IS_FIRST) if IS_FIRST in signature.sizes else 0
        row += [bound.sizes[n] if n != IS_FIRST else int(held is None) for n in signature.sizes]
        row += [_bits(bound.scalars[n]) for n, _ in signature.scalars]
        pointers = []
        for b in signature.tensors:
            pointers.append(len(row))
            row += [bound.views[b.name].address, *bound.views[b.name].strides]
        work, total = [], 0
        for b in signature.work:
            if held is not None and b.lasting:
                row.append(held.addresses[b.name])
                continue
            work.append((len(row), total))
            row.append(0)
            total += room(b, bound.sizes, count)
        pack = struct.Struct(f"<{len(row)}q").pack
        return Prepared(self, tuple(row), tuple(pointers), tuple(work), total, pack, held, first_at)

    def __call__(self, bound: Bound, count: int = 1) -> Any:
        """Run on bound arguments, on up to `count` threads; the results.

        Raises CallError, if a position computed from data lies outside its tensor.
        """
        return self.carry_out(self.prepare(bound, count), bound)

    def carry_out(self, prepared: Prepared, bound: Bound) -> Any:
        """The same for what was prepared."""
        status = prepared.run([bound.views[b.name].address for b in self.binary.signature.tensors])
        if status:
            raise outside(self.binary.signature, bound, status)
        return bound.value


def _bits(value: np.generic) -> int:
    return int.from_bytes(value.tobytes().ljust(8, b"\0"), "little", signed=True)


def kernel(binary: Binary, proofs: tuple[Proof, ...] = (), notes: tuple[str, ...] = ()) -> Kernel:
    """`binary`, loaded and ready to be called.

    Raises UnsupportedError, if this machine cannot run it.
    """
    t = cpu.resolve("x86" if binary.target == "x86:host" else binary.target)
    if not cpu.runs_here(t):
        raise UnsupportedError(f"{binary.name} was compiled for {binary.target}; this machine cannot run that")
    loaded = cpu.load(binary)
    return Kernel(binary, proofs, notes, loaded, _PROTOTYPE(loaded.addresses[binary.name]))
