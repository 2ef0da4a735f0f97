"""That calls may leave out what the first one has done: it depends on nothing that changes, and nothing else writes it.

Looks at the nest that is emitted, beside the one that does everything in every call; how one became the other it does not know.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from polyop.ir.expr import Affine, Load, Scalar, affine, expr_names, is_computed, names, walk
from polyop.ir.loops import FIRST, For, If, LoopNest, Node, Prefetch, Space, Store, children
from polyop.ir.module import Proof
from polyop.poly.verify.verdict import decided

CLAIM = "what the first call alone does depends on frozen inputs alone, and lasts"
TESTS = (affine(FIRST) - 1,)


def lasts(before: LoopNest, after: LoopNest, frozen: Collection[str]) -> Proof:
    """The claim that `after` does in all calls what `before` does, if the inputs `frozen` stay as they are."""
    return decided(CLAIM, lambda: next(_wrong(before, after, frozenset(frozen)), None))


def _wrong(before: LoopNest, after: LoopNest, frozen: frozenset[str]) -> Iterator[str]:
    """What is wrong with `after`, in words."""
    if after.sizes != (*before.sizes, FIRST) or FIRST in before.sizes or after.scalars != before.scalars:
        yield f"the arguments are {', '.join(after.sizes)}"
    body: list[Node] = []
    first: list[Node] = []
    rest: list[Node] = []
    for n in after.body:
        is_first = isinstance(n, If) and n.tests == TESTS and not n.other
        part = n.then if isinstance(n, If) and is_first else (n,)
        body += part
        (first if is_first else rest).extend(part)
    if tuple(body) != before.body:
        yield "other loops run than before"
    lasting = {b.name for b in after.buffers if b.lasting}
    sizes = {x for b in after.buffers if b.name in frozen for e, _ in b.dims for x in names(e)}
    for old, new in zip(before.buffers, after.buffers, strict=True):
        if (new.name, new.dims, new.dtype, new.space) != (old.name, old.dims, old.dtype, old.space):
            yield f"{new} was {old}"
        if new.lasting and (new.space != Space.WORK or new.private or {x for e, _ in new.dims for x in names(e)} - sizes):
            yield f"{new.name} is other memory in each call"
    registers = {b.name for b in after.buffers if b.space == Space.REG}
    for n in first:
        yield from _moves(n, frozenset(sizes), frozen | lasting | registers, lasting | registers)
    shared = _targets(first) & _targets(rest)
    if shared:
        yield f"{', '.join(sorted(shared))} is written in all calls"


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
