"""Loops that stand directly in one another."""

from __future__ import annotations

from polyop.ir.loops import For, Kind, Node, Store


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
