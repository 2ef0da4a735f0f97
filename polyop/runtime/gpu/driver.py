"""The drivers of NVIDIA's and AMD's GPUs: one set of verbs, with the symbols of CUDA and HIP as rows of data.

They are called through their C interfaces, which are stable and come with the device; no Python binding takes part. Launches
are machine code (`launch.ll`), which wants addresses of functions and not objects; one file serves both families; and a
binding for HIP may bring a second `libamdhip64` beside the one that torch has loaded, which knows nothing of torch's memory.
Nothing is loaded before a call brings arrays of a device, or asks for one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from polyop.ir.errors import InternalError, UnsupportedError

LIBRARIES = {
    "cuda": ("libcuda.so.1", "libcuda.so"),
    "hip": ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"),
}
"""The names of each driver's library, likeliest first."""

TITLES = {"cuda": "CUDA", "hip": "HIP"}

_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int, "u": ctypes.c_uint, "z": ctypes.c_size_t, "b": ctypes.c_ubyte,
          "h": ctypes.c_ushort, "s": ctypes.c_char_p}

VERBS = {
    # verb: CUDA's symbol, HIP's symbol, types of the arguments
    "init": ("cuInit", "hipInit", "u"),
    "count": ("cuDeviceGetCount", "hipGetDeviceCount", "p"),
    "current": ("cuCtxGetCurrent", "hipGetDevice", "p"),
    "enter": ("cuCtxSetCurrent", "hipSetDevice", "p"),
    "load": ("cuModuleLoadData", "hipModuleLoadData", "ps"),
    "function": ("cuModuleGetFunction", "hipModuleGetFunction", "pps"),
    "launch": ("cuLaunchKernel", "hipModuleLaunchKernel", "puuuuuuuppp"),
    "allocate": ("cuMemAllocAsync", "hipMallocAsync", "pzp"),
    "free": ("cuMemFreeAsync", "hipFreeAsync", "pp"),
    "pin": ("cuMemHostAlloc", "hipHostMalloc", "pzu"),
    "mapped": ("cuMemHostGetDevicePointer_v2", "hipHostGetDevicePointer", "ppu"),
    "put": ("cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync", "ppzp"),
    "get": ("cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync", "ppzp"),
    "copy": ("cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync", "ppzp"),
    "fill8": ("cuMemsetD8Async", "hipMemsetD8Async", "pbzp"),
    "fill16": ("cuMemsetD16Async", "hipMemsetD16Async", "phzp"),
    "fill32": ("cuMemsetD32Async", "hipMemsetD32Async", "puzp"),
    "wait": ("cuStreamSynchronize", "hipStreamSynchronize", "p"),
    "wait_all": ("cuCtxSynchronize", "hipDeviceSynchronize", ""),
    "event": ("cuEventCreate", "hipEventCreateWithFlags", "pu"),
    "record": ("cuEventRecord", "hipEventRecord", "pp"),
    "follow": ("cuStreamWaitEvent", "hipStreamWaitEvent", "ppu"),
    "forget": ("cuEventDestroy_v2", "hipEventDestroy", "p"),
    "capture_mode": ("cuThreadExchangeStreamCaptureMode", "hipThreadExchangeStreamCaptureMode", "p"),
    "pointer": ("cuPointerGetAttribute", "hipPointerGetAttribute", "pip"),
}
"""https://docs.nvidia.com/cuda/cuda-driver-api and https://rocm.docs.amd.com/projects/HIP: calls of the same shape in both."""

DEFAULT_STREAM = {"cuda": 1, "hip": 0}  # the legacy default stream, CU_STREAM_LEGACY and the null stream
_RELAXED = 2              # a capture mode in which nothing is forbidden to the thread that captures


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU: "cuda" or "hip", and its number there."""

    family: str
    index: int

    def __str__(self) -> str:
        return f"{self.family}:{self.index}"


@dataclass(frozen=True, eq=False, slots=True)
class Driver:
    """A driver that has been loaded and has devices.

    calls      verb -> C function
    contexts   device -> what `enter` takes: the primary context, which frameworks share, or HIP's number of the device
    """

    family: str
    library: Any
    calls: dict[str, Any]
    contexts: dict[int, int] = field(default_factory=dict)

    def do(self, verb: str, *args: Any) -> None:
        """Raises InternalError, with the driver's name for it, if the call fails."""
        code = self.calls[verb](*args)
        if code:
            raise self.error(verb, code)

    def ask(self, verb: str, *args: Any) -> int:
        """What a call writes to where its first argument points, as 64 bits."""
        out = ctypes.c_uint64()
        self.do(verb, ctypes.addressof(out), *args)
        return out.value

    def error(self, what: str, code: int) -> InternalError:
        return InternalError(f"{self.family}: {_symbol(what, self.family)} failed: {self._name(code)}")

    def _name(self, code: int) -> str:
        if self.family == "hip":
            name = self.library.hipGetErrorName
            name.restype = ctypes.c_char_p
            return f"{(name(code) or b'error').decode()} ({code})"
        text = ctypes.c_char_p()
        self.library.cuGetErrorName(code, ctypes.byref(text))
        return f"{(text.value or b'error').decode()} ({code})"


