"""The way through NVIDIA's driver, with a driver made of host memory and the emulator in its place."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gpu_cases import CASES, data

from polyop.codegen import cuda as text
from polyop.ir.errors import UnsupportedError
from polyop.ir.interpret import interpret
from polyop.ir.module import Binary, Module
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import cuda, cxx, emulated

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)


class FakeDriver:
    """The calls that `runtime/cuda.py` makes; device memory is host memory, and `live` counts what is not freed."""

    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=9,
                                         CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=0)

    def __init__(self, module: Module, devices: int = 1) -> None:
        self.library = ctypes.CDLL(str(cxx.library(module, watched=False)))
        self.devices, self.blocks = devices, 0
        self.live: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        """Calls of no consequence here: contexts, unloading, waiting."""
        return lambda *args: (0, 0)

    def cuInit(self, flags: int) -> tuple[int]:
        return (0,)

    def cuDeviceGetCount(self) -> tuple[int, int]:
        return 0, self.devices

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[int, int]:
        return 0, attribute

    def cuMemAlloc(self, bytes_: int) -> tuple[int, int]:
        room = ctypes.create_string_buffer(b"\xff" * bytes_, bytes_)
        self.live[ctypes.addressof(room)] = room
        return 0, ctypes.addressof(room)

    def cuMemFree(self, pointer: int) -> tuple[int]:
        del self.live[pointer]
        return (0,)

    def cuMemcpyHtoD(self, to: int, source: int, bytes_: int) -> tuple[int]:
        ctypes.memmove(to, source, bytes_)
        return (0,)

    cuMemcpyDtoH = cuMemcpyHtoD

    def cuModuleGetFunction(self, library: int, name: bytes) -> tuple[int, Any]:
        return 0, getattr(self.library, f"{name.decode()}__launch")

    def cuLaunchKernel(self, kernel: Any, *rest: int) -> tuple[int]:
        *shape, shared, stream, values, extra = rest
        assert (shared, stream, extra) == (0, 0, 0)
        self.blocks += shape[0]
        options = emulated._Options(tuple(shape[:3]), tuple(shape[3:]), 0, 1, 0)
        kernel(ctypes.c_void_p(values), ctypes.byref(options))
        return (0,)


def driven(name: str, monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int],
           arrays: dict[str, np.ndarray]) -> tuple[object, FakeDriver]:
    """What a run through the fake driver gives."""
    case = CASES[name]
    module = text.emit(case.nest, target("cuda:sm_90"), Options())
    driver = FakeDriver(module)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
    return cuda.run(module, Binary(name, "cuda:sm_90", b"", module.signature), sizes, case.scalars, arrays), driver


@pytest.mark.parametrize("name", ["saxpy", "matmul", "softmax", "heat", "dot_bf16", "total"])
def test_a_run_through_the_driver_gives_what_the_interpreter_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    for sizes in case.sizes:
        arrays, expected = data(case, sizes), data(case, sizes)
        outside, driver = driven(name, monkeypatch, sizes, arrays)
        interpret(case.nest, sizes, case.scalars, expected)
        assert outside is None
        assert driver.live == {}
        for x in arrays:
            np.testing.assert_allclose(arrays[x].astype(np.float64), expected[x].astype(np.float64), rtol=1e-2, atol=1e-5)


def test_a_position_outside_comes_back_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["gather"]
    arrays = data(case, case.sizes[0])
    arrays["ids"][4] = -1
    outside, _ = driven("gather", monkeypatch, case.sizes[0], arrays)
    assert str(outside) == "E[ids[i], j]"


def test_the_grid_has_a_thread_for_each_point(monkeypatch: pytest.MonkeyPatch) -> None:
    _, driver = driven("saxpy", monkeypatch, {"N": 300}, data(CASES["saxpy"], {"N": 300}))
    assert driver.blocks == 3


def test_no_device_is_a_reason_and_not_an_error_until_one_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["saxpy"]
    module = text.emit(case.nest, target("cuda:sm_90"), Options())
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", FakeDriver(module, devices=0))
    assert cuda.unavailable() == "there is no CUDA device"
    with pytest.raises(UnsupportedError, match="there is no CUDA device"):
        cuda.run(module, Binary("saxpy", "cuda:sm_90", b"", module.signature), {"N": 1}, case.scalars, data(case, {"N": 1}))


def test_a_device_is_named_as_compilers_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = text.emit(CASES["saxpy"].nest, target("cuda:sm_90"), Options())
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", FakeDriver(module))
    assert cuda.architecture() == "sm_90"
