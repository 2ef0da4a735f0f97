"""Each wrapper becomes the instruction it stands for, in PTX and in AMD's assembly, and compiles without a warning."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from gpu_texts import ptx

from polyop.ir.atoms import ROWS, Atom
from polyop.ir.dtypes import F32
from polyop.ir.module import Module, Signature
from polyop.runtime import amdgcn, cxx, nvrtc
from polyop.runtime.usage import usage

needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable())
needs_amdgcn = pytest.mark.skipif(bool(amdgcn.unavailable()), reason=amdgcn.unavailable())


def kernel(body: str, arguments: str, bounds: str = "128") -> str:
    shared = "POP_SHARED(16384);\nPOP_SHARED_VIEW(S_s, float, 0, 4096);\nfloat* S_s = (float*)(pop_shared + 0);\n"
    return (f'#include "pop_device.h"\nextern "C" __global__ void __launch_bounds__({bounds}) k({arguments}) {{\n'
            f"{shared if 'S_s' in body else ''}const pop_u32 t = pop_thread();\n{body}\n}}\n")


def amd(text: str, arch: str, folder: Path) -> str:
    """The assembly of a text; fails on any warning."""
    (folder / "k.hip").write_text(text)
    front = [x for x in amdgcn._FRONT if x not in ("-c", "-emit-llvm")]
    command = [*amdgcn.tools().clang, *front, f"--offload-arch={arch}", f"-I{cxx.DEVICE}", "-S", str(folder / "k.hip"),
               "-o", str(folder / "k.s")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode and not done.stderr, done.stderr
    return (folder / "k.s").read_text()


TYPES = {"f32": "float", "f64": "double", "i32": "int"}


def product(x: Atom) -> str:
    """A body that multiplies what lies in memory at P and stores to Q."""
    out = []
    for name, t, f in (("a", x.a, x.a_map), ("b", x.b, x.b_map)):
        assert f is not None
        if t.bits < 32 or (t == F32 and f.regs > 1):
            words = f.regs * t.bytes_ // 4
            out.append(f"pop_u32 {name}[{words}]; for (int i = 0; i < {words}; i++) {name}[i] = P[{words} * t + i];")
        elif f.regs > 1:
            out.append(f"{TYPES[t.name]} {name}[{f.regs}]; "
                       f"for (int i = 0; i < {f.regs}; i++) {name}[i] = ((const {TYPES[t.name]}*)P)[{f.regs} * t + i];")
        else:
            kind = TYPES[t.name]
            many = f"[{f.regs}]; for (int i = 0; i < {f.regs}; i++) {name}[i]" if f.regs > 1 else ""
            out.append(f"{kind} {name}{many} = ((const {kind}*)P)[{f.regs} * t{' + i' if many else ''}];")
    c = TYPES[x.c.name]
    out.append(f"{c} d[{x.c_map.regs}] = {{}};\n{x.wrapper}(d, a, b);\n"
               f"for (int i = 0; i < {x.c_map.regs}; i++) (({c}*)Q)[{x.c_map.regs} * t + i] = d[i];")
    return "\n".join(out)


ARGUMENTS = "const pop_u32* P, void* Q"
IN_REGISTERS = [x for x in ROWS if x.b_map is not None]
NVIDIA = [(x, arch) for x in IN_REGISTERS for arch in ("sm_80", "sm_90a") if arch in x.targets]
AMD = [(x, arch) for x in IN_REGISTERS for arch in x.targets if arch.startswith("gfx")]


@needs_nvrtc
@pytest.mark.parametrize(("x", "arch"), NVIDIA, ids=lambda p: getattr(p, "name", p))
def test_an_atom_of_nvidia_is_one_mma(x: Atom, arch: str) -> None:
    text = ptx(kernel(product(x), ARGUMENTS), arch)
    kinds = {"f32": "f32", "f64": "f64", "i32": "s32"}
    names = {"f16": "f16", "bf16": "bf16", "f32": "tf32", "f64": "f64", "i8": "s8", "u8": "u8"}
    c = kinds[x.c.name]
    assert text.count("mma.sync") == 1
    assert f"mma.sync.aligned.m{x.m}n{x.n}k{x.k}.row.col.{c}.{names[x.a.name]}.{names[x.b.name]}.{c}" in text


@needs_amdgcn
@pytest.mark.parametrize(("x", "arch"), AMD, ids=lambda p: getattr(p, "name", p))
def test_an_atom_of_amd_is_one_mfma_or_wmma(x: Atom, arch: str, tmp_path: Path) -> None:
    text = amd(kernel(product(x), ARGUMENTS), arch, tmp_path)
    unit = x.name.partition("_")[0]
    assert text.count(f"\tv_{unit}_") == x.parts
    assert f"\tv_{unit}_{x.c}_{x.m}x{x.n}x{x.k // x.parts}" in text
    assert "\tscratch_" not in text


COPY = """
pop_copy_async<16>(S_s + 4 * t, P + 4 * t, t < 100);
pop_copy_async<8>(S_s + 512 + 2 * t, P + 4 * t, t < 100);
pop_copy_async<4>(S_s + 1024 + t, P + 4 * t, t < 100);
pop_copy_commit();
pop_copy_wait<0>();
pop_barrier();
pop_warp_barrier();
"""
MOVE = """
alignas(16) float x[4];
pop_move<16>(x, S_s + 4 * (t ^ 1));
x[0] = pop_shuffle_xor(x[0], 8) + (float)pop_shuffle((double)x[1], 3) + (float)pop_shuffle_xor((pop_i64)x[2], 1);
pop_move<16>((float*)Q + 4 * t, x);
"""
ROWS_OF_MATRICES = """
pop_u32 r[4], s[2];
pop_ldmatrix_x4(r, S_s + 4 * t);
pop_ldmatrix_x4_trans(r, S_s + 4 * (t + r[0] % 2));
pop_ldmatrix_x2(s, S_s + 4 * (t + r[1] % 2));
pop_ldmatrix_x2_trans(s, S_s + 4 * (t + s[0] % 2));
((pop_u32*)Q)[t] = r[2] + s[1];
"""
SUMS = """
pop_atomic_add((float*)Q + t, 1.0f);
pop_atomic_add((double*)Q + 1, 1.0);
pop_atomic_add((int*)Q + 4, 1);
pop_atomic_add((pop_i64*)Q + 3, (pop_i64)1);
"""


@needs_nvrtc
def test_atomic_sums_of_nvidia_need_no_loop() -> None:
    text = ptx(kernel(SUMS, ARGUMENTS), "sm_80")
    assert text.count("red.global.add") + text.count("atom.global.add") == 4


@needs_amdgcn
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100"])
def test_atomic_sums_of_amd_compile(arch: str, tmp_path: Path) -> None:
    assert "atomic" in amd(kernel(SUMS, ARGUMENTS), arch, tmp_path)


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_copies_moves_and_rows_of_nvidia(arch: str) -> None:
    text = ptx(kernel(COPY + MOVE + ROWS_OF_MATRICES, ARGUMENTS), arch)
    rows = [f"ldmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16" for n in (2, 4) for trans in ("", ".trans")]
    copies = ["cp.async.cg.shared.global", "cp.async.ca.shared.global", "cp.async.commit_group", "cp.async.wait_group 0"]
    for word in (*rows, *copies, "bar.sync", "bar.warp.sync", "shfl.sync.bfly", "shfl.sync.idx", "ld.shared.v4", "st.global.v4"):
        assert word in text or word.replace("bar.sync", "barrier.sync") in text, word


@needs_nvrtc
@pytest.mark.parametrize("f", ["gelu", "silu", "sigmoid", "rsqrt"])
def test_functions_of_floats_have_no_branch_and_no_division_and_bf16_is_one_conversion(f: str) -> None:
    text = ptx(kernel(f"Y[t] = pop_to_bf16(pop_{f}(X[t]));", "const float* X, pop_bf16* Y"), "sm_80")
    assert text.count("cvt.rn.bf16.f32") == 1 and "div." not in text and "bra" not in text and ".func" not in text


HANDOVER = """
pop_u64* bar = (pop_u64*)(pop_shared + 0);
if (t == 0) { pop_mbarrier_init(bar, 1); pop_mbarrier_fence(); }
pop_barrier();
if (t == 0) { pop_mbarrier_expect(bar, 4096); pop_tile_load(S_s + 256, map, 0, 0, bar); }
pop_mbarrier_wait(bar, 0);
S_s[1024 + t] = S_s[256 + t];
pop_async_fence();
pop_named_barrier(1, 128);
pop_named_arrive(2, 256);
if (t == 0) { pop_tile_store(map, 0, 0, S_s + 1024); pop_tile_commit(); pop_tile_wait_read<0>(); pop_tile_wait<0>(); }
pop_mbarrier_arrive(bar);
"""
HANDOVER_WORDS = ("mbarrier.init.shared::cta.b64", "fence.mbarrier_init.release.cluster", "mbarrier.arrive.shared::cta.b64",
                  "mbarrier.arrive.expect_tx.shared::cta.b64", "mbarrier.try_wait.parity.shared::cta.b64",
                  "cp.async.bulk.tensor.2d.shared::cluster.global", "cp.async.bulk.tensor.2d.global.shared::cta",
                  "cp.async.bulk.commit_group", "cp.async.bulk.wait_group.read 0", "cp.async.bulk.wait_group 0",
                  "fence.proxy.async.shared::cta", "bar.sync", "bar.arrive")


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_90", "sm_90a"])
def test_barriers_in_memory_and_the_copy_engine_of_hopper(arch: str) -> None:
    text = ptx(kernel(HANDOVER, "const __grid_constant__ pop_tensor_map map"), arch)
    for word in HANDOVER_WORDS:
        assert word in text, word


def warpgroup(x: Atom, across: tuple[int, ...]) -> str:
    """A body of two products whose accumulators stay in registers."""
    a = "x" if x.a_map else "pop_wgmma_tile(S_s, 1024, 0)"
    call = f"{x.wrapper}<{', '.join(map(str, across))}>(d, {a}, pop_wgmma_tile(S_s + 2048, 1024, 8192), "
    return (f"S_s[t] = 0;\npop_async_fence();\npop_barrier();\n"
            f"float d[{x.n // 2}];\n{'pop_u32 x[4] = {P[t], P[t + 1], P[t + 2], P[t + 3]};' if x.a_map else ''}\n"
            f"pop_wgmma_fence();\n{call}false);\n{call}true);\npop_wgmma_commit();\npop_wgmma_wait<0>();\npop_wgmma_hold(d);\n"
            f"for (int i = 0; i < {x.n // 2}; i++) ((float*)Q)[128 * i + t] = d[i];")


@needs_nvrtc
@pytest.mark.parametrize("x", [x for x in ROWS if x.b_map is None], ids=lambda x: x.name)
def test_a_product_of_a_warpgroup_is_one_wgmma(x: Atom) -> None:
    """ptxas would say in its log if it had to wait after each one."""
    for across in ((0,), (1,)) if x.a_map else ((0, 0), (1, 1)):
        text = ptx(kernel(warpgroup(x, across if x.n == 64 else across[:1]), ARGUMENTS), "sm_90a")
        assert text.count(f"wgmma.mma_async.sync.aligned.m64n{x.n}k16.f32.{x.a}.{x.a}") == 2
        if x.n != 64:
            return


@needs_nvrtc
def test_accumulators_of_the_largest_product_stay_in_registers() -> None:
    x = next(x for x in ROWS if x.name == "wgmma_m64n256k16_bf16")
    module = Module("k", "cuda:sm_90a", kernel(warpgroup(x, (0, 1)), ARGUMENTS), Signature("k", (), (), (), ()), ())
    (taken,) = usage(nvrtc.assemble(module))
    assert taken.local == 0


@needs_nvrtc
def test_registers_are_handed_over_where_the_launch_bounds_name_the_blocks_of_a_processor() -> None:
    body = "if (t < 128) { pop_registers_less<40>(); S_s[t] = 1; } else { pop_registers_more<232>(); S_s[t] = 2; }"
    text = ptx(kernel(body, ARGUMENTS, "384, 1"), "sm_90a")
    assert "setmaxnreg.dec.sync.aligned.u32 40" in text and "setmaxnreg.inc.sync.aligned.u32 232" in text


@needs_amdgcn
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100"])
def test_copies_and_moves_of_amd_are_16_bytes_wide(arch: str, tmp_path: Path) -> None:
    text = amd(kernel(COPY + MOVE, ARGUMENTS), arch, tmp_path)
    new = arch.startswith("gfx11")
    wanted = ("ds_load_b128", "ds_store_b128", "global_load_b128", "global_store_b128") if new else \
        ("ds_read_b128", "ds_write_b128", "global_load_dwordx4", "global_store_dwordx4")
    for word in (*wanted, "s_barrier", "ds_bpermute_b32"):
        assert f"\t{word}" in text, word


def test_the_emulators_bodies_compile_without_a_warning(tmp_path: Path) -> None:
    compiler = cxx.compiler()
    flags = [x for x in cxx._FLAGS if x != "-w"]
    text = tmp_path / "k.cpp"
    text.write_text(kernel(COPY + MOVE + ROWS_OF_MATRICES, ARGUMENTS))
    for source, more in ((text, ["-DPOP_EMULATOR", "-include", "pop_emu.h"]), (cxx.EMULATOR / "pop_emu_rt.cpp", [])):
        quiet = ["-Wno-unused-function", "-Wno-unknown-pragmas"]
        command = [*compiler.compile, *flags, "-O1", "-Wall", "-Wextra", *quiet, *more, f"-I{cxx.DEVICE}", f"-I{cxx.EMULATOR}",
                   "-c", str(source), "-o", str(tmp_path / "k.o")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not done.returncode and not done.stderr, done.stderr
