"""Nests that are wrong on purpose: the emulator says what is wrong, where, and in which line."""

from __future__ import annotations

from dataclasses import replace

import gpu_kernels
import numpy as np
import pytest
from gpu_nests import at, buffer, call, loop, nest, parallel, store

from polyop.codegen import cuda
from polyop.ir.dtypes import F32
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Const, affine
from polyop.ir.loops import LoopNest, Space
from polyop.ir.module import Launch, Module, Signature
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import cxx, emulated

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

i, N = affine("i"), affine("N")


def ran(wrong: LoopNest, n: int, order: str = "forward", **arrays: np.ndarray) -> emulated.Report:
    return emulated.run(cuda.emit(wrong, target("cuda:sm_80"), Options()), {"N": n}, {}, arrays, order=order)


def scan() -> LoopNest:
    """Y[i] = Y[i - 1] + X[i], whose loop is no parallel one."""
    cell = at("Y", i - 1, guard=(i - 1,))
    return nest("scan", "N", (buffer("X", "N", unit=0), buffer("Y", "N", unit=0)),
                parallel("i", "N", store("S0", at("Y", "i"), call("add", cell, at("X", "i")))))


@pytest.mark.parametrize("order", ["forward", "backward"])
def test_a_loop_that_carries_a_value_and_is_called_parallel_is_a_race(order: str) -> None:
    report = ran(scan(), 200, order, X=np.ones(200, np.float32), Y=np.zeros(200, np.float32))
    races = [f for f in report.findings if f.what == "race"]
    assert races
    assert races[0].buffer == "Y"
    assert "Y[i" in races[0].code


def test_a_race_between_two_blocks_is_seen_too() -> None:
    wrong = nest("last", "N", (buffer("X", "N"), buffer("Y")), parallel("i", "N", store("S0", at("Y"), at("X", "i"))))
    report = ran(wrong, 129, X=np.ones(129, np.float32), Y=np.zeros((), np.float32))
    assert str(report).startswith("race in last_0: Y written by thread 1 of block 0 and by thread 0 of block 0")


def test_one_more_than_the_end_is_out_of_bounds() -> None:
    wrong = nest("shift", "N", (buffer("X", "N", unit=0), buffer("Y", "N", unit=0)),
                 parallel("i", "N", store("S0", at("Y", "i"), at("X", i + 1))))
    report = ran(wrong, 10, X=np.ones(10, np.float32), Y=np.zeros(10, np.float32))
    (fault,) = report.findings
    assert (fault.what, fault.buffer, fault.index) == ("out of bounds", "X", (10,))
    assert fault.code == "Y[i] = X[i + 1];"


@pytest.mark.parametrize("unit", [None, 0, 1])
def test_leaving_a_row_is_out_of_bounds_although_the_tensor_goes_on(unit: int | None) -> None:
    wrong = nest("rows", "N", (buffer("X", "N", "N", unit=unit), buffer("Y", "N", "N", unit=unit)),
                 parallel("i", "N", loop("j", "N", store("S0", at("Y", "i", "j"), at("X", "i", affine("j") - 1)))))
    report = ran(wrong, 4, X=np.ones((4, 4), np.float32), Y=np.zeros((4, 4), np.float32))
    assert [f.what for f in report.findings] == ["out of bounds"]


def test_work_space_that_is_read_before_it_is_written_is_reported() -> None:
    work = buffer("W", "N", space=Space.WORK)
    wrong = nest("early", "N", (buffer("X", "N"), buffer("Y", "N"), work),
                 parallel("i", N - 1, store("S0", at("W", "i"), at("X", "i"))),
                 parallel("i", "N", store("S1", at("Y", "i"), at("W", "i"))))
    report = ran(wrong, 10, X=np.ones(10, np.float32), Y=np.zeros(10, np.float32))
    (fault,) = report.findings
    assert (fault.what, fault.kernel, fault.buffer, fault.index) == ("uninitialised read", "early_1", "W", (9,))


def test_an_output_that_is_accumulated_without_a_start_is_reported() -> None:
    wrong = nest("nostart", "N", (buffer("X", "N"), buffer("Y")), loop("i", "N", store("S0", at("Y"), at("X", "i"), "add")))
    report = ran(wrong, 3, X=np.ones(3, np.float32), Y=np.zeros((), np.float32))
    assert [f.what for f in report.findings] == ["uninitialised read"]


def test_private_work_space_that_two_kernels_use_is_refused() -> None:
    work = replace(buffer("W", 4, space=Space.WORK), private=True)
    body = parallel("i", "N", store("S0", at("W", 0), Const(0.0, F32)))
    with pytest.raises(UnsupportedError, match="private buffer W is used by own_0 and own_1"):
        cuda.emit(nest("own", "N", (work,), body, body), target("cuda:sm_80"), Options())


def test_private_work_space_whose_size_the_host_decides_is_refused() -> None:
    work = replace(buffer("W", 4, space=Space.WORK), private=True)
    body = loop("t", "N", parallel("i", "t", store("S0", at("W", 0), Const(0.0, F32))))
    with pytest.raises(UnsupportedError, match="depends on a loop of the host"):
        cuda.emit(nest("own", "N", (work,), body), target("cuda:sm_80"), Options())


