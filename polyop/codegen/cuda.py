"""LoopNest -> CUDA text."""

from __future__ import annotations

from collections.abc import Callable, Container

from polyop.codegen.c import text
from polyop.codegen.stepped import Step
from polyop.ir.loops import LoopNest
from polyop.ir.module import Module
from polyop.ir.options import Options
from polyop.ir.target import Target

DIALECT = text.Dialect("CUDA", 'extern "C" __global__ void __launch_bounds__({block}, {blocks})', block=128)


def emit(nest: LoopNest, target: Target, options: Options, without: Container[str] = (),
         tell: Callable[[Step], None] | None = None) -> Module:
    """The CUDA text of `nest`. `options.numerics` is the assembler's business: the text is the same for both.

    without, tell   as of `text.module`
    """
    return text.module(nest, target, DIALECT, options.huge, without, tell)
