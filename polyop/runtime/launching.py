"""A Launch and the values of a call -> grid, block and the kernel's arguments, as every driver wants them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import evaluate
from polyop.ir.module import Blocks, HostStep, Launch, Signature, dense, launches
from polyop.ir.reach import within
from polyop.runtime.boxes import WORDS, emulated, view_of

_MOST_BLOCKS = 2**31 - 1  # in the first dimension of a grid
_MOST_THREADS = {"hip": 2**32 - 1}  # in that dimension, where the driver counts them: hipModuleLaunchKernel


@dataclass(frozen=True, slots=True)
class Memory:
    """A buffer on the device: the address of its first element, and strides in elements (of tensors only)."""

    address: int
    strides: tuple[int, ...] = ()


def grid(launch: Launch, env: Mapping[str, int], processors: Callable[[], int], family: str) -> int:
    """How many blocks start; 0 if nothing does. `processors`: how many multiprocessors the device has, which is one of `family`.

    Raises UnsupportedError for more blocks than a grid holds.
    """
    blocks = 0
    for part in (Blocks(launch.extents, launch.points), *launch.more):
        points = prod(max(0, evaluate(e, env)) for e in part.extents)
        blocks += -(-points // (part.points or launch.block))
    most = min(_MOST_BLOCKS, _MOST_THREADS[family] // launch.block) if family in _MOST_THREADS else _MOST_BLOCKS
    if blocks > most:
        raise UnsupportedError(f"{launch.kernel} would need {blocks} blocks; a grid has at most {most}")
    return min(blocks, processors()) if launch.persistent else blocks


def fits(plan: tuple[HostStep, ...], sizes: Mapping[str, int], strides: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the indices of all kernels of a plan fit into the bits they have, for these sizes and strides."""
    return all(within(launch.reach, sizes, strides) for launch in launches(plan))


def arguments(launch: Launch, signature: Signature, env: Mapping[str, int], scalars: Mapping[str, Any],
              memory: Mapping[str, Memory]) -> list[Any]:
    """The arguments as ctypes values, in order; `env` has the sizes and the indices of host loops."""
    kinds = dict(signature.scalars)
    tensors = {b.name for b in signature.tensors}
    out: list[Any] = []
    for name in launch.args:
        if name in memory:
            out.append(ctypes.c_void_p(memory[name].address))
            if name in tensors:
                out += [ctypes.c_int64(s) for s in memory[name].strides]
        elif name in kinds:
            raw = np.zeros(8, np.uint8)
            raw[: kinds[name].bytes_] = np.asarray(scalars[name], kinds[name].numpy).reshape(1).view(np.uint8)
            out.append((ctypes.c_uint8 * 8)(*raw.tolist()))
        else:
            out.append(ctypes.c_int64(env[name]))
    work = {b.name: b for b in signature.work}
    extents = {b.name: b for b in signature.tensors} | work
    for boxes in launch.boxes:
        b = extents[boxes.tensor]
        shape = tuple(evaluate(e, env) for e, _ in b.dims)
        strides = dense(b, dict(env)) if b.name in work else memory[b.name].strides
        words = emulated(view_of(boxes, b.dtype.bytes_, memory[b.name].address, shape, strides))
        out += [(ctypes.c_uint64 * WORDS)(*words), ctypes.c_uint32(any(words))]
    return out


def addresses(values: list[Any]) -> ctypes.Array[ctypes.c_void_p]:
    """The array of the arguments' addresses; `values` must outlive it."""
    return (ctypes.c_void_p * max(1, len(values)))(*map(ctypes.addressof, values))
