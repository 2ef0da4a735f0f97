"""Who wrote what is read: for each read the last assigning store before it, in the order of the nest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import islpy as isl

from polyop.ir.expr import Affine, affine
from polyop.poly.verify.accesses import Accesses, Read
from polyop.poly.verify.digits import Limits, Radices, digits, limits, radices
from polyop.poly.verify.frame import IN, OUT, Frame
from polyop.poly.verify.sites import Site

Time = tuple[str | int, ...]
"""Places in bodies and loops, outermost first: see `Site.time`."""


@dataclass(frozen=True, eq=False)
class Flow:
    """base { R -> N }: the execution that began what the read finds; unset { R -> element }: none did."""

    base: dict[str, isl.UnionMap]
    unset: dict[str, isl.Map]


def flow(a: Accesses) -> Flow:
    """The flow of `a`, memory by memory.

    Only assignments begin something; a reduction adds to what its target holds, so it is no source here.
    """
    base: dict[str, isl.UnionMap] = {}
    unset: dict[str, isl.Map] = {}
    known = {s.name: limits(s) for s in a.sites}
    by_memory: dict[str, list[Read]] = {}
    for r in a.reads:
        by_memory.setdefault(a.memory(r.load.source), []).append(r)
    for memory, reads in by_memory.items():
        sources = [s for s in a.writers(memory) if s.store.reduce is None]
        if not sources:
            base |= {r.frame.name: isl.UnionMap.empty(a.context.get_space()) for r in reads}
            unset |= {r.frame.name: r.place for r in reads}
            continue
        found = _last(a, sources, reads, known)
        base |= found.base
        unset |= found.unset
    return Flow(base, unset)


def _last(a: Accesses, sources: Sequence[Site], reads: Sequence[Read], known: Mapping[str, Limits]) -> Flow:
    """The flow of one memory, into which `sources` assign."""
    columns = zip(*([(x, known[s.name]) for x in a.index(s.frame, s, s.store.target)] for s in sources), strict=True)
    systems = tuple(map(radices, columns))
    writes = []
    for s in sources:
        name, life = a.life(s, s.store.target.source)
        at = _spread(a.index(s.frame, s, s.store.target), systems, known[s.name])
        writes.append(Write(s, s.frame.function(name, (*map(affine, life), *at)).intersect_domain(s.domain)))
    groups: dict[tuple[str, Time | None], list[Read]] = {}
    for r in reads:
        name, life = _life(a, r)
        groups.setdefault((name, None if r.site is None else _apart(r.site, sources, life)), []).append(r)
    found = Flow({}, {})
    for (name, when), group in groups.items():
        entry, ways = _entry(a, when, group, systems, known)
        base, unset = last_before(entry, [w for w in writes if w.place.get_tuple_name(OUT) == name])
        for r, way in zip(group, ways, strict=True):
            found.base[r.frame.name] = isl.UnionMap.from_map(way).apply_range(base)
            found.unset[r.frame.name] = r.place.intersect_domain(way.intersect_range(unset).domain())
    return found


def _spread(index: Sequence[Affine], systems: Sequence[Radices], known: Limits) -> list[Affine]:
    """The digits of each position of `index`."""
    return [y for x, system in zip(index, systems, strict=True) for y in digits(x, system, known)]


def _life(a: Accesses, r: Read) -> tuple[str, tuple[str, ...]]:
    return (a.memory(r.load.source), ()) if r.site is None else a.life(r.site, r.load.source)


def _apart(site: Site, sources: Sequence[Site], life: Sequence[str]) -> Time:
    """The shortest beginning of the time of `site` that has all of `life` in it and no source shares."""
    for n in range(len(site.time)):
        start = site.time[:n]
        if set(life) <= set(start) and all(s.time[:n] != start for s in sources):
            return start
    return site.time


# --- entries ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Entry:
    """The beginning of a part of the nest that assigns nothing in a memory.

    What is read there inside is what the memory holds here. So the last write is asked for once, however many reads there
    are, and in few coordinates.

    place   { E[the coordinates of the loops around, then the digits of a position] -> element }, at least for what is read
    time    as of a site, up to here; None for the caller, who comes last
    """

    place: isl.Map
    time: Time | None


@dataclass(frozen=True, eq=False)
class Write:
    """An assigning site and { N -> element }, the position in digits."""

    site: Site
    place: isl.Map


def _entry(a: Accesses, when: Time | None, group: Sequence[Read], systems: Sequence[Radices],
           known: Mapping[str, Limits]) -> tuple[Entry, list[isl.Map]]:
    """The entry of the part in which all of `group` are, and { R -> E } for each."""
    loops = tuple(t for t in when or () if isinstance(t, str))
    places = [[f"digit {n} of {d}" for n in reversed(range(len(system)))] for d, system in enumerate(systems)]
    frame = Frame("E", a.nest.sizes, (*loops, *(y for p in places for y in p)))
    ways = []
    for r in group:
        index, limit = (list(map(affine, r.frame.dims)), {}) if r.site is None else \
            (a.index(r.frame, r.site, r.load), known[r.site.name])
        way = r.frame.function(frame.name, (*map(affine, loops), *_spread(index, systems, limit)))
        ways.append(way.intersect_domain(r.place.domain()))
    # more than is read does no harm, but what was never written costs time
    domain = reduce(isl.Set.union, [w.range().remove_divs() for w in ways]).coalesce()
    if domain.n_basic_set() > 1:
        domain = domain.simple_hull().to_set()
    tests = []
    for p, system in zip(places, systems, strict=True):
        for y, (low, high) in zip(map(affine, p[:0:-1]), pairwise(system), strict=True):
            tests += [y, affine(high // low - 1) - y]
    name, life = _life(a, group[0])
    place = frame.function(name, [affine(x) for x in (*life, *(y for p in places for y in p))])
    return Entry(place.intersect_domain(frame.where(tests, domain)), when), ways


def last_before(e: Entry, writes: Sequence[Write]) -> tuple[isl.UnionMap, isl.Set]:
    """{ E -> N }: the last of `writes` into the element before the entry; and { E } that have none.

    Writes are tried in stages, later ones first: those that agree with the entry in more loops come later.
    """
    rest = e.place.domain()
    out = isl.UnionMap.empty(rest.get_space().params())
    stages: dict[tuple[int, int], list[tuple[Site, isl.Map]]] = {}
    for w in writes:
        for key, m in _before(e, w):
            stages.setdefault(key, []).append((w.site, m))
    for _, found in sorted(stages.items(), key=lambda x: x[0], reverse=True):
        here = [(s, m) for s, m in ((s, m.intersect_domain(rest)) for s, m in found) if not m.is_empty()]
        for m in _latest([(s, _last_of_each(m)) for s, m in here]):
            out = out.union(isl.UnionMap.from_map(m))
        for _, m in here:
            rest = rest.subtract(m.domain())
        if here and rest.is_empty():
            break
    return out, rest


def _last_of_each(m: isl.Map) -> isl.Map:
    """The last execution that `m` gives an entry, which is all of `m` where it gives each of them one.

    To ask whether it does takes a fiftieth of `lexmax`, which gives many pieces besides:

        { E[i, j] -> N[p, q, r] : i = 32 p + 16 q + r and 0 <= q <= 1 and 0 <= r <= 15 }
    """
    return m if m.is_single_valued() else m.lexmax()


def _latest(found: list[tuple[Site, isl.Map]]) -> list[isl.Map]:
    """The part of each of the functions { E -> N } where none of the others gives a later execution."""
    out = [m for _, m in found]
    for j, (second, _) in enumerate(found):
        for i, (first, _) in enumerate(found[:j]):
            if not out[i].domain().is_disjoint(out[j].domain()):
                both = out[i].range_product(out[j])           # { E -> [N -> N'] }
                pairs = both.range().unwrap()
                late = not_before(first, second, pairs)
                out[i], out[j] = (out[i].subtract_domain(both.intersect_range(pairs.subtract(late).wrap()).domain()),
                                  out[j].subtract_domain(both.intersect_range(late.wrap()).domain()))
    return out


def _before(e: Entry, w: Write) -> Iterator[tuple[tuple[int, int], isl.Map]]:
    """{ E -> N } of one element with N before E, in parts: where they part, and for each part a key that grows with time."""
    equal = e.place.apply_range(w.place.reverse())
    if e.time is None:
        first = w.site.time[:1]
        yield (0, first[0] if first and isinstance(first[0], int) else 0), equal
        return
    loop = 0
    for n, t in enumerate(w.site.time):
        if n == len(e.time):
            return
        here = e.time[n]
        if isinstance(t, int) and isinstance(here, int):
            if t != here:
                if t < here:
                    yield (n, t), equal
                return
        else:  # one loop
            yield (n, 0), equal.order_gt(IN, loop, OUT, loop)
            equal = equal.equate(IN, loop, OUT, loop)
            loop += 1


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
