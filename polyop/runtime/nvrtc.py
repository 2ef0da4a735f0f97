"""CUDA text -> cubin, through NVIDIA's run-time compiler. Needs the packages of `polyop[cuda]`, but no GPU and no driver."""

from __future__ import annotations

import hashlib
import importlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.module import Binary, Module
from polyop.ir.target import target
from polyop.runtime import cache

DEVICE = Path(__file__).parents[1] / "codegen" / "device"
"""The headers that kernel texts include."""


@lru_cache(maxsize=1)
def unavailable() -> str:
    """Why there is no NVRTC here, or "" if there is."""
    try:
        _version()
    except UnsupportedError as e:
        return str(e)
    return ""


def _library() -> Any:
    return importlib.import_module("cuda.bindings.nvrtc")


def _version() -> str:
    try:
        code, major, minor = _library().nvrtcVersion()
    except (ImportError, RuntimeError) as e:  # the binding loads the library at its first call
        raise UnsupportedError(f"CUDA text cannot be compiled here, for want of `polyop[cuda]`: {e}") from e
    if int(code):
        raise UnsupportedError(f"NVRTC does not tell its version: {code.name}")
    return f"{major}.{minor}"


def assemble(module: Module, numerics: str = "fast") -> Binary:
    """The cubin of a CUDA module; "strict" numerics never contracts `a*b + c`.

    Raises UnsupportedError without NVRTC; InternalError, with NVRTC's log, if it refuses the text.
    """
    parts = [_version().encode(), *(x.encode() for x in _options(module, numerics)), module.text.encode(), *_headers().values()]
    name = "nvrtc-" + hashlib.sha256(b"\0".join(parts)).hexdigest()
    code = cache.remember_code(name, lambda: compiled(module, numerics)[0])
    return Binary(module.name, module.target, code, module.signature, module.launch)


def _options(module: Module, numerics: str) -> list[str]:
    arch = target(module.target).arch
    return [f"--gpu-architecture={arch}", "--std=c++17", f"--fmad={'false' if numerics == 'strict' else 'true'}"]


def _headers() -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(DEVICE.glob("*.h"))}


def _room(size: int) -> bytes:
    """Bytes that a C function may fill with `size` of them: never a single one, as that is the one that all of Python has."""
    return b" " * (size + 2)


def compiled(module: Module, numerics: str = "fast") -> tuple[bytes, str]:
    """The cubin, made anew, and what NVRTC says besides: warnings, its own and those of the assembler behind it.

    Raises as `assemble` does.
    """
    nvrtc, options, headers = _library(), _options(module, numerics), _headers()

    def done(result: tuple[Any, ...]) -> Any:
        code, *values = result
        if int(code):
            raise InternalError(f"nvrtc: {code.name} for {module.name}")
        return values[0] if values else None

    names, texts = [n.encode() for n in headers], list(headers.values())
    program = done(nvrtc.nvrtcCreateProgram(module.text.encode(), module.name.encode(), len(names), texts, names))
    try:
        (code,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        log = _room(done(nvrtc.nvrtcGetProgramLogSize(program)))
        done(nvrtc.nvrtcGetProgramLog(program, log))
        said = log.decode().strip("\0 \n")
        if int(code):
            raise InternalError(f"nvrtc refuses {module.name} for {module.target}:\n{said}")
        size: int = done(nvrtc.nvrtcGetCUBINSize(program))
        cubin = _room(size)
        done(nvrtc.nvrtcGetCUBIN(program, cubin))
        return cubin[:size], said
    finally:
        done(nvrtc.nvrtcDestroyProgram(program))
