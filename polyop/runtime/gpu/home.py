"""Whose arrays lie on a GPU: how those of torch, CuPy and of anybody else are read and made, and on which stream work goes.

Nothing is copied, and nothing waits: kernels are put on the framework's current stream; for arrays that only tell
`__cuda_array_interface__` on the stream this names, and arrays that give a DLPack capsule are asked for one that is ready
for the default stream.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, Protocol

import numpy as np

from polyop.ir.dtypes import BY_NUMPY, DTYPES, U8, DType
from polyop.runtime import arrays
from polyop.runtime.arrays import View, refuse
from polyop.runtime.gpu import dlpack
from polyop.runtime.gpu.driver import DEFAULT_STREAM, Device, count, device_of, driver, on
from polyop.runtime.gpu.memory import GpuArray, copy, fill

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


def view(value: Any, name: str) -> View | None:
    """`value`, the argument for `name`, as memory of a GPU; None if it is no such array.

    Raises CallError, if kernels cannot read it; UnsupportedError without a driver.
    """
    cupy = _cupy()
    if cupy is not None and isinstance(value, cupy.ndarray):
        return _cupy_view(value, name)
    if isinstance(value, GpuArray):
        home = Exchange(value.device, value.stream)
        return View(value.address, value.shape, dlpack.dense(value.shape), value.dtype, True, value, home, None, value.device)
    if hasattr(value, "__dlpack_device__") and hasattr(value, "__dlpack__"):
        kind = int(value.__dlpack_device__()[0])
        return _capsule_view(value, name, dlpack.FAMILIES[kind]) if kind in dlpack.FAMILIES else None
    if hasattr(value, "__cuda_array_interface__"):
        return _interface_view(value, name)
    return None


def _cupy() -> Any:
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

    def maker(self, shape: tuple[int, ...], dtype: DType) -> Make:
        torch = sys.modules["torch"]
        empty = partial(torch.empty, shape, dtype=arrays.spelled(dtype), device=torch.device("cuda", self.device.index))

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
def _cupy_home(index: int) -> Cupy:
    return Cupy(Device("hip" if sys.modules["cupy"].cuda.runtime.is_hip else "cuda", index))


def _cupy_view(a: Any, name: str) -> View:
    home = _cupy_home(int(a.device.id))
    return _checked(name, a.data.ptr, a.shape, a.strides, np.dtype(a.dtype), True, a, home, None)


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


def lifted(v: View, home: Home) -> View:
    """A plain number as memory of a device."""
    array, address = home.maker((), v.dtype)()
    fill(home.device, address, arrays.as_numpy(v), home.streamer()())
    return replace(v, address=address, kind=home, memory=array, device=home.device)


def snapshot(v: View, home: Home) -> View:
    """A copy of the memory that `v` covers, with the same strides."""
    first, last = v.span()
    array, address = home.maker((last - first,), U8)()
    copy(home.device, address, first, last - first, home.streamer()())
    return replace(v, address=address + v.address - first, owner=array, memory=array)


def brought(array: np.ndarray, home: Home) -> Any:
    """A copy of a NumPy array as one of `home`; this waits for the stream."""
    dense = np.ascontiguousarray(array)
    made, address = home.maker(array.shape, BY_NUMPY[array.dtype])()
    stream = home.streamer()()
    with on(home.device) as d:
        if dense.nbytes:
            d.do("put", address, dense.ctypes.data, dense.nbytes, stream)
        d.do("wait", stream)
    return made


def fetched(v: View) -> np.ndarray:
    """A copy of a view in the host's memory; this waits for the stream."""
    first, last = v.span()
    raw, stream = np.empty(last - first, np.uint8), v.kind.streamer()()
    with on(v.device) as d:
        if raw.nbytes:
            d.do("get", raw.ctypes.data, first, raw.nbytes, stream)
        d.do("wait", stream)
    out: np.ndarray = arrays.as_numpy(replace(v, address=arrays.address(raw) + v.address - first, device=None)).copy()
    return out


