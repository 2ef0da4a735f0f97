"""LLVM's code generator without the passes that kernels do not need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import binding

llvm: Any = binding  # llvmlite has no types

_SWITCH = "-disable-lsr"
"""Known to every LLVM since 3.0; one that does not know a switch ends the process, so there is no asking first."""


@contextmanager
def plain_addresses() -> Iterator[None]:
    """Inside, loop strength reduction does not run: 40 % of the time to compile a tile of registers.

    The emitter has already put what loops share outside them, and x86 adds an index to a pointer at no cost.

    Notes   The switch is the whole process's, so that whoever else uses LLVM meanwhile gets correct code without it;
            it is put back at the end.
    """
    llvm.set_option("", f"{_SWITCH}=true")
    try:
        yield
    finally:
        llvm.set_option("", f"{_SWITCH}=false")
