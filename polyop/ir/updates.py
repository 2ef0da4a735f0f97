"""The two ends of an `inout` parameter: when they may be one memory, and when the old value is set aside first."""

from __future__ import annotations

from polyop.ir.expr import Affine, is_computed, loads
from polyop.ir.op import Op


def reads_elsewhere(op: Op, source: str, result: str) -> bool:
    """Whether the old value of an `inout` parameter may be needed after its memory has been written.

    It is not if it is only ever read to compute `=` the very element that replaces it:  result[i] = f(source[i], ...).
    """
    for s in op.steps:
        here = s.target.source == result and s.reduce is None and not any(map(is_computed, s.target.index))
        positions = [p for p in s.target.index if not isinstance(p, Affine)]
        for x in (*loads(s.expr), *(y for c in (*s.where, *positions) for y in loads(c))):
            if x.source == source and not (here and x.index == s.target.index):
                return True
    return False


def in_place(op: Op) -> dict[str, str]:
    """The input -> output pairs of `op.updates` whose two ends are one memory while a kernel runs.

    Of all others the caller's memory is the output, and the kernel reads the old value from a copy.
    """
    return {i: o for i, o in op.updates if not reads_elsewhere(op, i, o)}
