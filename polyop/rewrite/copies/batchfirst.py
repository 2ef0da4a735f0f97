"""Temporaries that products for each of a batch make, with the batch first.

    S[m, n, g] += X[m, 32*g + j] * W[n, 32*g + j];  Y[m, n] += S[m, n, g] * s[n, g]
    S[g, m, n] += X[m, 32*g + j] * W[n, 32*g + j];  Y[m, n] += S[g, m, n] * s[n, g]

Both operands have g, so that as the last index it leaves lanes without a dense read, and the product is none of matrices; as
the first one it is a product of matrices for each g. How a temporary lies is nobody's concern, so nothing is copied. It stays
where an operand lies along g, whose lanes are dense then (`outward.py` copies it where that pays), where it is read other than
by reductions, as by a step that writes a result in that order, and in calls with one row or column, which are no matrices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyop.ir.expr import Affine, Apply, Expr, expr_names, loads, names, volume
from polyop.ir.op import Op, Step, Tensor
from polyop.rewrite.folds import plain_indices
from polyop.rewrite.ordered import permuted


def with_batches_first(op: Op) -> Op:
    """`op` with the dimensions of such temporaries in another order."""
    for t in op.temporaries:
        order = _order(op, t)
        if order:
            op = permuted(op, {t.name: order})
    return op


def find_sides(op: Op) -> tuple[tuple[Affine, ...], ...]:
    """The extents of the rows of such temporaries' products, and of their columns."""
    found = list[tuple[Affine, ...]]()
    for t in op.temporaries:
        if _order(op, t):
            (s,) = op.steps_of(t.name)
            batch = _batch(s, plain_indices(s.target) or ())
            own = [{*expr_names(x)} - batch for x in (s.expr.args if isinstance(s.expr, Apply) else ())]
            found += [tuple(r.upper - r.lower for r in s.ranges if r.index in mine and r.index in expr_names(s.target))
                      for mine in own]
    return tuple(found)


def pays(sides: Sequence[Sequence[Affine]], sizes: Mapping[str, int]) -> bool:
    """Whether all of these are several in a call, so that products are of matrices."""
    return all(volume(x, sizes) > 1 for x in sides)


def _order(op: Op, t: Tensor) -> tuple[int, ...]:
    """The dimensions of `t` with those of a batch first, if it is such; else nothing."""
    steps, readers = op.steps_of(t.name), [s for s in op.steps if any(x.source == t.name for x in s.reads)]
    kept = plain_indices(steps[0].target) if len(steps) == 1 else None
    if not kept or not readers or any(r.reduce is None or r.target.source == t.name for r in readers):
        return ()
    if any(plain_indices(x) is None for r in readers for x in r.reads if x.source == t.name):
        return ()
    batch = _batch(steps[0], kept)
    if kept[-1] not in batch:
        return ()
    return tuple(sorted(range(len(kept)), key=lambda d: kept[d] not in batch))


def _batch(s: Step, kept: Sequence[str]) -> frozenset[str]:
    """The indices of the result that both operands of a sum of products have: these have others, too, and lie along none."""
    match s.expr:
        case Apply(fn="mul", args=(a, b)) if s.reduce is not None and s.reduce.name == "add":
            both = [expr_names(x) & {*kept} for x in (a, b)]
            batch = both[0] & both[1]
            if both[0] > batch and both[1] > batch and not any(_lies_along(x, i) for x in (a, b) for i in batch):
                return batch
    return frozenset()


def _lies_along(e: Expr, i: str) -> bool:
    """Whether a read in `e` lies along `i`, or at what is computed."""
    return any(not isinstance(x.index[-1], Affine) or (i in names(x.index[-1]) and abs(x.index[-1].factor(i)) <= 1)
               for x in loads(e) if x.index)
