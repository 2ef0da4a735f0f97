"""Few columns of a product, taken from a copy that lies by columns: its sums are then dot products along what both operands have.

    C[m, n] += A[m, k] * B[k, n]      becomes      Bt[n, k] = B[k, n];  C[m, n] += A[m, k] * Bt[n, k]        n in 0:N, N <= 4

B is as small as a row of A or a few of them. Lanes along n would have four elements, lanes along m would take a turned copy of
all of A, of an image once for each element of the window: 320 channels into 4 took five times as long so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyop.ir.expr import Affine, Load, expr_names, loads, map_loads
from polyop.ir.op import Op, Step, Tensor
from polyop.rewrite.instead import Instead, with_steps
from polyop.rewrite.names import all_names, fresh

COLUMNS = 4


def columns_upright(op: Op, few: Mapping[str, int]) -> Op:
    """`op` with such copies for the products whose columns are as many as one of the sizes `few`, which are at most `COLUMNS`."""
    taken = all_names(op)

    def instead(s: Step) -> Instead | None:
        lying = upright(op, s)
        last = s.target.index[-1] if s.target.index else None
        extent = next((r.upper - r.lower for r in s.ranges if isinstance(last, Affine) and r.index == last.name), None)
        if lying is None or extent is None or not 0 < few.get(extent.name or "", 0) <= COLUMNS:
            return None
        order = (len(lying.index) - 1, *range(len(lying.index) - 1))
        shape = op.tensor(lying.source).shape
        copy = replace(lying, source=fresh(f"{lying.source}_upright", taken), index=tuple(lying.index[d] for d in order))
        t = Tensor(copy.source, lying.dtype, tuple(shape[d] for d in order), "temp")
        ranges = tuple(r for p in copy.index for r in s.ranges if isinstance(p, Affine) and r.index == p.name)
        return (t,), (Step(copy, None, lying, ranges, (), s.span),
                      replace(s, expr=map_loads(s.expr, lambda x: copy if x == lying else x)))

    return with_steps(op, instead)


def upright(op: Op, s: Step) -> Load | None:
    """The read of `s` that should lie by columns: an argument that ends in the last index of the result, after a contracted one.

    All other reads end in that contracted index, and do without the last one.
    """
    last = s.target.index[-1] if s.target.index else None
    if s.reduce is None or not s.target.dtype.is_float or not isinstance(last, Affine) or last.name not in s.indices or s.where:
        return None
    kept = frozenset[str]().union(*(expr_names(p) if not isinstance(p, Affine) else {p.name or ""} for p in s.target.index))
    having = {x for x in loads(s.expr) if last.name in expr_names(x)}
    others = [x for x in loads(s.expr) if last.name not in expr_names(x)]
    if len(having) != 1 or not others:
        return None
    (found,) = having
    names = [p.name for p in found.index if isinstance(p, Affine) and p.name in s.indices]
    ranges = {r.index: r for r in s.ranges}
    plain = (len(found.index) > 1 and len(set(names)) == len(names) == len(found.index) and names[-1] == last.name
             and all(ranges[n].lower == Affine() and ranges[n].upper == e
                     for n, e in zip(names, op.tensor(found.source).shape, strict=True) if n))
    if not plain or found.guard or op.tensor(found.source).role != "in" or names[-2] in kept or op.updates:
        return None
    return found if all(x.index and isinstance(x.index[-1], Affine) and x.index[-1].name == names[-2] for x in others) else None
