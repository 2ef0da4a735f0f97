"""A binary on a GPU with NumPy arrays, which are copied to and fro: for machines without a framework, and to try kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polyop.ir.dtypes import U8
from polyop.ir.expr import Load
from polyop.ir.module import Binary, launches
from polyop.runtime.gpu.driver import DEFAULT_STREAM, Device
from polyop.runtime.gpu.kernel import GpuKernel, bits, prepared
from polyop.runtime.gpu.memory import GpuArray, put


def run(binary: Binary, sizes: Mapping[str, int], scalars: Mapping[str, Any], arrays: Mapping[str, np.ndarray],
        device: Device) -> Load | None:
    """Carry out the host plan of `binary`; outputs are written in place.

    Shapes  arrays: one for each tensor of the signature, of its extents.
    Notes   The result is the first computed position outside its tensor, or None. This waits for the device.
    Raises  UnsupportedError without a device; InternalError if the driver refuses.
    """
    signature = binary.signature
    dense = {b.name: _dense(arrays[b.name], b.unit if b.unit is not None else len(b.dims) - 1) for b in signature.tensors}
    strides = {n: tuple(s // a.itemsize for s in a.strides) for n, (_, a) in dense.items()}
    status = put(np.zeros((), np.uint32), device)
    held = {n: put(memory, device) for n, (memory, _) in dense.items()}
    made = prepared(GpuKernel(binary), device, sizes, strides, status.address)
    work = GpuArray((made.bytes_,), U8, device)
    row = [held[b.name].address for b in signature.tensors] + [work.address + d for d in made.work]
    row += [bits(np.asarray(scalars[n], t.numpy)) for n, t in signature.scalars]
    made.run(made.row(row), DEFAULT_STREAM[device.family])
    for name in {n for launch in launches(binary.launch) for n in launch.writes} & dense.keys():
        memory, array = dense[name]
        memory[...] = held[name].numpy()
        arrays[name][...] = array
    site = int(status.numpy())
    return signature.sites[site - 1] if site else None


def _dense(a: np.ndarray, unit: int) -> tuple[np.ndarray, np.ndarray]:
    """A dense copy of `a` whose dimension `unit` has stride 1: in the order of memory, and in that of `a`."""
    order = [d for d in range(a.ndim) if d != unit] + [unit] * (a.ndim > 0)
    memory: np.ndarray = np.array(a.transpose(order), order="C", copy=True)
    return memory, memory.transpose([order.index(d) for d in range(a.ndim)])
