"""HIP text -> code object, through a clang that knows amdgcn: the one in the `ziglang` wheel, or the system's.

Needs no GPU, no ROCm and none of its device libraries: `pop_device.h` brings its own mathematics.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.module import Binary, Module
from polyop.ir.target import target
from polyop.runtime import cache
from polyop.runtime.zig import zig

DEVICE = Path(__file__).parents[1] / "codegen" / "device"
"""The headers that kernel texts include."""

_FRONT = ("-x", "hip", "--cuda-device-only", "-nogpulib", "-nogpuinc", "-nostdinc", "-std=c++17", "-O3", "-DPOP_BARE",
          "-fbracket-depth=100000", "-Wno-everything", "-c", "-emit-llvm")
_BACK = ("-target", "amdgcn-amd-amdhsa", "-nogpulib", "-O3", "-c")


@dataclass(frozen=True, slots=True)
class Tools:
    """A clang and its lld, as the beginnings of commands."""

    clang: tuple[str, ...]
    lld: tuple[str, ...]
    version: str


@lru_cache(maxsize=1)
def tools() -> Tools:
    """What compiles HIP text here.

    Raises UnsupportedError, if nothing does.
    """
    found = zig()
    if found:
        return Tools((found, "clang"), (found, "ld.lld"), "zig " + _run([found, "version"]).strip())
    for suffix in ("", *(f"-{n}" for n in range(30, 16, -1))):
        clang, lld = shutil.which(f"clang{suffix}"), shutil.which(f"ld.lld{suffix}")
        if clang and lld and "amdgcn" in _run([clang, "--print-targets"]):
            return Tools((clang,), (lld,), _run([clang, "--version"]).splitlines()[0])
    raise UnsupportedError("HIP text cannot be compiled here: it takes the package `ziglang`, or clang with amdgcn, and lld")


@lru_cache(maxsize=1)
def unavailable() -> str:
    """Why HIP text cannot be compiled here, or "" if it can."""
    try:
        tools()
    except UnsupportedError as e:
        return str(e)
    return ""


def assemble(module: Module, numerics: str = "fast") -> Binary:
    """The code object of a HIP module; "strict" numerics never contracts `a*b + c`.

    Raises UnsupportedError without a compiler; InternalError, with its messages, if it refuses the text.
    """
    arch = target(module.target).arch
    front = (f"--offload-arch={arch}", *_FRONT, f"-ffp-contract={'fast' if numerics == 'fast' else 'off'}", f"-I{DEVICE}")
    headers = [p.read_text(encoding="utf-8") for p in sorted(DEVICE.glob("*.h"))]
    parts = (tools().version, *front, *_BACK, module.text, *headers)
    name = "amdgcn-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()
    code = cache.remember_code(name, lambda: _compile(module, arch, front))
    return Binary(module.name, module.target, code, module.signature, module.launch)


def _compile(module: Module, arch: str, front: tuple[str, ...]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="polyop-") as folder:
        text, bitcode, object_, code = (str(Path(folder) / f"kernel.{end}") for end in ("hip", "bc", "o", "hsaco"))
        Path(text).write_text(module.text, encoding="utf-8")
        _run([*tools().clang, *front, text, "-o", bitcode])
        _run([*tools().clang, *_BACK, f"-mcpu={arch}", bitcode, "-o", object_])
        _run([*tools().lld, "-shared", "--no-undefined", object_, "-o", code])
        return Path(code).read_bytes()


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InternalError(f"amdgcn: {' '.join(command)} failed:\n{done.stderr}")
    return done.stdout
