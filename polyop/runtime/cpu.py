"""x86: which machine this is, LLVM IR text -> machine code, machine code -> an address."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import llvmlite
from llvmlite import binding

from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.module import Binary, Module
from polyop.ir.target import ACROSS, HINTS, PAGES_MEET, SLOW, STAYS, Target, target
from polyop.runtime import forks
from polyop.runtime.cpu_passes import quick

# https://gitlab.com/x86-psABIs/x86-64-ABI: what each micro-architecture level asks for, in LLVM's spelling
_V2 = ("cx16", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
LEVELS = {"x86-64-v4": _V4, "x86-64-v3": _V3, "x86-64-v2": _V2}

llvm: Any = binding  # llvmlite has no types
VERSION = f"llvmlite {llvmlite.__version__}, LLVM {'.'.join(map(str, binding.llvm_version_info))}"
"""What makes the code: part of every cache key."""

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_numbers = itertools.count()
_lock = forks.rlock()  # LLJIT and the list of targets are shared by all threads


@lru_cache(maxsize=1)
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()  # a kernel may hold an instruction that LLVM IR has no name for


@lru_cache(maxsize=1)
def cpu_features() -> dict[str, bool]:
    """What CPUID reports in this process; less than the CPU's name implies, where a virtual machine masks features.

    Matrix tiles count only if the system lets this process use them.
    """
    return usable(dict(llvm.get_host_cpu_features()), _may_use_tiles)


def usable(found: dict[str, bool], may_use_tiles: Callable[[], bool]) -> dict[str, bool]:
    """`found` without what tiles are needed for, if there are tiles and the system keeps them from us."""
    if not found.get("amx-tile") or may_use_tiles():
        return found
    return {name: on and not name.startswith("amx-") for name, on in found.items()}


def _may_use_tiles() -> bool:
    """Asks Linux for them, for all threads of the process; https://docs.kernel.org/arch/x86/xstate.html."""
    arch_prctl, request, tile_data = 158, 0x1023, 18
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request, tile_data) == 0)


PART_OF_L3 = 16 << 20
"""Bytes of the last cache at most that one core can count on: a virtual machine of two cores says that these share 300 MB."""


@lru_cache(maxsize=1)
def host() -> Target:
    """This machine as a row: numbers of the best level it reaches, its own features, cache sizes where the system tells.

    Raises UnsupportedError, if this is no x86-64 machine.
    """
    if not llvm.get_process_triple().startswith("x86_64"):
        raise UnsupportedError(f"this machine is {llvm.get_process_triple()}; kernels for x86 run on x86-64 only")
    has = cpu_features()
    level = next((n for n, needs in LEVELS.items() if all(has.get(f) for f in needs)), None)
    row = target(f"x86:{level}") if level else Target("x86:x86-64", "x86", "x86-64")
    flags = ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(has.items()))
    sizes = _cache_sizes()
    arch = llvm.get_host_cpu_name()
    return replace(row, name="x86:host", arch=arch, features=flags, hints=HINTS.get(arch, row.hints),
                   stays=STAYS.get(arch, row.stays), pages_meet=arch in PAGES_MEET, across=row.across or arch in ACROSS,
                   slow=frozenset() if has.get("amx-tile") else SLOW.get(arch, row.slow),
                   l1=sizes.get("l1", row.l1), l2=sizes.get("l2", row.l2), l3=min(sizes.get("l3", row.l3), PART_OF_L3),
                   string_bytes=8 << 10 if "erms" in _flags() else 0)


