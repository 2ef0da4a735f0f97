"""Kernel text -> a shared library that runs it on this machine's CPU, built by whichever C++ compiler there is."""

from __future__ import annotations

import atexit
import hashlib
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.module import Module, launches
from polyop.runtime import cache
from polyop.runtime.zig import zig

DEVICE = Path(__file__).parents[1] / "codegen" / "device"
"""The headers that kernel texts include."""

EMULATOR = Path(__file__).parent / "emulator"

_FLAGS = ("-std=c++17", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden", "-ffp-contract=off", "-w")
_KERNEL = re.compile(r'^extern "C" __global__ void (?:__\w+\([^()]*\) )*(\w+)\(', re.MULTILINE)
_LOOP = re.compile(r"^( *for \((?:int|pop_i64) (\w+) = ([^;]+);[^;]*;[^;{}]*\{)$", re.MULTILINE)
_REGISTERS = re.compile(r"^( *(?:alignas\(\d+\) )?(?!return)[\w<>]+ (\w+)(?:\[\w+\])*;)$", re.MULTILINE)
_WATCHED = ("-fsanitize=thread", "-fsanitize=signed-integer-overflow,bounds", "-g1")


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: the command that compiles, the one that links a shared library, and both names' versions."""

    compile: tuple[str, ...]
    link: tuple[str, ...]
    version: str


@lru_cache(maxsize=1)
def compiler() -> Compiler:
    """The first of g++, clang++, c++ and zig that this machine has, and that tells its version.

    Raises UnsupportedError, if there is none.
    """
    for name in ("g++", "clang++", "c++"):
        path = shutil.which(name)
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False) if path else None
        if path and said and not said.returncode:
            return Compiler((path,), (path, "-shared"), said.stdout.partition("\n")[0])
    found = zig()
    if found:
        version = "zig " + _output([found, "version"]).strip()
        return Compiler((found, "c++", "-fno-sanitize=undefined"), (found, "ld.lld", "-shared"), version)
    raise UnsupportedError("the emulator needs a C++ compiler: g++, clang++ or c++ on the path, or `polyop[emulator]`, which "
                           "brings one")


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InternalError(f"emulator: {' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


@lru_cache(maxsize=1)
def _folder() -> Path:
    """Where this process keeps the libraries it loads."""
    path = Path(tempfile.mkdtemp(prefix="polyop-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def _built(source: str, flags: tuple[str, ...]) -> Path:
    """The object file of a C++ source."""
    with tempfile.NamedTemporaryFile("w", suffix=".cpp", dir=_folder(), delete=False, encoding="utf-8") as f:
        f.write(source)
    out = Path(f.name).with_suffix(".o")
    c = compiler()
    try:
        _output([*c.compile, *_FLAGS, *flags, f"-I{DEVICE}", f"-I{EMULATOR}", "-c", f.name, "-o", str(out)])
    except InternalError:
        _require_working(c)
        raise
    return out


def _require_working(c: Compiler) -> None:
    """Raises UnsupportedError, if `c` compiles no C++ at all, for which nobody here can be blamed."""
    command = [*c.compile, "-x", "c++", "-c", "-", "-o", str(_folder() / "nothing.o")]
    done = subprocess.run(command, input="int nothing;", capture_output=True, text=True, check=False)
    if done.returncode:
        why = done.stderr.strip().partition("\n")[0]
        raise UnsupportedError(f"the emulator needs a C++ compiler, and {c.compile[0]} compiles nothing: {why}")


def library(module: Module, watched: bool, quick: bool = False) -> Path:
    """The shared library of a CUDA or HIP text; `watched`: every access to memory is reported to the emulator; `quick`: it takes
    half the time to build and one and a half times that of others to run.

    The library comes from the cache if the same text was built before by the same compiler. It exports
    `KERNEL__launch` for each kernel of the text, so modules may have one text together.
    """
    started = (x.kernel for x in launches(module.launch))
    exports = "\n".join(f"POP_EMU_EXPORT({name})" for name in dict.fromkeys((*_KERNEL.findall(module.text), *started)))
    text = module.text
    if watched:
        text = _LOOP.sub(r"\1 const pop_emu_turn pop_here((\2) - (\3));", text)
        text = _REGISTERS.sub(r"\1 pop_emu_poison(\2);", text)
    source = f"{text}\n{exports}\n"  # the text comes first: its lines keep their numbers
    runtime = (EMULATOR / "pop_emu_rt.cpp").read_text(encoding="utf-8")
    headers = [p.read_text(encoding="utf-8") for p in sorted([*EMULATOR.glob("*.h"), *DEVICE.glob("*.h")])]
    flags = ("-O0" if quick else "-O1", "-DPOP_EMULATOR", "-include", "pop_emu.h", *(_WATCHED if watched else ()))
    parts = (compiler().version, *compiler().compile, *_FLAGS, runtime, *headers)

    def make_runtime() -> bytes:
        return _built(runtime, ("-O2",)).read_bytes()

    def make() -> bytes:
        kernel = _built(source, flags)
        with tempfile.NamedTemporaryFile(suffix=".o", dir=_folder(), delete=False) as f:
            f.write(cache.remember_code(_digest("emulator", *parts), make_runtime))
        out = kernel.with_suffix(".so")
        _output([*compiler().link, str(kernel), f.name, "-o", str(out)])
        return out.read_bytes()

    digest = _digest(*parts, *flags, source)
    path = _folder() / f"{digest[:20]}.so"
    if not path.exists():
        path.write_bytes(cache.remember_code(digest, make))
    return path


def _digest(*parts: str) -> str:
    return "emu-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()
