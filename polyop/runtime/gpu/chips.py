"""What a device is, which row of the targets its code is made for, and how that code gets there."""

from __future__ import annotations

import ctypes
import re
from functools import lru_cache

from polyop.ir.errors import UnsupportedError
from polyop.ir.target import ROWS, Target
from polyop.runtime.gpu.driver import TITLES, Device, Driver, driver, on, relaxed

_ORDINAL = {"cuda": 9, "hip": 9}                   # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_MAJOR, _MINOR, _SHARED = 75, 76, 97               # of CUdevice_attribute; the last: bytes a block may ask for
_PROCESSORS = 16
_NOT_FOR_IT = (200, 209, 218, 222)  # an image that is invalid, for another chip, or newer than the driver
_DYNAMIC_SHARED = 8       # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_PLAIN_SHARED = 48 << 10  # bytes of dynamic shared memory that need no asking


@lru_cache(maxsize=64)
def arch(device: Device) -> str:
    """What `device` is called by compilers, as "sm_90" or "gfx942".

    Raises UnsupportedError without a driver.
    """
    d = driver(device.family)
    if device.family == "cuda":
        return f"sm_{attribute(device, _MAJOR)}{attribute(device, _MINOR)}"
    room = ctypes.create_string_buffer(8192)  # hipDeviceProp_t has grown from version to version
    get = getattr(d.library, "hipGetDevicePropertiesR0600", None) or d.library.hipGetDeviceProperties
    code = get(room, ctypes.c_int(device.index))
    named = re.search(rb"gfx[0-9a-f]+", room.raw[256:])  # what comes first is a name for people
    if code or named is None:
        raise UnsupportedError(f"{device} does not tell its architecture: {d._name(code)}")
    return named.group().decode()


def attribute(device: Device, number: int) -> int:
    """One of CUDA's numbers about a device."""
    d, out = driver(device.family), ctypes.c_int()
    code = d.library.cuDeviceGetAttribute(ctypes.byref(out), ctypes.c_int(number), ctypes.c_int(device.index))
    if code:
        raise d.error("count", code)
    return out.value


@lru_cache(maxsize=64)
def processors(device: Device) -> int:
    """How many multiprocessors `device` has."""
    return attribute(device, _PROCESSORS)


@lru_cache(maxsize=64)
def native(device: Device) -> Target:
    """The row of the table for `device`: its own, with what only this chip has, or the one of the same generation.

    Notes   Code for sm_80 runs on 8.6 and 8.9 too; what ends in `a` runs on that very capability.
    Raises  UnsupportedError, if there is none.
    """
    name = arch(device)
    rows = {t.arch: t for t in ROWS if t.family == device.family}
    near = [f"{name}a", name] if device.family == "hip" or name[:-1] + "0" == name else [f"{name}a", name, name[:-1] + "0"]
    for known in near:
        if known in rows:
            return rows[known]
    raise UnsupportedError(f"{device} is {name}; kernels are made for {', '.join(rows)}")


def runs(device: Device, t: Target) -> bool:
    """Whether machine code for `t` runs on `device`.

    Source  CUDA C++ Programming Guide, "Binary Compatibility": on its own capability, and on higher ones of the same generation
            but for what ends in `a`. AMD's code objects are for one chip.
    """
    if t.family != device.family:
        return False
    here = arch(device)
    if t.family == "hip" or t.arch.endswith("a"):
        return here == (t.arch if t.family == "hip" else t.arch[:-1])
    return here[:-1] == t.arch[:-1] and here[-1] >= t.arch[-1]


def device_of(family: str, address: int) -> Device:
    """The device that memory lies on."""
    return Device(family, driver(family).ask("pointer", _ORDINAL[family], address) & 0xFFFFFFFF)


def load(device: Device, code: bytes) -> int:
    """A module of machine code in the context of `device`; it is never unloaded, since a graph may still use it.

    Raises UnsupportedError, with the driver's version, if it does not take the code.
    """
    out = ctypes.c_uint64()
    with on(device) as d, relaxed(d):
        failed = d.calls["load"](ctypes.addressof(out), code)
    if failed in _NOT_FOR_IT:
        raise UnsupportedError(f"{device}, which is {arch(device)}, does not take code that was made for it: {d._name(failed)}; "
                               f"its driver is for {TITLES[device.family]} {version(d)}")
    if failed:
        raise d.error("load", failed)
    return out.value


def version(d: Driver) -> str:
    """Of the newest toolkit that a driver takes code of."""
    out = ctypes.c_int()
    get = d.library.hipDriverGetVersion if d.family == "hip" else d.library.cuDriverGetVersion
    get(ctypes.byref(out))
    large, small = (10_000_000, 100_000) if d.family == "hip" else (1000, 10)
    return f"{out.value // large}.{out.value % large // small}"


def function(device: Device, module: int, name: str, shared: int) -> int:
    """A kernel of a module that may be launched with `shared` bytes of dynamic shared memory.

    Raises UnsupportedError, if the device has not so much.
    """
    with on(device) as d, relaxed(d):
        found = d.ask("function", module, name.encode())
        if shared > _PLAIN_SHARED and d.family == "cuda":
            most = attribute(device, _SHARED)
            if shared > most:
                raise UnsupportedError(f"{name} needs {shared} bytes of shared memory; a block on {device} has at most {most}")
            code = d.library.cuFuncSetAttribute(ctypes.c_void_p(found), ctypes.c_int(_DYNAMIC_SHARED), ctypes.c_int(shared))
            if code:
                raise d.error("function", code)
        return found
