"""Coordinates over threads that a condition fixes: every thread asks, and the one that it is about works.

    y[m] += x[m, i]  where i < 2        over i = 1024 i_t + i_v + i_p, in steps of 4, has { i_v = 0 } alone

isl writes no loop for a coordinate with one value, and then nothing says which thread it is whose part of the sum that is.
Without what the condition says of it there is a loop, and the condition is a test in it. Where others that share the loop have
more values, isl writes the loop and the test, and the one value in place of the loop's; `generate.py` then puts that back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import islpy as isl

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import expr_names, loads
from polyop.ir.loops import Buffer, Kind, Space
from polyop.poly.generate.isl_ast import cases
from polyop.poly.sets import SET, P, conjunction, space_text
from polyop.poly.tiles import Coord, TileProgram, TileStmt


class LostError(Exception):
    """A statement needs loops over threads which isl left out."""

    def __init__(self, stmt: TileStmt, coords: tuple[Coord, ...]) -> None:
        super().__init__(f"{stmt.name} has one value of {', '.join(c.name for c in coords)}")
        self.stmt, self.coords = stmt, coords


def numbering(s: TileStmt, kinds: Mapping[str, tuple[Kind, int | None]], buffers: Iterable[Buffer],
              which: tuple[Kind, ...] = (Kind.THREADS, Kind.ATOM)) -> tuple[Coord, ...]:
    """The coordinates of `s` over several threads, or along an atom of a matrix unit, that say whose registers it uses."""
    own = {b.name for b in buffers if b.space == Space.REG}
    used = frozenset[str]().union(*(expr_names(x) for x in (s.target, *loads(s.expr)) if x.source in own))
    over = {c for c, (kind, _) in kinds.items() if kind in which}
    return tuple(c for c in s.coords if c.name in over & used and c.cap != c.step)


def asked(p: TileProgram, lost: LostError, head: str) -> TileProgram:
    """`p` with all values of the lost coordinates, and tests for those that there were.

    Raises  UnsupportedError, if the tests are no conjunction.
    """
    s = lost.stmt
    dims = [c.name for c in s.coords]
    box = conjunction(f"0 <= {c.name} < {c.cap} and {c.name} mod {c.step} = 0" for c in lost.coords)
    free = s.domain
    for c in lost.coords:
        free = free.eliminate(SET, dims.index(c.name), 1)
    free = free.intersect(isl.Set(f"{head}{{ {space_text(s.name, dims)} : {box} }}"))
    test = s.domain.gist(free)
    first = test.dim(P)
    test = test.move_dims(P, first, SET, 0, len(dims))
    for i, name in enumerate(dims):
        test = test.set_dim_name(P, first + i, name)
    found = cases(isl.AstBuild.from_context(isl.Set(f"{head}{{ : }}")).expr_from_set(test.params()), {})
    if len(found) != 1:
        raise UnsupportedError(str(lost))
    new = replace(s, domain=free, tests=(*s.tests, *found[0]))
    return replace(p, stmts=tuple(new if x is s else x for x in p.stmts))
