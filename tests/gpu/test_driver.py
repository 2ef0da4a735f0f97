"""The way through a driver, with one made of host memory and the emulator in its place."""

from __future__ import annotations

import numpy as np
import pytest
from fake_gpu import FakeGpu, assembled
from gpu_cases import CASES, data

from polyop.codegen import cuda as cuda_text
from polyop.codegen import hip as hip_text
from polyop.ir.expr import Load, affine
from polyop.ir.interpret import interpret
from polyop.ir.module import Binary, Launch
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime.gpu import chips, direct, driver
from polyop.runtime.gpu.driver import Device
from polyop.runtime.gpu.kernel import GpuKernel, prepared


def driven(name: str, gpu: FakeGpu, sizes: dict[str, int], arrays: dict[str, np.ndarray]) -> Load | None:
    """What a run through the fake driver gives."""
    case, row = CASES[name], target({"cuda": "cuda:sm_90", "hip": "hip:gfx942"}[gpu.family])
    module = {"cuda": cuda_text, "hip": hip_text}[gpu.family].emit(case.nest, row, Options())
    return direct.run(assembled(module)[0], sizes, case.scalars, arrays, Device(gpu.family, 0))


@pytest.mark.parametrize("name", ["saxpy", "matmul", "softmax", "heat", "dot_bf16", "total"])
def test_a_run_through_the_driver_gives_what_the_interpreter_says(name: str, gpu: FakeGpu) -> None:
    case, before = CASES[name], gpu.live
    for sizes in case.sizes:
        arrays, expected = data(case, sizes), data(case, sizes)
        assert driven(name, gpu, sizes, arrays) is None
        interpret(case.nest, sizes, case.scalars, expected)
        for x in arrays:
            np.testing.assert_allclose(arrays[x].astype(np.float64), expected[x].astype(np.float64), rtol=1e-2, atol=1e-5)
    assert gpu.live == before


def test_a_position_outside_comes_back_from_the_device(gpu: FakeGpu) -> None:
    case = CASES["gather"]
    arrays = data(case, case.sizes[0])
    arrays["ids"][4] = -1
    assert str(driven("gather", gpu, case.sizes[0], arrays)) == "E[ids[i], j]"


def test_the_grid_has_a_thread_for_each_point(cuda: FakeGpu) -> None:
    driven("saxpy", cuda, {"N": 300}, data(CASES["saxpy"], {"N": 300}))
    assert sum(r.grid for r in cuda.launches) == 3


def shared(bytes_: int, cuda: FakeGpu) -> Binary:
    """A kernel that asks for dynamic shared memory; its code is that of saxpy."""
    case = CASES["saxpy"]
    code, _ = assembled(cuda_text.emit(case.nest, target("cuda:sm_90"), Options()))
    (launch,) = code.launch
    assert isinstance(launch, Launch)
    launch = Launch(launch.kernel, (affine("N"),), 128, launch.args, launch.writes, bytes_)
    return Binary(code.name, code.target, code.code, code.signature, (launch,))


def test_a_block_that_needs_much_shared_memory_asks_for_it(cuda: FakeGpu) -> None:
    for bytes_, asked in ((48 << 10, 0), (100 << 10, 1)):
        binary, arrays = shared(bytes_, cuda), data(CASES["saxpy"], {"N": 30})
        direct.run(binary, {"N": 30}, CASES["saxpy"].scalars, arrays, Device("cuda", 0))
        assert cuda.calls("cuFuncSetAttribute") == asked and cuda.launches[-1].shared == bytes_


def test_more_shared_memory_than_a_block_can_have_is_refused(cuda: FakeGpu) -> None:
    with pytest.raises(driver.UnsupportedError, match="256000 bytes of shared memory; a block on cuda:0 has at most 232448"):
        direct.run(shared(256000, cuda), {"N": 3}, CASES["saxpy"].scalars, data(CASES["saxpy"], {"N": 3}), Device("cuda", 0))


def test_a_module_is_loaded_once_for_each_device(gpu: FakeGpu) -> None:
    gpu.reset(devices=2)
    module = cuda_text.emit(CASES["saxpy"].nest, target("cuda:sm_90"), Options())
    kernel = GpuKernel(assembled(module)[0])
    strides = {b.name: (1,) for b in kernel.binary.signature.tensors}
    for _ in range(3):
        for index in (0, 1):
            prepared(kernel, Device(gpu.family, index), {"N": 3}, strides, 0)
    assert gpu.calls({"cuda": "cuModuleLoadData", "hip": "hipModuleLoadData"}[gpu.family]) == 2


def test_code_that_a_driver_does_not_take_is_told_with_its_version(gpu: FakeGpu) -> None:
    version = {"cuda": "CUDA 12.4", "hip": "HIP 6.3"}[gpu.family]
    with pytest.raises(driver.UnsupportedError, match=rf"does not take code that was made for it: .* is for {version}"):
        chips.load(Device(gpu.family, 0), b"no code")


def test_a_device_is_named_as_compilers_name_it(gpu: FakeGpu) -> None:
    assert chips.arch(Device(gpu.family, 0)) == {"cuda": "sm_90", "hip": "gfx942"}[gpu.family]
