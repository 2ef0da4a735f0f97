"""That the threads of one block do not disturb each other: digits, registers and barriers.

Threads are numbered. A loop over threads runs iteration i on those with the digit i, (number / weight) mod extent; loops
that nest have digits of their own. What stands under fewer digits than a block has is carried out by all threads that agree
in these, if it writes to registers, else by the one whose other digits are 0. A register that is indexed by the loops over
threads around it lies with the threads of that digit.

Two accesses of one memory by two threads, one of which writes, need a barrier between them. Which barriers lie between is
read off the text; where there is none, isl shows that no such accesses meet:

    { (first, second) : one element, the same blocks, first before second, other threads }  is empty
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import islpy as isl

from polyop.ir.expr import Affine, Load, affine, loads, names
from polyop.ir.loops import Barrier, For, If, Kind, LoopNest, Node, Space, Store, walk
from polyop.poly.verify.accesses import Accesses
from polyop.poly.verify.conflicts import Touch
from polyop.poly.verify.frame import IN, OUT
from polyop.poly.verify.scanned import is_step
from polyop.poly.verify.sites import Site

_DIGITS = (Kind.THREADS, Kind.ATOM)

Digit = tuple[int, int, int]
"""Weight, extent and step of a loop over threads."""


def digit(loop: For) -> Digit:
    """Of a side of a matrix unit's tile the weight is 0: the lane follows from both sides."""
    assert loop.extent is not None
    return loop.weight, loop.extent, loop.step


def chain(s: Site) -> tuple[For, ...]:
    """The loops over threads around `s`, and those over a matrix unit's tile."""
    return tuple(a.loop for a in s.around if a.loop.kind in _DIGITS)


# --- digits and registers -----------------------------------------------------------------------------------------------------


def misnumbered(nest: LoopNest) -> str | None:
    """The first loop over threads that does not number them: loops that nest do so directly, and share no digit."""
    for n in walk(nest.body):
        if not isinstance(n, For) or n.kind != Kind.THREADS:
            continue
        inside = [x for x in walk(n.body) if isinstance(x, For) and x.kind == Kind.THREADS]
        if inside and n.body != (inside[0],):
            return f"loop {n.index} has more in it than loop {inside[0].index} over threads"
        for x in inside:
            low, high = sorted((digit(n), digit(x)))
            if low[0] * low[1] > high[0] or high[0] % (low[0] * low[1]):
                return f"loops {n.index} and {x.index} number threads by the same digits"
    return None


def strayed(a: Accesses) -> str | None:
    """The first register that one thread writes and another reads as its own."""
    found: dict[str, tuple[dict[int, Digit], Load]] = {}
    uses = [(s, x, x is s.store.target) for s in a.sites for x in _registers(a, s)]
    for s, x, writes in uses:
        loops = {f.index: f for f in chain(s)}
        owners = {d: digit(loops[p.name]) for d, p in enumerate(x.index) if isinstance(p, Affine) and p.name in loops}
        mixed = [p for d, p in enumerate(x.index) if d not in owners and isinstance(p, Affine) and names(p) & loops.keys()]
        if mixed:
            return f"`{x}`: {mixed[0]} is no register of one thread"
        known, first = found.setdefault(x.source, (owners, x))
        if owners != known:
            return f"`{x}` and `{first}` lie with different threads"
        # a fold leaves its result with all threads, and so does a scan
        if writes and s.store.reduce is None and len(owners) < len(loops) and not is_step(a, s):
            return f"`{x}` is written for some of the loops over threads around it"
    return None


def crossed(a: Accesses) -> str | None:
    """The first memory that lanes exchange in one nest of threads, or that is used before a copy has arrived there.

    Which lane has an element of a matrix unit's tile is no sum of digits, so its stores are not followed lane by lane.
    """
    by_nest: dict[int, list[Site]] = {}
    for s in a.sites:
        keys = [x.key for x in s.around if x.loop.kind in _DIGITS]
        if keys:
            by_nest.setdefault(keys[0], []).append(s)
    for inside in by_nest.values():
        if not any(f.kind == Kind.ATOM for s in inside for f in chain(s)) and not any(s.store.later for s in inside):
            continue
        for s in inside:
            written = a.memory(s.store.target.source)
            # a store that reads just what it replaces does so on one lane
            others = [x for t in inside for x in (*loads(t.store.expr), *([t.store.target] if t is not s else []))
                      if t is not s or s.store.later or x.index != s.store.target.index]
            if a.buffers[s.store.target.source].space != Space.REG and any(a.memory(x.source) == written for x in others):
                return f"`{s.store.target}` is written and used again in one nest of threads, without a barrier between them"
    return None


