"""Which stores to register buffers must keep the old value where a row or lane does not exist, or a test fails.

If every loop that indexes a dimension of a buffer has the same upper bound for as long as the buffer lives, a row or lane that
does not exist there is never read, and may hold anything. So may an element that is read under a test alone, where that fails:
of a tile that the diagonal of a triangle cuts, sums of the other triangle are computed and not stored. A buffer lives in the
innermost body that has all its uses. Where loops side by side, such as those over full tiles and over the rest, each begin with
writing it, it has a life in each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polyop.ir.expr import Affine, Load, expr_names, loads, names
from polyop.ir.loops import LOCKSTEP, For, If, IfData, LoopNest, Node, Space, Store, children, walk

Tests = tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class Lives:
    """What is known of register buffers at a place of a nest.

    unborn    those of which it is open in which body further inside they live
    blended   buffer that lives here -> dimensions along which its stores must keep what they do not reach
    ignored   buffer that lives here -> tests of Ifs that its stores need not ask
    lockstep  the indices of all rows and lanes
    used      the buffers that a node of the nest reads or writes, by the node's id: asked of each at every depth above it
    nest      the nest, whose nodes keep their ids for as long as it lives
    """

    unborn: frozenset[str] = frozenset()
    blended: Mapping[str, frozenset[int]] = field(default_factory=dict)
    ignored: Mapping[str, frozenset[Tests]] = field(default_factory=dict)
    lockstep: frozenset[str] = frozenset()
    used: Mapping[int, frozenset[str]] = field(default_factory=dict, repr=False)
    nest: LoopNest | None = field(default=None, repr=False)

    def inside(self, body: tuple[Node, ...]) -> Lives:
        """What is known in `body`, if nothing else stands at this place."""
        if not self.unborn:
            return self
        used = [(n, self._used(n) & self.unborn) for n in body]
        unborn, blended, ignored = set[str](), dict(self.blended), dict(self.ignored)
        for name in self.unborn:
            users = tuple(n for n, found in used if name in found)
            alone = len(users) == 1 and isinstance(users[0], For | If | IfData)
            if alone or (users and all(self._has_own(n, name) for n in users)):
                unborn.add(name)
                continue
            if uneven := _uneven(users, name):
                blended[name] = uneven
            ignored[name] = _around_reads(users, name, self.lockstep)
        return Lives(frozenset(unborn), blended, ignored, self.lockstep, self.used, self.nest)

    def _used(self, n: Node) -> frozenset[str]:
        return self.used[id(n)] if id(n) in self.used else _used(n)

    def _has_own(self, n: Node, name: str) -> bool:
        """Whether the buffer has a life in `n`, whatever it holds before."""
        return isinstance(n, For) and n.kind not in LOCKSTEP and self._begins(n, name)

    def _begins(self, n: Node, name: str) -> bool:
        """Whether what `n` does with the buffer begins with writing it, in whichever way through `n`."""
        match n:
            case Store(target=target, reduce=None):
                return target.source == name and not any(x.source == name for x in _places(n)[1:])
            case For(body=body):
                return self._first_begins(body, name)
            case If(then=then, other=other):
                return self._first_begins(then, name) and self._first_begins(other, name)
        return False

    def _first_begins(self, body: tuple[Node, ...], name: str) -> bool:
        first = next((n for n in body if name in self._used(n)), None)
        return first is not None and self._begins(first, name)


def lives_of(nest: LoopNest) -> Lives:
    """What is known around everything."""
    used: dict[int, frozenset[str]] = {}
    for n in reversed(tuple(walk(nest.body))):  # what is inside a node stands behind it
        inside = (used[id(c)] for c in children(n)) if not isinstance(n, Store) else ()
        used[id(n)] = _own(n).union(*inside)
    lockstep = frozenset(n.index for n in walk(nest.body) if isinstance(n, For) and n.kind in LOCKSTEP)
    return Lives(frozenset(b.name for b in nest.buffers if b.space == Space.REG), lockstep=lockstep, used=used, nest=nest)


def _used(n: Node) -> frozenset[str]:
    """The buffers that `n` reads or writes."""
    return frozenset[str]().union(*map(_own, walk((n,))))


def _own(n: Node) -> frozenset[str]:
    """Those of `n` itself, without what is inside."""
    match n:
        case Store():
            return frozenset(x.source for x in _places(n))
        case IfData(test=test):
            return frozenset(x.source for x in loads(test))
    return frozenset()


def _places(s: Store) -> tuple[Load, ...]:
    return (*loads(s.target), *loads(s.expr))


def _around_reads(region: tuple[Node, ...], name: str, lockstep: frozenset[str]) -> frozenset[Tests]:
    """The tests that hold wherever an element of the buffer is read, and that hold or fail for an element all the time.

    Each of its indices is a name, the same everywhere, so that an element has the values of rows and lanes that a test speaks of.
    """
    places: set[tuple[object, ...]] = set()
    found: list[frozenset[Tests]] = []
    varying: set[str] = set()

    def go(body: tuple[Node, ...], tests: frozenset[Tests]) -> None:
        for n in body:
            match n:
                case Store(target=target):
                    places.update(x.index for x in _places(n) if x.source == name)
                    found.extend(tests for x in _places(n) if x.source == name and x is not target)
                case For(index=index, body=inside):
                    varying.update({index} - lockstep)
                    go(inside, tests)
                case If(tests=more, then=then, other=other):
                    go(then, tests | {more})
                    go(other, tests)
                case IfData(test=test):
                    found.extend(frozenset() for x in loads(test) if x.source == name)
                    go(children(n), tests)

    go(region, frozenset())
    if len(places) != 1 or not found:
        return frozenset()
    (index,) = places
    own = {p.name for p in index if isinstance(p, Affine)}
    if None in own or len(own) != len(index):
        return frozenset()
    asked = {t: frozenset[str]().union(*map(names, t)) for t in frozenset.intersection(*found)}
    return frozenset(t for t, of in asked.items() if not of & varying and of & lockstep <= own)


def _uneven(region: tuple[Node, ...], name: str) -> frozenset[int]:
    """The dimensions of the buffer that are run through by loops with several bounds, or with one that changes."""
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
                for load in _places(n):
                    if load.source == name:
                        see(load, around)
            elif isinstance(n, For):
                if n.kind not in LOCKSTEP:
                    varying.add(n.index)
                go(n.body, {**around, n.index: n} if n.kind in LOCKSTEP else around)
            else:
                go(children(n), around)

    go(region, {})
    return frozenset(d for d, seen in bounds.items() if len(seen) > 1 or any(names(u) & varying for u, _ in seen))
