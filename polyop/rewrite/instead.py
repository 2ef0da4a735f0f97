"""Other steps in the place of some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from polyop.ir.op import Op, Step, Tensor


def with_steps(op: Op, instead: Callable[[Step], tuple[Sequence[Tensor], Sequence[Step]] | None]) -> Op:
    """`op` with what `instead` says of a step in its place, new temporaries and steps; itself, if it says so of none."""
    found = [(s, instead(s)) for s in op.steps]
    if not any(x for _, x in found):
        return op
    return replace(op, tensors=(*op.tensors, *(t for _, x in found if x for t in x[0])),
                   steps=tuple(y for s, x in found for y in (x[1] if x else (s,))))
