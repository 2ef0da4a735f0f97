"""What was inferred about an operator, as lines of text: for `polyop check`."""

from __future__ import annotations

from polyop.ir.expr import Affine, Position, expr_names, names
from polyop.ir.op import Op


def describe(op: Op) -> tuple[str, ...]:
    """Sizes, tensors with dtypes and shapes, facts, and for each step its ranges and conditions."""
    lines = [f"{op.name}"]
    if op.sizes:
        lines.append(f"  sizes: {', '.join(op.sizes)}")
    for title, tensors in (("input", op.inputs), ("output", op.outputs), ("temporary", op.temporaries)):
        lines += [f"  {title} {t}" for t in tensors]
    for p in op.params:
        default = "" if p.default is None else f" = {p.default}"
        lines.append(f"  parameter {p.name}: {'int' if p.is_size else p.dtype}{default}")
    lines += [f"  {out} is {name} updated" for name, out in op.updates]
    lines += [f"  needs {fact}" for fact in op.facts]
    for step in op.steps:
        sign = f"{step.reduce}=" if step.reduce else "="
        kept = {n for p in step.target.index for n in _names(p)}
        ranges = [f"{r}{'' if r.index in kept or step.reduce is None else ' (reduced)'}" for r in step.ranges]
        conditions = [f"where {c}" for c in step.where]
        lines.append(f"  {step.target} {sign} {step.expr.dtype}: {', '.join([*ranges, *conditions]) or 'once'}")
    return tuple(lines)


def _names(p: Position) -> frozenset[str]:
    return names(p) if isinstance(p, Affine) else expr_names(p)
