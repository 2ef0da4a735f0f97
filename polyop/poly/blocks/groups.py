"""How many groups of copies each barrier leaves on their way.

The copies between two barriers are a group, which the second one closes (`Barrier`). Where a copy is read, or written again,
the last barrier before must have waited for it: of n barriers on the way from the one to the other it may leave n - 1 groups.
All others leave whatever has not arrived by then.

    t ( barrier: 0   X[(t + 1) mod 2] copied   barrier: 1   barrier: 2   X[t mod 2] read )      after X[0] copied
    t ( barrier: 2   X[(t + 3) mod 4] copied   X[t mod 4] read )      after three turns with a barrier each

Ways are followed through as many turns of a loop as there are slots. Nothing here is trusted: `verify/barriers.py` shows for all
sizes that what is read has arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from polyop.ir.expr import Affine, Load, Quasi, affine, loads, names, substitute
from polyop.ir.loops import Barrier, For, If, Kind, Node, Store, walk

_Place = tuple[int, ...]
"""Where a barrier stands in the text."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """What was copied, with positions in the words of now, or None where a loop that chose them is over; the barriers since."""

    source: str
    index: tuple[Affine | None, ...]
    passed: tuple[_Place, ...] = ()


def in_groups(body: tuple[Node, ...]) -> tuple[Node, ...]:
    """The body of a kernel, whose barriers wait for what is used behind them and for nothing else; handed ones for all."""
    inside = tuple(walk(body))
    if any(isinstance(n, Barrier) and n.handed for n in inside):
        return body
    copies = [n.target for n in inside if isinstance(n, Store) and n.later]
    if not copies:
        return body
    slots = [x[1] for target in copies for p in target.index if isinstance(p, Affine) and (x := remainder(p))]
    each = frozenset(n.index for n in inside if isinstance(n, For) and n.kind != Kind.SERIAL)
    ways = _Ways(frozenset(target.source for target in copies), max(slots, default=1), each)
    ways.follow(body, frozenset(), ())
    return _with(body, ways.pending(), ())


def _with(body: tuple[Node, ...], pending: dict[_Place, int], at: _Place) -> tuple[Node, ...]:
    """`body` with barriers that leave so many groups."""
    out: list[Node] = []
    for k, n in enumerate(body):
        match n:
            case Barrier():
                out.append(replace(n, pending=pending.get((*at, k), 0)))
            case If():
                out.append(replace(n, then=_with(n.then, pending, (*at, k, 0)), other=_with(n.other, pending, (*at, k, 1))))
            case For():
                out.append(replace(n, body=_with(n.body, pending, (*at, k))))
            case _:
                out.append(n)
    return tuple(out)


class _Ways:
    """The walk through a kernel: the barriers on each way from a copy to where it must have arrived (`used`), and on all ways."""

    def __init__(self, copied: frozenset[str], slots: int, each: frozenset[str]) -> None:
        self.copied, self.slots, self.each = copied, slots, each
        self.used: dict[tuple[_Place, ...], None] = {}
        self.met: dict[tuple[_Place, ...], None] = {}

    def follow(self, body: Sequence[Node], state: frozenset[_Copy], at: _Place) -> frozenset[_Copy]:
        """What is on its way behind `body`, if `state` is before."""
        for k, n in enumerate(body):
            here = (*at, k)
            match n:
                case Barrier():
                    state = _shortest(replace(x, passed=(*x.passed, here)) for x in state)
                    self.met |= dict.fromkeys(x.passed for x in state)
                case If():
                    state = self.follow(n.then, state, (*here, 0)) | self.follow(n.other, state, (*here, 1))
                case For(kind=Kind.SERIAL) if any(isinstance(x, Barrier) or _is_copy(x) for x in walk((n,))):
                    state = self.turns(n, state, here)
                case For():
                    state = self.follow(n.body, state, here)
                case Store():
                    state = self.store(n, state)
        return state

    def turns(self, n: For, state: frozenset[_Copy], at: _Place) -> frozenset[_Copy]:
        """The same of a loop, after no turn, one, or more."""
        found = state
        for _ in range(self.slots + 1):
            state = self.follow(n.body, state, at)
            found |= frozenset(replace(x, index=tuple(None if p and n.index in names(p) else p for p in x.index)) for x in state)
            back = {n.index: affine(n.index) - n.step}
            state = frozenset(replace(x, index=tuple(p and substitute(p, back) for p in x.index)) for x in state)
        return _shortest(found)

    def store(self, s: Store, state: frozenset[_Copy]) -> frozenset[_Copy]:
        for x in (*loads(s.expr), s.target):
            if x.source in self.copied:
                met = (c for c in state if c.source == x.source and not self.are_apart(c, x))
                self.used |= dict.fromkeys(c.passed for c in met if c.passed)
        if not s.later:
            return state
        new = _Copy(s.target.source, tuple(p if isinstance(p, Affine) else None for p in s.target.index))
        return frozenset(c for c in state if (c.source, c.index) != (new.source, new.index)) | {new}

    def are_apart(self, c: _Copy, other: Load) -> bool:
        """Whether some position of the two is never the same, whichever threads they are on: X[t mod 2] and X[(t + 1) mod 2]."""
        pairs = [(p, q) for p, q in zip(c.index, other.index, strict=True) if p is not None and isinstance(q, Affine)]
        return any(never_equal(p, q) for p, q in pairs if (names(p) | names(q)).isdisjoint(self.each))

    def pending(self) -> dict[_Place, int]:
        """How many groups each barrier leaves on their way."""
        longest = max(map(len, self.used), default=1) - 1
        least: dict[_Place, int] = {}
        for way in self.used:
            least[way[-1]] = min(least.get(way[-1], longest), len(way) - 1)
        found = dict(least)
        for way in self.met:
            if way[-1] not in least and not any(least.get(b, longest + 1) <= k for k, b in enumerate(way)):
                found[way[-1]] = max(found.get(way[-1], 0), min(len(way), longest))
        while late := [way for way in self.used if not _arrives(way, found)]:
            for way in late:
                found |= {b: min(found.get(b, 0), len(way) - 1) for b in way}
        return found


def _shortest(copies: Iterable[_Copy]) -> frozenset[_Copy]:
    """Of those that came the same last way to here, the one with the fewest barriers: it has waited least."""
    found: dict[tuple[str, tuple[Affine | None, ...], tuple[_Place, ...]], _Copy] = {}
    for x in copies:
        key = (x.source, x.index, x.passed[-1:])
        if key not in found or len(x.passed) < len(found[key].passed):
            found[key] = x
    return frozenset(found.values())


def _is_copy(n: Node) -> bool:
    return isinstance(n, Store) and n.later


def _arrives(way: tuple[_Place, ...], pending: dict[_Place, int]) -> bool:
    """Whether so many barriers of a way leave few enough groups that one of them has waited for the copy."""
    left = [pending.get(b, 0) for b in way]
    return any(sum(x <= p for x in left) > p for p in {*left})


def never_equal(p: Affine, q: Affine) -> bool:
    """Whether two positions clearly differ for all values of their names: t and t - 1; t mod 2 and (t + 1) mod 2."""
    x, y = remainder(p), remainder(q)
    if x and y and x[1] == y[1]:
        return (d := x[0] - y[0]).is_constant and d.const % x[1] != 0
    return (d := p - q).is_constant and d.const != 0


def remainder(p: Affine) -> tuple[Affine, int] | None:
    """x and n, if `p` is x mod n."""
    atom = p.terms[0][0] if len(p.terms) == 1 and p.terms[0][1] == 1 and not p.const else None
    return (atom.args[0], atom.args[1].const) if isinstance(atom, Quasi) and atom.op == "mod" else None
