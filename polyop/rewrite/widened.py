"""Operands of 16-bit floats that a product of matrices uses again and again are widened to f32 once, where it has no instruction.

    C[m, n] += f32(A[m, k]) * f32(B[k, n])     becomes     a[m, k] = f32(A[m, k]);  C[m, n] += a[m, k] * f32(B[k, n])

The loop of a register tile otherwise widens what it reads: elements of the left operand for each tile of columns, on ports that
multiply too, so that f16 had half the speed of f32. Of the right operand it widens vectors, once for each tile of rows; to do it
before is worth its traffic only for many more rows. Widening is exact: the sums are those of the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polyop.ir.dots import dot, product
from polyop.ir.dtypes import F32
from polyop.ir.expr import Affine, Apply, Expr, Load, affine, expr_names, map_loads, names, volume
from polyop.ir.op import Op, Range, Step, Tensor
from polyop.ir.target import Target
from polyop.rewrite.folds import plain_indices
from polyop.rewrite.names import all_names, fresh

LEAST = 64
"""Results that share an element of an operand which make it worth it to widen the left one on its own."""
ROWS = 192
"""The same of the right one."""


@dataclass(frozen=True, slots=True)
class Wide:
    """A sum of products of two inputs of 16-bit floats, the only sum of its operator: `left` has rows, and `right` columns.

    columns, rows   the extents of what is kept and `left`, or `right`, does without
    """

    left: Load
    right: Load
    columns: tuple[Affine, ...]
    rows: tuple[Affine, ...]


def find_wide(op: Op) -> tuple[Wide, ...]:
    """The sum of `op`, if it is such."""
    added = [s for s in op.steps if s.reduce is not None]
    found = _wide(op, added[0]) if len(added) == 1 else None
    return (found,) if found else ()


def _wide(op: Op, s: Step) -> Wide | None:
    kept, factors = plain_indices(s.target), product(s.expr)
    if s.reduce is None or s.reduce.name != "add" or factors is None or factors.raised or s.target.dtype != F32 or not kept:
        return None
    both = factors.a, factors.b
    if any(x.dtype.bytes_ != 2 or not x.dtype.is_float or op.tensor(x.source).role != "in" for x in both):
        return None
    having = [x for x in both if kept[-1] in expr_names(x)]
    extents = {r.index: r.upper - r.lower for r in s.ranges}
    if len(having) != 1 or any(not names(e) <= set(op.sizes) for e in extents.values()):
        return None
    (right,) = having
    left = both[both[0] == right]
    without = [tuple(extents[i] for i in kept if i not in expr_names(x)) for x in (left, right)]
    return Wide(left, right, *without)


def to_widen(found: Sequence[Wide], sizes: Mapping[str, int], target: Target, strict: bool) -> tuple[str, ...]:
    """The operands that are worth it in a call of these sizes."""
    out: list[str] = []
    for x in found:
        columns, rows = (volume(beside, sizes) for beside in (x.columns, x.rows))
        apart = dot(target, target.vector_bytes, F32, x.left.dtype, x.right.dtype, strict) is None
        if apart and min(columns, rows) >= LEAST:
            out += [x.left.source, *([x.right.source] if rows >= ROWS else [])]
    return tuple(dict.fromkeys(out))


def widened(op: Op, operands: Sequence[str]) -> Op:
    """`op` with these operands of its sum widened before."""
    if not operands:
        return op
    taken, steps = all_names(op), list[Step]()
    wide: dict[str, Tensor] = {}
    for name in operands:
        t = op.tensor(name)
        new = wide[name] = Tensor(fresh(f"{name}_wide", taken), F32, t.shape, "temp")
        at = tuple(fresh(f"{name}_{d}", taken) for d in range(len(t.shape)))
        place = tuple(map(affine, at))
        ranges = tuple(Range(i, Affine(), e) for i, e in zip(at, t.shape, strict=True))
        steps.append(Step(Load(new.name, place, F32), None, Apply("cast", (Load(name, place, t.dtype),), F32), ranges))

    def one(s: Step) -> Step:
        factors = product(s.expr) if s.reduce is not None else None
        if factors is None or not isinstance(s.expr, Apply):
            return s
        return replace(s, expr=replace(s.expr, args=tuple(map(instead, s.expr.args))))

    def instead(e: Expr) -> Expr:
        inner = e.args[0] if isinstance(e, Apply) and e.fn == "cast" else None
        if not isinstance(inner, Load) or inner.source not in wide:
            return e
        return map_loads(inner, lambda x: replace(x, source=wide[x.source].name, dtype=F32) if x == inner else x)

    return replace(op, tensors=(*op.tensors, *wide.values()), steps=(*steps, *map(one, op.steps)))
