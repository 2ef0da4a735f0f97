"""Steps over an index that others know by its groups, with the group and the place in it as indices of their own.

    Y[b, c, h] = X[b, c, h] - mean[b, c / 8]             where c in 0:C
    Y[b, 8 k + i, h] = X[b, 8 k + i, h] - mean[b, k]     where k in 0:C / 8 and i in 0:8

holds the same where 8 divides C, as the operator's facts say. What makes `mean` for each group k and what reads it have a loop
in common then: so group normalisation has a block of threads for each group, and not for all groups of an image together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyop.ir.expr import Affine, Expr, Quasi, Test, affine, affines, map_affine, names, quasi, substitute_expr
from polyop.ir.op import Op, Range, Step, map_step
from polyop.rewrite.names import all_names, fresh


def in_groups(op: Op) -> Op:
    """`op` with each step that sets elements by such an index."""
    taken = all_names(op)
    made = {t.name for t in op.temporaries}
    steps = []
    for s in op.steps:
        found = next(_grouped(op, s, made), None) if s.reduce is None else None
        steps.append(_cut(s, *found, taken) if found else s)
    return replace(op, steps=tuple(steps))


def _grouped(op: Op, s: Step, made: set[str]) -> Iterator[tuple[Range, int]]:
    """Ranges of `s` whose index is divided where a temporary is read, and nowhere otherwise, and what by."""
    for r in s.ranges:
        at = affine(r.index)
        positions = [p for x in s.reads if x.source in made for p in x.index if isinstance(p, Affine)]
        by = {a.args[1].const for p in positions for a, f in p.terms
              if f == 1 and len(p.terms) == 1 and not p.const and isinstance(a, Quasi) and (a.op, a.args[0]) == ("div", at)}
        if len(by) == 1 and r.lower == Affine():
            (d,) = by
            if all(a.args[0] == at and a.args[1].const == d for e in (s.target, s.expr, *s.where) for a in _atoms(e, r.index)) \
                    and _divides(op, d, r.upper):
                yield r, d


def _atoms(e: Expr, index: str) -> Iterator[Quasi]:
    """What divides in `e`, and has `index`."""
    for x in affines(e):
        for a, _ in x.terms:
            if isinstance(a, Quasi) and index in names(Affine(((a, 1),))):
                yield a


def _divides(op: Op, d: int, extent: Affine) -> bool:
    """Whether `d` is known to divide `extent`."""
    rest = quasi("mod", extent, affine(d))
    return rest == Affine() or any(rest * -1 in f.tests for f in op.facts if isinstance(f, Test))


def _cut(s: Step, r: Range, d: int, taken: set[str]) -> Step:
    group, place = (fresh(f"{r.index}_{x}", taken) for x in ("group", "in"))
    env = {r.index: affine(group) * d + affine(place)}
    at = affine(place)
    left = {quasi("div", at, affine(d)): Affine(), quasi("mod", at, affine(d)): at}

    def digits(x: Affine) -> Affine:
        return sum((left.get(Affine(((a, 1),)), Affine(((a, 1),))) * f for a, f in x.terms), affine(x.const))

    parts = Range(group, Affine(), quasi("div", r.upper, affine(d))), Range(place, Affine(), affine(d))
    ranges = tuple(y for x in s.ranges for y in (parts if x == r else (x,)))
    return replace(map_step(s, lambda e: map_affine(substitute_expr(e, env), digits)), ranges=ranges)