def _flags(info: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What the system says the CPU can do; LLVM does not ask about fast string instructions."""
    try:
        with info.open() as lines:  # the first core's alone: the system writes the file as it is read, core by core
            found = next((x for x in lines if x.startswith("flags")), "")
    except OSError:
        return frozenset()
    return frozenset(found.partition(":")[2].split())


def _cache_sizes(root: Path = _CACHES) -> dict[str, int]:
    """Bytes of each cache level one core can count on: a shared L3 is divided by those who share it."""
    found: dict[str, int] = {}
    for folder in sorted(root.glob("index*")):
        try:
            level, kind, size = ((folder / n).read_text().strip() for n in ("level", "type", "size"))
            sharers = _count((folder / "shared_cpu_list").read_text().strip())
        except (OSError, ValueError):
            continue
        digits = size.rstrip("KM")
        if kind == "Instruction" or level not in "123" or not digits.isdigit():
            continue
        bytes_ = int(digits) << {"K": 10, "M": 20}.get(size[-1], 0)
        found[f"l{level}"] = bytes_ // sharers if level == "3" else bytes_
    return found


def _count(cpus: str) -> int:
    """How many CPUs a list such as `0-3,8` names."""
    ends = [part.split("-") for part in cpus.split(",")]
    return sum(int(e[-1]) - int(e[0]) + 1 for e in ends)


def resolve(name: str) -> Target:
    """The target a user means: "x86" is this machine, any other name a row of the table."""
    return host() if name == "x86" else target(name)


def runs_here(t: Target) -> bool:
    """Whether this machine can run code for `t`."""
    if t.family != "x86":
        return False
    wanted = [f[1:] for f in t.features.split(",") if f.startswith("+")]
    has = cpu_features()
    return all(has.get(f) for f in (*wanted, *LEVELS.get(t.arch, ())))


def _machine(t: Target, level: int) -> Any:
    return _machine_of(t.arch, t.features, level)


@lru_cache(maxsize=8)
def _machine_of(arch: str, features: str, level: int) -> Any:
    """LLVM's machine, made once, since that takes a millisecond: it keeps what it found out about a CPU. `_lock` is held."""
    _initialize()
    # pic and the small model: the same object can be linked here and into a shared library
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=arch, features=features, opt=level, reloc="pic", codemodel="small", jit=True)


def assemble(module: Module, t: Target, level: int = 2) -> Binary:
    """Machine code for `module`. No LLVM optimisation runs but instruction selection and register allocation.

    Raises InternalError, if LLVM refuses the text.
    """
    with _lock:
        code = _object(module, _machine(t, level))
    return Binary(module.name, t.name, code, module.signature)


def _object(module: Module, machine: Any) -> bytes:
    context = llvm.create_context()
    try:
        parsed = llvm.parse_assembly(module.text, context)
        try:
            parsed.triple = llvm.get_process_triple()
            parsed.data_layout = str(machine.target_data)
            parsed.verify()
            with quick(module.text.count("\n"), module.is_full):
                return bytes(machine.emit_object(parsed))
        finally:
            parsed.close()
    except RuntimeError as e:
        raise InternalError(f"assemble: LLVM refuses {module.name}: {e}") from e
    finally:
        context.close()


@dataclass(frozen=True, eq=False, slots=True)
class Loaded:
    """Linked machine code: the addresses of its functions. The code lives as long as this object."""

    addresses: dict[str, int]
    library: Any

    def keep(self) -> Loaded:
        """The same, never unloaded: for code that threads may still run when Python shuts down."""
        self.library.detach()
        return self


@lru_cache(maxsize=1)
def _linker() -> Any:
    return llvm.create_lljit_compiler(_machine(host(), 2), use_jit_link=True)


def link(code: bytes, symbols: tuple[str, ...]) -> Loaded:
    """Bring an object's code into this process.

    Raises InternalError, if it does not link.
    """
    with _lock:
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for s in symbols:
            builder.export_symbol(s)
        try:
            library = builder.link(_linker(), f"polyop.{next(_numbers)}")
        except RuntimeError as e:
            raise InternalError(f"load: cannot link {', '.join(symbols)}: {e}") from e
        return Loaded({s: library[s] for s in symbols}, library)


def load(binary: Binary) -> Loaded:
    """The code of one kernel, in this process."""
    return link(binary.code, (binary.name,))
