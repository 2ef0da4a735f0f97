"""A module for a GPU -> its binary, where the compiler for it is installed."""

from __future__ import annotations

from polyop.ir.module import Binary, Module
from polyop.ir.target import BY_NAME
from polyop.runtime import amdgcn, nvrtc

_TOOLS = {"cuda": nvrtc, "hip": amdgcn}


def assembled(module: Module, numerics: str = "fast") -> tuple[Binary | None, str]:
    """The cubin or code object; or none, and why.

    Raises  InternalError, with the compiler's log, if it refuses the text.
    """
    tool = _TOOLS[BY_NAME[module.target].family]
    missing = tool.unavailable()
    return (None, missing) if missing else (tool.assemble(module, numerics), "")
