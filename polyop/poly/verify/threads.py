"""That the threads of one block have digits and registers of their own, and do not exchange anything in one nest.

Threads are numbered. A loop over threads runs iteration i on those with the digit i, (number / weight) mod extent; loops
that nest have digits of their own. What stands under fewer digits than a block has is carried out by all threads that agree
in these, if it writes to registers, else by the one whose other digits are 0. A register that is indexed by the loops over
threads around it lies with the threads of that digit.
What threads exchange from one nest to the next is the matter of `barriers.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import dropwhile

from polyop.ir.expr import Affine, Load, loads, names
from polyop.ir.loops import For, Kind, LoopNest, Space, walk
from polyop.poly.verify.accesses import Accesses
from polyop.poly.verify.scanned import is_step
from polyop.poly.verify.sites import Site

DIGITS = (Kind.THREADS, Kind.ATOM)

Digit = tuple[int, int, int]
"""Weight, extent and step of a loop over threads."""


def digit(loop: For) -> Digit:
    """Of a side of a matrix unit's tile the weight is 0: the lane follows from both sides."""
    assert loop.extent is not None
    return loop.weight, loop.extent, loop.step


def chain(s: Site) -> tuple[For, ...]:
    """The loops over threads around `s`, and those over a matrix unit's tile."""
    return tuple(a.loop for a in s.around if a.loop.kind in DIGITS)


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
    """The first register that one thread writes and another reads as its own.

    Which lane of a warp has an element of a matrix unit's tile is no digit: of the lanes the printer asks (`codegen/c/lanes.py`).
    """
    found: dict[str, tuple[dict[int, Digit], Load]] = {}
    uses = [(s, x, x is s.store.target) for s in a.sites for x in _registers(a, s)]
    for s, x, writes in uses:
        loops = {f.index: f for f in chain(s) if f.kind == Kind.THREADS}
        owners = {d: digit(loops[p.name]) for d, p in enumerate(x.index) if isinstance(p, Affine) and p.name in loops}
        mixed = [p for d, p in enumerate(x.index) if d not in owners and isinstance(p, Affine) and names(p) & loops.keys()]
        if mixed:
            return f"`{x}`: {mixed[0]} is no register of one thread"
        known, first = found.setdefault(x.source, (owners, x))
        if owners != known:
            return f"`{x}` and `{first}` lie with different threads"
        # a fold leaves its result with all threads, and so does a scan
        used = {n for p in x.index if isinstance(p, Affine) for n in names(p)}
        if writes and s.store.reduce is None and any(f.index not in used for f in chain(s)) and not is_step(a, s):
            return f"`{x}` is written for some of the loops over threads around it"
    return None


def crossed(a: Accesses) -> str | None:
    """The first memory that lanes exchange in one nest of threads, or that is used before a copy has arrived there.

    Which lane has an element of a matrix unit's tile is no sum of digits, so its stores are not followed lane by lane.
    """
    by_nest: dict[int, list[Site]] = {}
    for s in a.sites:
        keys = [x.key for x in s.around if x.loop.kind in DIGITS]
        if keys:
            by_nest.setdefault(keys[0], []).append(s)
    for inside in by_nest.values():
        if not any(f.kind == Kind.ATOM for s in inside for f in chain(s)) and not any(s.store.later for s in inside):
            continue
        for s in inside:
            written = a.memory(s.store.target.source)
            # a store that reads just what it replaces does so on one lane
            others = [x for t in inside for x in (*loads(t.store.expr), *([t.store.target] if t is not s else []))
                      if s.store.later or not (_is_apart(x, s) or (t is s and x.index == s.store.target.index))]
            if a.buffers[s.store.target.source].space != Space.REG and any(a.memory(x.source) == written for x in others):
                return f"`{s.store.target}` is written and used again in one nest of threads, without a barrier between them"
    return None


def _is_apart(x: Load, s: Site) -> bool:
    """Whether `x` is another element than `s` writes, whoever has it: so many further along what all threads share.

        { H[t, b, j] } written, { H[t - 1, b, j] } read, in a turn of a loop over t around the nest
    """
    inside = {a.loop.index for a in dropwhile(lambda a: a.loop.kind not in DIGITS, s.around)}
    target = s.store.target
    pairs = ((p, q) for p, q in zip(x.index, target.index, strict=True) if isinstance(p, Affine) and isinstance(q, Affine)) \
        if x.source == target.source else ()
    return any((p - q).is_constant and p != q and not names(p) & inside for p, q in pairs)


def _registers(a: Accesses, s: Site) -> Iterator[Load]:
    for x in (s.store.target, *loads(s.store.expr)):
        if a.buffers[x.source].space == Space.REG:
            yield x
