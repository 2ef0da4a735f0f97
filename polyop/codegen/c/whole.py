"""Tiles that lie inside as a whole, and as memory is moved at once: what to ask, once for all that a thread stores, or fetches.

    for q, n (rows 2, 4) { C[m, n_c + 64 q + n] = .. }

    if (n_c + 64 + 3 is inside, and C and its strides are multiples of 16 bytes) { the loops without a test } else { as they are }

What lanes hold of a unit's results are neighbours along one side of a tile alone, so what lies outside along the other one, as
pixels beyond the end of a line, is left out one by one: `if (m is inside) { .. }`, and the tile counts as a whole one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from polyop.codegen.c import copy as ccopy
from polyop.codegen.c import pairs as cpairs
from polyop.codegen.c import results, wide
from polyop.codegen.c.index import condition, index
from polyop.codegen.c.scope import Scope
from polyop.codegen.gpu.inside import below, full, least, untested
from polyop.codegen.nested import one_store
from polyop.ir.expr import Affine, Load, affine, bounds, loads, names
from polyop.ir.loops import For, If, Kind, Node, Space, Store, rebuild


def copy(inside: tuple[Node, ...], scope: Scope) -> tuple[str, tuple[Node, ...]] | None:
    """What is asked, and `inside` as it is where that is so; None, where nothing is, or there is no tile of neighbours."""
    tests = _of_results(inside, scope)
    if tests:
        return _said(tests), full(inside, _left_out(inside, scope))
    if found := elements(inside, scope):
        return found
    loops, s = chain(inside)
    tests = (_of_sums(loops, s, scope) or _of_terms(loops, s, scope)) if s else None
    if tests:
        return _said(tests), full(inside)
    tests = (_of_fetched(loops, s, scope) or _of_copied(loops, s, scope)) if s else None
    return (_said(tests), _unguarded(inside)) if tests else None


def elements(inside: tuple[Node, ...], scope: Scope) -> tuple[str, tuple[Node, ...]] | None:
    """The same of elements that lanes hold and become others in registers."""
    tests = _of_elements(inside, scope)
    return (_said(tests), full(untested(inside))) if tests else None


def _said(tests: list[str]) -> str:
    return " && ".join(dict.fromkeys(tests))


def _of_fetched(loops: tuple[For, ...], s: Store, scope: Scope) -> list[str] | None:
    """What is asked before neighbours in several loops go to registers."""
    if len(loops) < 2 or not isinstance(s.expr, Load) or not ccopy.is_taken(loops[-1], scope):
        return None
    lies = wide.all_lie_well((s.expr,), loops[-1], scope)
    return None if lies is None else _least_of(s.expr.guard, loops, lies, scope)


def _of_copied(loops: tuple[For, ...], s: Store, scope: Scope) -> list[str] | None:
    """What is asked before several copies that go on by themselves, where each would ask for itself and none is an engine's."""
    if not s.later or not loops or not isinstance(s.expr, Load) or s.stmt in scope.copies or s.stmt in scope.boxes:
        return None
    (last,) = _unguarded((loops[-1],))
    at_once = isinstance(last, For) and ccopy.run(last, scope) is not None  # which neighbours may be that no test parts then
    lies = wide.all_lie_well((s.expr,), loops[-1], scope) if at_once else [] if ccopy.one(s, scope) else None
    several = prod(f.extent or 0 for f in (loops[:-1] if at_once else loops)) > 1
    return _least_of(s.expr.guard, loops, lies, scope) if lies is not None and several else None


def _of_sums(loops: tuple[For, ...], s: Store, scope: Scope) -> list[str] | None:
    """What is asked before several rows of neighbours are added up in registers: all of them are on their way at once then."""
    if len(loops) < 2 or s.reduce is None or scope.buffers[s.target.source].space != Space.REG:
        return None
    found = wide.moved(loops[-1], scope) if all(f.kind == Kind.ROWS for f in loops) else None
    lies = [wide.all_lie_well(x, loops[-1], scope) for x in found[0]] if found else []
    if not lies or None in lies:
        return None
    ends = [below(f, b) for f in loops for b in bounds(f.upper) if b != affine(f.end)]
    return _least_of(ends, loops, [t for x in lies for t in x or ()], scope)


def _of_terms(loops: tuple[For, ...], s: Store, scope: Scope) -> list[str] | None:
    """What is asked before a register takes terms of several rows, which are no neighbours: all are on their way at once then.

    Behind a test each, a term is waited for before the next one is asked for.
    """
    if not loops or any(f.kind != Kind.ROWS for f in loops) or scope.buffers[s.target.source].space != Space.REG:
        return None
    far = any(scope.buffers[x.source].space in (Space.TENSOR, Space.WORK) for x in loads(s.expr))
    if not far or wide.moved(loops[-1], scope):
        return None
    ends = [below(f, b) for f in loops for b in bounds(f.upper) if b != affine(f.end)]
    return _least_of(ends, loops, [], scope) if ends else None


def _unguarded(inside: tuple[Node, ...]) -> tuple[Node, ...]:
    """The loops with reads that ask nothing."""
    def one(n: Node) -> Node:
        if isinstance(n, Store) and isinstance(n.expr, Load):
            return replace(n, expr=replace(n.expr, guard=()))
        return rebuild(n, _unguarded)
    return tuple(map(one, inside))


