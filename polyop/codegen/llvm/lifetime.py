"""Which stores to register buffers must keep the old value where a row or lane does not exist.

If every loop that indexes a buffer has the same upper bound for as long as the buffer lives, a row or lane that does not
exist is never read, and may hold anything.
"""

from __future__ import annotations

from polyop.ir.expr import Affine, Load, expr_names, loads, names
from polyop.ir.loops import LOCKSTEP, For, If, LoopNest, Node, Space, Store, children, walk


def blended_stores(nest: LoopNest) -> frozenset[int]:
    """The ids of the Stores to register buffers that must keep what they do not reach."""
    out: set[int] = set()
    for b in nest.buffers:
        if b.space == Space.REG:
            _visit(nest.body, b.name, out)
    return frozenset(out)


def _touches(n: Node, name: str) -> bool:
    return any(name in (s.target.source, *(x.source for x in loads(s.expr))) for s in walk((n,)) if isinstance(s, Store))


def _visit(body: tuple[Node, ...], name: str, out: set[int]) -> None:
    users = [n for n in body if _touches(n, name)]
    if len(users) == 1 and isinstance(users[0], For):
        _visit(users[0].body, name, out)
    elif len(users) == 1 and isinstance(users[0], If):
        _visit(users[0].then, name, out)
        _visit(users[0].other, name, out)
    elif users and not _uniform(tuple(users), name):
        out |= {id(s) for n in users for s in walk((n,)) if isinstance(s, Store) and s.target.source == name}


def _uniform(region: tuple[Node, ...], name: str) -> bool:
    """Whether each dimension of the buffer is run through by loops with one bound, the same all the time."""
    bounds: dict[int, set[tuple[Affine, int | None]]] = {}
    varying: set[str] = set()

    def see(load: Load, around: dict[str, For]) -> None:
        for d, position in enumerate(load.index):
            for n in sorted(expr_names(Load(load.source, (position,), load.dtype))):
                if n in around:
                    bounds.setdefault(d, set()).add((around[n].upper, around[n].extent))

    def go(body: tuple[Node, ...], around: dict[str, For]) -> None:
        for n in body:
            if isinstance(n, Store):
                for load in (n.target, *loads(n.expr)):
                    if load.source == name:
                        see(load, around)
            elif isinstance(n, For):
                if n.kind not in LOCKSTEP:
                    varying.add(n.index)
                go(n.body, {**around, n.index: n} if n.kind in LOCKSTEP else around)
            else:
                go(children(n), around)

    go(region, {})
    uppers = [u for seen in bounds.values() for u, _ in seen]
    return all(len(seen) == 1 for seen in bounds.values()) and not any(names(u) & varying for u in uppers)
