"""LLVM's code generator without the passes that kernels do not need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import binding

llvm: Any = binding  # llvmlite has no types

PASSES = (
    # loop strength reduction: 40 % of the time to compile a tile of registers, a third of a row operator's. The emitter has
    # already put what loops share outside them, and x86 adds an index to a pointer at no cost
    (0, "-disable-lsr=true", "-disable-lsr=false"),
    # the second scheduler: its time grows with the square of a block's length, and blocks are in a good order already. Where sums
    # fill the registers, it moves one operand more than there is room for before the multiply-adds, and a sum to memory
    (10_000, "-enable-misched=false", "-enable-misched=true"),
)
FULL = PASSES[1]
"""(lines of a module from which on a pass is left out, how to switch it off, and on again); which one full registers do without.

Every LLVM that llvmlite comes with knows them; one that does not know a switch ends the process, so there is no asking.
"""


@contextmanager
def quick(lines: int, is_full: bool = False) -> Iterator[None]:
    """Inside, LLVM leaves out what a module of so many lines does not need, or one whose sums fill the registers.

    Notes   The switches are the whole process's: whoever else uses LLVM meanwhile gets correct code without those passes.
            They are put back at the end.
    """
    left_out = [p for p in PASSES if lines > p[0] or (is_full and p == FULL)]
    for _, off, _ in left_out:
        llvm.set_option("", off)
    try:
        yield
    finally:
        for _, _, on in left_out:
            llvm.set_option("", on)
