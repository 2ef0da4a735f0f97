"""Marking stores whose values nobody in the nest reads again: where the output is large they bypass the caches.

Whether it is large, and whether an address is aligned for it, is known only in the call; the emitted code looks.
"""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.expr import Affine, Load, expr_names, loads, names
from polyop.ir.loops import For, Kind, LoopNest, Node, Space, Store, children, rebuild, stores
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


def written_as_read(body: tuple[Node, ...], nest: LoopNest) -> frozenset[str]:
    """The tensors whose vectors are made of such as lie in the same order, and of what is the same for all lanes.

    Others, turned round or transposed, or made by registers, come to memory in an order of their own, and the caches help little.
    """
    found: dict[str, bool] = {}

    def go(nodes: tuple[Node, ...], lane: str) -> None:
        for n in nodes:
            if isinstance(n, Store) and nest.buffer(n.target.source).space == Space.TENSOR:
                alike = bool(lane) and _lies_along(nest, n.target, lane) and all(
                    _lies_along(nest, x, lane) and _in_order(x, n.target) for x in loads(n.expr))
                found[n.target.source] = alike and found.get(n.target.source, True)
            go(children(n), n.index if isinstance(n, For) and n.kind == Kind.LANES else lane)

    go(body, "")
    return frozenset(t for t, alike in found.items() if alike)


def _lies_along(nest: LoopNest, x: Load, lane: str) -> bool:
    """Whether `x` is the same for all lanes, or they lie side by side in a tensor."""
    b = nest.buffer(x.source)
    along = [(d, p) for d, p in enumerate(x.index) if lane in (names(p) if isinstance(p, Affine) else expr_names(p))]
    if not along:
        return True
    d, p = along[0]
    return len(along) == 1 and isinstance(p, Affine) and p.factor(lane) == 1 and d == b.dense and b.space == Space.TENSOR


def _in_order(x: Load, target: Load) -> bool:
    """Whether the iterators of `x` come in the order in which those of `target` do."""
    at, own = ([names(p) if isinstance(p, Affine) else frozenset[str]() for p in y.index] for y in (target, x))
    known = [next(d for d, q in enumerate(at) if p & q) for p in own if any(p & q for q in at)]
    return known == sorted(known)


def _is_short(n: For) -> bool:
    """Whether lanes `n` are known to be fewer than a line of 4-byte elements has: to ask takes longer than to write them."""
    trips = n.upper - n.lower
    return trips.is_constant and trips.const * 4 < LINE
