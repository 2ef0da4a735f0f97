"""That lanes which exchange values are all there, and all come to the place where they do.

Nests, and the proofs about them, know threads and no warps. Two things in a kernel are carried out by whole warps: a fold, which
hands values from lane to lane, and what a matrix unit does, whose tile the lanes hold together. So a block that folds has a whole
number of warps, and the loops over threads around a tile tell groups of lanes apart, never lanes of one group.
"""

from __future__ import annotations

from polyop.codegen.c import threads, units
from polyop.codegen.c.scope import Scope
from polyop.ir.errors import InternalError
from polyop.ir.loops import For, Kind, Node, Store, children, walk


def threads_of(body: tuple[Node, ...], scope: Scope) -> int:
    """How many threads a block of a kernel with this body has; 0 if its points have a thread each.

    A tile has all its lanes, where copies of small tiles need fewer.
    """
    held = (units.lanes((n,), scope) for n in walk(body) if isinstance(n, For) and n.kind == Kind.ATOM)
    return max(threads.threads_of(body), *held, 0)


def require_whole_warps(body: tuple[Node, ...], block: int, scope: Scope) -> None:
    """Raises InternalError, if some lanes of a group would not take part in what a kernel of `block` threads does together."""
    def go(nodes: tuple[Node, ...], loops: tuple[For, ...]) -> None:
        for n in nodes:
            match n:
                case For(kind=Kind.ATOM):
                    lanes = units.lanes((n,), scope)
                    if not block or block % lanes:
                        raise InternalError(f"warps: {block} threads are no whole groups of {lanes}, which hold a tile")
                    parted = next((f.index for f in loops if f.weight % lanes), None)
                    if parted:
                        raise InternalError(f"warps: loop {parted} parts the {lanes} lanes of one tile")
                case For(kind=Kind.THREADS):
                    go(n.body, (*loops, n))
                case Store() if n.stmt in scope.folds and block % scope.tiles.warp:
                    raise InternalError(f"warps: {block} threads fold, which are no whole number of warps of {scope.tiles.warp}")
                case _:
                    go(children(n), loops)

    go(body, ())