def test_registers_that_would_outlive_their_kernel_are_refused() -> None:
    wrong = nest("reg", "N", (buffer("Y", "N"), buffer("acc", space=Space.REG)), store("S0", at("acc"), Const(0.0, F32)),
                 parallel("i", "N", store("S1", at("Y", "i"), at("acc"))))
    with pytest.raises(UnsupportedError, match="registers acc are used by two kernels"):
        cuda.emit(wrong, target("cuda:sm_80"), Options())


# --- registers and addresses: nests are proved not to have such faults, so these kernels are written by hand ------------

OWN = """
    float own[2][3];
    float last;
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 3; ++j) own[i][j] = X[t] + i + j;
    if (t < 16) last = X[t];
    Y[t] = own[1][t % 4 == 3 ? 0 : t % 4] + own[0][t / 16] + (t < 16 ? last : 0.0f);"""


def own(body: str) -> tuple[str, np.ndarray]:
    arrays = {"X": np.arange(32, dtype=np.float32), "Y": np.zeros(32, np.float32)}
    return str(gpu_kernels.ran(body, arrays)), arrays["Y"]


def test_registers_that_are_written_and_indexed_within_their_ends_are_no_fault() -> None:
    said, y = own(OWN)
    assert said == "no fault found" and np.isfinite(y).all()


@pytest.mark.parametrize("change", [("i < 2", "i <= 2"), ("j < 3", "j <= 3"), ("t % 4 == 3 ? 0 : ", "")])
def test_registers_past_the_last_one_are_out_of_bounds(change: tuple[str, str]) -> None:
    assert own(OWN.replace(*change))[0].startswith("out of bounds in k: ")


@pytest.mark.parametrize(("change", "lanes"), [(("if (t < 16)", "if (t < 8)"), 8), (("int i = 0", "int i = 1"), 32)])
def test_registers_that_were_not_written_hold_no_number(change: tuple[str, str], lanes: int) -> None:
    said, y = own(OWN.replace(*change))
    assert said == "no fault found" and np.isnan(y).sum() == lanes


@pytest.mark.parametrize(("seed", "found"), [(1, []), (2, ["X"]), (4, ["Y"]), (6, ["X", "Y"])])
def test_a_seed_says_which_tensors_begin_at_an_odd_address(seed: int, found: list[str]) -> None:
    arrays = {"X": np.arange(128, dtype=np.float32), "Y": np.zeros(128, np.float32)}
    text = gpu_kernels.module("    pop_move<16>(Y + 4 * t, X + 4 * t);", arrays)
    report = emulated.run(text, {}, {}, arrays, order="shuffled", seed=seed)
    assert sorted(f.buffer for f in report.findings) == found
    assert {f.what for f in report.findings} <= {"misaligned access"}
    np.testing.assert_array_equal(arrays["Y"], arrays["X"])


# --- barriers: no nest has them yet, so these kernels are written by hand -------------------------------------------

REVERSE = """
#include "pop_device.h"
extern "C" __global__ void __launch_bounds__(64) turn(const float* X, pop_i64, float* Y, pop_i64) {
    __shared__ float s[64];
    s[threadIdx.x] = X[blockIdx.x * 64 + threadIdx.x];
    BARRIER
    Y[blockIdx.x * 64 + threadIdx.x] = s[63 - threadIdx.x];
}
"""


def reversed_by(barrier: str, order: str) -> tuple[set[str], np.ndarray]:
    """What the emulator finds in a kernel that reverses blocks of 64 through shared memory, and the result."""
    tensors = (buffer("X", "N", unit=0), buffer("Y", "N", unit=0))
    launch = Launch("turn", (N,), 64, ("X", "Y"), ("Y",))
    text = REVERSE.replace("BARRIER", barrier)
    module = Module("turn", "cuda:sm_80", text, Signature("turn", ("N",), (), tensors, ()), (launch,))
    arrays = {"X": np.arange(128, dtype=np.float32), "Y": np.zeros(128, np.float32)}
    report = emulated.run(module, {"N": 128}, {}, arrays, order=order)
    return {f.what for f in report.findings}, arrays["Y"]


@pytest.mark.parametrize("order", emulated.ORDERS)
def test_a_barrier_orders_what_stands_before_and_after_it(order: str) -> None:
    found, y = reversed_by("__syncthreads();", order)
    assert found == set()
    np.testing.assert_array_equal(y, np.arange(128, dtype=np.float32).reshape(2, 64)[:, ::-1].ravel())


@pytest.mark.parametrize("order", emulated.ORDERS)
def test_a_missing_barrier_is_a_race_in_every_order(order: str) -> None:
    found, _ = reversed_by("", order)
    assert "race" in found


def test_a_barrier_that_only_some_threads_reach_is_reported() -> None:
    found, _ = reversed_by("if (threadIdx.x < 32) __syncthreads();", "forward")
    assert "divergent barrier" in found
