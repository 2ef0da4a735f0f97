"""CUDA and HIP modules on the CPU: the host plan is carried out on the emulator, and memory is watched meanwhile."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from polyop.ir.errors import UnsupportedError
from polyop.ir.loops import Buffer
from polyop.ir.module import STATUS, Launch, Module, in_order, launches, slots
from polyop.ir.target import target
from polyop.runtime import cxx, room
from polyop.runtime.banks import counted
from polyop.runtime.findings import Finding, Report, findings, lines_of
from polyop.runtime.launching import Memory, addresses, arguments, fits, grid

ORDERS = ("forward", "backward", "shuffled")
"""In which order the blocks of a launch, and the threads of a block, run."""

_PROCESSORS = 3  # of the emulated device, so that blocks that stay take several points each, and not equally many

_SHADOW = 34  # bytes that the emulator keeps beside each element: who wrote it and who has read it, and whether it is a gap

COMPLETIONS = ("late", "early")
"""When asynchronous copies arrive: at the wait, or at once."""

_WAITING = re.compile(r"__syncthreads|\bpop_\w*(barrier|shuffle|pairs|fold|scan|ldmatrix|mma|mfma|tile|named|registers)")
"""Words of a text whose threads wait for each other, so that each needs a stack of its own."""


class _Options(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("order", ctypes.c_int), ("seed", ctypes.c_uint),
                ("fibers", ctypes.c_int), ("shared", ctypes.c_uint), ("warp", ctypes.c_uint), ("completion", ctypes.c_int),
                ("watched", ctypes.c_int), ("banks", ctypes.c_int)]


LONG = 0.5
"""Seconds: a text that has run for so long is worth a library that takes twice as long to build."""

_ran: dict[int, float] = {}
"""Seconds that texts have run, by their hash."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A buffer in the emulator's memory: `box` is its storage with gaps, `view` the elements, `address` the first one, which
    `skipped` elements are before.
    """

    name: str
    address: int
    box: tuple[int, ...]
    order: tuple[int, ...]
    view: np.ndarray
    skipped: int = 0

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(s // self.view.itemsize for s in self.view.strides)

    def index(self, element: int) -> tuple[int, ...]:
        """The index of the element at a distance from the start of the storage; the outermost may be out of range."""
        out = []
        element -= self.skipped
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
        watched: bool = True, order: str = "forward", completion: str = "late", seed: int = 1,
        banks: bool = False, aligned: bool = False) -> Report:
    """Carry out `module`'s host plan on NumPy arrays; outputs are written in place.

    Shapes  arrays: one for each tensor of the signature, of its extents.
    Notes   Tensors are laid out with gaps between rows, so an index that leaves its dimension shows: of one element forwards,
            so that rows are not aligned, and up to the next 16 bytes in other orders, or in all if `aligned`, so that they are;
            but where the shuffled order has a seed with a bit of 2, each other tensor from the first on begins one element
            further on, with a bit of 4 the rest. Outputs and work buffers start uninitialised: an output keeps what is never
            written, but must not be read before. Without `watched` nothing is reported but deadlocks, and a wild access may
            end the process. With `banks` a watched run also counts accesses to shared memory.
    Raises  UnsupportedError, if there is no C++ compiler or not enough memory, or the module is not for such sizes.
    """
    _require_room(module, sizes, arrays)
    path = built(module, watched, banks)
    lib = _load(path)
    lib.pop_emu_reset()
    outputs = {name for launch in launches(module.launch) for name in launch.writes}
    row = target(module.target)
    # on AMD a copy is an ordinary one
    how = _How(row.warp, 2 if row.family == "hip" else COMPLETIONS.index(completion), watched, ORDERS.index(order), seed, banks)
    grain, odd = 1 if order == ORDERS[0] and not aligned else 16, seed >> 1 if order == ORDERS[2] else 0
    placed = [_tensor(lib, b, arrays[b.name], b.name in outputs, grain, odd >> k % 2 & 1)
              for k, b in enumerate(module.signature.tensors)]
    placed += [_plain(lib, b.name, (slots(b, dict(sizes)),), b.dtype.numpy, False) for b in module.signature.work]
    placed.append(_plain(lib, STATUS, (), np.dtype(np.uint32), True))
    memory = {p.name: Memory(p.address, p.strides) for p in placed}
    if not fits(module.launch, sizes, {n: m.strides for n, m in memory.items()}):
        raise UnsupportedError(f"{module.name} has indices of 32 bits, and these sizes need more: see Options.huge")
    views = {p.name: p.view for p in placed}
    status = views[STATUS]
    status[...] = 0
    found: list[Finding] = []
    known, begun = 0, perf_counter()
    for launch, env in in_order(module.launch, sizes):
        stopped = _launch(lib, launch, module, env, scalars, memory, how)
        new, known = findings(lib, path, launch.kernel, launch.block, module,
                              lambda b, e: (placed[b].name, placed[b].index(e)), known)
        found += new
        if stopped:
            break
    of = hash(module.text)
    _ran[of] = _ran.get(of, 0.0) + perf_counter() - begun
    for b in module.signature.tensors:
        if b.name in outputs:
            arrays[b.name][...] = views[b.name]
    site = int(status)
    traffic = counted(lib, module, partial(lines_of, path)) if banks else ()
    lib.pop_emu_reset()
    return Report(module.signature.sites[site - 1] if site else None, tuple(found), traffic)


def built(module: Module, watched: bool, banks: bool = False) -> Path:
    """The library that runs `module` next: one that was built in a hurry, until its text has run for long.

    Most texts run once or twice, of few elements, and then building them is what takes the time. A hurried library may read an
    element twice that a device's compiler reads once, so it counts no accesses.
    """
    return cxx.library(module, watched, quick=watched and not banks and _ran.get(hash(module.text), 0.0) < LONG)


def _require_room(module: Module, sizes: Mapping[str, int], arrays: Mapping[str, np.ndarray]) -> None:
    held = [(b, arrays[b.name].size) for b in module.signature.tensors]
    held += [(b, slots(b, dict(sizes))) for b in module.signature.work]
    bytes_ = sum(n * (b.dtype.bytes_ + _SHADOW) for b, n in held)
    if bytes_ > room.free():
        raise UnsupportedError(f"the emulator needs {room.gib(bytes_)} for arrays of these sizes and who reads and writes their "
                               f"elements; {room.gib(room.free())} of memory are free")


def _tensor(lib: ctypes.CDLL, b: Buffer, array: np.ndarray, written: bool, grain: int, skipped: int) -> _Placed:
    """A copy of `array` with a gap after each row, or between all elements if no stride is known to be 1.

    Units   rows begin at multiples of `grain` bytes, behind `skipped` elements
    """
    rank = array.ndim
    unit = b.unit if b.unit is not None else rank - 1
    order = tuple(d for d in range(rank) if d != unit) + ((unit,) if rank else ())
    spread = 2 if b.unit is None and rank else 1
    extents = [array.shape[d] for d in order]
    box = tuple(n + (k > 0) for k, n in enumerate(extents)) + ((spread,) if spread > 1 else ())
    if rank > 1 and spread == 1:
        elems = max(1, grain // array.itemsize)
        box = (*box[:-1], -(-box[-1] // elems) * elems)
    p = _place(lib, b.name, box, order, array.dtype, written, not written, extents, rank, skipped)
    p.view[...] = array
    return p


def _plain(lib: ctypes.CDLL, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], initialised: bool) -> _Placed:
    return _place(lib, name, shape, tuple(range(len(shape))), dtype, True, initialised, list(shape), len(shape))


def _place(lib: ctypes.CDLL, name: str, box: tuple[int, ...], order: tuple[int, ...], dtype: np.dtype[Any], written: bool,
           initialised: bool, extents: list[int], rank: int, skipped: int = 0) -> _Placed:
    total = skipped + int(np.prod(box, dtype=np.int64))
    gaps = np.ones(total, np.uint8)
    inside = tuple(slice(0, n) for n in extents) + (0,) * (len(box) - rank)
    gaps[skipped:].reshape(box)[inside] = 0
    address = lib.pop_emu_buffer(total * dtype.itemsize, dtype.itemsize, int(not written), int(initialised), gaps.ctypes.data)
    if not address:
        raise UnsupportedError(f"the emulator has no room for {name} of {total * dtype.itemsize} bytes")
    room = ctypes.c_char * max(1, total * dtype.itemsize)
    storage: np.ndarray = np.ndarray(box, dtype, memoryview(room.from_address(address)), skipped * dtype.itemsize)
    view = storage[inside].transpose([order.index(d) for d in range(rank)]) if rank else storage
    return _Placed(name, address + skipped * dtype.itemsize, box, (*order, *range(rank, len(box))), view, skipped)


@dataclass(frozen=True, slots=True)
class _How:
    """The part of `_Options` that is the same for all launches of a run."""

    warp: int
    completion: int
    watched: bool
    order: int
    seed: int
    banks: bool


def _launch(lib: ctypes.CDLL, launch: Launch, module: Module, env: Mapping[str, int], scalars: Mapping[str, Any],
            memory: Mapping[str, Memory], how: _How) -> bool:
    """Start one kernel; whether it was stopped: by an access out of bounds, or because it could not go on."""
    blocks = grid(launch, env, lambda: _PROCESSORS, target(module.target).family)
    if not blocks:
        return False
    values = arguments(launch, module.signature, env, scalars, memory)
    waits = bool(_WAITING.search(module.text))
    options = _Options((blocks, 1, 1), (launch.block, 1, 1), how.order, how.seed, waits, launch.shared, how.warp, how.completion,
                       how.watched, how.banks)
    return bool(getattr(lib, f"{launch.kernel}__launch")(addresses(values), ctypes.byref(options)))
