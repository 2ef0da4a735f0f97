"""Memory of a device that no framework has given: results for arrays of no framework, and what the command line runs on."""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from typing import Any

import numpy as np

from polyop.ir.dtypes import BY_NUMPY, DType
from polyop.ir.errors import PolyopError
from polyop.runtime.gpu import dlpack
from polyop.runtime.gpu.driver import DEFAULT_STREAM, Device, on

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY and hipErrorOutOfMemory


class GpuArray:
    """A dense array on `device`, which every framework can read by DLPack or, on CUDA, `__cuda_array_interface__`.

    Notes   Its memory is taken and given back in the order of `stream`.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DType, device: Device, stream: int | None = None) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device
        self.stream = DEFAULT_STREAM[device.family] if stream is None else stream
        bytes_ = int(np.prod(shape, dtype=np.int64)) * dtype.bytes_
        out = ctypes.c_uint64()
        with on(device) as d:
            code = d.calls["allocate"](ctypes.addressof(out), max(1, bytes_), self.stream)
            if code:
                raise MemoryError(str(d.error("allocate", code))) if code == _OUT_OF_MEMORY else d.error("allocate", code)
        self.address = out.value
        weakref.finalize(self, _free, device, self.address, self.stream).atexit = False

    def __repr__(self) -> str:
        return f"GpuArray(shape={self.shape}, dtype={self.dtype}, device={self.device})"

    @property
    def bytes_(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.bytes_

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.device.family != "cuda":
            raise AttributeError("__cuda_array_interface__")
        return {"shape": self.shape, "typestr": self.dtype.numpy.str, "data": (self.address, False), "version": 3,
                "strides": None, "stream": self.stream}

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.NUMBERS[self.device.family], self.device.index

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        """A capsule whose contents are ready for whatever `stream` does next; -1: the reader sees to that."""
        if stream != -1:
            follow(self.device, DEFAULT_STREAM[self.device.family] if stream is None else stream, self.stream)
        return dlpack.capsule(self.address, self.shape, self.dtype, self.device.family, self.device.index, self)

    def numpy(self) -> np.ndarray:
        """A copy in the host's memory; this waits for the stream."""
        out = np.empty(self.shape, self.dtype.numpy)
        with on(self.device) as d:
            if out.nbytes:
                d.do("get", out.ctypes.data, self.address, out.nbytes, self.stream)
            d.do("wait", self.stream)
        return out


def _free(device: Device, address: int, stream: int) -> None:
    with contextlib.suppress(PolyopError), on(device) as d:  # a device that failed has given all its memory back
        d.do("free", address, stream)


def put(array: np.ndarray, device: Device, stream: int | None = None) -> GpuArray:
    """A copy of `array` on `device`."""
    out = GpuArray(array.shape, BY_NUMPY[array.dtype], device, stream)
    dense = np.ascontiguousarray(array)
    with on(device) as d:
        if dense.nbytes:
            d.do("put", out.address, dense.ctypes.data, dense.nbytes, out.stream)
        d.do("wait", out.stream)  # `dense` may be a copy, which ends here
    return out


def fill(device: Device, address: int, value: np.ndarray, stream: int) -> None:
    """Write a single number of up to 8 bytes. It is part of the launch, as its arguments are, also in a graph."""
    raw = value.tobytes()
    with on(device) as d:
        if len(raw) == 1:
            d.do("fill8", address, raw[0], 1, stream)
        elif len(raw) == 2:
            d.do("fill16", address, int.from_bytes(raw, "little"), 1, stream)
        for k in range(0, len(raw) - 3, 4):
            d.do("fill32", address + k, int.from_bytes(raw[k : k + 4], "little"), 1, stream)


def copy(device: Device, to: int, source: int, bytes_: int, stream: int) -> None:
    """Copy from one place of a device to another."""
    if bytes_:
        with on(device) as d:
            d.do("copy", to, source, bytes_, stream)


def follow(device: Device, later: int, earlier: int) -> None:
    """What `later` does from now on comes after what `earlier` has been given so far; nobody waits."""
    if later == earlier:
        return
    with on(device) as d:
        event = ctypes.c_void_p()
        d.do("event", ctypes.addressof(event), 2)  # one that keeps no time
        try:
            d.do("record", event, earlier)
            d.do("follow", later, event, 0)
        finally:
            d.do("forget", event)
