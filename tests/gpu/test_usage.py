"""A user who compiles for a GPU gets its binary, and what the kernels in it take."""

from __future__ import annotations

import struct

import pytest

import polyop
from polyop.ir.errors import InternalError
from polyop.ir.expr import affine
from polyop.ir.module import Binary, Launch, Module, Signature, launches
from polyop.ir.target import BY_NAME
from polyop.runtime import amdgcn, device, nvrtc
from polyop.runtime.usage import Usage, occupancy, usage

SCALE = "op scale(X: f32[N]; a: f32) -> (Y: f32[N]) { Y[i] = a * X[i] }"
MANY = "op many(X: f64[N, 90]) -> (Y: f64[N]) { Y[i] = " + " + ".join(f"exp(X[i, {k}]) * exp(X[i, {7 * k % 90}])" for k in
                                                                     range(12)) + " }"
TOOLS = {"cuda:sm_80": nvrtc, "hip:gfx942": amdgcn, "hip:gfx1100": amdgcn}


@pytest.fixture(params=TOOLS)
def target(request):
    if TOOLS[request.param].unavailable():
        pytest.skip(TOOLS[request.param].unavailable())
    return request.param


def test_compiling_for_a_gpu_gives_the_binary_and_what_its_kernels_take(target):
    made = polyop.op(SCALE).compile(target=target)
    (taken,) = usage(made.binary)
    assert taken.kernel == "scale_0" and 2 <= taken.registers <= 32 and taken.local == 0
    most, block = {"cuda:sm_80": (64, 128), "hip:gfx942": (32, 256), "hip:gfx1100": (64, 256)}[target]
    assert f"{len(made.binary.code):,} bytes for {target}\n  scale_0: {taken.registers} registers a thread, nothing spilled, " \
        f"{most} of {most} warps on a multiprocessor in blocks of {block}\n" in made.explain()


def test_code_objects_are_of_the_version_that_drivers_take(target):
    code = polyop.op(SCALE).compile(target=target).binary.code
    assert target.startswith("cuda") or code[8] == 3  # ELFABIVERSION_AMDGPU_HSA_V5


def test_large_kernels_take_more(target):
    (taken,) = usage(polyop.op(MANY).compile(target=target).binary)
    assert taken.registers > 40


def test_every_kernel_of_a_binary_is_listed(target):
    text = "op two(X: f32[M, N]) -> (Y: f32[M, N]) { s[j] += X[i,j]\n m max= s[j]\n Y[i,j] = X[i,j] * m }"
    made = polyop.op(text).compile(target=target)
    names = [x.kernel for x in launches(made.binary.launch)]
    assert len(names) > 1 and [u.kernel for u in usage(made.binary)] == names


def test_shared_memory_is_counted_whether_the_text_or_the_launch_asks_for_it(target):
    text = """#include "pop_device.h"
extern "C" __global__ void __launch_bounds__(64) k(float* Y) {
    __shared__ float s[1000];
    s[threadIdx.x] = Y[threadIdx.x];
    pop_barrier();
    Y[threadIdx.x] = s[63 - threadIdx.x];
}
"""
    launch = (Launch("k", (affine(64),), 64, ("Y",), ("Y",), 512), Launch("k", (affine(64),), 64, ("Y",), ("Y",), 100))
    module = Module("k", target, text, Signature("k", (), (), (), ()), launch)
    (taken,) = usage(TOOLS[target].assemble(module))
    assert taken.shared == 4512 and "4,512 bytes of shared memory" in str(taken)


@pytest.mark.parametrize(("name", "threads", "registers", "shared", "warps", "bound"), [
    ("cuda:sm_80", 128, 64, 0, 32, "registers"),        # as CUDA's calculator has it
    ("cuda:sm_80", 256, 32, 48 << 10, 24, "shared memory"),
    ("cuda:sm_80", 32, 16, 0, 32, "blocks"),
    ("cuda:sm_80", 1024, 255, 0, 0, "registers"),       # it cannot be launched
    ("cuda:sm_90a", 384, 168, 200 << 10, 12, "registers"),
    ("hip:gfx942", 256, 128, 0, 16, "registers"),
    ("hip:gfx942", 256, 60, 32 << 10, 8, "shared memory"),
    ("hip:gfx1100", 256, 100, 0, 48, "registers"),
])
def test_what_bounds_the_warps_on_a_multiprocessor(name, threads, registers, shared, warps, bound):
    row = BY_NAME[name]
    assert occupancy(row.multi, row.warp, threads, registers, shared) == (warps, bound)


def test_registers_that_are_spilled_are_said_to_be():
    assert "96 bytes of local memory a thread, so registers may be spilled" in str(Usage("k", 255, 96))
    assert "24 registers spilled to 96 bytes of local memory a thread" in str(Usage("k", 255, 96, 24))
    assert "12 of 64 warps on a multiprocessor in blocks of 384, bounded by registers" \
        in str(Usage("k", 168, 0, 0, 0, 384, (12, 64), "registers"))


def test_without_the_compiler_a_note_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(device.nvrtc, "unavailable", lambda: "for want of `polyop[cuda]`")
    made = polyop.op(SCALE).compile(target="cuda:sm_80")
    assert made.binary is None and "no binary: for want of `polyop[cuda]`" in made.explain()
    assert "__global__" in made.source


def test_code_of_a_cpu_is_not_counted():
    assert usage(polyop.op(SCALE).compile(target="x86").binary) == ()


@pytest.mark.parametrize("code", [b"", b"no ELF", b"\x7fELF\x02\x01" + b"\0" * 20, b"\x7fELF\x02\x01" + struct.pack("<58x")])
@pytest.mark.parametrize("name", ["cuda:sm_80", "hip:gfx942"])
def test_a_damaged_file_is_an_error_and_no_crash(name, code):
    with pytest.raises(InternalError, match="usage: f for "):
        usage(Binary("f", name, code, Signature("f", (), (), (), ())))
