"""That calls may leave out what the first one has done: it depends on nothing that changes, and nothing else writes it.

Looks at the nest that is emitted, beside the one that does everything in every call; how one became the other it does not know.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from polyop.ir.expr import Affine, Load, Scalar, affine, expr_names, is_computed, names, walk
from polyop.ir.loops import IS_FIRST, For, If, IfData, LoopNest, Node, Prefetch, Space, Store, children
from polyop.ir.module import Proof
from polyop.poly.verify.verdict import decided

CLAIM = "what the first call alone does depends on frozen inputs alone, and lasts"
TESTS = (affine(IS_FIRST) - 1,)


def lasts(before: LoopNest, after: LoopNest, frozen: Collection[str]) -> Proof:
    """The claim that `after` does in all calls what `before` does, if the inputs `frozen` stay as they are."""
    return decided(CLAIM, lambda: next(_wrong(before, after, frozenset(frozen)), None))


def _wrong(before: LoopNest, after: LoopNest, frozen: frozenset[str]) -> Iterator[str]:
    """What is wrong with `after`, in words."""
    if after.sizes != (*before.sizes, IS_FIRST) or IS_FIRST in before.sizes or after.scalars != before.scalars:
        yield f"the arguments are {', '.join(after.sizes)}"
    if after.in_place != before.in_place or tuple(replace(b, lasting=False) for b in after.buffers) != before.buffers:
        yield "other memory is used than before"
    parts = [(n.then, True) if isinstance(n, If) and n.tests == TESTS and not n.other else ((n,), False) for n in after.body]
    if tuple(n for part, _ in parts for n in part) != before.body:
        yield "other loops run than before"
    sizes = _determined([e for b in after.buffers if b.name in frozen for e, _ in b.dims])
    for b in after.buffers:
        if b.lasting and (b.space != Space.WORK or b.private or {x for e, _ in b.dims for x in names(e)} - sizes):
            yield f"{b.name} is other memory in each call"
    lasting = {b.name for b in after.buffers if b.lasting}
    passing = {b.name for b in after.buffers if b.space in (Space.WORK, Space.REG)} - lasting
    for n in (n for part, is_first in parts if is_first for n in part):
        yield from _moves(n, sizes, frozen | lasting | passing, lasting | passing)
    rest = [n for part, is_first in parts if not is_first for n in part]
    first = _targets([n for part, is_first in parts if is_first for n in part])
    if first & _targets(rest):
        yield f"{', '.join(sorted(first & _targets(rest)))} is written in all calls"
    if first & passing & _sources(rest):
        yield f"{', '.join(sorted(first & passing & _sources(rest)))} is read in all calls, and does not last"
    later = set[str]()
    for part, is_first in reversed(parts):
        if is_first:
            later |= _targets([*part])
        elif later & _sources([*part]):
            yield f"{', '.join(sorted(later & _sources([*part])))} is read before the first call writes it again"


def _determined(extents: list[Affine]) -> frozenset[str]:
    """The names whose values follow from those of `extents`, one after the other: n of k n + d, where nothing else is open."""
    known = frozenset[str]()
    for _ in extents:
        for e in extents:
            alone = [(a, k) for a, k in e.terms if not (isinstance(a, str) and a in known)]
            if len(alone) == 1 and isinstance(alone[0][0], str) and alone[0][1]:
                known |= {alone[0][0]}
    return known


def _moves(n: Node, known: frozenset[str], sources: frozenset[str], targets: Collection[str]) -> Iterator[str]:
    """What in `n` depends on anything but the sizes or indices `known` and the buffers `sources`, or writes other memory."""
    match n:
        case For():
            yield from _beyond((n.lower, n.upper), known)
            known |= {n.index}
        case If():
            yield from _beyond(n.tests, known)
        case Store():
            trees = [*walk(n.target), *walk(n.expr)]
            read = {x.source for x in trees[1:] if isinstance(x, Load)}
            if n.target.source not in targets or not read <= sources:
                yield f"{n.target} = {n.expr} reads or writes what is not frozen"
            if any(isinstance(x, Scalar) or (isinstance(x, Load) and any(map(is_computed, x.index))) for x in trees):
                yield f"{n.target} = {n.expr} depends on data"
            if not expr_names(n.target) | expr_names(n.expr) <= known:
                yield f"{n.target} = {n.expr} depends on other sizes"
        case Prefetch():
            return
        case _:
            yield f"there is a {type(n).__name__}"
    for x in children(n):
        yield from _moves(x, known, sources, targets)


def _beyond(bounds: tuple[Affine, ...], known: frozenset[str]) -> Iterator[str]:
    other = frozenset[str]().union(*map(names, bounds)) - known
    if other:
        yield f"{', '.join(sorted(other))} decides about it"


def _targets(body: list[Node]) -> set[str]:
    return {n.target.source for n in body if isinstance(n, Store)} | {s for n in body for s in _targets([*children(n)])}


def _sources(body: list[Node]) -> set[str]:
    found = set[str]()
    for n in body:
        if isinstance(n, Store):
            trees = [*([n.target] if n.reduce else []), *[*walk(n.target)][1:], *walk(n.expr)]
        else:
            trees = [*walk(n.test)] if isinstance(n, IfData) else []
        found |= {x.source for x in trees if isinstance(x, Load)} | _sources([*children(n)])
    return found
