"""A module for a GPU -> its binary, where the compiler for it is installed."""

from __future__ import annotations

from functools import partial

from polyop.ir.module import Binary, Module
from polyop.ir.target import BY_NAME
from polyop.runtime import amdgcn, nvrtc
from polyop.runtime.aside import Aside

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


class Ahead:
    """The compiler for a GPU's text, which works while the text's loops are proved: it leaves Python's lock to others.

    What was begun of loops that are not proved is of no use, and is not used.
    """

    def __init__(self, numerics: str = "fast") -> None:
        self._numerics = numerics
        self._begun: tuple[list[str], Aside[tuple[Binary | None, str]]] | None = None

    def begin(self, module: Module) -> None:
        if not _TOOLS[BY_NAME[module.target].family].unavailable():  # which imports it, and other threads are not to do that
            self._begun = _code(module), Aside(partial(assembled, module, self._numerics))

    def assembled(self, module: Module) -> tuple[Binary | None, str]:
        """The same as of the function, of what was begun if that is `module` but for what is told in it.

        Raises  as the function does.
        """
        if self._begun is None or self._begun[0] != _code(module):
            return assembled(module, self._numerics)
        return self._begun[1].result()


def _code(module: Module) -> list[str]:
    return [x for x in module.text.splitlines() if not x.startswith("//")]
