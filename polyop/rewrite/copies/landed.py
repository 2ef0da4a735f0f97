"""Products whose sums land at places of several indices, as sums over what lands at each place.

    Y[k, 2 l + r] += X[c, l] * F[c, k, r]     is     Y[k, p] += X[c, (p - r) / 2] * F[c, k, r]
                                                         where (p - r) mod 2 = 0, 0 <= (p - r) / 2 < L

Written the first way, a transposed convolution adds to memory at each step; the second is a contraction, which `residues.py` cuts
into dense ones, and whose sums stay in registers. Without a sum over an index of its own (`c`) each term has one place and is
read once: such terms are added where they land, since there is nothing to keep.
"""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.expr import Affine, Apply, Test, affine, expr_names, loads, names, quasi, substitute_expr
from polyop.ir.op import Op, Range, Step
from polyop.rewrite.names import all_names, fresh
from polyop.rewrite.windows.residues import LARGEST


def summed_where_it_lands(op: Op) -> Op:
    """`op` with sums over what lands at a place, for products of tensors that are also summed over indices of their own."""
    taken = all_names(op)
    steps = [_landed(op, s, s, taken) or s for s in op.steps]
    return replace(op, steps=tuple(steps)) if any(a is not b for a, b in zip(steps, op.steps, strict=True)) else op


def _landed(op: Op, s: Step, origin: Step, taken: set[str]) -> Step | None:
    """`s`, which `origin` has become; None where no place is of several indices, or nothing is summed over beside it."""
    at = s.target.index
    if s.reduce is None or not isinstance(s.expr, Apply) or s.expr.fn != "mul" or len({x.source for x in loads(s.expr)}) < 2:
        return None
    landing = frozenset[str]().union(*(expr_names(p) if not isinstance(p, Affine) else names(p) for p in at))
    if landing.issuperset(s.indices) or not all(isinstance(p, Affine) for p in at):
        return None
    for d, p in enumerate(at):
        assert isinstance(p, Affine)
        chosen = _chosen(s, d, p, origin)
        if chosen is None:
            continue
        r, step = chosen
        place = fresh("p", taken)
        rest = affine(place) - (p - affine(r.index) * step)
        value = quasi("div", rest, affine(step)) if step > 1 else rest
        ties = (*((quasi("mod", rest, affine(step)) * -1,) if step > 1 else ()), value - r.lower, r.upper - value - 1)
        target = replace(s.target, index=(*at[:d], affine(place), *at[d + 1 :]))
        new = replace(
            s, target=target, expr=substitute_expr(s.expr, {r.index: value}),
            ranges=_in_order(at, d, Range(place, Affine(), op.tensor(s.target.source).shape[d]), r, s),
            where=(*(substitute_expr(w, {r.index: value}) for w in s.where), Test(ties)))
        return _landed(op, new, origin, taken) or new
    return None


def _chosen(s: Step, d: int, p: Affine, origin: Step) -> tuple[Range, int] | None:
    """The index of place `p` that the place takes the place of, and its step.

    Long lines are wanted, not windows over them. That is the index of the operand that keeps the fewest other indices (a filter
    keeps its channels), or those that come first in the target (batches do); of equal ones it is the index with the widest steps.
    """
    own = [(n, f) for n, f in p.terms if isinstance(n, str) and n in s.indices]
    if len(own) < 2 or any(not isinstance(n, str) for n, _ in p.terms):
        return None
    elsewhere = frozenset[str]().union(*(names(x) for k, x in enumerate(s.target.index) if k != d and isinstance(x, Affine)))
    elsewhere |= frozenset[str]().union(*(names(r.lower) | names(r.upper) for r in s.ranges))
    order = [n for x in loads(origin.expr) for n in sorted(expr_names(x))]
    able = [(n, f) for n, f in own if 0 < f <= LARGEST and n not in elsewhere and n in order]
    by_index = {r.index: r for r in s.ranges}
    able = [(n, f) for n, f in able if not (names(by_index[n].lower) | names(by_index[n].upper)) & set(s.indices)]
    if not able:
        return None
    kept = {x.name: k for k, x in enumerate(origin.target.index) if isinstance(x, Affine) and x.name in by_index}

    def rank(x: tuple[str, int]) -> tuple[int, int, int, int]:
        read = expr_names(next(y for y in loads(origin.expr) if x[0] in expr_names(y)))
        places = sorted(k for n, k in kept.items() if n in read)
        return len(places), places[0] if places else 0, -x[1], order.index(x[0])

    n, f = min(able, key=rank)
    return by_index[n], f


def _in_order(at: tuple[object, ...], d: int, new: Range, old: Range, s: Step) -> tuple[Range, ...]:
    """The target's indices first, in its order; then the others."""
    by_index = {r.index: r for r in s.ranges if r is not old} | {new.index: new}
    index = [new.index if k == d else p.name if isinstance(p, Affine) else None for k, p in enumerate(at)]
    kept = [n for n in index if n in by_index]
    return tuple(by_index[n] for n in dict.fromkeys([*kept, *by_index]) if n is not None)