def _capsule_view(value: Any, name: str, family: str) -> View:
    driver(family)  # without one, its absence is the reason
    stream = DEFAULT_STREAM[family]
    capsule = value.__dlpack__(stream=stream)
    seen = dlpack.read(capsule)
    if seen.dtype is None:
        raise refuse("E602", f"`{name}` has a dtype that kernels do not know; expected one of {', '.join(DTYPES)}")
    namespace = value.__array_namespace__() if hasattr(value, "__array_namespace__") else None
    namespace = namespace if hasattr(namespace, "from_dlpack") else None
    home = Exchange(Device(family, seen.index), stream, namespace)
    jax = sys.modules.get("jax")
    is_constant = jax is not None and isinstance(value, jax.Array)  # whoever wrote into one would change what others count on
    return View(seen.address, seen.shape, seen.strides, seen.dtype, not is_constant, value, home, capsule, home.device)


def _interface_view(value: Any, name: str) -> View:
    """https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html, version 3 and what came before."""
    driver("cuda")  # without one, its absence is the reason
    told = value.__cuda_array_interface__
    address, read_only = told["data"]
    if told.get("mask") is not None:
        raise refuse("E608", f"`{name}` is a masked array, and kernels know no masks")
    dtype, shape = np.dtype(told["typestr"]), tuple(told["shape"])
    if BY_NUMPY.get(dtype) is None and hasattr(value, "dtype"):  # what `typestr` has no word for, as bf16
        dtype = np.dtype(value.dtype)
    strides = told.get("strides")
    strides = tuple(s * dtype.itemsize for s in dlpack.dense(shape)) if strides is None else tuple(strides)
    device = Device("cuda", 0) if not address or count("cuda") == 1 else device_of("cuda", address)
    home = Exchange(device, told.get("stream") or DEFAULT_STREAM["cuda"])
    return _checked(name, address or 0, shape, strides, dtype, not read_only, value, home, None)


def _checked(name: str, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any], writeable: bool,
             value: Any, home: Home, memory: Any) -> View:
    """The view of memory whose strides are in bytes."""
    own = BY_NUMPY.get(dtype)
    if own is None:
        raise refuse("E602", f"`{name}` has dtype {dtype}; expected one of {', '.join(DTYPES)}")
    size = dtype.itemsize
    if address % size or any(s % size for n, s in zip(shape, strides, strict=True) if n > 1):
        raise refuse("E608", f"`{name}` is not aligned to its elements of {size} bytes", f"{name}.copy()")
    elements = tuple(s // size for s in strides)
    return View(address, tuple(shape), elements, own, writeable, value, home, memory, home.device)


# --- looks ---------------------------------------------------------------------------------------------------------


Look = Callable[[Any], "tuple[Any, ...] | None"]

_looks: dict[type, Look] = {}


def look(value: Any) -> tuple[Any, ...] | None:
    """What the plan of a call depends on of an array that is neither NumPy's nor torch's; None if it has no plan.

    Notes   A capsule must be asked for in each call, so arrays that give one have none.
    """
    found = _looks.get(type(value))
    if found is None:
        found = _looks[type(value)] = _look(type(value))
    return found(value)


def _look(kind: type) -> Look:
    cupy = _cupy()
    if kind is GpuArray:
        return lambda a: (GpuArray, a.dtype, a.shape, a.device, a.stream)
    if cupy is not None and kind is cupy.ndarray:
        return lambda a: (kind, a.dtype, a.shape, a.strides, a.device.id)
    if hasattr(kind, "__cuda_array_interface__") and not hasattr(kind, "__dlpack__"):
        return _look_of_interface
    return lambda a: None


def _look_of_interface(a: Any) -> tuple[Any, ...] | None:
    told = a.__cuda_array_interface__
    if count("cuda") > 1 or told.get("mask") is not None:
        return None  # it would have to be found out where the memory lies
    return type(a), told["typestr"], told["shape"], told.get("strides"), told["data"][1], told.get("stream")


def reader(value: Any) -> Callable[[Any], int]:
    """What tells the address of arrays that look like `value`."""
    if arrays.is_torch(value):
        return type(value).data_ptr  # type: ignore[no-any-return]
    if type(value) is GpuArray:
        return attrgetter("address")
    cupy = _cupy()
    if cupy is not None and type(value) is cupy.ndarray:
        return lambda a: int(a.data.ptr)
    return lambda a: int(a.__cuda_array_interface__["data"][0] or 0)
