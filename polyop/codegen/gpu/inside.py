"""Tiles of which all lies inside: what is to be asked for that, and their loops without a question."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from polyop.ir.expr import Affine, Quasi, affine, bounds, names, quasi, substitute
from polyop.ir.loops import For, If, Node, rebuild


def below(f: For, bound: Affine) -> Affine:
    """What is at least 0 where the index of `f` is below `bound`: x + d r - d (i + 1), if that is x div d + r."""
    match [t for t in bound.terms if isinstance(t[0], Quasi)]:
        case [(Quasi(op="div", args=(x, Affine(terms=(), const=d))) as found, 1)]:
            return x - (affine(f.index) + 1 - (bound - affine(found))) * d
    return bound - affine(f.index) - 1


def least(x: Affine, loops: Sequence[For]) -> Affine | None:
    """What `x` never falls below in full `loops`, which is the least but for maxima; None, if that is not plain to see."""
    mine = {f.index: f for f in loops}
    parts = bounds(x, "max")
    if len(parts) > 1:
        found = [least(y, loops) for y in parts]
        return quasi("max", *(y for y in found if y is not None)) if None not in found else None
    if any(isinstance(a, Quasi) and names(affine(a)) & mine.keys() for a, _ in x.terms):
        return None
    return substitute(x, {i: affine(f.end - f.step if x.factor(i) < 0 else 0) for i, f in mine.items()})


def untested(inside: tuple[Node, ...]) -> tuple[Node, ...]:
    """The loops without tests."""
    return tuple(y for n in inside for y in (untested(n.then) if isinstance(n, If) else (rebuild(n, untested),)))


def full(inside: tuple[Node, ...], apart: Container[str] = ()) -> tuple[Node, ...]:
    """The loops without bounds, but for those `apart`."""
    def one(n: Node) -> Node:
        new = rebuild(n, lambda body: full(body, apart))
        return replace(new, upper=affine(new.end)) if isinstance(new, For) and new.index not in apart else new

    return tuple(map(one, inside))
