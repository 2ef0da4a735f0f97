"""Tiles of results that lie inside as a whole, and as memory is moved at once: what to ask, once for all that a thread stores.

    for q, n (rows 2, 4) { C[m, n_c + 64 q + n] = .. }

    if (n_c + 64 + 3 is inside, and C and its strides are multiples of 16 bytes) { the loops without a test } else { as they are }
"""

from __future__ import annotations

from dataclasses import replace

from polyop.codegen import cresults, cwide
from polyop.codegen.cindex import below, condition
from polyop.codegen.cscope import Scope
from polyop.ir.expr import Affine, Quasi, affine, bounds, loads, names, substitute
from polyop.ir.loops import For, Kind, Node, Space, Store, rebuild


def test(inside: tuple[Node, ...], scope: Scope) -> str | None:
    """What is asked; None, where `inside` is not one store of neighbours in several loops over rows and sides of tiles."""
    loops, s = _chain(inside)
    if s is None or len(loops) < 2 or s.reduce is not None or s.later or scope.buffers[s.target.source].space == Space.REG:
        return None
    if any(not isinstance(p, Affine) for x in (s.target, *loads(s.expr)) for p in x.index):
        return None
    atoms = tuple(f for f in loops if f.kind == Kind.ATOM)
    rows = cresults.rows_of(atoms, s, scope) if atoms else (loops[-1], scope)
    found = cwide.moved(*rows) if rows else None
    if not rows or not found or not found[1]:
        return None
    lies = [cwide.all_lie_well(x, *rows) for x in (*found[0], found[1])]
    inner = [_least(below(f, b), loops) for f in loops for b in bounds(f.upper) if b != affine(f.end)]
    if None in lies or None in inner:
        return None
    ends: dict[Affine, int] = {}  # of two that differ by a constant one never counts
    for x in inner:
        if x is not None:
            ends[x - x.const] = min(x.const, ends.get(x - x.const, x.const))
    tests = [condition(terms + c, scope.names) for terms, c in ends.items()] + [t for x in lies for t in x or ()]
    return " && ".join(dict.fromkeys(tests))


def full(inside: tuple[Node, ...]) -> tuple[Node, ...]:
    """The loops without bounds."""
    return tuple(replace(new, upper=affine(new.end)) if isinstance(new := rebuild(n, full), For) else new for n in inside)


def _chain(inside: tuple[Node, ...]) -> tuple[tuple[For, ...], Store | None]:
    """The loops that stand directly in one another, and the one store in them, if that is all."""
    loops: list[For] = []
    while len(inside) == 1 and isinstance(n := inside[0], For) and n.kind in (Kind.ROWS, Kind.ATOM):
        loops.append(n)
        inside = n.body
    return tuple(loops), inside[0] if len(inside) == 1 and isinstance(inside[0], Store) else None


def _least(x: Affine, loops: tuple[For, ...]) -> Affine | None:
    """The least that `x` is in full loops; None, if that is not plain to see."""
    mine = {f.index: f for f in loops}
    if any(isinstance(a, Quasi) and names(affine(a)) & mine.keys() for a, _ in x.terms):
        return None
    return substitute(x, {i: affine(f.end - f.step if x.factor(i) < 0 else 0) for i, f in mine.items()})
