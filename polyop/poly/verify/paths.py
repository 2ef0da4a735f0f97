"""Where each store of a nest stands in its text, and how many barriers are passed at least on the way from one to another.

    for f in [0, 48) by 16 { barrier  S }        behind S: (47 - f) div 16, the turns that are left
    for k in [0, K) by 16 { barrier  T  U }      before T: k div 16 + 1;   from T on to U of a later turn k': (k' - k) div 16
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyop.ir.expr import Affine, affine, quasi
from polyop.ir.loops import Barrier, For, If, Kind, LoopNest, Node, Store, walk
from polyop.poly.verify.sites import Site

_Step = tuple[Node, tuple[Node, ...], int]
"""A node, the body that it stands in, and its place there."""


@dataclass(frozen=True, slots=True)
class Passed:
    """How many barriers are passed at least: `first` + `second`, over the coordinates of both places, and `least` anyway."""

    first: Affine
    second: Affine
    least: int


@dataclass(frozen=True, slots=True)
class Counted:
    """Which barriers count: those that leave at most `pending` groups of copies on their way; those that are handed, or not."""

    pending: int
    handed: bool

    def includes(self, b: Barrier) -> bool:
        return b.pending <= self.pending and (self.handed or not b.handed)


class Paths:
    """Where each store stands in the text. `pending`: how many groups of copies the barriers of the nest leave on their way."""

    def __init__(self, nest: LoopNest) -> None:
        self.steps: list[tuple[_Step, ...]] = []  # the way to each store, outermost first
        self.keys: list[tuple[int | None, ...]] = []
        self.loops = 0
        self.pending = sorted({n.pending for n in walk(nest.body) if isinstance(n, Barrier)} | {0})
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

    def between(self, f: Site, s: Site, key: int | None, counted: Counted) -> Passed | None:
        """The barriers that are `counted` on every way from `f` to `s`; None if a kernel ends between them.

        In a later iteration of the loop `key`, or in the same of all. If that loop is over blocks, in the next one.
        """
        one, two = self.steps[f.number], self.steps[s.number]
        if key is not None:
            at = self.keys[f.number].index(key)
            loop = one[at][0]
            assert isinstance(loop, For)
            each = _passed(loop.body, counted)
            behind, before = _behind(one[at + 1:], counted), _before(two[at + 1:], counted)
            first = _left(one[at + 1:], f, counted) - _turn(loop, f) * each + behind
            second = _done(two[at + 1:], s, counted) + (_turn(loop, s) - (loop.kind == Kind.SERIAL)) * each + before
            return Passed(first, second, behind + before)
        depth = next((i for i, (x, y) in enumerate(zip(one, two, strict=False)) if x[1] is not y[1] or x[2] != y[2]), None)
        if depth is None or one[depth][1] is not two[depth][1]:
            return Passed(Affine(), Affine(), 0)
        body, i, j = one[depth][1], one[depth][2], two[depth][2]
        if any(map(_is_kernel, body[i + 1:j])):
            return None
        behind, before = _behind(one[depth + 1:], counted) + _passed(body[i + 1:j], counted), _before(two[depth + 1:], counted)
        return Passed(_left(one[depth:], f, counted) + behind, _done(two[depth:], s, counted) + before, behind + before)


def _behind(steps: Sequence[_Step], counted: Counted) -> int:
    """Barriers behind a place in the bodies around it."""
    return sum(_passed(body[place + 1:], counted) for _, body, place in steps)


def _before(steps: Sequence[_Step], counted: Counted) -> int:
    """Barriers before a place in the bodies around it."""
    return sum(_passed(body[:place], counted) for _, body, place in steps)


def _left(steps: Sequence[_Step], s: Site, counted: Counted) -> Affine:
    """Those in the turns that are left of the loops around a place."""
    return sum((_turn(n, s, to_end=True) * _passed(n.body, counted) for n, _, _ in steps if isinstance(n, For)), Affine())


def _done(steps: Sequence[_Step], s: Site, counted: Counted) -> Affine:
    """Those in the turns of these loops that are done."""
    return sum((_turn(n, s) * _passed(n.body, counted) for n, _, _ in steps if isinstance(n, For)), Affine())


def _turn(loop: For, s: Site, to_end: bool = False) -> Affine:
    """How many turns of `loop` are done where `s` runs, or are left; 0 for those that are not serial."""
    if loop.kind != Kind.SERIAL:
        return Affine()
    distance = loop.upper - 1 - affine(loop.index) if to_end else affine(loop.index) - loop.lower
    return s.at(quasi("div", distance, affine(loop.step)))


def _passed(body: Sequence[Node], counted: Counted) -> int:
    """The barriers that are `counted` on every way through `body`."""
    total = 0
    for n in body:
        match n:
            case Barrier():
                total += counted.includes(n)
            case For(kind=Kind.SERIAL) if n.upper.is_constant and n.lower.is_constant:
                total += max(0, -(-(n.upper.const - n.lower.const) // n.step)) * _passed(n.body, counted)
            case If():
                total += min(_passed(n.then, counted), _passed(n.other, counted))
    return total


def _is_kernel(n: Node) -> bool:
    """Whether `n` is a kernel of its own, before and after which all threads are done."""
    return any(isinstance(x, For) and x.kind == Kind.PARALLEL for x in walk((n,)))
