"""Whose arrays lie on a GPU: how those of torch, CuPy and of anybody else are read and made, and on which stream work goes.

Nothing is copied, and nothing waits: kernels are put on the framework's current stream; for arrays that only tell
`__cuda_array_interface__` on the stream this names, and arrays that give a DLPack capsule are asked for one that is ready
for the default stream.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Protocol

from polyop.ir.dtypes import DType
from polyop.runtime import arrays
from polyop.runtime.gpu.driver import Device
from polyop.runtime.gpu.memory import GpuArray

Make = Callable[[], tuple[Any, int]]


class Home(Protocol):
    """Where the arrays of a framework on one device come from; it is the `kind` of a View."""

    @property
    def device(self) -> Device: ...

    def maker(self, shape: tuple[int, ...], dtype: DType) -> Make:
        """What makes an array with unset contents, and tells its address."""
        ...

    def streamer(self) -> Callable[[], int]:
        """What tells the stream that work goes on now."""
        ...


def cupy() -> Any:
    """CuPy, if the caller has imported it."""
    found = sys.modules.get("cupy")
    return found if hasattr(found, "ndarray") else None  # else it is still being imported


# --- torch ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def torch_family() -> str:
    """What this torch means by "cuda"."""
    return "hip" if getattr(sys.modules["torch"].version, "hip", None) else "cuda"


@dataclass(frozen=True, slots=True)
class Torch:
    """torch's tensors, from its allocator, which knows streams and graphs."""

    device: Device

    def says(self, dtype: DType) -> dict[str, Any]:
        """What `torch.empty` must be told beside a shape."""
        return {"dtype": arrays.spelled(dtype), "device": sys.modules["torch"].device("cuda", self.device.index)}

    def maker(self, shape: tuple[int, ...], dtype: DType) -> Make:
        empty = partial(sys.modules["torch"].empty, shape, **self.says(dtype))

        def make() -> tuple[Any, int]:
            t = empty()
            return t, t.data_ptr()

        return make

    def streamer(self) -> Callable[[], int]:
        torch = sys.modules["torch"]
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # a tenth of the time of the public way
        if raw is not None:
            return partial(raw, self.device.index)
        return lambda: int(torch.cuda.current_stream(self.device.index).cuda_stream)


def torch_home(t: Any) -> Torch:
    """Where a tensor that torch calls "cuda" belongs."""
    return _torch_home(int(t.get_device()))


@lru_cache(maxsize=64)
def _torch_home(index: int) -> Torch:
    return Torch(Device(torch_family(), index))


# --- CuPy ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cupy:
    """CuPy's arrays, from its memory pool, which knows streams."""

    device: Device

    def maker(self, shape: tuple[int, ...], dtype: DType) -> Make:
        cupy = sys.modules["cupy"]
        where, own = cupy.cuda.Device(self.device.index), dtype.numpy

        def make() -> tuple[Any, int]:
            with where:
                a = cupy.empty(shape, own)
            return a, a.data.ptr

        return make

    def streamer(self) -> Callable[[], int]:
        current, index = sys.modules["cupy"].cuda.get_current_stream, self.device.index
        return lambda: int(current(index).ptr)


@lru_cache(maxsize=64)
def cupy_home(index: int) -> Cupy:
    """Where CuPy's arrays on a device belong."""
    return Cupy(Device("hip" if sys.modules["cupy"].cuda.runtime.is_hip else "cuda", index))


# --- anybody else --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exchange:
    """Arrays of which only an exchange protocol is known. `namespace`: what takes over capsules; None: results are GpuArrays."""

    device: Device
    stream: int
    namespace: Any = field(default=None, hash=False)

    def maker(self, shape: tuple[int, ...], dtype: DType) -> Make:
        def make() -> tuple[Any, int]:
            a = GpuArray(shape, dtype, self.device, self.stream)
            return a, a.address

        return make

    def streamer(self) -> Callable[[], int]:
        return lambda: self.stream


def given_back(home: Home, array: Any) -> Any:
    """A result as its reader wants it: what is no framework's own is taken over, after the kernel has been put on its stream."""
    if isinstance(home, Exchange) and home.namespace is not None:
        return home.namespace.from_dlpack(array)
    return array
