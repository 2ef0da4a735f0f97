"""Calls of a routine: a function with the calling convention of a kernel, whose arguments are written down for each use."""

from __future__ import annotations

from polyop.codegen.llvm.pointers import strides
from polyop.codegen.llvm.state import State, slots_of
from polyop.codegen.llvm.types import Int
from polyop.ir.loops import LoopNest, Space
from polyop.ir.routine import Use


def call(s: State, name: str, nest: LoopNest, use: Use) -> None:
    """Carry out `nest`, which is the function `name`, as `use` says.

    Notes   What it returns is 0: a nest with computed positions, which may lie outside their tensors, is no routine.
    """
    b, slots = s.b, slots_of(nest)
    block = b.pure(f"alloca [{max(slots.values(), default=1) + 1} x i64], align 8 ; {name}")
    numbers, names = dict(use.numbers), dict(use.buffers)

    def given(slot: int) -> Int:
        place = b.pure(f"getelementptr i64, ptr {s.args}, i64 {slot}", s.args)
        return b.pure(f"load i64, ptr {place}, align 8", place)

    values: dict[int, Int] = {0: given(0), 1: given(1)}
    for n in nest.sizes:
        values[slots[n]] = numbers[n] if n in numbers else s.slot(n)
    for n, _ in nest.scalars:
        values[slots[n]] = s.slot(n)
    for mine in nest.buffers:
        if mine.space in (Space.TENSOR, Space.WORK):
            here = s.nest.buffer(names.get(mine.name, mine.name))
            values[slots[f"{mine.name}.ptr"]] = s.slot(f"{here.name}.ptr")
            if mine.space == Space.TENSOR:
                values |= {slots[f"{mine.name}.{d}"]: x for d, x in enumerate(strides(s, here))}
    for slot, value in values.items():
        b.line(f"store i64 {value}, ptr {b.pure(f'getelementptr i64, ptr {block}, i64 {slot}', block)}, align 8")
    b.line(f"call i64 @{name}(ptr {block})")
