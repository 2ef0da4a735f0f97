"""Which calls deserve a kernel of their own, by their sizes alone."""

from __future__ import annotations

from collections.abc import Mapping

from polyop.ir.expr import Affine, evaluate, expr_names, loads
from polyop.ir.op import Op, Step
from polyop.ir.options import SHORT, VERY_SHORT

_LINE = 64  # bytes of the widest vector


def narrow_sizes(op: Op, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The sizes that are 1 in a call and would leave lanes with one element, where another loop could have them.

    That is the last extent of what a contraction writes, `n` of `A[m, k] * B[k, n]`, or of any reduction with rows.
    """
    last = [s.target for s, _ in _contractions(op)]
    last += [s.target for s in op.steps if s.reduce is not None and len(s.target.index) > 1]
    found = {op.tensor(t.source).shape[-1].name for t in last}
    return tuple(n for n in op.sizes if n in found and sizes[n] == 1)


def is_short(op: Op, sizes: Mapping[str, int]) -> int:
    """How few lanes a call would have, where those of another loop would be many: 0, `SHORT` or `VERY_SHORT`.

    The result of a contraction is then no longer than a vector along its last extent, and the reads that do without that
    index are used again by other loops, as the filters of a convolution of 7 x 7 images are.
    """
    for s, last in _contractions(op):
        t = op.tensor(s.target.source)
        kept = {p.name for p in s.target.index if isinstance(p, Affine) and p.name}
        others = [expr_names(x) for x in loads(s.expr) if last not in expr_names(x)]
        length = evaluate(t.shape[-1], sizes) * t.dtype.bytes_
        if (kept - {last}).difference(*others) and length <= _LINE:
            return VERY_SHORT if length <= _LINE // 4 else SHORT
    return 0


def _contractions(op: Op) -> list[tuple[Step, str]]:
    """The reductions in which some read does without the last index of the target, with that index."""
    out = []
    for s in op.steps:
        last = s.target.index[-1] if s.target.index else None
        if s.reduce is None or not isinstance(last, Affine) or last.name not in s.indices:
            continue
        assert last.name is not None
        if any(last.name not in expr_names(x) for x in loads(s.expr)):
            out.append((s, last.name))
    return out
