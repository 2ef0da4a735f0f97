"""That between threads of one block that meet in memory there is a barrier, and that what they copied has arrived there.

Two accesses of one memory by two threads, one of which writes, need a barrier between them. A copy that arrives later also
needs it between itself and its own thread, and one that waits long enough: the first barrier behind the copy closes its group,
and each one closes a group, so a barrier that leaves p groups on their way has waited for the copy if it is at least the
(p + 1)-th. How many barriers are passed at least is read off the text (`paths.py`), as a sum over both places; isl shows that
no accesses meet that pass too few:

    { (first, second) : one element, the same blocks, first before second, other threads, barriers between < needed }  is empty

A barrier that is `handed` from copies to other accesses, or back, stands between these alone. Where blocks are persistent, two
of any blocks may be one after the other: then the barriers from the first access to the end of its block's text, and
from the beginning of the text to the second one, are all there is between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import islpy as isl

from polyop.ir.expr import Affine, affine, names
from polyop.ir.loops import For, Kind, Space
from polyop.poly.verify.accesses import Accesses
from polyop.poly.verify.conflicts import Touch
from polyop.poly.verify.frame import IN, OUT
from polyop.poly.verify.paths import Counted, Passed, Paths
from polyop.poly.verify.sites import Site
from polyop.poly.verify.threads import DIGITS, chain


@dataclass(frozen=True, eq=False)
class Unordered:
    """Two accesses of one element by two threads of a block without a barrier between them: `pairs` { first -> second }."""

    first: Touch
    second: Touch
    pairs: isl.Map


def unordered(a: Accesses, touches: Sequence[Touch]) -> Unordered | None:
    """The first such accesses. Kernels end where a loop over blocks does, so nothing meets beyond."""
    together = {_kernel(t.site) for t in touches if chain(t.site)}  # elsewhere each point of the blocks has one thread
    memory = [t for t in touches if a.buffers[t.load.source].space != Space.REG and _kernel(t.site) in together]
    paths = Paths(a.nest)
    for first in memory:
        for second in memory:
            if (first.writes or second.writes) and a.memory(first.load.source) == a.memory(second.load.source):
                for pairs in _orders(paths, first, second):
                    bad = _apart(a, first, second, pairs)
                    if not bad.is_empty():
                        return Unordered(first, second, bad)
    return None


def _kernel(s: Site) -> int | None:
    """The innermost loop over blocks around `s`."""
    return next((x.key for x in reversed(s.around) if x.loop.kind == Kind.PARALLEL), None)


def _orders(paths: Paths, first: Touch, second: Touch) -> Iterator[isl.Map]:
    """{ first -> second } of one element in one iteration of the loops over blocks, in order, with too few barriers between."""
    f, s = first.site, second.site
    both = _shared(f, s)
    blocks = [i for i in range(both) if f.around[i].loop.kind == Kind.PARALLEL]
    own = [x for t in (f, s) for i, x in enumerate(t.around) if x.loop.kind == Kind.PARALLEL and i >= both]
    if own:
        return  # of two kernels
    nests = [i for i, x in enumerate(f.around[:both]) if x.loop.kind in DIGITS]
    both = nests[0] if nests else both  # what is in one nest of threads at one time is for the claim that threads do not meet
    start = blocks[-1] + 1 if blocks else 0
    # most accesses have barriers enough between them whatever the elements are, and isl need not be asked who meets
    ways = [(level, _between(paths, first, second, f.around[level].key)) for level in range(start, both)]
    ways += [(both, _between(paths, first, second, None))] if not nests and f.number < s.number else []
    beyond = _between(paths, first, second, f.around[start - 1].key) if blocks and f.around[start - 1].loop.persistent else None
    if beyond is None and all(enough is None for _, enough in ways):
        return
    pairs = first.place.apply_range(second.place.reverse())
    if beyond is not None:
        yield _elsewhere(pairs, start, blocks).subtract(beyond)
    for i in range(start):
        pairs = pairs.equate(IN, i, OUT, i)
    for level, enough in ways:
        if enough is not None:
            yield (pairs.order_lt(IN, level, OUT, level) if level < both else pairs).subtract(enough)
        if level < both:
            pairs = pairs.equate(IN, level, OUT, level)


def _elsewhere(pairs: isl.Map, start: int, blocks: Sequence[int]) -> isl.Map:
    """The part of `pairs` of two blocks, in any order: { first -> second : some coordinate of blocks differs }

    Of one launch: what else stands around blocks, before the dimension `start`, is a loop of the host.
    """
    found = isl.Map.empty(pairs.get_space())
    for i in (i for i in range(start) if i not in blocks):
        pairs = pairs.equate(IN, i, OUT, i)
    for i in blocks:
        found = found.union(pairs.order_lt(IN, i, OUT, i)).union(pairs.order_gt(IN, i, OUT, i))
        pairs = pairs.equate(IN, i, OUT, i)
    return found


def _between(paths: Paths, first: Touch, second: Touch, key: int | None) -> isl.Map | None:
    """{ first -> second } between which there are enough barriers; None if there always are. `key`: as in `Paths.between`.

    One is enough, unless the first of the two is a copy: then p + 1 of those that leave p groups at most, for some p. Reads that
    last take two, while the loop around them goes on.
    """
    is_copy = first.writes and first.site.store.later
    found = isl.Map.empty(first.frame.space.map_from_domain_and_range(second.frame.space))
    handed = is_copy or (second.writes and second.site.store.later)
    for pending in paths.pending if is_copy else paths.pending[-1:]:
        passed = paths.between(first.site, second.site, key, Counted(pending, handed))
        needed = pending + 1 if is_copy else 2 if _outlasts(first, second, key) else 1
        if passed is None or passed.least >= needed:
            return None
        if not (passed.first.is_constant and passed.second.is_constant):
            found = found.union(_enough(first, second, passed, needed))
    return found


def _outlasts(first: Touch, second: Touch, key: int | None) -> bool:
    """Whether `first` is a read that outlasts a barrier, and `second` comes while the serial loop around that goes on.

    Or one around that in which nothing else stands, and so on.
    """
    f, s = first.site, second.site
    if first.writes or not f.store.outlasts:
        return False
    outside = next((i for i, x in enumerate(f.around) if x.loop.kind in DIGITS), len(f.around))
    turns, inner = set[int](), None
    for x in reversed(f.around[:outside]):
        if x.loop.kind != Kind.SERIAL or (inner and (len(x.loop.body) > 1 or x.loop.body[0] is not inner)):
            break
        turns.add(x.key)
        inner = x.loop
    return key in turns if key is not None else any(x.key in turns for x in s.around)


def _enough(first: Touch, second: Touch, passed: Passed, needed: int) -> isl.Map:
    """{ first -> second : at least `needed` barriers between }"""
    of_first, of_second = first.frame.function("passed", [passed.first]), second.frame.function("passed", [passed.second])
    enough = isl.Map(f"{{ passed[x] -> passed[y] : x + y >= {needed} }}")
    return of_first.apply_range(enough).apply_range(of_second.reverse())


def _shared(f: Site, s: Site) -> int:
    """How many loops are around both."""
    n = 0
    while n < min(len(f.around), len(s.around)) and f.around[n].key == s.around[n].key:
        n += 1
    return n


def _apart(a: Accesses, first: Touch, second: Touch, pairs: isl.Map) -> isl.Map:
    """The part of `pairs` in which two threads take part; what copies is nobody's, since who does it is left open."""
    if any(t.writes and t.site.store.later for t in (first, second)):
        return pairs
    mine, other = _number(a, first.site), _number(a, second.site)
    if mine is None or other is None:
        return pairs
    one = first.frame.function("thread", [mine]).apply_range(second.frame.function("thread", [other]).reverse())
    return pairs.subtract(one)


def _number(a: Accesses, s: Site) -> Affine | None:
    """The number of the thread that carries out `s`, over its coordinates; None if several do."""
    loops = chain(s)
    if a.buffers[s.store.target.source].space == Space.REG and not _covers(a, loops):
        return None
    if any(f.kind == Kind.ATOM for f in loops) or (s.store.reduce is not None and not _is_own(s)):
        return None  # a fold: all threads take part
    return sum((affine(f.index) * f.weight for f in loops), Affine())


def _is_own(s: Site) -> bool:
    """Whether the target of `s` is another one for each thread."""
    used = frozenset[str]().union(*(names(p) for p in s.store.target.index if isinstance(p, Affine)))
    return all(f.index in used for f in chain(s))


def _covers(a: Accesses, loops: Sequence[For]) -> bool:
    """Whether `loops` have all digits that threads of the nest have."""
    most = max((f.weight * (f.extent or 1) for s in a.sites for f in chain(s)), default=1)
    total = 1
    for f in loops:
        total *= f.extent or 1
    return total == most
