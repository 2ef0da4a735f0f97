"""LoopNest -> LoopNest for kernels with matrix units: what is written to registers without asking whether anybody reads it.

    for p in [0, min(16, M - i)) (atom) { e[p] = f(s[p]) }   becomes   for p in [0, 16) (atom) { e[p] = f(s[p]) }

where every use of `e`, of all statements, stands under the same bound: then an element beyond it is nobody's, whatever it holds.
A use stands under `M - i - p > 0` if a loop around it says so, or one whose index starts at 0: { q < M - i - p } runs for no q
otherwise. What the bound speaks of must be the element's own place, and what a serial loop around changes: then the element
must be written anew in each turn before anything else uses it, so that no turn finds what another one left.

A sum is no exception: what is added to beyond the bounds is nobody's, too. What is read must be in registers, of which all may be
read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from polyop.codegen.nested import one_store
from polyop.ir.expr import Affine, Load, affine, bounds, loads, names
from polyop.ir.loops import For, If, Kind, LoopNest, Node, Space, Store, children, rebuild

_OWN = (Kind.THREADS, Kind.ROWS, Kind.ATOM)


@dataclass(frozen=True, slots=True)
class _Use:
    """A place of a register in the text: the loops around it, what they say (> 0), and whether it is assigned there."""

    load: Load
    loops: tuple[For, ...]
    known: frozenset[Affine]
    assigned: bool


def unasked(nest: LoopNest) -> LoopNest:
    """`nest` without bounds of loops over threads and tiles beyond which nobody reads what they write."""
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

    def full(n: Node, loops: tuple[For, ...]) -> Node:
        if not isinstance(n, For):
            return rebuild(n, lambda body: tuple(full(x, loops) for x in body))
        here = (*loops, n)
        new = rebuild(n, lambda body: tuple(full(x, here) for x in body))
        assert isinstance(new, For)
        inner, s = one_store(n.body, *_OWN)
        around = (*here, *inner)
        # of the elements of tiles that lanes hold: `n` is a side of one, or has such sides in it
        if s is None or n.is_full or n.kind not in _OWN or not any(f.kind == Kind.ATOM for f in (n, *inner)):
            return new
        if s.target.source not in registers or any(x.source not in registers for x in loads(s.expr)):
            return new
        conditions = [b - affine(n.index) for b in bounds(n.upper) if b != affine(n.end)]
        fixed = not loads(s.expr)
        plain = all(_is_own(c, s.target, around, uses[s.target.source], fixed) for c in conditions)
        return replace(new, upper=affine(n.end)) if plain else new

    return replace(nest, body=tuple(full(n, ()) for n in nest.body))


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