def _registers(a: Accesses, s: Site) -> Iterator[Load]:
    for x in (s.store.target, *loads(s.store.expr)):
        if a.buffers[x.source].space == Space.REG:
            yield x


# --- barriers -------------------------------------------------------------------------------------------------------------------


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
    paths = _Paths(a.nest)
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


def _orders(paths: _Paths, first: Touch, second: Touch) -> Iterator[isl.Map]:
    """{ first -> second } of one element in one iteration of the loops over blocks, first before second, no barrier between."""
    f, s = first.site, second.site
    both = _shared(f, s)
    blocks = [i for i in range(both) if f.around[i].loop.kind == Kind.PARALLEL]
    own = [x for t in (f, s) for i, x in enumerate(t.around) if x.loop.kind == Kind.PARALLEL and i >= both]
    if own:
        return  # of two kernels
    nests = [i for i, x in enumerate(f.around[:both]) if x.loop.kind in _DIGITS]
    both = nests[0] if nests else both  # what is in one nest of threads at one time is for the claim that threads do not meet
    pairs = first.place.apply_range(second.place.reverse())
    start = blocks[-1] + 1 if blocks else 0
    for i in range(start):
        pairs = pairs.equate(IN, i, OUT, i)
    for level in range(start, both):
        loop = f.around[level]
        if not paths.between(f, s, loop.key):
            yield pairs.order_lt(IN, level, OUT, level)
        pairs = pairs.equate(IN, level, OUT, level)
    if not nests and f.number < s.number and not paths.between(f, s, None):
        yield pairs


def _shared(f: Site, s: Site) -> int:
    """How many loops are around both."""
    n = 0
    while n < min(len(f.around), len(s.around)) and f.around[n].key == s.around[n].key:
        n += 1
    return n


def _apart(a: Accesses, first: Touch, second: Touch, pairs: isl.Map) -> isl.Map:
    """The part of `pairs` in which two threads take part, or one that has not waited for what it copies."""
    if first.writes and first.site.store.later:
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


_Step = tuple[Node, tuple[Node, ...], int]
"""A node, the body that it stands in, and its place there."""


class _Paths:
    """Where each store stands in the text, and which barriers are passed on the way from one to another."""

    def __init__(self, nest: LoopNest) -> None:
        self.steps: list[tuple[_Step, ...]] = []  # the way to each store, outermost first
        self.keys: list[tuple[int | None, ...]] = []
        self.loops = 0
        self._walk(nest.body, (), ())

    def _walk(self, body: tuple[Node, ...], path: tuple[_Step, ...], keys: tuple[int | None, ...]) -> None:
        for place, n in enumerate(body):
            here = (*path, (n, body, place))
            match n:
                case For():
                    key = self.loops
                    self.loops += 1
                    self._walk(n.body, here, (*keys, key))
                case If():
                    self._walk(n.then, here, (*keys, None))
                    self._walk(n.other, here, (*keys, None))
                case Store():
                    self.steps.append(here)
                    self.keys.append((*keys, None))

    def between(self, f: Site, s: Site, key: int | None) -> bool:
        """Whether every way from `f` to `s` passes a barrier: in a later iteration of the loop `key`, or in the same of all."""
        one, two = self.steps[f.number], self.steps[s.number]
        if key is not None:
            inside = self.keys[f.number].index(key) + 1
            return _passed(one[inside:], two[inside:])
        depth = next((i for i, (x, y) in enumerate(zip(one, two, strict=False)) if x[1] is not y[1] or x[2] != y[2]), None)
        if depth is None or one[depth][1] is not two[depth][1]:
            return False
        body, i, j = one[depth][1], one[depth][2], two[depth][2]
        return any(isinstance(n, Barrier) or _is_boundary(n) for n in body[i + 1:j]) or _passed(one[depth + 1:], two[depth + 1:])


def _passed(first: Sequence[_Step], second: Sequence[_Step]) -> bool:
    """Whether there is a barrier behind the first of two places, or before the second one, in the bodies around each."""
    return any(isinstance(n, Barrier) for _, body, place in first for n in body[place + 1:]) \
        or any(isinstance(n, Barrier) for _, body, place in second for n in body[:place])


def _is_boundary(n: Node) -> bool:
    """Whether `n` is a kernel of its own, before and after which all threads are done."""
    return any(isinstance(x, For) and x.kind == Kind.PARALLEL for x in walk((n,)))

