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
from dataclasses import dataclass, replace

import islpy as isl

from polyop.ir.expr import Affine, Expr, Load, Quasi, affine, map_loads, names, place, quasi, substitute, substitute_expr
from polyop.ir.expr import Test as Tests
from polyop.ir.loops import Buffer, Space
from polyop.poly.blocks.sides import SideCut
from polyop.poly.scop import Stmt
from polyop.poly.strategies.roles import iterators_of
from polyop.poly.tiles import Band, Coord, TileStmt, band


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
    """The statement `s` of a unit's product where none of `tests` cuts its atom, and term by term where some do.

    tests   of `s`, in its coordinates
    atom    the sides of an atom, of which `step` is along the sum; terms go along that with the coordinate `one_by_one(step)`
    alone   what is added up, from where the unit's operands are loaded
    """
    def extreme(t: Affine, most: bool) -> Affine:
        return substitute(t, {c.name: affine((c.cap or 1) - 1 if (t.factor(c.name) > 0) == most else 0) for c in atom})

    whole, some = [extreme(t, False) for t in tests], [extreme(t, True) for t in tests]
    first = replace(s, tests=(*(t for t in s.tests if t not in tests), *whole))
    if not tests:
        return (first,)
    term, name = one_by_one(step), f"{s.name}_cut"
    at = {step.name: affine(term.name)}
    dim = [c.name for c in s.coords].index(step.name)
    # one of the conditions leaves a point of the atom out: they are asked together, so that terms are written once
    cut = quasi("max", *(t * -1 - 1 for t in whole))
    domain = s.domain.set_tuple_name(name).set_dim_name(isl.dim_type.set, dim, term.name)
    terms = replace(s, name=name, coords=tuple(term if c is step else c for c in s.coords), domain=domain,
                    lift=tuple(substitute(x, at) for x in s.lift), target=place(s.target, at), expr=substitute_expr(alone, at),
                    tests=(*some, cut, *(substitute(x, at) for x in s.tests)))
    return first, terms


@dataclass(frozen=True, eq=False)
class Apart:
    """A product's statements, of atoms that are whole and of terms of the others, and what these have of registers and loops.

    beside   the loops over terms in one step of the sum, in which they stand beside the product
    behind   those that have the steps for themselves: what chooses registers is written out for each step, and terms need not be
    """

    stmts: tuple[TileStmt, ...]
    buffers: tuple[Buffer, ...] = ()
    beside: tuple[Band | str, ...] = ()
    behind: tuple[Band | str, ...] = ()


def apart(s: TileStmt, tests: Sequence[Affine], sides: tuple[SideCut, SideCut], step: Coord, terms: Expr,
          held: Load | None) -> Apart:
    """The product `s` by atoms that none of `tests` cuts, and the `terms` of the others one by one.

    sides   how rows and columns are cut; `step`: the side of an atom along the sum
    held    the left operand, where it is made of other results: each lane then has elements of its own, and hands a row's on

        { p'[i] = p[i, j] }  before  { o[i, v] += p'[i] * V[j, v] : j <= i }
    """
    down, across = sides
    atoms, term = (*down.atom, *across.atom), one_by_one(step)
    rows, row = (*down.rows, *across.rows), (*down.rows, *down.atom)
    if held is None:
        found = parted(s, tests, (*atoms, step), step, terms)
        order = (*down.rows, term, *across.rows, *atoms)  # what is asked of a row and a term is asked once for all columns
        return Apart(found, beside=tuple(band([c.name for c in order], x.name) for x in found[1:]))
    chosen = (*down.threads, *across.threads, *row)
    buffer = Buffer(f"{held.source}_{s.name}_row", held.dtype, tuple((affine(c.cap or 1), c.step) for c in chosen), Space.REG)
    to = Load(buffer.name, tuple(affine(c.name) for c in chosen), held.dtype)
    first, *cut = parted(s, tests, (*atoms, step), step, map_loads(terms, lambda x: to if x == held else x))
    operand = place(held, {step.name: affine(term.name)})
    before = [_handed(x, (*across.rows, *across.atom), (*atoms, term), to, operand) for x in cut]
    trees = (band([term.name], band([c.name for c in row], x.name), band([c.name for c in (*rows, *atoms)], y.name))
             for x, y in zip(before, cut, strict=True))
    return Apart((first, *cut, *before), (buffer,), behind=tuple(trees))


def _handed(x: TileStmt, columns: Sequence[Coord], inside: Sequence[Coord], to: Load, operand: Load) -> TileStmt:
    """What the terms `x` take of an operand for each row, whatever the `columns`.

    inside   the coordinates of an atom: lanes hand on what they have in any case, as no test may tell them apart
    """
    gone, named = {c.name for c in columns}, {c.name for c in inside}
    domain = x.domain
    for d in reversed([d for d, c in enumerate(x.coords) if c.name in gone]):
        domain = domain.project_out(isl.dim_type.set, d, 1)
    name, coords = f"{x.name}_row", tuple(c for c in x.coords if c.name not in gone)
    tests = tuple(t for t in x.tests if not names(t) & (gone | named))
    return TileStmt(name, coords, domain.set_tuple_name(name), None, (), to, None, operand, tests)


def one_by_one(step: Coord) -> Coord:
    """The coordinate that goes through the terms of an atom along `step`."""
    return Coord(f"{step.name.rpartition('_')[0]}_s", 1, step.cap)
