"""Parts of a tile program whose loops isl writes at once: when their statements run, inside the loops around."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import islpy as isl

from polyop.poly.sets import OUT, P
from polyop.poly.tiles import Band


@dataclass(frozen=True, eq=False)
class Part:
    """Loops to be written: those of `tree`.

    times     { S -> [the rest of its time, from place `at` on] }; without the statements that never run
    context   what is known of the sizes and of the loops around, which are parameters here
    """

    times: dict[str, isl.Map]
    tree: tuple[Band | str, ...]
    at: int
    context: isl.Set

    def only(self, tree: tuple[Band | str, ...]) -> Part:
        """The part of `tree`, which is some of the items of this one."""
        inside = leaves(tree)
        return replace(self, tree=tree, times={s: m for s, m in self.times.items() if s in inside})

    @property
    def runs(self) -> isl.Set:
        """The sizes, and places of the loops around, for which something in it runs."""
        return reduce(isl.Set.union, (m.domain().params() for m in self.times.values())).coalesce()

    @property
    def runs_always(self) -> bool:
        """Whether something in it runs, whatever the sizes and the loops around."""
        return bool(self.times) and bool(self.context.is_subset(self.runs))


def without_ends(times: tuple[isl.Map, ...]) -> tuple[isl.Map, ...]:
    """{ S -> [time] } without the last places, as far as all times have one constant there: nothing is ordered by it.

    isl would look for a loop in each.
    """
    def is_one(place: int) -> bool:
        found = {m.plain_get_val_if_fixed(OUT, place).to_str() for m in times}
        return len(found) == 1 and "NaN" not in found

    depth = more = times[0].dim(OUT)
    while more > 1 and is_one(more - 1):
        more -= 1
    return tuple(m.project_out(OUT, more, depth - more) for m in times) if more < depth else times


def leaves(tree: tuple[Band | str, ...]) -> frozenset[str]:
    """The statements of `tree`."""
    return frozenset(s for b in tree for s in ((b,) if isinstance(b, str) else leaves(b.body)))


def as_parameters(m: isl.Map, kind: isl.dim_type, iterators: Sequence[str]) -> isl.Map:
    """`m` with its first dimensions of a kind as parameters of these names."""
    first = m.dim(P)
    m = m.move_dims(P, first, kind, 0, len(iterators))
    for i, name in enumerate(iterators):
        m = m.set_dim_name(P, first + i, name)
    return m
