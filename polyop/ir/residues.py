"""Accesses that go on in steps and leave nothing out together: X[2*i] and X[2*i + 1] are all of X from X[0] on."""

from __future__ import annotations

from collections.abc import Iterable

from polyop.ir.expr import Affine, Load, affine, names

MOST = 4  # accesses that are one run

Run = tuple[Load, ...]
"""{ X[f i + c], X[f i + c + 1], .., X[f i + c + f - 1] }, equal in all other dimensions."""


def runs_of(found: Iterable[tuple[Load, int]], index: str) -> tuple[Run, ...]:
    """The runs along `index` among loads, of which each is given with its dimension of unit stride; each load is in one at most.

    A load in steps of 1 is one by itself.
    """
    alike: dict[tuple[object, ...], dict[int, Load]] = {}
    for x, unit in found:
        p = x.index[unit]
        others = tuple(q for d, q in enumerate(x.index) if d != unit)
        if isinstance(p, Affine) and p.factor(index) > 0 and index not in names(p - affine(index) * p.factor(index)):
            alike.setdefault((p.factor(index), x.source, x.guard, others, p - p.const), {})[p.const] = x
    out: list[Run] = []
    for key, known in alike.items():
        step, taken = key[0], set[int]()
        assert isinstance(step, int)
        for first in sorted(known):
            run = range(first, first + step)
            if step <= MOST and taken.isdisjoint(run) and all(c in known for c in run):
                out.append(tuple(known[c] for c in run))
                taken |= set(run)
    return tuple(out)
