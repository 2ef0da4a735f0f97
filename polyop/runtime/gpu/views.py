"""Arrays of any framework that lie on a GPU, as memory; and what the plan of a call depends on of them."""

from __future__ import annotations

import sys
from math import prod
from typing import Any

import numpy as np

from polyop.ir.dtypes import BY_NUMPY, DTYPES
from polyop.runtime.arrays import View, refuse
from polyop.runtime.call import Look
from polyop.runtime.gpu import dlpack
from polyop.runtime.gpu.chips import device_of
from polyop.runtime.gpu.driver import DEFAULT_STREAM, Device, count, driver
from polyop.runtime.gpu.home import Exchange, Home, cupy, cupy_home
from polyop.runtime.gpu.memory import GpuArray
from polyop.runtime.layout import dense


def view(value: Any, name: str) -> View | None:
    """`value`, the argument for `name`, as memory of a GPU; None if it is no such array.

    Raises CallError, if kernels cannot read it; UnsupportedError without a driver.
    """
    known = cupy()
    if known is not None and isinstance(value, known.ndarray):
        return _cupy_view(value, name)
    if isinstance(value, GpuArray):
        home = Exchange(value.device, value.stream)
        return View(value.address, value.shape, dense(value.shape), value.dtype, True, value, home, None, value.device)
    if hasattr(value, "__dlpack_device__") and hasattr(value, "__dlpack__"):
        kind = int(value.__dlpack_device__()[0])
        return _capsule_view(value, name, dlpack.FAMILIES[kind]) if kind in dlpack.FAMILIES else None
    if hasattr(value, "__cuda_array_interface__"):
        return _interface_view(value, name)
    return None


def _cupy_view(a: Any, name: str) -> View:
    home = cupy_home(int(a.device.id))
    return _checked(name, a.data.ptr, a.shape, a.strides, np.dtype(a.dtype), True, a, home, None)


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
    if absent := [k for k in ("shape", "typestr", "data") if told.get(k) is None]:
        raise refuse("E608", f"`{name}` has a `__cuda_array_interface__` without {', '.join(absent)}")
    address, read_only = told["data"]
    if told.get("mask") is not None:
        raise refuse("E608", f"`{name}` is a masked array, and kernels know no masks")
    dtype, shape = np.dtype(told["typestr"]), tuple(told["shape"])
    if not address and 0 not in shape:
        raise refuse("E608", f"`{name}` has no memory: the address of its {prod(shape)} elements is {address}")
    if BY_NUMPY.get(dtype) is None and hasattr(value, "dtype"):  # what `typestr` has no word for, as bf16
        dtype = np.dtype(value.dtype)
    strides = told.get("strides")
    strides = tuple(s * dtype.itemsize for s in dense(shape)) if strides is None else tuple(strides)
    if len(strides) != len(shape):
        raise refuse("E608", f"`{name}` has {len(strides)} strides, expected one for each of {len(shape)} dimensions")
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


def look_of(kind: type) -> Look:
    """What the plan of a call depends on of arrays of type `kind`, which are neither NumPy's nor torch's.

    Notes   A capsule must be asked for in each call, so arrays that give one have no plan.
    """
    known = cupy()
    if kind is GpuArray:
        return _look_of_own
    if known is not None and kind is known.ndarray:
        return _look_of_cupy
    if hasattr(kind, "__cuda_array_interface__") and not hasattr(kind, "__dlpack__") and count("cuda") == 1:
        return _look_of_interface  # of several devices it would have to be found out where the memory lies
    return lambda a, at: None


def _look_of_own(a: GpuArray, at: list[int]) -> tuple[Any, ...]:
    at.append(a.address)
    return GpuArray, a.dtype, a.shape, a.device, a.stream


def _look_of_cupy(a: Any, at: list[int]) -> tuple[Any, ...]:
    at.append(a.data.ptr)
    return type(a), a.dtype, a.shape, a.strides, a.device.id


def _look_of_interface(a: Any, at: list[int]) -> tuple[Any, ...] | None:
    told = a.__cuda_array_interface__
    get = told.get
    if get("mask") is not None:
        return None
    try:
        address, read_only = told["data"]
        seen = type(a), told["typestr"], told["shape"], get("strides"), read_only, get("stream")
    except (KeyError, TypeError, ValueError):
        return None  # the long way says what is wrong
    at.append(address or 0)
    return seen
