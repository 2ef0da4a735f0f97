"""What is added to each element of a sum once, as a step behind the sum.

    Y[m, n] += X[m, k] * W[k, n];  Y[m, n] += b[n]     becomes     s[m, n] += X[m, k] * W[k, n];  Y[m, n] = s[m, n] + b[n]

The same values are added, in the order of the text. A step that only takes a sum on is done while its tile is in registers; one
that adds to Y is a second loop over it in memory, as each of its terms might be one of many. Users see the temporary in what
`explain` says, as `Y_terms`.
"""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.expr import Affine, Apply, expr_names, loads
from polyop.ir.op import Op, Step, Tensor
from polyop.rewrite.folds import is_once, plain_indices
from polyop.rewrite.names import all_names, fresh


def added_behind(op: Op) -> Op:
    """`op` with a temporary for each sum to whose elements something is added last, and once."""
    found = next((n for n in dict.fromkeys(s.target.source for s in op.steps) if _is_added_to(op, n)), None)
    if found is None:
        return op
    *terms, last = op.steps_of(found)
    whole = op.tensor(found)
    t = Tensor(fresh(f"{found}_terms", all_names(op)), whole.dtype, whole.shape, "temp")
    assert last.reduce is not None and last.reduce.fn is not None
    end = replace(last, reduce=None, expr=Apply(last.reduce.fn, (replace(last.target, source=t.name), last.expr), whole.dtype))

    def instead(s: Step) -> Step:
        if s is last:
            return end
        return replace(s, target=replace(s.target, source=t.name)) if any(s is x for x in terms) else s

    return added_behind(replace(op, tensors=(*op.tensors, t), steps=tuple(map(instead, op.steps))))


def _is_added_to(op: Op, name: str) -> bool:
    """Whether the last step that writes `name` adds to each of its elements once, and those before add up terms, and no others.

    Not in a recurrence, whose turns need all of what they read to be one tensor, nor of what one makes, with which a sum shares
    the loops around: the step behind it would want lanes of its own there.
    """
    *before, last = op.steps_of(name)
    if not before or last.reduce is None or last.reduce.fn is None:
        return False
    if not is_once(op, last):
        return False
    if any(s.reduce != last.reduce for s in before) or not any(map(_has_terms, before)):
        return False
    if len(before) == 1 and not _is_for_all(op, before[0]):
        return False
    if any(_is_recurrent(op, n) for n in (name, *{x.source for s in (*before, last) for x in s.reads})):
        return False
    first = op.steps[: next(k for k, s in enumerate(op.steps) if s is last)]
    return not any(name in {x.source for x in loads(s.expr)} for s in first)


def _is_recurrent(op: Op, name: str) -> bool:
    """Whether `name` is computed from itself."""
    behind = op.follow_from((name,))
    return any(behind & {x.source for x in s.reads} for s in op.steps_of(name))


def _has_terms(s: Step) -> bool:
    """Whether `s` adds up several terms for an element."""
    kept = plain_indices(s.target)
    return kept is not None and not {*s.indices} <= {*kept}


def _is_for_all(op: Op, s: Step) -> bool:
    """Whether each element is a sum of `s`, perhaps of no terms: a temporary exists where its one step writes it, and no more.

    Where positions are computed, or more than an index, it has all elements.
    """
    kept, of = plain_indices(s.target), {r.index: (r.lower, r.upper) for r in s.ranges}
    if kept is None:
        return True
    whole = all(of.get(i) == (Affine(), e) for i, e in zip(kept, op.tensor(s.target.source).shape, strict=True))
    return whole and all(expr_names(w) & ({*s.indices} - {*kept}) for w in s.where)
