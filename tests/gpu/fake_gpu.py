"""A GPU made of host memory and the emulator: the fake driver, and fake arrays of torch, CuPy and others on it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from polyop.ir.dtypes import BY_NUMPY
from polyop.ir.errors import UnsupportedError
from polyop.ir.module import Binary, Module
from polyop.operator import Operator
from polyop.runtime import call, cxx, device, entry, entry_load, store
from polyop.runtime.gpu import chips, dlpack, driver, home, status

ARCH = (9, 0, b"gfx942:sramecc+:xnack-")


class Launched(ctypes.Structure):
    """A launch, as the fake driver wrote it down."""

    _fields_ = [("stream", ctypes.c_uint64), ("context", ctypes.c_int64), ("grid", ctypes.c_uint), ("block", ctypes.c_uint),
                ("shared", ctypes.c_uint), ("warp", ctypes.c_uint), ("function", ctypes.c_void_p), ("args", ctypes.c_int),
                ("values", ctypes.c_uint64 * 160)]


@cache
def library() -> str:
    """The path of the fake driver, which is `libcuda.so.1` and `libamdhip64.so` in one."""
    source = Path(__file__).with_name("fake_driver.cpp")
    compiler = cxx.compiler()
    out = cxx._folder() / "libfake_driver.so"
    object_ = out.with_suffix(".o")
    flags = ["-std=c++17", "-O1", "-fPIC", "-fno-exceptions", "-fno-rtti", f"-I{cxx.EMULATOR}"]
    subprocess.run([*compiler.compile, *flags, "-c", str(source), "-o", str(object_)], check=True)
    subprocess.run([*compiler.link, str(object_), "-o", str(out)], check=True)
    return str(out)


class FakeGpu:
    """What tests set and ask."""

    def __init__(self, family: str) -> None:
        self.family = family
        self.fake = ctypes.CDLL(library())
        self.fake.fake_launched.restype = ctypes.POINTER(Launched)
        self.fake.fake_context.restype = ctypes.c_int64
        self.fake.fake_context.argtypes = [ctypes.c_int64]
        self.fake.fake_capture.argtypes = [ctypes.c_uint64]
        self.fake.fake_place.argtypes = [ctypes.c_void_p, ctypes.c_int]
        self.reset()

    def reset(self, devices: int = 1, arch: tuple[int, int, bytes] | None = None) -> None:
        self.fake.fake_reset(devices, *(arch or ARCH))
        forget()

    def fail(self, symbol: str, code: int) -> None:
        self.fake.fake_fail(symbol.encode(), code)

    def calls(self, symbol: str) -> int:
        return int(self.fake.fake_calls(symbol.encode()))

    @property
    def live(self) -> int:
        return int(self.fake.fake_live())

    @property
    def launches(self) -> list[Launched]:
        return [self.fake.fake_launched(k).contents for k in range(self.fake.fake_launches())]

    @property
    def orders(self) -> list[tuple[int, int]]:
        """(later, earlier) of streams that were told to wait for one another."""
        out, pair = [], (ctypes.c_uint64 * 2)()
        for k in range(self.fake.fake_orders(1 << 20, pair)):
            self.fake.fake_orders(k, pair)
            out.append((pair[0], pair[1]))
        return out


def forget() -> None:
    """What was found out about drivers, devices and frameworks is found out again."""
    for known in (driver._found, driver.count, chips.arch, chips.native, home.torch_family, home._torch_home, home.cupy_home):
        known.cache_clear()


@contextmanager
def found(family: str) -> Iterator[FakeGpu]:
    """Calls find a fake device of the family in here, and nothing of it later; tests are skipped where no driver can be built."""
    try:
        path = library()
    except UnsupportedError as e:
        pytest.skip(str(e))
    made = FakeGpu(family)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver, "LIBRARIES", {"cuda": (path,), "hip": (path,)})
            patch.setattr(device, "assembled", assembled)
            patch.setattr(device, "unavailable", lambda family: "")
            patch.setattr(store, "kernels", store.Memo())
            patch.setattr(call, "_torch", ())
            patch.setattr(call, "_looks", {})
            patch.setattr(status, "_words", [])
            patch.setattr(status, "_rooms", {})
            patch.setattr(status, "_loaded", {})
            forget()
            yield made
    finally:  # once nothing finds the fake any more: memory given back before would ask for a driver, and keep this one
        made.reset()


def assembled(module: Module, numerics: str = "fast") -> tuple[Binary, str]:
    """Stands in for `runtime/device.py`: the code of the fake driver is the name of an emulated library."""
    code = b"fake:" + str(cxx.library(module, watched=False)).encode()
    return Binary(module.name, module.target, code, module.signature, module.launch), ""


# --- arrays of no framework -------------------------------------------------------------------------------------------


class Interface:
    """An array that has `__cuda_array_interface__` and nothing else."""

    def __init__(self, array: Any, stream: int | None = None, **changes: Any) -> None:
        self.array = a = np.asarray(array)
        told = {"shape": a.shape, "typestr": a.dtype.str, "data": (a.ctypes.data, not a.flags.writeable), "version": 3,
                "strides": a.strides}
        self.told = {**told, **({} if stream is None else {"stream": stream}), **changes}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.told


class Capsules:
    """An array of a framework that hands arrays on by DLPack, as JAX does."""

    def __init__(self, array: Any, family: str = "cuda", index: int = 0) -> None:
        self.array, self.family, self.index = np.asarray(array, order="C"), family, index
        self.asked: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.NUMBERS[self.family], self.index

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.asked.append(stream)
        a = self.array
        return dlpack.capsule(a.ctypes.data, a.shape, BY_NUMPY[a.dtype], self.family, self.index, a)

    def __array_namespace__(self) -> Any:
        return SimpleNamespace(from_dlpack=Capsules.taken)

    @staticmethod
    def taken(other: Any) -> Capsules:
        """What `from_dlpack` of that framework makes of an array of somebody else's."""
        seen = dlpack.read(other.__dlpack__(stream=77))
        assert seen.dtype is not None
        room = (ctypes.c_char * max(1, seen.dtype.bytes_ * int(np.prod(seen.shape)))).from_address(seen.address)
        out = Capsules(0, seen.family, seen.index)
        out.array = np.ndarray(seen.shape, seen.dtype.numpy, room)
        out.asked = [other]
        return out


