"""cubin -> a run on an NVIDIA GPU, through the driver. Needs `polyop[cuda]` and a GPU; nothing is imported before a call."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.expr import Load
from polyop.ir.module import STATUS, Binary, Module, in_order, slots
from polyop.runtime.launching import Memory, addresses, arguments, grid


def unavailable() -> str:
    """Why no CUDA device can be used here, or "" if one can."""
    try:
        driver = importlib.import_module("cuda.bindings.driver")
        (code,) = driver.cuInit(0)
        if int(code):
            return f"no CUDA device can be used: {code.name}"
        code, count = driver.cuDeviceGetCount()
    except (ImportError, RuntimeError) as e:  # the binding loads the driver at its first call
        return f"no CUDA driver can be used: {e}"
    return "" if not int(code) and count else "there is no CUDA device"


def architecture() -> str:
    """What the first device is called by compilers, as "sm_90".

    Raises UnsupportedError without a device.
    """
    _need()
    driver = importlib.import_module("cuda.bindings.driver")
    names = driver.CUdevice_attribute
    device = _done(driver.cuDeviceGet(0))
    parts = (names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    return "sm_" + "".join(str(_done(driver.cuDeviceGetAttribute(p, device))) for p in parts)


def _need() -> None:
    reason = unavailable()
    if reason:
        raise UnsupportedError(reason)


def _done(result: tuple[Any, ...]) -> Any:
    code, *values = result
    if int(code):
        raise InternalError(f"cuda: {code.name}")
    return values[0] if values else None


@contextmanager
def _context(driver: Any) -> Iterator[None]:
    """The first device's primary context, which frameworks share."""
    device = _done(driver.cuDeviceGet(0))
    _done(driver.cuCtxPushCurrent(_done(driver.cuDevicePrimaryCtxRetain(device))))
    try:
        yield
    finally:
        _done(driver.cuCtxPopCurrent())
        _done(driver.cuDevicePrimaryCtxRelease(device))


def run(module: Module, binary: Binary, sizes: Mapping[str, int], scalars: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray]) -> Load | None:
    """Carry out `module`'s host plan on the first device with NumPy arrays; outputs are written in place.

    Shapes  arrays: one for each tensor of the signature, of its extents.
    Notes   The result is the first computed position outside its tensor, or None. Everything is copied to and fro.
    Raises  UnsupportedError without a device; InternalError if the driver refuses.
    """
    _need()
    driver = importlib.import_module("cuda.bindings.driver")
    written = {name for launch, _ in in_order(module.launch, sizes) for name in launch.writes}
    status = np.zeros((), np.uint32)
    with _context(driver), ExitStack() as cleanup:
        library = _done(driver.cuModuleLoadData(binary.code))
        cleanup.callback(lambda: driver.cuModuleUnload(library))

        def allocate(bytes_: int) -> int:
            pointer = _done(driver.cuMemAlloc(max(1, bytes_)))
            cleanup.callback(lambda: driver.cuMemFree(pointer))
            return int(pointer)

        memory: dict[str, Memory] = {}
        packed: dict[str, np.ndarray] = {STATUS: status}
        for b in module.signature.tensors:
            unit = b.unit if b.unit is not None else len(b.dims) - 1
            packed[b.name] = _packed(arrays[b.name], unit)
        for name, a in packed.items():
            memory[name] = Memory(allocate(a.nbytes), tuple(s // a.itemsize for s in a.strides))
            if a.nbytes:
                _done(driver.cuMemcpyHtoD(memory[name].address, _address(a), a.nbytes))
        for b in module.signature.work:
            memory[b.name] = Memory(allocate(slots(b, dict(sizes)) * b.dtype.bytes_))
        for launch, env in in_order(module.launch, sizes):
            blocks = grid(launch, env)
            if blocks:
                kernel = _done(driver.cuModuleGetFunction(library, launch.kernel.encode()))
                values = arguments(launch, module.signature, env, scalars, memory)
                table = addresses(values)
                shape = (blocks, 1, 1, launch.block, 1, 1)
                _done(driver.cuLaunchKernel(kernel, *shape, launch.shared, 0, ctypes.addressof(table), 0))
        _done(driver.cuCtxSynchronize())
        for name in (*sorted(written & packed.keys()), STATUS):
            a = packed[name]
            if a.nbytes:
                _done(driver.cuMemcpyDtoH(_address(a), memory[name].address, a.nbytes))
            if name != STATUS:
                arrays[name][...] = a
    site = int(status)
    return module.signature.sites[site - 1] if site else None


def _packed(a: np.ndarray, unit: int) -> np.ndarray:
    """A dense copy of `a` whose dimension `unit` has stride 1."""
    order = [d for d in range(a.ndim) if d != unit] + [unit] * (a.ndim > 0)
    dense: np.ndarray = np.array(a.transpose(order), order="C", copy=True)
    out: np.ndarray = dense.transpose([order.index(d) for d in range(a.ndim)])
    return out


def _address(a: np.ndarray) -> int:
    return int(a.ctypes.data)
