"""Products for each of a batch whose number comes last, of two matrices or one and a vector, on copies in which it comes first.

    Z[m, n, b] += X[m, k, b] * Y[b, k, n]

    x[b, m, k] = X[m, k, b];   z[b, m, n] += x[b, m, k] * Y[b, k, n];   Z[m, n, b] = z[b, m, n]

Lanes run along what has unit stride in the result. A batch is nothing for a register tile: it is in both operands, so nothing is
used twice. Where it comes last in an operand, each matrix would take a number of each line. Copies go by squares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polyop.ir.expr import Affine, Load, evaluate, expr_names, loads, volume
from polyop.ir.op import Op, Step
from polyop.ir.options import Layout
from polyop.ir.target import NEAR
from polyop.rewrite.folds import operands_of, plain_indices
from polyop.rewrite.instead import Instead, through_copies, with_steps
from polyop.rewrite.names import all_names

TIMES = 16
"""Multiply-adds with each element that make its copy worth it, where lanes read side by side without one."""
LANES = 24
"""The same where the result and both operands end in the same batch: it may have the lanes then."""
TURNED = 2
"""The same where a matrix lies across the lanes: it is copied for them anyway, for each of the batch, or looked up for each
multiply-add. Where the result ends in the batch, and one operand, products with two or three uses took 0.5 to 5 times as long
without copies, with more 1.1 to 44 times."""


@dataclass(frozen=True, slots=True)
class Outward:
    """A sum of products over a batch that comes last somewhere.

    tensors  (name, rank) of those in which it does and which the caller gave, and of all operands of a sum of which only the
             result does: it has no copy to run along. Temporaries lie as the text has them
    uses     for each in which it does, the extents of the loops that use an element of it
    least    uses of each element that make its copy worth it
    few      the extents of batches that operands end in, where the result does not: of `NEAR` elements copies take too long
    """

    tensors: tuple[tuple[str, int], ...]
    uses: tuple[tuple[Affine, ...], ...]
    least: int
    few: tuple[Affine, ...]


def find_outward(op: Op) -> tuple[Outward, ...]:
    """The sums of `op` that are such."""
    out = []
    for s in op.steps:
        found = _lying(op, s)
        if found:
            extents = {r.index: r.upper for r in s.ranges}
            uses = tuple(tuple(e for i, e in extents.items() if i not in expr_names(x)) for x in found)
            lying = (*found, *loads(s.expr)) if found == (s.target,) else found
            tensors = tuple((x.source, len(x.index)) for x in lying if op.tensor(x.source).role != "temp")
            few = () if s.target in found else tuple(extents[i] for x in found if (i := _last(x)))
            out.append(Outward(tensors, uses, _least(s, found), few))
    return tuple(out)


def ends_in_batch(op: Op, s: Step) -> bool:
    """Whether `s` is a product of two matrices for each of a batch that comes last in its result."""
    return bool(_lying(op, s)) and _has_matrices(s) and _last(s.target) in _batch(s)


def _has_matrices(s: Step) -> bool:
    """Whether each operand has rows or columns of the result to itself."""
    kept = {*(plain_indices(s.target) or ())} - _batch(s)
    return all(expr_names(x) & kept for x in loads(s.expr))


def _least(s: Step, found: tuple[Load, ...]) -> int:
    """Uses of each element of what is `found` to end in a batch that make its copy worth it; a result alone is always copied."""
    if found == (s.target,):
        return 0
    last, batch = _last(s.target), _batch(s)
    own = [x for x in loads(s.expr) if last in expr_names(x)]
    if all(_last(x) == last for x in own):
        return LANES if last in batch else TIMES
    return TURNED if _has_matrices(s) else TIMES


def _last(x: Load) -> str | None:
    """The index that `x` ends in, if it is plain."""
    at = plain_indices(x)
    return at[-1] if at else None


def copies_pay(found: Sequence[Outward], sizes: Mapping[str, int]) -> bool:
    """Whether what is copied in a call of these sizes is used often enough; a result is if nothing else need be copied."""
    def least(x: Outward) -> int:
        return max(x.least, TIMES) if any(evaluate(e, sizes) <= NEAR for e in x.few) else x.least

    return any(min(volume(u, sizes) for u in x.uses) >= least(x) for x in found)


def lie_so(found: Sequence[Outward], units: Layout) -> bool:
    """Whether in memory, too, the batch comes last where it does in the text, or nothing lies side by side."""
    return all(units.unit(t) in (rank - 1, None) for x in found for t, rank in x.tensors)


def turned_outward(op: Op) -> Op:
    """`op` with such copies."""
    taken = all_names(op)

    def instead(s: Step) -> Instead | None:
        found = _lying(op, s)
        if not found:
            return None
        batch = _batch(s)
        order = {x: sorted(plain_indices(x) or (), key=lambda i: i not in batch) for x in found}
        return through_copies(s, order, "outward", taken)

    return with_steps(op, instead)


def _batch(s: Step) -> frozenset[str]:
    """The indices that the result and all operands have."""
    return frozenset(plain_indices(s.target) or ()).intersection(*map(expr_names, loads(s.expr)))


def _lying(op: Op, s: Step) -> tuple[Load, ...]:
    """What of the product `s` ends in one of a batch: operands first; nothing if `s` is none, or not plain."""
    reads, kept = operands_of(op, s), plain_indices(s.target) or ()
    if not reads:
        return ()
    batch, (a, b) = _batch(s), (expr_names(x) & set(kept) for x in reads)
    if not batch or a == b or set(s.indices) <= set(kept):
        return ()
    lying = tuple(x for x in (*reads, s.target) if expr_names(replace(x, index=x.index[-1:])) & batch)
    if not all(plain_indices(x) and (x is s.target or op.tensor(x.source).role == "in") for x in lying):
        return ()  # what stays as it lies would be read a number from each line, and a window wants lanes along the batch
    return lying
