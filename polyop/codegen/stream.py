"""Marking stores whose values nobody in the nest reads again: where the output is large they bypass the caches.

Whether it is large, and whether an address is aligned for it, is known only in the call; the emitted code looks.
"""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.expr import Affine, loads
from polyop.ir.loops import For, Kind, LoopNest, Node, Space, Store, rebuild, stores
from polyop.ir.target import LINE


def stream_outputs(nest: LoopNest) -> LoopNest:
    """`nest` with `stream` set on plain vector stores into tensors that it only writes, each element by one statement."""
    every = stores(nest.body)
    places = [p for s in every for p in s.target.index if not isinstance(p, Affine)]
    read = {x.source for e in (*(s.expr for s in every), *places) for x in loads(e)}
    read |= {s.target.source for s in every if s.reduce is not None}
    tensors = {b.name for b in nest.buffers if b.space == Space.TENSOR} - read

    def go(body: tuple[Node, ...], in_lanes: bool) -> tuple[Node, ...]:
        return tuple(one(n, in_lanes) for n in body)

    def one(n: Node, in_lanes: bool) -> Node:
        if isinstance(n, Store):
            return replace(n, stream=True) if in_lanes and n.target.source in tensors else n
        return rebuild(n, lambda body: go(body, in_lanes or (isinstance(n, For) and n.kind == Kind.LANES and not _is_short(n))))

    return replace(nest, body=go(nest.body, False))


def _is_short(n: For) -> bool:
    """Whether lanes `n` are known to be fewer than a line of 4-byte elements has: to ask takes longer than to write them."""
    trips = n.upper - n.lower
    return trips.is_constant and trips.const * 4 < LINE
