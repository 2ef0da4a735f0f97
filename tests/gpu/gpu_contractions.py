"""Operators of the library that multiply and add, in 16 bits, and the matrix instructions in their machine code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from gpu_operators import OWN
from gpu_texts import ptx
from test_instructions import amd

from polyop.compiler import Compiled, compile_op
from polyop.ir.dots import factors
from polyop.ir.op import Op
from polyop.ir.options import Options
from polyop.ir.target import BY_NAME, target
from polyop.runtime.layout import contiguous
from tests.library.catalog import CASES, IDS, instance

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942", "hip:gfx1100")
INSTRUCTIONS = re.compile(r"\bmma\.sync\.|\bwgmma\.mma_async\.|\bv_mfma_|\bv_wmma_")


def operator(name: str, dtype: str) -> Op:
    """The Op of a case in a dtype, of the highest rank that it is tested with."""
    file, case = CASES[IDS.index(name)]
    given = max(case.sizes, key=lambda s: sum(a.ndim for a in case.arguments("f32", s)))
    return instance(file, case, dtype, case.arguments("f32", given), case.keywords(given))


@cache
def compiled(name: str, dtype: str, where: str) -> Compiled:
    op = operator(name, dtype)
    return compile_op(op, contiguous(op), target(where), Options())


def multiplying(names: Iterable[str] = OWN) -> list[str]:
    """Those of the cases whose operators take 16-bit numbers, and add up products of two of them."""
    out = []
    for name in names:
        op = operator(name, "f16")
        if any(t.dtype.name == "f16" for t in op.inputs) and any(
                s.reduce is not None and s.reduce.fn == "add" and factors(s.expr) for s in op.steps):
            out.append(name)
    return out


def staged(made: Compiled) -> list[str]:
    """The clusters of a kernel for which tiles are staged, as `explain` names them."""
    return [x for x in made.chosen if ": staged: " in x]


def assembly(text: str, where: str, folder: Path) -> str:
    """PTX, or AMD's assembly."""
    return ptx(text, BY_NAME[where].arch) if where.startswith("cuda") else amd(text, BY_NAME[where].arch, folder)


def with_units(code: str) -> set[str]:
    """The kernels of an assembly that have matrix instructions, by name."""
    pieces = re.split(r"^(?:\.visible )?(?:\.entry )?(\w+)(?=\(|:)", code, flags=re.MULTILINE)
    return {name for name, body in zip(pieces[1::2], pieces[2::2], strict=True) if INSTRUCTIONS.search(body)}
