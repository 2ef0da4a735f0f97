"""Loops that stand directly in one another."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from polyop.ir.expr import Affine, Const, affine, bounds
from polyop.ir.loops import For, If, Kind, Node, Store


def nested(body: tuple[Node, ...], *kinds: Kind) -> tuple[tuple[For, ...], tuple[Node, ...]]:
    """The loops of these kinds of which each is all that the one around it has, from the outermost in, and what is inside."""
    loops: list[For] = []
    while len(body) == 1 and isinstance(n := body[0], For) and n.kind in kinds:
        loops.append(n)
        body = n.body
    return tuple(loops), body


def one_store(body: tuple[Node, ...], *kinds: Kind) -> tuple[tuple[For, ...], Store | None]:
    """Such loops, and the store in them, if that is all."""
    loops, inside = nested(body, *kinds)
    return loops, inside[0] if len(inside) == 1 and isinstance(inside[0], Store) else None


@dataclass(frozen=True, slots=True)
class Tile:
    """Loops over rows and sides of a tile in one another, what is asked there and by their bounds (>= 0), and the one store."""

    loops: tuple[For, ...]
    tests: frozenset[Affine]
    store: Store

    @property
    def is_zero(self) -> bool:
        """Whether it writes 0, and not -0, wherever it writes."""
        return self.store.reduce is None and isinstance(self.store.expr, Const) and str(self.store.expr.value) in ("0", "0.0")


def tile(n: Node, kinds: Container[Kind] = (Kind.ROWS, Kind.ATOM)) -> Tile | None:
    """`n`, if it is one, of loops of these kinds."""
    loops: list[For] = []
    tests = set[Affine]()
    while not isinstance(n, Store):
        match n:
            case For(kind=kind, body=(inner,)) if kind in kinds and n.lower == Affine():
                loops.append(n)
                tests |= asked(n)
            case If(then=(inner,), other=()):
                tests |= {*n.tests}
            case _:
                return None
        n = inner
    return Tile(tuple(loops), frozenset(tests), n)


def asked(n: For) -> set[Affine]:
    """What the bounds of a loop ask of its index, beside numbers."""
    return {b - affine(n.index) - 1 for b in bounds(n.upper) if not b.is_constant}
