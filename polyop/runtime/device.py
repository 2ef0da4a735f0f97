"""A module for a GPU -> its binary, where the compiler for it is installed."""

from __future__ import annotations

from polyop.ir.module import Binary, Module
from polyop.ir.target import BY_NAME
from polyop.runtime import amdgcn, aside, nvrtc

_TOOLS = {"cuda": nvrtc, "hip": amdgcn}


def unavailable(family: str) -> str:
    """Why no text for GPUs of a family can be compiled here, or "" if it can."""
    why: str = _TOOLS[family].unavailable()
    return why


def assembled(module: Module, numerics: str = "fast") -> tuple[Binary | None, str]:
    """The cubin or code object; or none, and why.

    Raises  InternalError, with the compiler's log, if it refuses the text.
    """
    tool = _TOOLS[BY_NAME[module.target].family]
    missing = tool.unavailable()
    return (None, missing) if missing else (tool.assemble(module, numerics), "")


class Ahead(aside.Ahead[tuple[Binary | None, str]]):
    """The compiler for a GPU's text, which leaves Python's lock to others; what is told in a text makes no difference to it."""

    def __init__(self, numerics: str = "fast") -> None:
        super().__init__(lambda module: assembled(module, numerics), _code)

    def begin(self, module: Module) -> None:
        """The same, where it is installed."""
        if not _TOOLS[BY_NAME[module.target].family].unavailable():  # which imports it, and other threads are not to do that
            super().begin(module)


def _code(module: Module) -> list[str]:
    return [x for x in module.text.splitlines() if not x.startswith("//")]
