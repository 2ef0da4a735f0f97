"""Loops of one statement about which isl need not be asked: over all of a coordinate of which nothing else is said.

    { S[i, j, p] -> [i, j, p] : 0 <= p < 8 and i + j < N }     isl:     for i for j S'[i, j]     of { S'[i, j] : i + j < N }
                                                               here:    for i for j for p S[i, j, p]

isl's time grows with the square of the loops, and statements that differ in such loops alone are one to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import islpy as isl

from polyop.poly.generate.isl_ast import N
from polyop.poly.sets import IN, OUT, SET, P


@dataclass(frozen=True, slots=True)
class Free:
    """The loop at a `place` of the time, over so many steps of the statement's coordinate number `arg`."""

    place: int
    arg: int
    count: int


def free(m: isl.Map, at: int, args: Sequence[int]) -> tuple[Free, ...]:
    """Those of { S[coordinates] -> [time] }, a time from place `at` on, of which place k is coordinate args[k]; -1 if none is."""
    range_ = m.range()
    if range_.n_basic_set() != 1:
        return ()
    said = range_.get_basic_set_list().get_at(0)
    counts = [_count(said, d) if arg >= 0 else 0 for d, arg in enumerate(args)]
    return tuple(Free(at + d, args[d], n) for d, n in enumerate(counts) if n > 1)


def _count(said: isl.BasicSet, d: int) -> int:
    """n, if what is `said` of dimension `d` is 0 <= x < n and no more; else 0."""
    mine = [c for c in said.get_constraints() if c.involves_dims(SET, d, 1)]
    div = isl.dim_type.div
    others = ((P, 0, said.dim(P)), (SET, 0, d), (SET, d + 1, said.dim(SET) - d - 1), (div, 0, said.dim(div)))
    if len(mine) != 2 or any(c.is_equality() or any(c.involves_dims(*x) for x in others if x[2]) for c in mine):
        return 0
    least, most = sorted(mine, key=lambda c: -c.get_coefficient_val(SET, d).to_python())
    ends = [(c.get_coefficient_val(SET, d).to_python(), c.get_constant_val().to_python()) for c in (least, most)]
    return int(ends[1][1]) + 1 if ends[0] == (1, 0) and ends[1][0] == -1 else 0


def without(m: isl.Map, found: Sequence[Free], at: int) -> isl.Map:
    """`m` without these coordinates and places."""
    for f in sorted(found, key=lambda f: -f.place):
        m = m.project_out(OUT, f.place - at, 1)
    for f in sorted(found, key=lambda f: -f.arg):
        m = m.project_out(IN, f.arg, 1)
    return m


def first_place(n: isl.AstNode) -> int | None:
    """The least place of the loops that a node begins with; None, if there is none, as before a statement or a test."""
    match n.get_type():
        case N.for_:
            return int(n.for_get_iterator().get_id().get_name()[1:])
        case N.block:
            items = n.block_get_children()
            return min((p for i in range(items.n_ast_node()) if (p := first_place(items.get_at(i))) is not None), default=None)
    return None
