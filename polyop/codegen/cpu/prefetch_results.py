"""What the last pass over a row writes is asked for while the pass before it computes.

    for r { for c { for v (lanes) { sum += exp(X[r, c + v] - top) } }                       becomes
            for c { for v (lanes) { Y[r, c + v] = X[r, c + v] - top - log(sum) } } }

    for r { for c { for v (lanes) { prefetch Y[r, c + v]; sum += exp(X[r, c + v] - top) } }
            for c { for v (lanes) { Y[r, c + v] = X[r, c + v] - top - log(sum) } } }

A line that is written is read first. The row is read from a near cache then, so writing waits for memory, which had nothing to
do while powers were computed. A result that bypasses the caches is not asked for (`Prefetch.written`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from polyop.ir.expr import Load, expr_names
from polyop.ir.loops import For, Kind, LoopNest, Node, Prefetch, Space, Store, rebuild, stores, walk
from polyop.ir.scalars import computes

Body = tuple[Node, ...]
Path = tuple[For, ...]
"""Loops inside each other, outermost first."""


def ask_for_results(nest: LoopNest) -> LoopNest:
    """`nest` with prefetches of results in the lanes of the pass before the one that writes them."""
    registers = {b.name for b in nest.buffers if b.space == Space.REG}

    def go(body: Body) -> Body:
        wanted = _wanted(body, registers)
        return tuple(_asking(n, wanted) if wanted else rebuild(n, go) for n in body)

    return replace(nest, body=go(nest.body))


def asked_for(body: Body) -> frozenset[str]:
    """The results that are, a pass early; not what a tile asks for when it is opened (`prefetch_tiles.py`)."""
    tiles = {x for n in walk(body) if isinstance(n, For) and n.kind == Kind.ROWS for x in walk(n.body) if isinstance(x, Prefetch)}
    return frozenset(x.place.source for x in walk(body) if isinstance(x, Prefetch) and x.written and x not in tiles)


def _wanted(body: Body, registers: set[str]) -> dict[str, Load]:
    """Statement that computes functions -> what its lanes ask for: what a later one of `body` writes side by side."""
    passes: dict[str, list[Path]] = {}
    found: dict[str, Load] = {}
    for n in body:
        for path in _lanes(n):
            (s, *others) = stores(path[-1].body)
            if others:
                continue
            if s.target.source in registers and computes(s.expr):
                passes.setdefault(s.stmt, []).append(path)
            elif s.stream and s.target not in found.values():
                along = (p for p, paths in reversed(passes.items()) if any(_goes_along(x, path, s.target) for x in paths))
                before = next(along, None)
                if before and before not in found:
                    found[before] = s.target
    return found


def _lanes(n: Node, around: Path = ()) -> Iterator[Path]:
    """The lanes loops in `n` that hold stores alone, with the loops around each."""
    if isinstance(n, For):
        path = (*around, n)
        if n.kind != Kind.LANES:
            for x in n.body:
                yield from _lanes(x, path)
        elif any(isinstance(x, Store) for x in n.body) and not any(isinstance(x, For) for x in n.body):
            yield path


def _goes_along(one: Path, other: Path, target: Load) -> bool:
    """Whether the lanes of both go along a row in the same steps, and those of `one` know where `target` is."""
    return [(f.index, f.step, f.extent) for f in one] == [(f.index, f.step, f.extent) for f in other] and (
        one[-1].index in expr_names(target))


def _asking(n: Node, wanted: Mapping[str, Load]) -> Node:
    """`n` with what is wanted of its statements."""
    if not isinstance(n, For):
        return n
    if n.kind != Kind.LANES:
        return replace(n, body=tuple(_asking(x, wanted) for x in n.body))
    found = {wanted[s.stmt] for s in stores(n.body) if s.stmt in wanted}
    return replace(n, body=(*(Prefetch(x, written=True) for x in sorted(found, key=str)), *n.body))