def _of_results(inside: tuple[Node, ...], scope: Scope) -> list[str] | None:
    """What is asked; None, where `inside` is not one store of neighbours in several loops over rows and sides of tiles."""
    loops, s = chain(inside)
    if s is None or len(loops) < 2 or s.reduce is not None or s.later or scope.buffers[s.target.source].space == Space.REG:
        return None
    if any(not isinstance(p, Affine) for x in (s.target, *loads(s.expr)) for p in x.index):
        return None
    atoms = tuple(f for f in loops if f.kind == Kind.ATOM)
    rows = results.rows_of(atoms, s, scope) if atoms else (loops[-1], scope)
    found = wide.moved(*rows) if rows else None
    if not rows or not found or not found[1]:
        return None
    pairs = cpairs.found(loops, s, scope)
    lies = [wide.all_lie_well(x, *rows) for x in (found[0] if pairs else (*found[0], *found[1]))]
    if pairs:
        lies.append(wide.all_lie_well(*cpairs.wide(pairs, scope)))
    if None in lies:
        return None
    apart = _left_out(inside, scope)
    ends = [below(f, b) for f in loops if f.index not in apart for b in bounds(f.upper) if b != affine(f.end)]
    return _least_of(ends, loops, [t for x in lies for t in x or ()], scope)


def by_twos(inside: tuple[Node, ...], scope: Scope) -> tuple[str, tuple[Node, ...]] | None:
    """What is asked before results of 16 bits of several lines are stored by two neighbours, and `inside` as it is then.

    Lines of 14 pixels have no 4 neighbours at multiples of 4. Of two none lies outside alone where the line's end is even, and
    whether both do is asked for each.
    """
    loops, s = chain(inside)
    atoms = tuple(f for f in loops if f.kind == Kind.ATOM)
    pairs = cpairs.found(loops, s, scope) if s and atoms else None
    rows = results.rows_of(atoms, s, scope) if s and pairs else None
    found = wide.moved(*rows) if rows else None
    if not pairs or not rows or not found or found[0] or not found[1] or pairs.tiles or len(pairs.held.column) < 2:
        return None
    lies = [wide.all_lie_well(x, *rows) for x in found[1]]
    others = [below(f, b) for f in loops if f.kind != Kind.ATOM for b in bounds(f.upper) if b != affine(f.end)]
    tests = _least_of(others, loops, [t for x in lies for t in x or ()], scope) if None not in lies else None
    if tests is None:
        return None
    ends = [b for f in atoms if f.index == pairs.along for b in bounds(f.upper) if b != affine(f.end)]
    tests += [f"({index(b, scope.names).c}) % {rows[0].extent} == 0" for b in ends]
    return _said(tests), full(inside, frozenset(f.index for f in atoms))


def _left_out(inside: tuple[Node, ...], scope: Scope) -> frozenset[str]:
    """The sides of a unit's tile of results of which an element that lies outside is left out for itself: those that do not count
    neighbours in memory.
    """
    loops, s = chain(inside)
    unit = scope.buffers[s.target.source].dense if s else None
    last = s.target.index[unit] if s and unit is not None else None
    return frozenset(f.index for f in loops if f.kind == Kind.ATOM and isinstance(last, Affine) and f.index not in names(last))


def _of_elements(inside: tuple[Node, ...], scope: Scope) -> list[str] | None:
    """What is asked before elements that lanes hold become others, not all of which there are, or see what a condition names."""
    loops, tests, s = _asked(inside)
    held = scope.tiles.held.get(s.target.source) if s else None
    if s is None or held is None or held.fragment is not held.atom.c_map or s.stmt in scope.tiles.products or not loads(s.expr):
        return None
    if any(scope.buffers[x.source].space != Space.REG for x in loads(s.expr)):
        return None
    ends = [*(below(f, b) for f in loops for b in bounds(f.upper) if b != affine(f.end)), *tests]
    return _least_of(ends, loops, [], scope) if ends else None


def _asked(inside: tuple[Node, ...]) -> tuple[tuple[For, ...], tuple[Affine, ...], Store | None]:
    """The loops over rows and sides of tiles in one another, what is asked in them, and the one store, if that is all."""
    loops, tests = list[For](), list[Affine]()
    while len(inside) == 1:
        match inside[0]:
            case For(kind=Kind.ROWS | Kind.ATOM) as n:
                loops.append(n)
                inside = n.body
            case If(other=()) as n:
                tests += n.tests
                inside = n.then
            case Store() as s:
                return tuple(loops), tuple(tests), s
            case _:
                break
    return (), (), None


def _least_of(ends: Iterable[Affine], loops: tuple[For, ...], also: list[str], scope: Scope) -> list[str] | None:
    """The tests that none of `ends` is negative in full loops, and what is asked `also`; None, if that is not plain to see."""
    inner = [least(x, loops) for x in ends]
    if None in inner:
        return None
    lowest: dict[Affine, int] = {}  # of two that differ by a constant one never counts
    for x in inner:
        if x is not None:
            lowest[x - x.const] = min(x.const, lowest.get(x - x.const, x.const))
    return [condition(terms + c, scope.names) for terms, c in lowest.items()] + also


def chain(inside: tuple[Node, ...]) -> tuple[tuple[For, ...], Store | None]:
    """The loops over rows and sides of tiles that stand directly in one another, and the one store in them, if that is all."""
    return one_store(inside, Kind.ROWS, Kind.ATOM)
