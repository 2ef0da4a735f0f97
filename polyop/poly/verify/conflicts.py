"""That loops whose iterations run at once, on threads or in lock step, do not meet in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import islpy as isl

from polyop.ir.expr import Affine, Load, names
from polyop.ir.loops import COUNTED, For, Kind, Space
from polyop.poly.verify.accesses import Accesses
from polyop.poly.verify.frame import IN, OUT, Frame
from polyop.poly.verify.same import computed, loads_with_paths
from polyop.poly.verify.scanned import is_scanned
from polyop.poly.verify.sites import Site


@dataclass(frozen=True, eq=False)
class Touch:
    """One place that a site reads or writes; `fold` if it is the target of a reduction."""

    site: Site
    load: Load
    writes: bool
    fold: bool
    frame: Frame
    place: isl.Map


@dataclass(frozen=True, eq=False)
class Conflict:
    """Two iterations of `loop` that meet: `pairs` { first -> second }, in the frames of the touches."""

    loop: For
    first: Touch
    second: Touch
    pairs: isl.Map


def touches(a: Accesses) -> tuple[Touch, ...]:
    """Every place that is read or written, whatever life it belongs to: { frame -> memory[position] }."""
    found: list[Touch] = []
    for s in a.sites:
        read = [x for e in (s.store.expr, *computed(s.store.target)) for x in loads_with_paths(e)]
        for n, (load, path) in enumerate([(s.store.target, ()), *read]):
            frame, domain = a.framed(f"T{s.number}_{n}", s, load)
            domain = frame.where(map(s.at, load.guard), a.along(path, s, frame, domain))
            place = a.position(frame, s, load).intersect_domain(domain)
            found.append(Touch(s, load, n == 0, n == 0 and s.store.reduce is not None, frame, place))
    return tuple(found)


def concurrent(a: Accesses) -> tuple[tuple[int, For], ...]:
    """The loops, by key, whose iterations run at once."""
    found = {x.key: x.loop for s in a.sites for x in s.around if x.loop.kind != Kind.SERIAL}
    return tuple(sorted(found.items()))


def conflict(a: Accesses, all_touches: tuple[Touch, ...], key: int, loop: For) -> Conflict | None:
    """Two iterations of `loop`, in one iteration of all around it, that meet in memory; one of them writes.

    Threads have registers and private work space of their own. In lock step, or if each of its updates is indivisible, one
    reduction may meet itself: it is then a fold, whose order is free. Threads of a block may scan, too: see `scanned.py`.
    """
    lockstep = loop.kind in COUNTED  # threads of a block may fold as well, and share what is the block's own
    inside = [t for t in all_touches if key in t.site.keys]
    if not lockstep:
        own = (Space.REG, Space.SHARED)
        inside = [t for t in inside if a.buffers[t.load.source].space not in own and not a.buffers[t.load.source].private]
    for first, second in _meetings(a, inside):
        if (lockstep or first.site.store.atomic) and first.fold and second is first:
            continue
        if loop.kind == Kind.THREADS and is_scanned(a, first.site, second.site):
            continue
        depth = next(i for i, x in enumerate(first.site.around) if x.key == key)
        same = _same_turn(first.site, depth)
        if _told_apart(first, second, depth, same):
            continue
        pairs = first.place.apply_range(second.place.reverse())
        for i in same:
            pairs = pairs.equate(IN, i, OUT, i)
        for bad in (pairs.order_lt(IN, depth, OUT, depth), pairs.order_gt(IN, depth, OUT, depth)):
            if not bad.is_empty():
                return Conflict(loop, first, second, bad)
    return None


def _meetings(a: Accesses, inside: list[Touch]) -> Iterator[tuple[Touch, Touch]]:
    """Pairs of touches of one memory, the first of which writes."""
    for i, first in enumerate(inside):
        if first.writes:
            for j, second in enumerate(inside):
                if a.memory(first.load.source) == a.memory(second.load.source) and not (second.writes and j < i):
                    yield first, second


def _same_turn(site: Site, depth: int) -> tuple[int, ...]:
    """The loops around the one at `depth` that are in one iteration for all threads that share it.

    If that is parallel, not the serial ones inside another parallel loop: each thread goes through those on its own, with
    its part of the iterations of both.
    """
    if site.around[depth].loop.kind != Kind.PARALLEL:
        return tuple(range(depth))
    first = site.parallel[0]
    return tuple(i for i in range(depth) if i < first or site.around[i].loop.kind == Kind.PARALLEL)


def _told_apart(first: Touch, second: Touch, depth: int, same: tuple[int, ...]) -> bool:
    """Whether one position is the same expression of both, and depends on the loop at `depth` and those at `same` alone."""
    around = [x.loop.index for x in first.site.around]
    free = {x.loop.index for t in (first, second) for i, x in enumerate(t.site.around) if i != depth and i not in same}
    lane = around[depth]
    for p, q in zip(first.load.index, second.load.index, strict=True):
        if isinstance(p, Affine) and isinstance(q, Affine) and p.factor(lane):
            rest = Affine(tuple(t for t in p.terms if t[0] != lane), p.const)
            other = Affine(tuple(t for t in q.terms if t[0] != lane), q.const)
            if rest == other and p.factor(lane) == q.factor(lane) and not names(rest) & (free | {lane}):
                return True
    return False
