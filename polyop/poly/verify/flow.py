"""Who wrote what is read: for each read the last assigning store before it, in the order of the nest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import islpy as isl

from polyop.ir.expr import Affine, affine
from polyop.poly.verify.accesses import Accesses, Read
from polyop.poly.verify.frame import IN, OUT, Frame
from polyop.poly.verify.sites import Site


@dataclass(frozen=True, eq=False)
class Flow:
    """base { R -> N }: the execution that began what the read finds; unset { R -> element }: none did."""

    base: dict[str, isl.UnionMap]
    unset: dict[str, isl.Map]


def flow(a: Accesses) -> Flow:
    """The flow of `a`, memory by memory.

    Only assignments begin something; a reduction adds to what its target holds, so it is no source here.
    """
    space = a.context.get_space()
    base = {r.frame.name: isl.UnionMap.empty(space) for r in a.reads}
    unset: dict[str, isl.Map] = {}
    by_memory: dict[str, list[Read]] = {}
    for r in a.reads:
        by_memory.setdefault(a.memory(r.load.source), []).append(r)
    depth = 1 + max((len(s.time) for s in a.sites), default=0)
    for memory, reads in by_memory.items():
        sources = [s for s in a.writers(memory) if s.store.reduce is None]
        if not sources:
            unset |= {r.frame.name: r.place for r in reads}
            continue
        writes = union(space, [a.element(s.frame, s, s.store.target).intersect_domain(s.domain) for s in sources])
        order = union(space, [time(s, s.frame, depth).intersect_domain(s.domain) for s in sources]
                       + [time(r.site, r.frame, depth).intersect_domain(r.place.domain()) for r in reads])
        info = isl.UnionAccessInfo.from_sink(union(space, [r.place for r in reads]))
        found = info.set_must_source(writes).set_schedule_map(order).compute_flow()
        for m in maps(found.get_must_dependence()):
            reader = m.get_tuple_name(OUT)
            base[reader] = base[reader].union(isl.UnionMap.from_map(m.reverse()))
        for m in maps(found.get_must_no_source()):
            unset[m.get_tuple_name(IN)] = m
    return Flow(base, unset)


def time(site: Site | None, frame: Frame, depth: int) -> isl.Map:
    """{ frame -> [time] }; the caller (no site) comes last."""
    at: list[Affine] = [affine(1)] if site is None else [affine(0), *map(affine, site.time)]
    return frame.function("", (*at, *[Affine()] * (depth - len(at)))).reset_tuple_id(OUT)


def not_before(first: Site, second: Site, pairs: isl.Map) -> isl.Map:
    """The part of `pairs` { first -> second } where the first does not run before the second.

    Both spaces begin with the coordinates of the sites. Outermost first, the loops around both decide; then the text.
    """
    bad, equal = isl.Map.empty(pairs.get_space()), pairs
    for i in range(shared_loops(first, second)):
        bad = bad.union(equal.order_gt(IN, i, OUT, i))
        equal = equal.equate(IN, i, OUT, i)
    return bad if first.number < second.number else bad.union(equal)


def shared_loops(a: Site, b: Site) -> int:
    """How many loops are around both."""
    both = zip(a.around, b.around, strict=False)
    return next((i for i, (x, y) in enumerate(both) if x.key != y.key), min(len(a.around), len(b.around)))


def union(space: isl.Space, parts: Sequence[isl.Map]) -> isl.UnionMap:
    out = isl.UnionMap.empty(space)
    for m in parts:
        out = out.union(isl.UnionMap.from_map(m))
    return out


def maps(m: isl.UnionMap) -> list[isl.Map]:
    found = m.get_map_list()
    return [found.get_at(i) for i in range(found.n_map())]
