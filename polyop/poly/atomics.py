"""LoopNest -> LoopNest: updates that several threads may make to one element at once are marked to be indivisible.

    for m in [0, M) (parallel) { Y[at[m]] += X[m] }        another m may have the same place

Over-cautious, since a mark costs time only: what is not marked, the checker proves not to meet.
"""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.expr import Affine, names
from polyop.ir.loops import COUNTED, For, Kind, LoopNest, Node, Space, Store, rebuild, walk


def with_atomics(nest: LoopNest) -> LoopNest:
    """`nest`, in which each reduction is marked whose target some parallel loop around does not choose."""
    counted = {n.index for n in walk(nest.body) if isinstance(n, For) and n.kind in COUNTED}
    own = {b.name for b in nest.buffers if b.space in (Space.REG, Space.SHARED) or b.private}

    def go(body: tuple[Node, ...], parallel: frozenset[str]) -> tuple[Node, ...]:
        return tuple(one(n, parallel) for n in body)

    def one(n: Node, parallel: frozenset[str]) -> Node:
        if isinstance(n, For) and n.kind == Kind.PARALLEL:
            parallel |= {n.index}
        if not isinstance(n, Store):
            return rebuild(n, lambda body: go(body, parallel))
        chosen = {i for p in n.target.index if isinstance(p, Affine) and len(names(p) - counted) == 1 for i in names(p)}
        return replace(n, atomic=True) if n.reduce and n.target.source not in own and parallel - chosen else n

    return replace(nest, body=go(nest.body, frozenset()))
