"""LoopNest -> LoopNest for kernels with matrix units: operands are fetched behind the test that their products stand behind.

    for v (rows 16) { b[v] = V_s[..] }  if t { for v (rows 16) { c[v] += a * b[v] } }   becomes
    if t { for v (rows 16) { b[v] = V_s[..] }  for v (rows 16) { c[v] += a * b[v] } }

A compiler keeps all 16 tiles in registers where a branch stands between them and their products; in one block it fetches each
where it is used. And where a condition leaves out the products, nobody fetches.

What is fetched must have no other reader, and each turn must fetch all of it: its place depends on no loop around, and no bound
or test leaves some out. Then nothing that is read is left from a turn whose test failed. All lanes of a warp give one answer to
what is asked about whole tiles, so units that fetch for a warp may stand behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from polyop.ir.expr import Affine, Load, loads, names
from polyop.ir.loops import For, If, Kind, LoopNest, Node, Space, Store, placed, rebuild, stores, walk


def sunk(nest: LoopNest) -> LoopNest:
    """`nest`, with operands fetched behind the tests of their products."""
    registers = {b.name for b in nest.buffers if b.space == Space.REG}
    readers = _readers(nest.body)

    def go(body: tuple[Node, ...]) -> tuple[Node, ...]:
        out: list[Node] = []
        for n in reversed(body):
            n = rebuild(n, go)
            test = out[0] if out else None
            if isinstance(test, If) and not test.other and _is_for(test.then, n):
                out[0] = replace(test, then=go((n, *test.then)))
            else:
                out.insert(0, n)
        return tuple(out)

    def _is_for(products: tuple[Node, ...], n: Node) -> bool:
        fetched = _fetched(n)
        mine, theirs = {x.source for x in fetched}, _readers(products)
        if not fetched or not mine <= registers or any(readers[x] != theirs[x] or not theirs[x] for x in mine):
            return False
        return all(loops for _, loops in placed(products, Kind.ATOM)) and _stay(products, mine)

    return replace(nest, body=go(nest.body))


def _readers(body: tuple[Node, ...]) -> Counter[str]:
    """How often each buffer is read, or added to, in the text."""
    return Counter(x.source for s in stores(body) for x in (*loads(s.expr), *([s.target] if s.reduce is not None else [])))


def _fetched(n: Node) -> tuple[Load, ...]:
    """What a loop over whole tiles fills in every turn, each at its own place; () if it does anything else."""
    inside = tuple(walk((n,)))
    if not all(isinstance(x, Store) or (isinstance(x, For) and x.kind in (Kind.ROWS, Kind.ATOM) and x.is_full) for x in inside):
        return ()
    if any(s.reduce is not None or s.later or s.atomic or not loops for s, loops in placed((n,), Kind.ATOM)):
        return ()
    found = tuple(s.target for s in stores((n,)))
    return found if _stay((n,), {x.source for x in found}) else ()


def _stay(body: tuple[Node, ...], sources: set[str]) -> bool:
    """Whether the places of `sources` in `body` depend on loops in it alone."""
    here = {x.index for x in walk(body) if isinstance(x, For)}
    used: Sequence[Load] = [x for s in stores(body) for x in (s.target, *loads(s.expr)) if x.source in sources]
    return all(isinstance(p, Affine) and names(p) <= here for x in used for p in x.index)
