"""Operands of sums of products that the text rounds get memory of their own, in the type that they are rounded to.

    o[i, v] += f32(f16(e[i, j])) * f32(V[j, v])     becomes     r[i, j] = f16(e[i, j])    o[i, v] += f32(r[i, j]) * f32(V[j, v])

Each is rounded once then, and not for each v. Matrix units and dot products take their operands as they lie. So do those of
narrow numbers that are one of two, as what a recurrence starts from is in its first turn:

    z[t, b, g] += f32(t >= 1 ? Y[t - 1, b, k] : h0[b, k]) * f32(U[g, k])     becomes
    y[t, b, k] = t >= 1 ? Y[t - 1, b, k] : h0[b, k];  z[t, b, g] += f32(y[t, b, k]) * f32(U[g, k])
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyop.ir.atoms import atoms_for
from polyop.ir.dots import dot
from polyop.ir.dtypes import DType
from polyop.ir.expr import Affine, Apply, Expr, Load, Test, expr_names, names
from polyop.ir.op import Op, Step
from polyop.ir.target import Target
from polyop.rewrite.folds import is_box, plain_indices, replaced
from polyop.rewrite.instead import made_of
from polyop.rewrite.names import all_names, fresh


def rounded_apart(op: Op, target: Target) -> Op:
    """`op` with a temporary for each operand of a sum of products that is a rounded element of another temporary.

    Not where the target has no instruction for sums of such products: then it is a conversion more.
    """
    taken = all_names(op)
    tensors, steps = list(op.tensors), list[Step]()
    for s in op.steps:
        factors = s.expr.args if s.reduce and isinstance(s.expr, Apply) and s.expr.fn == "mul" else ()
        for e in factors:
            apart = (_chosen(op, s, e) if target.family == "x86" else None) or _rounded(op, s, e)
            if apart is None or not _takes(target, apart.expr.dtype, s.target.dtype):
                continue
            made = made_of(s, apart.expr, fresh(apart.name, taken), apart.shape)
            tensors.append(made.tensor)
            steps.append(made.step)
            s = replace(s, expr=replaced(s.expr, e, Apply("cast", (made.element,), e.dtype)))
        steps.append(s)
    return replace(op, tensors=tuple(tensors), steps=tuple(steps)) if len(tensors) > len(op.tensors) else op


@dataclass(frozen=True, slots=True)
class _Apart:
    """What a factor is before it is widened, and the temporary for it: its shape, unless that is what the ranges say."""

    name: str
    expr: Expr
    shape: tuple[Affine, ...] | None = None


def _takes(target: Target, t: DType, total: DType) -> bool:
    """Whether some instruction adds up products of two numbers of type `t`."""
    return bool(atoms_for(target, t, t, total) or dot(target, target.vector_bytes, total, t, t, False))


def _chosen(op: Op, s: Step, e: Expr) -> _Apart | None:
    """Of a factor `e` of `s` that is one of two elements, which `s` reads again for other indices."""
    match e:
        case Apply(fn="select", args=(Test() as c, Apply(fn="cast", args=(Load() as a,)), Apply(fn="cast", args=(Load() as b,)))):
            at = expr_names(e) & set(s.indices)
            positions = [p for x in (a, b) for p in x.index]
            if a.dtype != b.dtype or s.where or at >= set(s.indices) or at != (expr_names(a) & at):
                return None
            if any(not isinstance(p, Affine) or len(names(p) & at) > 1 for p in positions):  # no window: it would be copied again
                return None
            if not is_box(op, replace(s, ranges=tuple(r for r in s.ranges if r.index in at))):
                return None
            return _Apart(f"{s.target.source}_of", Apply("select", (c, a, b), a.dtype))
    return None


def _rounded(op: Op, s: Step, e: Expr) -> _Apart | None:
    """Of a factor `e` of `s` that is rounded: an element of a temporary, which `s` reads again for other indices."""
    match e:
        case Apply(fn="cast", args=(Apply(fn="cast", args=(Load() as x,), dtype=t) as rounded,)) if t.bits < x.dtype.bits:
            at, whole = plain_indices(x), op.tensor(x.source)
            if at is None or whole.role != "temp" or set(at) >= set(s.indices):
                return None
            says = [expr_names(w) & set(s.indices) for w in s.where]
            bounds = [(names(r.lower) | names(r.upper)) & set(s.indices) for r in s.ranges if r.index in at]
            is_apart = all(n <= set(at) for n in (*says, *bounds))
            return _Apart(f"{x.source}_{t}", rounded, whole.shape) if is_apart else None
    return None
