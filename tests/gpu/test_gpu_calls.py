"""Calls with arrays that lie on a GPU, carried out by the fake driver: which framework they are of, streams, graphs, errors."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fake_gpu
import numpy as np
import pytest
from fake_gpu import Capsules, CupyArray, FakeGpu, Interface

import polyop
from polyop.ir.dtypes import DTYPES
from polyop.ir.errors import CallError, InternalError, UnsupportedError
from polyop.ir.target import ROWS
from polyop.runtime import store
from polyop.runtime.gpu import chips, driver, status
from polyop.runtime.gpu.driver import Device
from polyop.runtime.gpu.memory import GpuArray, put

SAXPY = "op saxpy(X: f32[N], Y: f32[N]; a: f32) -> (Z: f32[N]) { Z[i] = a * X[i] + Y[i] }"
SOFTMAX = """
op softmax(X: f32[M, N]) -> (Y: f32[M, N]) {
  top[m] max= X[m, n]
  e[m, n] = exp(X[m, n] - top[m])
  total[m] += e[m, n]
  Y[m, n] = e[m, n] / total[m]
}
"""
GATHER = "op gather(E: f32[V, D], ids: i32[N]) -> (Y: f32[N, D]) { Y[i, d] = E[ids[i], d] }"


def f32(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def arrays_of(gpu: FakeGpu, array: np.ndarray) -> Any:
    """An array of the one kind that both families have."""
    return Capsules(array, gpu.family)


@pytest.fixture
def cupy(cuda: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = fake_gpu.cupy()
    monkeypatch.setitem(sys.modules, "cupy", made)
    return made


# --- frameworks --------------------------------------------------------------------------------------------------------


def test_tensors_of_torch_go_in_and_come_out(torch: Any, cuda: FakeGpu) -> None:
    saxpy, x, y = polyop.op(SAXPY), f32(300), f32(300, seed=1)
    torch.stream[0] = 42
    for _ in range(4):
        z = saxpy(torch.on_gpu(x), torch.on_gpu(y), a=2.0)
        assert type(z) is fake_gpu.Tensor and str(z.device) == "cuda:0"
        np.testing.assert_allclose(z.array, 2 * x + y, rtol=1e-6)
    assert {(r.stream, r.context) for r in cuda.launches} == {(42, 1000)}
    assert cuda.calls("cuModuleLoadData") == 1


def test_torch_for_rocm_calls_its_devices_cuda_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_gpu.found("hip") as gpu:
        made = fake_gpu.torch(hip=True)
        monkeypatch.setitem(sys.modules, "torch", made)
        x = f32(20)
        z = polyop.op(SAXPY)(made.on_gpu(x), made.on_gpu(x), a=1.0)
        np.testing.assert_allclose(z.array, 2 * x)
        assert gpu.calls("hipModuleLaunchKernel") == 1 and gpu.calls("cuLaunchKernel") == 0


def test_arrays_of_cupy_go_in_and_come_out(cupy: Any, cuda: FakeGpu) -> None:
    saxpy, x, y = polyop.op(SAXPY), f32(300), f32(300, seed=1)
    cupy.stream[0] = 7
    for _ in range(4):
        z = saxpy(CupyArray(x), CupyArray(y[::-1]), a=-1.0)
        assert type(z) is CupyArray
        np.testing.assert_allclose(z.array, y[::-1] - x, rtol=1e-6)
    assert {r.stream for r in cuda.launches} == {7}


def test_arrays_of_a_framework_with_capsules_go_in_and_come_out(gpu: FakeGpu) -> None:
    saxpy, x, y = polyop.op(SAXPY), f32(300), f32(300, seed=1)
    for _ in range(3):
        a, b = arrays_of(gpu, x), arrays_of(gpu, y)
        z = saxpy(a, b, a=2.0)
        assert type(z) is Capsules and set(a.asked) == {driver.DEFAULT_STREAM[gpu.family]}
        np.testing.assert_allclose(z.array, 2 * x + y, rtol=1e-6)
    assert (77, driver.DEFAULT_STREAM[gpu.family]) in gpu.orders  # the reader's stream comes after ours


def test_arrays_of_no_framework_give_arrays_that_every_framework_reads(cuda: FakeGpu) -> None:
    saxpy, x = polyop.op(SAXPY), f32(64)
    for _ in range(3):
        z = saxpy(Interface(x, stream=99), Interface(x, stream=99), a=3.0)
        assert isinstance(z, GpuArray) and z.device == Device("cuda", 0)
        np.testing.assert_allclose(z.numpy(), 4 * x, rtol=1e-6)
        np.testing.assert_allclose(saxpy(z, z, a=0.0).numpy(), 4 * x, rtol=1e-6)
    assert {r.stream for r in cuda.launches} == {99}


def test_memory_of_results_is_given_back(gpu: FakeGpu) -> None:
    before = gpu.live
    z = polyop.op(SAXPY)(put(f32(10), Device(gpu.family, 0)), put(f32(10), Device(gpu.family, 0)), a=1.0)
    assert gpu.live > before
    taken = Capsules.taken(z)
    del z
    assert gpu.live > before  # somebody else reads it
    del taken
    assert gpu.live == before


def test_results_go_into_out(torch: Any, cuda: FakeGpu) -> None:
    saxpy, x, out = polyop.op(SAXPY), f32(50), torch.on_gpu(np.zeros(50, np.float32))
    for k in range(3):
        assert saxpy(torch.on_gpu(x), torch.on_gpu(x), a=float(k), out=out) is out
        np.testing.assert_allclose(out.array, (k + 1) * x, rtol=1e-6)
    assert torch.allocated == 0
    with pytest.raises(CallError, match="overlaps `X`"):
        saxpy(out, torch.on_gpu(x), a=1.0, out=out)
    for _ in range(2):
        saxpy(torch.on_gpu(x), torch.on_gpu(x), a=1.0, out=out)
    with pytest.raises(CallError, match="overlaps `X`"):
        saxpy(out, torch.on_gpu(x), a=1.0, out=out)


def test_what_is_not_aligned_is_refused_though_its_look_is_known(cupy: Any) -> None:
    saxpy, x = polyop.op(SAXPY), f32(50)
    for _ in range(3):
        saxpy(fake_gpu.CupyArray(x), fake_gpu.CupyArray(x), a=1.0)
    moved = np.frombuffer(bytearray(201), np.float32, 50, offset=1)
    with pytest.raises(CallError, match="aligned"):
        saxpy(fake_gpu.CupyArray(x), fake_gpu.CupyArray(moved), a=1.0)


def test_an_update_is_done_in_place(gpu: FakeGpu) -> None:
    scale, x = polyop.op("op scale(inout X: f32[N]; a: f32) { X[i] = a * X[i] }"), put(f32(9), Device(gpu.family, 0))
    want = x.numpy()
    for _ in range(3):
        scale(x, a=2.0)
        want = 2 * want
        np.testing.assert_allclose(x.numpy(), want)


def test_an_update_whose_old_values_are_needed_later_works_on_a_copy(gpu: FakeGpu) -> None:
    turn, x = polyop.op("op turn(inout X: f32[N]) { X[i] = X[N - 1 - i] }"), put(f32(9), Device(gpu.family, 0))
    want = x.numpy()
    turn(x)
    np.testing.assert_allclose(x.numpy(), want[::-1])


def test_numbers_for_tensors_of_rank_0_go_along(gpu: FakeGpu) -> None:
    for dtype, value in (("f32", 1.5), ("f64", -2.25), ("i8", -3), ("i64", -(2**40)), ("u16", 60000)):
        add = polyop.op(f"op add(X: {dtype}[N], b: {dtype}[]) -> (Y: {dtype}[N]) {{ Y[i] = X[i] * b }}")
        x = np.ones(5, DTYPES[dtype].numpy)
        for _ in range(2):
            np.testing.assert_array_equal(add(put(x, Device(gpu.family, 0)), value).numpy(), value * x)


def test_work_memory_comes_from_the_framework(torch: Any, cuda: FakeGpu) -> None:
    softmax, x = polyop.op(SOFTMAX), f32(5, 40)
    want = np.exp(x - x.max(1, keepdims=True))
    want /= want.sum(1, keepdims=True)
    for _ in range(3):
        np.testing.assert_allclose(softmax(torch.on_gpu(x)).array, want, rtol=1e-5)
    assert cuda.calls("cuMemAllocAsync") == 0 and torch.allocated >= 3


def test_empty_arrays_start_nothing(gpu: FakeGpu) -> None:
    z = polyop.op(SAXPY)(put(f32(0), Device(gpu.family, 0)), put(f32(0), Device(gpu.family, 0)), a=1.0)
    assert z.shape == (0,) and not gpu.launches


def test_a_size_of_0_gets_a_kernel_that_counts_on_no_element(gpu: FakeGpu) -> None:
    first = polyop.op("op first(X: f32[M, D]) -> (Y: f32[M]) { Y[m] = (X[m, 0] else 7) }")
    for d, want in ((0, 7), (3, 1), (0, 7)):
        np.testing.assert_array_equal(first(put(np.ones((5, d), np.float32), Device(gpu.family, 0))).numpy(), want)


# --- devices -------------------------------------------------------------------------------------------------------------


def test_arrays_of_two_devices_are_one_clear_error(torch: Any, cuda: FakeGpu) -> None:
    cuda.reset(devices=2)
    saxpy, x = polyop.op(SAXPY), f32(8)
    here, there, host = torch.on_gpu(x), torch.on_gpu(x, 1), x
    with pytest.raises(CallError, match="`Y` is on cuda:1 and `X` on cuda:0; expected all arrays of a call on one device"):
        saxpy(here, there, a=1.0)
    with pytest.raises(CallError, match="`Y` is on the CPU and `X` on cuda:0"):
        saxpy(here, host, a=1.0)
    with pytest.raises(CallError, match="`Y` is on cuda:0 and `X` on the CPU"):
        saxpy(host, here, a=1.0)
    with pytest.raises(CallError, match="`out` is on the CPU and `X` on cuda:0"):
        saxpy(here, here, a=1.0, out=np.zeros(8, np.float32))
    with pytest.raises(CallError, match="`out` is on cuda:0 and `X` on the CPU"):
        saxpy(host, host, a=1.0, out=here)


def test_each_device_has_its_own_context_and_module(torch: Any, cuda: FakeGpu) -> None:
    cuda.reset(devices=2)
    saxpy, x = polyop.op(SAXPY), f32(8)
    cuda.fake.fake_context(1000)
    for _ in range(3):
        for index in (0, 1):
            z = saxpy(torch.on_gpu(x, index), torch.on_gpu(x, index), a=1.0)
            assert z.device.index == index
    assert [r.context for r in cuda.launches] == [1000, 1001] * 3
    assert cuda.calls("cuModuleLoadData") == 2
    assert cuda.fake.fake_context(-1) == 1000  # the thread's own device is what it was


def test_a_thread_without_a_context_gets_the_devices_own(torch: Any, cuda: FakeGpu) -> None:
    saxpy, x = polyop.op(SAXPY), torch.on_gpu(f32(8))
    for _ in range(3):
        cuda.fake.fake_context(0)
        saxpy(x, x, a=1.0)
    assert {r.context for r in cuda.launches} == {1000}


@pytest.mark.parametrize(("capability", "row"), [((8, 0), "sm_80"), ((8, 6), "sm_80"), ((8, 9), "sm_80"), ((9, 0), "sm_90a")])
def test_code_is_made_for_the_nearest_row_of_the_device(cuda: FakeGpu, capability: tuple[int, int], row: str) -> None:
    cuda.reset(arch=(*capability, b""))
    assert chips.native(Device("cuda", 0)).arch == row


@pytest.mark.parametrize(("family", "here", "there"), [
    ("cuda", (8, 0, b""), {"cuda:sm_80"}), ("cuda", (8, 6, b""), {"cuda:sm_80"}), ("cuda", (7, 5, b""), set()),
    ("cuda", (9, 0, b""), {"cuda:sm_90", "cuda:sm_90a"}), ("cuda", (9, 1, b""), {"cuda:sm_90"}),
    ("hip", (0, 0, b"gfx90a:sramecc+"), {"hip:gfx90a"}), ("hip", (0, 0, b"gfx90c"), set()),
])
def test_machine_code_runs_on_its_capability_and_later_ones_of_its_generation(
        family: str, here: tuple[int, int, bytes], there: set[str], cuda: FakeGpu) -> None:
    cuda.reset(arch=here)
    assert {t.name for t in ROWS if chips.runs(Device(family, 0), t)} == there


def test_an_operator_for_another_chip_says_what_this_one_runs(cuda: FakeGpu) -> None:
    with pytest.raises(UnsupportedError, match=r"`saxpy` is for cuda:sm_80, and cuda:0 runs what is for cuda:sm_90a"):
        polyop.op(SAXPY).compile("cuda:sm_80").operator(Interface(f32(8)), Interface(f32(8)), a=1.0)
    cuda.reset(arch=(8, 6, b""))
    z = polyop.op(SAXPY).compile("cuda:sm_80").operator(Interface(f32(8)), Interface(f32(8)), a=0.0)
    np.testing.assert_allclose(z.numpy(), f32(8))


def test_a_device_that_no_row_fits_is_refused(cuda: FakeGpu) -> None:
    cuda.reset(arch=(7, 5, b""))
    with pytest.raises(UnsupportedError, match=r"cuda:0 is sm_75; kernels are made for sm_80, sm_90, sm_90a"):
        polyop.op(SAXPY)(Interface(f32(8)), Interface(f32(8)), a=1.0)


def test_the_memory_of_one_of_several_devices_says_which(cuda: FakeGpu) -> None:
    cuda.reset(devices=2)
    x = f32(8)
    cuda.fake.fake_place(x.ctypes.data, 1)
    z = polyop.op(SAXPY)(Interface(x), Interface(x), a=1.0)
    assert z.device == Device("cuda", 1)


def test_an_operator_for_another_family_says_so(cuda: FakeGpu) -> None:
    saxpy = polyop.op(SAXPY)
    with pytest.raises(UnsupportedError, match=r"`saxpy` is for hip:gfx942, and its arrays are on cuda:0"):
        saxpy.compile("hip:gfx942").operator(Interface(f32(8)), Interface(f32(8)), a=1.0)
    with pytest.raises(UnsupportedError, match=r"`saxpy` is for cuda:sm_90, and its arrays are on the CPU"):
        saxpy.compile("cuda:sm_90").operator(f32(8), f32(8), a=1.0)
    z = saxpy.compile("cuda:sm_90").operator(Interface(f32(8)), Interface(f32(8)), a=0.0)
    np.testing.assert_allclose(z.numpy(), f32(8))


def test_without_a_device_the_reason_is_told(gpu: FakeGpu) -> None:
    gpu.reset(devices=0)
    title = {"cuda": "no CUDA device can be used: CUDA_ERROR_NO_DEVICE", "hip": "no HIP device can be used: hipErrorNoDevice"}
    assert driver.unavailable(gpu.family) == f"{title[gpu.family]} (100)"
    with pytest.raises(UnsupportedError, match=title[gpu.family]):
        polyop.op(SAXPY)(arrays_of(gpu, f32(8)), arrays_of(gpu, f32(8)), a=1.0)


def test_without_a_driver_the_reason_is_told(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LIBRARIES", {gpu.family: ("libnone.so.1",)})
    assert driver.unavailable(gpu.family).startswith(f"no {gpu.family.upper()} driver can be used: libnone.so.1")
    assert driver.count(gpu.family) == 0


# --- streams and graphs ---------------------------------------------------------------------------------------------------


def test_arrays_of_two_streams_wait_for_each_other_on_the_device(cuda: FakeGpu) -> None:
    polyop.op(SAXPY)(Interface(f32(8), stream=5), Interface(f32(8), stream=6), a=1.0)
    assert [r.stream for r in cuda.launches] == [5] and cuda.orders == [(5, 6), (6, 5)]


@pytest.mark.parametrize("known", [False, True])
def test_a_call_may_be_captured_into_a_graph(torch: Any, cuda: FakeGpu, known: bool) -> None:
    gather, table = polyop.op(GATHER), f32(6, 3)
    ids, out = torch.on_gpu(np.array([1, 5, 0], np.int32)), torch.on_gpu(np.zeros((3, 3), np.float32))
    for _ in range(3 if known else 0):
        gather(torch.on_gpu(table), ids, out=out)
    out.array[...] = 0
    torch.stream[0], first = 12, len(cuda.launches)
    cuda.fake.fake_capture(12)
    gather(torch.on_gpu(table), ids, out=out)  # modules are loaded and memory is pinned meanwhile, which waits for nothing
    cuda.fake.fake_capture(0)
    assert not out.array.any()
    for rows in ([1, 5, 0], [2, 2, 3]):
        ids.array[...] = rows
        cuda.fake.fake_replay(first, len(cuda.launches))
        np.testing.assert_array_equal(out.array, table[rows])


def test_threads_may_call_at_the_same_time(torch: Any, cuda: FakeGpu) -> None:
    saxpy, x = polyop.op(SAXPY), f32(40)
    saxpy(torch.on_gpu(x), torch.on_gpu(x), a=1.0)
    cuda.fake.fake_capture(9)  # launches are written down: the emulator is for one thread
    torch.stream[0] = 9

    def many(k: int) -> None:
        cuda.fake.fake_context(0)
        for _ in range(50):
            saxpy(torch.on_gpu(x), torch.on_gpu(x), a=float(k))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(many, range(8))) == [None] * 8
    seen = [np.frombuffer(np.uint64(v).tobytes()[:4], np.float32)[0] for r in cuda.launches[1:] for v in list(r.values)[1:2]]
    assert sorted(seen) == sorted(float(k) for k in range(8) for _ in range(50))


def test_nothing_waits_for_the_device(torch: Any, cuda: FakeGpu) -> None:
    softmax = polyop.op(SOFTMAX)
    for n in (3, 3, 3, 8):
        softmax(torch.on_gpu(f32(n, 5)))
    assert cuda.calls("cuStreamSynchronize") == cuda.calls("cuCtxSynchronize") == 0


# --- positions outside ------------------------------------------------------------------------------------------------------


def test_a_position_outside_is_told_by_the_next_call_of_the_kernel(torch: Any, cuda: FakeGpu) -> None:
    gather, table = polyop.op(GATHER), torch.on_gpu(f32(6, 3))
    good, bad = torch.on_gpu(np.array([1, 5, 0], np.int32)), torch.on_gpu(np.array([1, 6, 0], np.int32))
    for known in (False, True):
        gather(table, bad)
        with pytest.raises(CallError, match=r"an earlier call of `gather` on cuda:0: `E\[ids\[i\], d\]` reads outside `E`"):
            gather(table, good)
        np.testing.assert_array_equal(gather(table, good).array, table.array[good.array]), known


def test_a_position_outside_is_told_when_asked(gpu: FakeGpu) -> None:
    gather, table = polyop.op(GATHER), arrays_of(gpu, f32(6, 3))
    polyop.synchronize()
    gather(table, arrays_of(gpu, np.array([-1], np.int32)))
    with pytest.raises(CallError, match="an earlier call of `gather`"):
        polyop.synchronize()
    polyop.synchronize()


# --- what a driver refuses ---------------------------------------------------------------------------------------------------


CUDA_CALLS = ["cuDevicePrimaryCtxRetain", "cuCtxGetCurrent", "cuCtxSetCurrent", "cuModuleLoadData", "cuModuleGetFunction",
              "cuLaunchKernel", "cuMemHostAlloc", "cuMemHostGetDevicePointer_v2", "cuThreadExchangeStreamCaptureMode",
              "cuMemAllocAsync", "cuCtxSynchronize"]


@pytest.mark.parametrize("symbol", CUDA_CALLS)
def test_whatever_a_driver_refuses_is_an_error_with_its_name(cuda: FakeGpu, symbol: str) -> None:
    gather, table, ids = polyop.op(GATHER), Interface(f32(6, 3)), Interface(np.array([1], np.int32))
    if symbol in ("cuLaunchKernel", "cuCtxGetCurrent"):
        gather(table, ids)
        gather(table, ids)
    cuda.fail(symbol, 900)
    with pytest.raises(InternalError, match=r"cuda.*CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED \(900\)"):
        cuda.fake.fake_context(0)
        gather(table, ids)
        polyop.synchronize()
    cuda.fail(symbol, 0)
    np.testing.assert_array_equal(gather(table, ids).numpy(), table.array[[1]])


def test_a_launch_that_fails_names_the_kernel(torch: Any, cuda: FakeGpu) -> None:
    saxpy, x = polyop.op(SAXPY), torch.on_gpu(f32(300))
    saxpy(x, x, a=1.0)
    cuda.fail("cuLaunchKernel", 2)
    for _ in range(2):
        with pytest.raises(InternalError, match=r"cuLaunchKernel failed: CUDA_ERROR_OUT_OF_MEMORY .2. for saxpy_0 with 1 b"):
            saxpy(x, x, a=1.0)


def test_no_memory_for_a_result_is_the_callers_error(gpu: FakeGpu) -> None:
    x = put(f32(8), Device(gpu.family, 0))
    saxpy = polyop.op(SAXPY)
    saxpy(x, x, a=1.0)
    for _ in range(2):
        gpu.fail({"cuda": "cuMemAllocAsync", "hip": "hipMallocAsync"}[gpu.family], 2)
        with pytest.raises(CallError, match="no memory for a result of shape"):
            saxpy(x, x, a=1.0)


# --- kept kernels --------------------------------------------------------------------------------------------------------------


def test_a_repeated_call_asks_each_array_once_what_it_is_and_where(cuda: FakeGpu) -> None:
    """Others make a dictionary for each question."""
    asked = []

    class Asked(Interface):
        @property
        def __cuda_array_interface__(self) -> dict[str, object]:
            asked.append(self)
            return self.told

    saxpy = polyop.op(SAXPY)
    x, y = Asked(f32(8)), Asked(f32(8) + 1)
    for _ in range(2):  # the first call of a process has not known that there are such arrays
        saxpy(x, y, a=2.0)
    asked.clear()
    moved = Asked(f32(8) + 3)
    z = saxpy(x, moved, a=2.0)
    assert asked == [x, moved]
    np.testing.assert_allclose(z.numpy(), 2 * f32(8) + f32(8) + 3, rtol=1e-5)


@pytest.mark.parametrize(("changes", "said"), [
    ({"data": None}, "without data"), ({"typestr": None, "shape": None}, "without shape, typestr"),
    ({"data": (0, False)}, "`Y` has no memory: the address of its 8 elements is 0"),
    ({"strides": (4, 4)}, "`Y` has 2 strides, expected one for each of 1 dimensions")])
def test_an_interface_that_says_too_little_is_refused_in_the_first_call_and_in_later_ones(
        cuda: FakeGpu, changes: dict[str, Any], said: str) -> None:
    saxpy, x = polyop.op(SAXPY), Interface(f32(8))
    for _ in range(2):
        with pytest.raises(CallError, match=said):
            saxpy(x, Interface(f32(8), **changes), a=1.0)
        saxpy(x, x, a=1.0)


def test_a_kernel_comes_back_from_disk_with_its_host_plan(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "op rows(X: f32[T, N]) -> (Y: f32[T, N]) { Y[t, i] = (Y[t-1, i-1] else 0) + (Y[t-1, i+1] else 0) + X[t, i] }"
    x = put(f32(7, 4), Device(gpu.family, 0))
    want = polyop.op(rows)(x).numpy()
    np.testing.assert_allclose(want, polyop.op(rows)(x.numpy()), rtol=1e-5)
    monkeypatch.setattr(store, "kernels", store.Memo())
    monkeypatch.setattr("polyop.compiler.compile_op", None)
    np.testing.assert_array_equal(polyop.op(rows)(x).numpy(), want)


def test_words_and_devices_are_known(cuda: FakeGpu) -> None:
    assert status.used() == ()
    polyop.op(SAXPY)(Interface(f32(8)), Interface(f32(8)), a=1.0)
    assert status.used() == (Device("cuda", 0),)
