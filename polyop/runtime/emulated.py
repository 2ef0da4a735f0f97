"""CUDA and HIP modules on the CPU: the host plan is carried out on the emulator, and memory is watched meanwhile."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Load
from polyop.ir.loops import Buffer
from polyop.ir.module import STATUS, Launch, Module, in_order, launches, slots
from polyop.runtime import cxx
from polyop.runtime.launching import Memory, addresses, arguments, grid

ORDERS = ("forward", "backward", "shuffled")
"""In which order the blocks of a launch, and the threads of a block, run."""

_WHAT = {1: "race", 2: "race", 3: "race", 4: "out of bounds", 5: "uninitialised read", 6: "write to an input",
         7: "divergent barrier"}
_HOW = {1: "written by {0} and by {1}", 2: "read by {0}, written by {1}", 3: "written by {0}, read by {1}"}
_MANY = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault that a kernel made while it ran.

    what    "race", "out of bounds", "uninitialised read", "write to an input" or "divergent barrier"
    index   which element of `buffer`; out of bounds, the place where it would be
    who     the threads that took part
    line    of the module's text, from 1; 0 if it could not be found out
    """

    what: str
    kernel: str
    buffer: str
    index: tuple[int, ...]
    who: str
    line: int = 0
    code: str = ""

    def __str__(self) -> str:
        place = f"{self.buffer}[{', '.join(map(str, self.index))}]" if self.index else self.buffer
        where = f", line {self.line}: `{self.code}`" if self.line else ""
        return f"{self.what} in {self.kernel}: {place} {self.who}{where}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a run showed: the first computed position outside its tensor, if any, and the faults found."""

    site: Load | None
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        lines = [f"{self.site} is outside its tensor"] if self.site else []
        return "\n".join([*lines, *map(str, self.findings)]) or "no fault found"


class _Options(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("order", ctypes.c_int), ("seed", ctypes.c_uint),
                ("fibers", ctypes.c_int), ("shared", ctypes.c_uint)]


class _Found(ctypes.Structure):
    _fields_ = [("what", ctypes.c_int), ("buffer", ctypes.c_int), ("element", ctypes.c_int64), ("block", ctypes.c_uint32),
                ("thread", ctypes.c_uint32), ("other_block", ctypes.c_uint32), ("other_thread", ctypes.c_uint32),
                ("place", ctypes.c_uint64)]


