"""Runs a Module in this process, on NumPy arrays of any strides, and compares it with the interpreter."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass, field, replace

import llvmlite.binding as llvm
import numpy as np
import pytest

from polyop.codegen.x86 import emit
from polyop.ir.dtypes import DType
from polyop.ir.expr import evaluate
from polyop.ir.interpret import interpret
from polyop.ir.loops import LoopNest, Space
from polyop.ir.module import Module, room
from polyop.ir.options import Options
from polyop.ir.target import BY_NAME, Target
from polyop.runtime.cpu import runs_here

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
llvm.initialize_native_asmparser()

LEVELS = ("x86-64-v4", "x86-64-v3", "x86-64-v2")
V4, V3, V2 = (BY_NAME[f"x86:{n}"] for n in LEVELS)
FEATURES = llvm.get_host_cpu_features()
RUNNABLE = [t for t, needed in ((V4, "avx512vl"), (V3, "avx2"), (V2, "sse4.2")) if FEATURES.get(needed)]
HERE = RUNNABLE[0]
"""The widest that this machine runs."""
wide = pytest.mark.skipif(V4 not in RUNNABLE, reason="vectors of 16 lanes")
BRAIN = replace(V4, name="x86:brain", features="+avx512bf16")
"""Rounds to bf16 in one instruction."""
WITH_BRAIN = [*RUNNABLE, *([BRAIN] if FEATURES.get("avx512bf16") else [])]


@dataclass
class Loaded:
    """A Module's machine code."""

    module: Module
    address: int
    keep: object = field(repr=False)

    def __call__(self, sizes, values, arrays, parallel=0, threads=1) -> int:
        return self.bind(sizes, values, arrays, parallel, threads)()

    def bind(self, sizes, values, arrays, parallel=0, threads=1):
        """A call without arguments, for timing."""
        sig = self.module.signature
        raw = [int(parallel).to_bytes(8, "little"), int(threads).to_bytes(8, "little")]
        raw += [int(sizes[n]).to_bytes(8, "little", signed=True) for n in sig.sizes]
        raw += [t.numpy.type(values[n]).tobytes().ljust(8, b"\0") for n, t in sig.scalars]
        for b in sig.tensors:
            a = arrays[b.name]
            assert b.unit is None or not a.size or a.shape[b.unit] <= 1 or a.strides[b.unit] == a.itemsize, (
                f"{b.name} has no unit stride along {b.unit}"
            )
            raw.append(a.ctypes.data.to_bytes(8, "little"))
            raw += [(st // a.itemsize).to_bytes(8, "little", signed=True) for st in a.strides]
        work = []
        for b in sig.work:
            work.append(aligned(room(b, sizes, threads) + 64))
            raw.append(work[-1].ctypes.data.to_bytes(8, "little"))
        args = ctypes.create_string_buffer(b"".join(raw))
        fn = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(self.address)
        at = ctypes.addressof(args)

        def call() -> int:
            assert args is not None and work is not None
            return fn(at)

        return call


def aligned(bytes_: int) -> np.ndarray:
    raw = np.full(bytes_ + 64, 0xFF, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + bytes_]


def machine(target: Target) -> llvm.TargetMachine:
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=target.arch, features=target.features, opt=3, reloc="pic", codemodel="small", jit=True
    )


def parsed(module: Module, target: Target) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    ref, tm = llvm.parse_assembly(module.text), machine(target)
    ref.verify()
    ref.triple = llvm.get_process_triple()
    ref.data_layout = str(tm.target_data)
    return ref, tm


def assembled(nest: LoopNest, target: Target) -> bytes:
    """The ELF object of a nest."""
    ref, tm = parsed(emit(nest, target, Options(threads=True)), target)
    return tm.emit_object(ref)


def assembly(nest: LoopNest, target: Target, numerics: str = "fast") -> str:
    ref, tm = parsed(emit(nest, target, Options(numerics, threads=True)), target)
    return tm.emit_assembly(ref)


def load(module: Module, target: Target, functions: dict[str, int] | None = None) -> Loaded:
    """`functions`: addresses of what the module calls beside its own. Ends the test where this machine cannot run it."""
    if not runs_here(target):
        pytest.skip(f"this machine cannot run code for {target.name}")
    ref, tm = parsed(module, target)
    builder = llvm.JITLibraryBuilder().add_object_img(tm.emit_object(ref)).add_current_process().export_symbol(module.name)
    for name, address in (functions or {}).items():
        builder.import_symbol(name, address)
    library = builder.link(llvm.create_lljit_compiler(machine(target), use_jit_link=True), module.name)
    return Loaded(module, library[module.name], (library, ref, tm))


def compiled(nest: LoopNest, target: Target = HERE, numerics: str = "fast") -> Loaded:
    return load(emit(nest, target, Options(numerics, threads=True)), target)


def random_array(rng: np.random.Generator, t: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Small values, which every dtype holds exactly where they are integers."""
    if t.kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if t.is_float:
        return np.asarray(rng.standard_normal(shape)).astype(t.numpy)
    return rng.integers(0 if t.kind == "uint" else -100, 100, shape).astype(t.numpy)


def last_page(values: np.ndarray) -> np.ndarray:
    """A copy of `values` behind which nothing may be touched."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + page), page, 0) == 0
    out = np.frombuffer(memory, values.dtype, values.size, page - values.nbytes)
    out[:] = values
    return out


def make_arrays(nest: LoopNest, sizes: dict[str, int], rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        b.name: random_array(rng, b.dtype, tuple(evaluate(e, sizes) for e, _ in b.dims))
        for b in nest.buffers
        if b.space == Space.TENSOR
    }


def check(
    nest: LoopNest,
    sizes: dict[str, int],
    target: Target = HERE,
    *,
    kernel: Loaded | None = None,
    numerics: str = "fast",
    rtol: float | None = None,
    atol: float | None = None,
    values: dict | None = None,
    arrays: dict | None = None,
    parallel: int = 0,
    threads: int = 1,
) -> None:
    """The kernel writes what the interpreter writes."""
    kernel = kernel or compiled(nest, target, numerics)
    rng = np.random.default_rng(sum(sizes.values()) + 7)
    arrays = arrays or make_arrays(nest, sizes, rng)
    want = _meant(nest, sizes, values or {}, arrays)
    got = {n: _same_layout(a) for n, a in arrays.items()}
    assert kernel(sizes, values or {}, got, parallel, threads) == 0
    for n, a in want.items():
        t = nest.buffer(n).dtype
        if t.is_float:
            eps = {"f64": 1e-12, "f32": 2e-5, "f16": 2e-2, "bf16": 8e-2}[t.name]
            np.testing.assert_allclose(
                got[n].astype(np.float64), a.astype(np.float64), rtol=rtol or eps, atol=atol or eps, err_msg=f"{n} {sizes}"
            )
        else:
            np.testing.assert_array_equal(got[n], a, err_msg=f"{n} {sizes}")


_MEANT: dict[tuple[object, ...], dict[str, np.ndarray]] = {}
"""What the interpreter wrote of late: kernels for several targets, one after the other, are compared with it."""


def _meant(nest: LoopNest, sizes: dict[str, int], values: dict, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    key = (nest, *sorted(sizes.items()), *(f"{n} {x!r}" for n, x in sorted(values.items())),
           *((n, a.shape, a.tobytes()) for n, a in sorted(arrays.items())))
    if key not in _MEANT:
        if len(_MEANT) >= 64:
            del _MEANT[next(iter(_MEANT))]
        _MEANT[key] = {n: a.copy() for n, a in arrays.items()}
        interpret(nest, sizes, values, _MEANT[key])
    return _MEANT[key]


def _same_layout(a: np.ndarray) -> np.ndarray:
    """A copy with the strides of `a`."""
    if a.flags.c_contiguous or not a.size:
        return a.copy()
    reach = [st * (n - 1) for st, n in zip(a.strides, a.shape, strict=True)]
    low, high = sum(min(0, r) for r in reach), sum(max(0, r) for r in reach) + a.itemsize
    memory = np.zeros(high - low, np.uint8)
    out = np.ndarray(a.shape, a.dtype, memory, -low, a.strides)
    out[...] = a
    return out