def _symbol(verb: str, family: str) -> str:
    return VERBS[verb][family == "hip"]


@lru_cache(maxsize=2)
def _found(family: str) -> tuple[Driver | None, str]:
    """The driver; or none, and why."""
    title, library, reason = TITLES[family], None, ""
    for name in (*_mapped(LIBRARIES[family]), *LIBRARIES[family]):
        try:
            library = ctypes.CDLL(name)
            break
        except OSError as e:
            reason = reason or str(e)
    if library is None:
        return None, f"no {title} driver can be used: {reason}"
    try:
        calls = {verb: _typed(library, _symbol(verb, family), types) for verb, (_, _, types) in VERBS.items()}
    except AttributeError as e:
        return None, f"the {title} driver is too old: {e}"
    driver = Driver(family, library, calls)
    code = calls["init"](0)
    if code:
        return None, f"no {title} device can be used: {driver._name(code)}"
    try:
        count = driver.ask("count") & 0xFFFFFFFF
    except InternalError as e:
        return None, f"no {title} device can be used: {e}"
    return (driver, "") if count else (None, f"there is no {title} device")


def _typed(library: Any, symbol: str, types: str) -> Any:
    call = getattr(library, symbol)
    call.restype, call.argtypes = ctypes.c_int, [_TYPES[t] for t in types]
    return call


def _mapped(names: tuple[str, ...]) -> list[str]:
    """The file of a library of that name which somebody has loaded already, as torch does with one of its own."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    files = dict.fromkeys(line.split(maxsplit=5)[5] for line in lines if line.count("/"))
    return [f for f in files if Path(f).name.startswith(Path(names[0]).name.split(".so")[0] + ".so")]


def unavailable(family: str) -> str:
    """Why no device of `family` can be used here, or "" if one can."""
    return _found(family)[1]


def driver(family: str) -> Driver:
    """The driver of "cuda" or "hip", loaded when it is first asked for.

    Raises UnsupportedError, with the reason, if there is none or no device.
    """
    found, reason = _found(family)
    if found is None:
        raise UnsupportedError(reason)
    return found


@lru_cache(maxsize=2)
def count(family: str) -> int:
    """How many devices there are; 0 where none can be used."""
    found = _found(family)[0]
    return found.ask("count") & 0xFFFFFFFF if found else 0


def context(d: Driver, device: Device) -> int:
    """What `enter` takes to make `device` the current one of a thread."""
    known = d.contexts.get(device.index)
    if known is None:
        known = device.index if d.family == "hip" else _primary(d, device.index)
        d.contexts[device.index] = known
    return known


def _primary(d: Driver, index: int) -> int:
    """The primary context, retained for as long as this process lives."""
    number, out = ctypes.c_int(), ctypes.c_void_p()
    for code in (d.library.cuDeviceGet(ctypes.byref(number), ctypes.c_int(index)),
                 d.library.cuDevicePrimaryCtxRetain(ctypes.byref(out), number)):
        if code:
            raise InternalError(f"cuda: device {index} has no context: {d._name(code)}")
    return out.value or 0


@contextmanager
def on(device: Device) -> Iterator[Driver]:
    """Inside, `device` is the current one of this thread."""
    d = driver(device.family)
    wanted, before = context(d, device), d.ask("current")
    if wanted != before:
        d.do("enter", wanted)
    try:
        yield d
    finally:
        if wanted != before:
            d.do("enter", before)


@contextmanager
def relaxed(d: Driver) -> Iterator[None]:
    """Inside, this thread may load modules and take memory though it captures a graph: neither is part of it."""
    mode = ctypes.c_int(_RELAXED)
    d.do("capture_mode", ctypes.addressof(mode))
    try:
        yield
    finally:
        d.do("capture_mode", ctypes.addressof(mode))