# --- torch --------------------------------------------------------------------------------------------------------------

_SPELLED = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64,
            "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64, "uint8": np.uint8, "bool": np.bool_}


class TorchDevice:
    """`torch.device`."""

    def __init__(self, type_: str, index: int = 0) -> None:
        self.type, self.index = type_, index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TorchDevice) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __str__(self) -> str:
        return f"{self.type}:{self.index}" if self.type == "cuda" else self.type


class TorchDtype:
    """`torch.float32` and the like."""

    def __init__(self, name: str) -> None:
        self.name, self.numpy = name, np.dtype(_SPELLED[name])

    def __str__(self) -> str:
        return f"torch.{self.name}"


class Tensor:
    """As much of `torch.Tensor` as a call asks for."""

    layout = "strided"
    requires_grad = False

    def __init__(self, array: np.ndarray, dtype: TorchDtype, device: TorchDevice) -> None:
        self.array, self.dtype, self.device, self.shape = array, dtype, device, tuple(array.shape)
        self.is_cuda, self.is_cpu = device.type == "cuda", device.type == "cpu"
        self.at, self.index = int(array.ctypes.data), device.index  # found once: launches are timed with such tensors
        self.strides = tuple(s // array.itemsize for s in array.strides)

    def data_ptr(self) -> int:
        return self.at

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def get_device(self) -> int:
        return self.index

    __dlpack_c_exchange_api__: Any  # while `fronted`
    __torch_dispatch__ = None  # which subclasses with tensors of their own have

    def numel(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return self.array.itemsize

    def storage_offset(self) -> int:
        return 0

    def untyped_storage(self) -> SimpleNamespace:
        return SimpleNamespace(nbytes=lambda: sys.maxsize)

    def is_conj(self) -> bool:
        return False

    is_neg = is_conj


class Parameter(Tensor):
    """`torch.nn.Parameter`."""


class _Seen(ctypes.Structure):
    """DLPack's DLTensor."""

    _fields_ = [("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("index", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("offset", ctypes.c_uint64)]


_ASKED = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_Seen))
_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


def exchange(made: Any) -> None:
    """Let the fake torch tell machine code of its tensors and streams, as torch does: `DLPackExchangeAPI`."""
    numbers = {"cuda": dlpack.ROCM if made.version.hip else dlpack.CUDA, "cpu": dlpack.CPU}

    def tensor(t: Tensor, out: Any) -> int:
        code, bits = dlpack._code(BY_NUMPY[t.dtype.numpy])
        sizes, steps = ((ctypes.c_int64 * max(1, len(t.shape)))(*x) for x in (t.shape, t.strides))
        made.lent[id(t)] = sizes, steps
        out[0] = _Seen(t.at, numbers[t.device.type], t.index, len(t.shape), code, bits, 1, sizes, steps, 0)
        return 0

    def stream(kind: int, index: int, out: Any) -> int:
        assert kind == numbers["cuda"]
        out[0] = made.stream[index]
        return 0

    made.lent, made.calls = {}, (_ASKED(tensor), _STREAM(stream))
    made.table = (ctypes.c_size_t * 7)(1, 0, 0, 0, 0, *(ctypes.cast(f, ctypes.c_void_p).value or 0 for f in made.calls))
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    Tensor.__dlpack_c_exchange_api__ = new(ctypes.addressof(made.table), b"dlpack_exchange_api", None)


@contextmanager
def fronted(made: Any) -> Iterator[None]:
    """The native front of calls takes the fake torch for torch in here."""
    code = entry.entry(Operator)
    if code is None:
        pytest.skip("there is no native front in this interpreter")
    torch_words = range(entry_load._TORCH, entry_load._CONTEXT)
    before = [code.context[k] for k in torch_words]
    exchange(made)
    for k in torch_words:
        code.context[k] = 0
    try:
        yield
    finally:
        del Tensor.__dlpack_c_exchange_api__
        for k, word in zip(torch_words, before, strict=True):
            code.context[k] = word


def torch(hip: bool = False) -> Any:
    """A module that answers as torch would on a machine with a GPU; `stream` is the current one of each device."""
    made: Any = ModuleType("torch")
    made.Tensor, made.nn, made.strided, made.device = Tensor, SimpleNamespace(Parameter=Parameter), "strided", TorchDevice
    made.version, made.stream, made.allocated = SimpleNamespace(hip="6.3" if hip else None), {0: 0, 1: 0}, 0
    for name in _SPELLED:
        setattr(made, name, TorchDtype(name))
    made.is_grad_enabled = lambda: True
    made._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda index: made.stream[index])

    def empty(shape: tuple[int, ...], dtype: TorchDtype, device: TorchDevice) -> Tensor:
        made.allocated += 1
        return Tensor(np.full(shape, 0, dtype.numpy), dtype, device)

    def on_gpu(array: Any, index: int = 0) -> Tensor:
        a = np.asarray(array)
        name = next(n for n, t in _SPELLED.items() if np.dtype(t) == a.dtype)
        return Tensor(a, getattr(made, name), TorchDevice("cuda", index))

    made.empty, made.on_gpu, made.empty_like = empty, on_gpu, None
    return made


# --- CuPy ---------------------------------------------------------------------------------------------------------------


class CupyArray:
    """As much of `cupy.ndarray` as a call asks for."""

    def __init__(self, array: np.ndarray, index: int = 0) -> None:
        self.array, self.dtype, self.shape, self.strides = array, array.dtype, array.shape, array.strides
        self.data, self.device = SimpleNamespace(ptr=int(array.ctypes.data)), SimpleNamespace(id=index)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device.id


def cupy() -> Any:
    """A module that answers as CuPy would; `stream` is the current one of each device."""
    made: Any = ModuleType("cupy")
    made.ndarray, made.stream, made.current = CupyArray, {0: 0, 1: 0}, [0]

    class Device:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            made.current.append(self.index)

        def __exit__(self, *_: object) -> None:
            made.current.pop()

    made.cuda = SimpleNamespace(Device=Device, runtime=SimpleNamespace(is_hip=False),
                                get_current_stream=lambda index: SimpleNamespace(ptr=made.stream[index]))
    made.empty = lambda shape, dtype: CupyArray(np.zeros(shape, dtype), made.current[-1])
    return made
