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

_VERSION = "-mcode-object-version=5"  # older drivers do not take 6, clang's own choice, which has nothing more for a single chip
_NAMELESS = "-fuse-cuid=none"  # else clang puts a number of the file's path into the code, and no two of one text are the same
_FRONT = ("-x", "hip", "--cuda-device-only", "-nogpulib", "-nogpuinc", "-nostdinc", "-std=c++17", "-O3", "-DPOP_BARE", _VERSION,
          "-fbracket-depth=100000", "-Wall", "-Wno-unused-function", _NAMELESS, "-c", "-emit-llvm")
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
        return Tools((found, "clang"), (found, "ld.lld"), "zig " + _run([found, "version"])[0].strip())
    for suffix in ("", *(f"-{n}" for n in range(30, 16, -1))):
        clang, lld = shutil.which(f"clang{suffix}"), shutil.which(f"ld.lld{suffix}")
        if clang and lld and "amdgcn" in _run([clang, "--print-targets"])[0]:
            return Tools((clang,), (lld,), _run([clang, "--version"])[0].splitlines()[0])
    raise UnsupportedError("HIP text cannot be compiled here: it takes `polyop[hip]`, or clang with amdgcn, and lld")


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
    headers = [p.read_text(encoding="utf-8") for p in sorted(DEVICE.glob("*.h"))]
    parts = (tools().version, *_front(module, numerics), *_BACK, module.text, *headers)
    name = "amdgcn-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()
    code = cache.remember_code(name, lambda: compiled(module, numerics)[0])
    return Binary(module.name, module.target, code, module.signature, module.launch)


def _front(module: Module, numerics: str) -> tuple[str, ...]:
    arch = target(module.target).arch
    return (f"--offload-arch={arch}", *_FRONT, f"-ffp-contract={'off' if numerics == 'strict' else 'fast'}", f"-I{DEVICE}")


def compiled(module: Module, numerics: str = "fast") -> tuple[bytes, str]:
    """The code object, made anew, and what the compiler says besides: its warnings.

    Raises as `assemble` does.
    """
    with tempfile.TemporaryDirectory(prefix="polyop-") as folder:
        text, bitcode, object_, code = (str(Path(folder) / f"kernel.{end}") for end in ("hip", "bc", "o", "hsaco"))
        Path(text).write_text(module.text, encoding="utf-8")
        said = [_run([*tools().clang, *_front(module, numerics), text, "-o", bitcode])[1],
                _run([*tools().clang, *_BACK, f"-mcpu={target(module.target).arch}", bitcode, "-o", object_])[1],
                _run([*tools().lld, "-shared", "--no-undefined", object_, "-o", code])[1]]
        return Path(code).read_bytes(), "".join(said).strip()


def _run(command: list[str]) -> tuple[str, str]:
    """What a command prints, and what it says on the side."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InternalError(f"amdgcn: {' '.join(command)} failed:\n{done.stderr}")
    return done.stdout, done.stderr
