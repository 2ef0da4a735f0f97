"""Cutting a reduction to a single element into shares, so that several threads have work.

    y += x[i]          becomes          p[t] += x[C t + i]  where 0 <= i < C, C t + i < N          y += p[t]

Nothing else in such a step could be shared out: its loops all add up to one place. Shares are cut along the outermost index, so
each is a piece of memory of its own; how many there are depends on the sizes alone, so the result does not depend on how many
threads there are, if these are several.
"""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.expr import Affine, Test, affine, quasi, substitute, substitute_expr
from polyop.ir.op import Op, Range, Step, Tensor
from polyop.rewrite.names import fresh

LONG = 16384  # points of a share of a single loop: 64 KiB of f32, which take longer than a thread takes to come
ROWS = 64     # iterations of the outermost of several loops


def cut_into_shares(op: Op) -> Op:
    """`op` with every reduction to one element, over a loop whose length is not known, in two steps. Sums change their order."""
    tensors, steps = list(op.tensors), list[Step]()
    taken = {*op.sizes, *(t.name for t in op.tensors), *(p.name for p in op.params), *(i for s in op.steps for i in s.indices)}
    for s in op.steps:
        if not _is_one_element(s):
            steps.append(s)
            continue
        part, total = _cut(s, taken)
        tensors.append(Tensor(part.target.source, s.target.dtype, (total.ranges[0].upper,), "temp"))
        steps += [part, total]
    return replace(op, tensors=tuple(tensors), steps=tuple(steps)) if len(steps) > len(op.steps) else op


def _is_one_element(s: Step) -> bool:
    """Whether `s` reduces to a place that is known, over loops of which the outermost is a symbol long."""
    if s.reduce is None or not s.ranges or not all(isinstance(p, Affine) and p.is_constant for p in s.target.index):
        return False
    r = s.ranges[0]
    return not (r.upper - r.lower).is_constant


def _cut(s: Step, taken: set[str]) -> tuple[Step, Step]:
    """(the shares, what adds them up)."""
    r, chunk = s.ranges[0], LONG if len(s.ranges) == 1 else ROWS
    t, i = fresh("t", taken), fresh(f"{r.index}_i", taken)
    extent = r.upper - r.lower
    env = {r.index: r.lower + affine(t) * chunk + affine(i)}
    count = quasi("div", extent + (chunk - 1), affine(chunk))
    target = replace(s.target, source=fresh(f"{s.target.source}_parts", taken), index=(affine(t),))
    ranges = (Range(t, affine(0), count), Range(i, affine(0), affine(chunk)),
              *(Range(x.index, substitute(x.lower, env), substitute(x.upper, env)) for x in s.ranges[1:]))
    where = (Test((extent - affine(t) * chunk - affine(i) - 1,)), *(substitute_expr(w, env) for w in s.where))
    part = Step(target, s.reduce, substitute_expr(s.expr, env), ranges, where, s.span)
    return part, Step(s.target, s.reduce, target, (ranges[0],), (), s.span)
