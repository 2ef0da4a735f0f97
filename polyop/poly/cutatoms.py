"""Atoms of a matrix unit that a condition cuts: { o[i, v] += p[i, j] * V[j, v] : j <= i }.

A unit adds up whole atoms. Where rows and depth are tied, and not both operands are 0 beyond that, it would add 0 times what the
text does not name, which may be infinite. So the statement is three:

    atoms all of whose points the condition allows      by the unit
    atoms that it cuts                                  term by term, in the registers that hold the unit's results
    the others                                          not at all

Which of these an atom is follows from its place alone, so all lanes of a warp agree in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from polyop.ir.expr import Affine, Expr, Load, Quasi, affine, names, place, substitute, substitute_expr
from polyop.ir.expr import Test as Tests
from polyop.poly.roles import iterators_of
from polyop.poly.scop import Stmt
from polyop.poly.tiles import Coord, TileStmt


def ends(u: Stmt, depth: str, operands: Sequence[Load]) -> tuple[Affine, ...]:
    """The conditions of `u` that end the sum along `depth` by an iterator that an operand does not have."""
    return tuple(t for w in u.where if isinstance(w, Tests) for t in w.tests
                 if depth in names(t) and any(names(t) & set(u.dims) - iterators_of(x) for x in operands))


def cuts(u: Stmt, depth: str, sides: Sequence[str], operands: Sequence[Load]) -> tuple[Affine, ...] | None:
    """Those of them that may be asked of an atom: they tie `depth` to a side of the results. None, if there are others."""
    found = ends(u, depth, operands)
    plain = not any((names(r.lower) | names(r.upper)) & set(u.dims) for r in u.ranges)
    asked = all(names(t) & {*sides} and not any(isinstance(a, Quasi) for a, _ in t.terms) for t in found)
    return found if not found or (plain and asked) else None


def parted(s: TileStmt, tests: Sequence[Affine], atom: Sequence[Coord], step: Coord, alone: Expr) -> tuple[TileStmt, ...]:
    """The statement `s` of a unit's product where none of `tests` cuts its atom, and where the first of them does, the second, ..

    tests   of `s`, in its coordinates
    atom    the sides of an atom, of which `step` is along the sum; terms go along that with the coordinate `one_by_one(step)`
    alone   what is added up, from where the unit's operands are loaded
    """
    def extreme(t: Affine, most: bool) -> Affine:
        return substitute(t, {c.name: affine((c.cap or 1) - 1 if (t.factor(c.name) > 0) == most else 0) for c in atom})

    whole, some = [extreme(t, False) for t in tests], [extreme(t, True) for t in tests]
    out = [replace(s, tests=(*(t for t in s.tests if t not in tests), *whole))]
    term = one_by_one(step)
    at = {step.name: affine(term.name)}
    dim = [c.name for c in s.coords].index(step.name)
    for n, t in enumerate(whole):
        name = f"{s.name}_cut{n}"
        domain = s.domain.set_tuple_name(name).set_dim_name(isl.dim_type.set, dim, term.name)
        asked = (*some, *whole[:n], t * -1 - 1, *(substitute(x, at) for x in s.tests))
        out.append(replace(s, name=name, coords=tuple(term if c is step else c for c in s.coords), domain=domain,
                           lift=tuple(substitute(x, at) for x in s.lift), target=place(s.target, at),
                           expr=substitute_expr(alone, at), tests=asked))
    return tuple(out)


def one_by_one(step: Coord) -> Coord:
    """The coordinate that goes through the terms of an atom along `step`."""
    return Coord(f"{step.name.rpartition('_')[0]}_s", 1, step.cap)