@dataclass(frozen=True, slots=True)
class _Placed:
    """A buffer in the emulator's memory: `box` is its storage with gaps, `view` the elements, `address` the first one."""

    name: str
    address: int
    box: tuple[int, ...]
    order: tuple[int, ...]
    view: np.ndarray

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(s // self.view.itemsize for s in self.view.strides)

    def index(self, element: int) -> tuple[int, ...]:
        """The index of the element at a distance from the start of the storage; the outermost may be out of range."""
        out = []
        for extent in reversed(self.box[1:]):
            out.append(element % max(1, extent))
            element //= max(1, extent)
        stored = [element, *reversed(out)] if self.box else []
        return tuple(stored[self.order.index(d)] for d in range(self.view.ndim))


@lru_cache(maxsize=64)
def _load(path: Path) -> ctypes.CDLL:
    lib = ctypes.CDLL(str(path))
    lib.pop_emu_buffer.restype = ctypes.c_void_p
    lib.pop_emu_buffer.argtypes = [ctypes.c_size_t, ctypes.c_uint, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    return lib


def run(module: Module, sizes: Mapping[str, int], scalars: Mapping[str, Any], arrays: Mapping[str, np.ndarray], *,
        watched: bool = True, order: str = "forward", seed: int = 1) -> Report:
    """Carry out `module`'s host plan on NumPy arrays; outputs are written in place.

    Shapes  arrays: one for each tensor of the signature, of its extents.
    Notes   Tensors are laid out with gaps between rows, so an index that leaves its dimension shows. Outputs and work
            buffers start uninitialised: an output keeps what is never written, but must not be read before. Without
            `watched` nothing is reported and a wild access may end the process.
    Raises  UnsupportedError, if there is no C++ compiler or not enough memory.
    """
    path = cxx.library(module, watched)
    lib = _load(path)
    lib.pop_emu_reset()
    outputs = {name for launch in launches(module.launch) for name in launch.writes}
    placed = [_tensor(lib, b, arrays[b.name], b.name in outputs) for b in module.signature.tensors]
    placed += [_plain(lib, b.name, (slots(b, dict(sizes)),), b.dtype.numpy, False) for b in module.signature.work]
    placed.append(_plain(lib, STATUS, (), np.dtype(np.uint32), True))
    memory = {p.name: Memory(p.address, p.strides) for p in placed}
    views = {p.name: p.view for p in placed}
    status = views[STATUS]
    status[...] = 0
    findings: list[Finding] = []
    for launch, env in in_order(module.launch, sizes):
        stopped = _launch(lib, launch, module, env, scalars, memory, ORDERS.index(order), seed)
        findings += _findings(lib, launch.kernel, placed, module, path, len(findings))
        if stopped:
            break
    for b in module.signature.tensors:
        if b.name in outputs:
            arrays[b.name][...] = views[b.name]
    site = int(status)
    lib.pop_emu_reset()
    return Report(module.signature.sites[site - 1] if site else None, tuple(findings))


def _tensor(lib: ctypes.CDLL, b: Buffer, array: np.ndarray, written: bool) -> _Placed:
    """A copy of `array` with a gap after each row, or between all elements if no stride is known to be 1."""
    rank = array.ndim
    unit = b.unit if b.unit is not None else rank - 1
    order = tuple(d for d in range(rank) if d != unit) + ((unit,) if rank else ())
    spread = 2 if b.unit is None and rank else 1
    extents = [array.shape[d] for d in order]
    box = tuple(n + (k > 0) for k, n in enumerate(extents)) + ((spread,) if spread > 1 else ())
    p = _place(lib, b.name, box, order, array.dtype, written, not written, extents, rank)
    p.view[...] = array
    return p


def _plain(lib: ctypes.CDLL, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], initialised: bool) -> _Placed:
    return _place(lib, name, shape, tuple(range(len(shape))), dtype, True, initialised, list(shape), len(shape))


def _place(lib: ctypes.CDLL, name: str, box: tuple[int, ...], order: tuple[int, ...], dtype: np.dtype[Any], written: bool,
           initialised: bool, extents: list[int], rank: int) -> _Placed:
    gaps = np.ones(box, np.uint8)
    inside = tuple(slice(0, n) for n in extents) + (0,) * (len(box) - rank)
    gaps[inside] = 0
    total = int(np.prod(box, dtype=np.int64))
    address = lib.pop_emu_buffer(total * dtype.itemsize, dtype.itemsize, int(not written), int(initialised), gaps.ctypes.data)
    if not address:
        raise UnsupportedError(f"the emulator has no room for {name} of {total * dtype.itemsize} bytes")
    room = ctypes.c_char * max(1, total * dtype.itemsize)
    storage: np.ndarray = np.ndarray(box, dtype, buffer=memoryview(room.from_address(address)))
    view = storage[inside].transpose([order.index(d) for d in range(rank)]) if rank else storage
    return _Placed(name, address, box, (*order, *range(rank, len(box))), view)


def _launch(lib: ctypes.CDLL, launch: Launch, module: Module, env: Mapping[str, int], scalars: Mapping[str, Any],
            memory: Mapping[str, Memory], order: int, seed: int) -> bool:
    """Start one kernel; whether it was stopped by an access out of bounds."""
    blocks = grid(launch, env)
    if not blocks:
        return False
    values = arguments(launch, module.signature, env, scalars, memory)
    waits = "__syncthreads" in module.text
    options = _Options((blocks, 1, 1), (launch.block, 1, 1), order, seed, int(waits), launch.shared)
    return bool(getattr(lib, f"{launch.kernel}__launch")(addresses(values), ctypes.byref(options)))


def _findings(lib: ctypes.CDLL, kernel: str, placed: list[_Placed], module: Module, path: Path, known: int) -> list[Finding]:
    """The findings after the first `known` ones."""
    first = ctypes.POINTER(_Found)()
    count = lib.pop_emu_findings(ctypes.byref(first))
    out = []
    for i in range(known, count):
        f = first[i]
        me = f"thread {f.thread} of block {f.block}"
        other = "other threads" if f.other_block == _MANY else f"thread {f.other_thread} of block {f.other_block}"
        who = _HOW.get(f.what, "by {0}").format(me, other)
        line = _line(path, f.place)
        code = module.text.splitlines()[line - 1].strip() if line else ""
        buffer, index = (placed[f.buffer].name, placed[f.buffer].index(f.element)) if 0 <= f.buffer < len(placed) else ("", ())
        out.append(Finding(_WHAT[f.what], kernel, buffer, index, who, line, code))
    return out


def _line(path: Path, place: int) -> int:
    """The line of the module's text that the code before `place` stands for; 0 if no tool here can tell."""
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if tool is None:
        return 0
    # a return address is one past the call
    done = subprocess.run([tool, "-i", "-e", str(path), hex(place - 1)], capture_output=True, text=True, check=False)
    for text in done.stdout.splitlines():
        file, _, line = text.split(" (")[0].rpartition(":")
        if file.endswith(".cpp") and line.isdigit():  # the rest are headers
            return int(line)
    return 0
