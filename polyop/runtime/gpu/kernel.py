"""A kernel on GPUs: code that is loaded once for each device, and the launches that a call of it takes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.expr import evaluate
from polyop.ir.module import STATUS, Binary, Boxes, Proof, dense, in_order, slots
from polyop.runtime import forks
from polyop.runtime.bind import Bound
from polyop.runtime.boxes import WORDS
from polyop.runtime.gpu import chips, status
from polyop.runtime.gpu.driver import Device
from polyop.runtime.gpu.maps import FORMAT, MAP, Map
from polyop.runtime.gpu.table import Row, Start, Table, code, refused, table
from polyop.runtime.launching import fits, grid

_lock = forks.rlock()

_ALIGN = 256  # bytes, of each work buffer: what device memory is aligned to


@dataclass(frozen=True, eq=False, slots=True)
class Loaded:
    """A module on one device, its kernels by name and bytes of shared memory, and the word of its status if it has one."""

    device: Device
    module: int
    functions: dict[tuple[str, int], int] = field(default_factory=dict)
    word: list[status.Word] = field(default_factory=list)


@dataclass(frozen=True, eq=False, slots=True)
class GpuKernel:
    """One compiled operator for one target and layout; see `kernel.Kernel`, which is the same for the CPU.

    loaded   by the number of the device
    """

    binary: Binary
    proofs: tuple[Proof, ...] = ()
    notes: tuple[str, ...] = ()
    loaded: dict[int, Loaded] = field(default_factory=dict, repr=False)

    def on(self, device: Device) -> Loaded:
        """The code on `device`."""
        found = self.loaded.get(device.index)
        if found is None:
            with _lock:
                found = self.loaded.get(device.index)
                if found is None:
                    found = self.loaded[device.index] = Loaded(device, chips.load(device, self.binary.code))
            status.note(device)
        return found


@dataclass(frozen=True, eq=False, slots=True)
class Prepared:
    """A call whose sizes and strides are fixed; addresses and scalars are open.

    starts    the launches; `table`: for machine code
    tensors   how many of the open values are addresses of tensors, which come first; then those of `work` buffers, each at its
              distance from the start of work memory; then the scalars; then what engines are told of tensors
    bytes_    of work memory in all
    """

    kernel: GpuKernel
    loaded: Loaded
    starts: tuple[Start, ...]
    table: Table
    tensors: int
    work: tuple[int, ...]
    scalars: int
    bytes_: int
    word: status.Word | None
    maps: tuple[Map, ...] = ()

    def row(self, values: Sequence[int]) -> Row:
        """A row of these open values; what engines are told follows from the addresses among them."""
        made = self.table.row()
        told = [m.at(values[m.slot]) for m in self.maps]
        struct.pack_into(f"<{len(values)}Q{FORMAT * len(told)}", made.memory, 0, *values, *told)
        return made

    def run(self, row: Row, stream: int) -> None:
        """Put all launches on `stream`; nothing waits.

        Raises InternalError, if the driver refuses one.
        """
        failed = code().launch(self.table.address, row.address, stream)
        if failed:
            raise self.refused(failed)

    def refused(self, code: int) -> InternalError:
        """The error for what a launcher returned."""
        return refused(self.loaded.device, self.starts, code)


def prepare(kernel: GpuKernel, bound: Bound) -> Prepared:
    """Everything about a call that does not depend on where its arrays lie.

    Raises UnsupportedError, if the device has not the shared memory, a grid not the blocks, or the kernel's indices not the bits.
    """
    signature, loaded = kernel.binary.signature, kernel.on(bound.home.device)
    if signature.sites and not loaded.word:
        loaded.word.append(status.word(bound.op, signature, loaded.device))
    word = loaded.word[0] if loaded.word else None
    strides = {b.name: bound.views[b.name].strides for b in signature.tensors}
    return prepared(kernel, loaded.device, bound.sizes, strides, word.at if word else 0, word)


def prepared(kernel: GpuKernel, device: Device, sizes: Mapping[str, int], strides: Mapping[str, tuple[int, ...]], at: int,
             word: status.Word | None = None) -> Prepared:
    """The same without arrays: `at` is the address of the status word."""
    signature, loaded = kernel.binary.signature, kernel.on(device)
    if not fits(kernel.binary.launch, sizes, strides):
        raise UnsupportedError(f"{signature.name} has indices of 32 bits, and these sizes need more: see Options.huge")
    work, total = [], 0
    for b in signature.work:
        work.append(total)
        total += -(-slots(b, dict(sizes)) * b.dtype.bytes_ // _ALIGN) * _ALIGN
    names = (*(b.name for b in signature.tensors), *(b.name for b in signature.work), *(n for n, _ in signature.scalars))
    places = {n: k for k, n in enumerate(names)}
    maps: dict[Boxes, Map] = {}
    lying = {b.name: strides[b.name] for b in signature.tensors} | {b.name: dense(b, dict(sizes)) for b in signature.work}
    shapes = {b.name: (b.dtype.bytes_, tuple(evaluate(e, sizes) for e, _ in b.dims))
              for b in (*signature.tensors, *signature.work)}
    starts = []
    for launch, env in in_order(kernel.binary.launch, sizes):
        blocks = grid(launch, env, lambda: chips.processors(device), device.family)
        if not blocks:
            continue
        key = launch.kernel, launch.shared
        if key not in loaded.functions:
            loaded.functions[key] = chips.function(device, loaded.module, *key)
        values: list[tuple[str, int] | bytes] = []
        for name in launch.args:
            values += _values(name, places, strides, {**env, STATUS: at})
        for boxes in launch.boxes:
            if boxes not in maps:
                maps[boxes] = Map(device, boxes, *shapes[boxes.tensor], lying[boxes.tensor], places[boxes.tensor])
            first = len(names) + MAP * list(maps).index(boxes)
            values += [("open", first), ("open", first + WORDS)]
        starts.append(Start(launch.kernel, loaded.functions[key], blocks, launch.block, launch.shared, tuple(values)))
    made = table(device, starts, len(names) + MAP * len(maps))
    return Prepared(kernel, loaded, tuple(starts), made, len(signature.tensors), tuple(work), len(signature.scalars), total, word,
                    tuple(maps.values()))


def _values(name: str, places: Mapping[str, int], strides: Mapping[str, tuple[int, ...]],
            env: Mapping[str, int]) -> list[tuple[str, int] | bytes]:
    """The arguments that `name` stands for in Launch.args."""
    if name in places:
        return [("open", places[name]), *map(_raw, strides.get(name, ()))]
    return [_raw(env[name])]


def _raw(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=value < 0)


def bits(value: Any) -> int:
    """A NumPy number as it stands in the low bytes of a value."""
    return int.from_bytes(np.asarray(value).tobytes().ljust(8, b"\0"), "little")
