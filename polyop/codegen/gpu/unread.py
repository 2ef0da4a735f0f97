"""LoopNest -> LoopNest for kernels with matrix units: what is written to registers without asking whether anybody reads it.

    for p in [0, min(16, M - i)) (atom) { e[p] = f(s[p]) }   becomes   for p in [0, 16) (atom) { e[p] = f(s[p]) }

where every use of `e`, of all statements, stands under the same bound: then an element beyond it is nobody's, whatever it holds.
A use stands under `M - i - p > 0` if a loop around it says so, or one whose index starts at 0: { q < M - i - p } runs for no q
otherwise. What the bound speaks of must be the element's own place, and what a serial loop around changes: then the element
must be written anew in each turn before anything else uses it, so that no turn finds what another one left.

A test of a condition, { j <= i }, is a bound of that kind. It goes by the same rule where all that is read goes on to registers:
what goes to memory is tested there, and compilers do what comes before behind that test, too. Bounds before it go in any case:
each atom of each step of a product would ask them.

A sum is no exception: what is added to beyond the bounds is nobody's, too. What is read must be in registers, of which all may be
read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from polyop.codegen.nested import nested
from polyop.ir.expr import Affine, Load, affine, bounds, loads, names
from polyop.ir.loops import For, If, Kind, LoopNest, Node, Space, Store, children, rebuild, stores

_OWN = (Kind.THREADS, Kind.ROWS, Kind.ATOM)


@dataclass(frozen=True, slots=True)
class _Use:
    """A place of a register in the text: the loops around it, what they say (> 0), and whether it is assigned there."""

    load: Load
    loops: tuple[For, ...]
    known: frozenset[Affine]
    assigned: bool


def unasked(nest: LoopNest) -> LoopNest:
    """`nest` without bounds of loops over threads and tiles, and tests in them, beyond which nobody reads what they write."""
    if not any(f.kind == Kind.ATOM for _, loops, _ in _stores(nest.body, (), frozenset()) for f in loops):
        return nest
    uses: dict[str, list[_Use]] = {}
    for s, loops, known in _stores(nest.body, (), frozenset()):
        if s.reduce is not None:
            uses.setdefault(s.target.source, []).append(_Use(s.target, loops, known, False))
        for x in loads(s.expr):
            uses.setdefault(x.source, []).append(_Use(x, loops, known, False))
        if s.reduce is None:
            uses.setdefault(s.target.source, []).append(_Use(s.target, loops, known, True))
    registers = {b.name for b in nest.buffers if b.space == Space.REG}
    inner = going_on(nest)

    def is_own(c: Affine, s: Store, around: tuple[For, ...]) -> bool:
        places = {x.source for x in (s.target, *loads(s.expr))}
        return places <= registers and _is_own(c, s.target, around, uses[s.target.source], not loads(s.expr))

    def full(n: Node, loops: tuple[For, ...]) -> tuple[Node, ...]:
        match n:
            case If(tests=tests, then=(Store() as s,), other=()) if s.target.source in inner and any(
                    f.kind == Kind.ATOM for f in loops):
                # what all lanes answer alike spares them the work
                sides = {f.index for f in loops if f.kind in (Kind.ROWS, Kind.ATOM)}
                rest = tuple(t for t in tests if not names(t) & sides or not is_own(t + 1, s, loops))
                return (replace(n, tests=rest),) if rest else (s,)
            case For():
                here = (*loops, n)
                new = replace(n, body=tuple(y for x in n.body for y in full(x, here)))
                inside, alone = _alone(n)
                # of the elements of tiles that lanes hold: `n` is a side of one, or has such sides in it
                if alone is None or n.is_full or n.kind not in _OWN or not any(f.kind == Kind.ATOM for f in (n, *inside)):
                    return (new,)
                conditions = [b - affine(n.index) for b in bounds(n.upper) if b != affine(n.end)]
                plain = all(is_own(c, alone, (*here, *inside)) for c in conditions)
                return (replace(new, upper=affine(n.end)),) if plain else (new,)
        return (rebuild(n, lambda body: tuple(y for x in body for y in full(x, loops))),)

    return replace(nest, body=tuple(y for n in nest.body for y in full(n, ())))


def going_on(nest: LoopNest) -> frozenset[str]:
    """The registers that are read to write registers, and for nothing else."""
    registers = {b.name for b in nest.buffers if b.space == Space.REG}
    read = {x.source for s in stores(nest.body) if s.target.source not in registers for x in loads(s.expr)}
    return frozenset(registers - read)


def _stores(body: Sequence[Node], loops: tuple[For, ...], known: frozenset[Affine]
            ) -> Iterator[tuple[Store, tuple[For, ...], frozenset[Affine]]]:
    """The stores of a body in text order, with the loops around them and what is > 0 there."""
    for n in body:
        match n:
            case Store():
                yield n, loops, known
            case For():
                said = {x for b in bounds(n.upper) for x in (b - affine(n.index), *([b] if n.lower == Affine() else []))}
                yield from _stores(n.body, (*loops, n), known | said)
            case If():
                yield from _stores(n.then, loops, known | {t + 1 for t in n.tests})
                yield from _stores(n.other, loops, known)
            case _:
                yield from _stores(children(n), loops, known)


def _alone(n: For) -> tuple[tuple[For, ...], Store | None]:
    """The loops in `n` and the one store in them, if that is all but tests."""
    loops, inside = nested(n.body, *_OWN)
    match inside:
        case (Store() as s,) | (If(then=(Store() as s,), other=()),):
            return loops, s
    return loops, None


def _is_own(c: Affine, x: Load, around: Sequence[For], uses: Sequence[_Use], fixed: bool) -> bool:
    """Whether all `uses` of a register are under `c` > 0, which speaks of the place of `x` and of loops around all of it.

    Of a `fixed` value, as a sum begins with, not of serial ones: behind such a test AMD's compiler leaves the sum's operands in
    shared memory until they are needed (on gfx1100 it spilled 160 bytes of them else).
    """
    kinds = {f.index: f for f in around}
    for name in names(c):
        loop = kinds.get(name)
        if loop is None or loop.kind == Kind.PARALLEL:  # a size, or a block of threads, whose registers these are
            continue
        if loop.kind == Kind.SERIAL:
            if fixed:
                return False
            inside = [u for u in uses if loop in u.loops]
            if len(inside) < len(uses) or not inside[0].assigned:
                return False
            continue
        place = [d for d, p in enumerate(x.index) if p == affine(name)]
        if not any(all(u.load.index[d] == affine(name) for u in uses) for d in place):
            return False
    return all(c in u.known for u in uses)
