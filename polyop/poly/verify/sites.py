"""The stores of a nest with all that encloses them: the one reading of a nest on which every proof stands.

Every Store is one `Site`. Its executions are the points of an isl set whose coordinates are the loops around it. A loop
in steps of 512 is counted, `k_c = 512 k_c'`, so that strides never reach isl.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import islpy as isl

from polyop.cached import cached_property
from polyop.ir.errors import InternalError
from polyop.ir.expr import Affine, affine, bounds, quasi, substitute
from polyop.ir.loops import COUNTED, Barrier, For, If, IfData, Kind, LoopNest, Node, Prefetch, Store
from polyop.poly.verify.frame import Frame, is_linear


@dataclass(frozen=True, eq=False)
class Around:
    """One loop around a site: `key` is the same for all sites in the same loop of the nest."""

    loop: For
    key: int


@dataclass(frozen=True, eq=False)
class Site:
    """One Store of the nest.

    frame   the space of its executions: `N<number>[a coordinate for each loop around it, outermost first]`
    domain  its executions, within what is known about the sizes
    values  loop index -> its value, over the coordinates
    time    places and coordinates, outermost first: their lexicographic order is the nest's
    """

    number: int
    store: Store
    around: tuple[Around, ...]
    frame: Frame
    domain: isl.Set
    values: dict[str, Affine]
    time: tuple[str | int, ...]

    @property
    def name(self) -> str:
        return self.frame.name

    def at(self, x: Affine) -> Affine:
        """`x`, an expression over loop indices, over the coordinates of the frame."""
        return substitute(x, self.values)

    @cached_property
    def keys(self) -> frozenset[int]:
        """Of the loops around."""
        return frozenset(a.key for a in self.around)

    def within(self, key: int) -> int:
        """How many loops around this site there are up to loop `key`, that one included."""
        return next(i + 1 for i, a in enumerate(self.around) if a.key == key)

    @property
    def serial(self) -> tuple[int, ...]:
        """Positions of the loops around whose iterations are not run at once by threads of one block, nor in lock step."""
        return tuple(i for i, a in enumerate(self.around) if a.loop.kind not in COUNTED)

    @property
    def parallel(self) -> tuple[int, ...]:
        return tuple(i for i, a in enumerate(self.around) if a.loop.kind == Kind.PARALLEL)


@dataclass(frozen=True)
class _Walk:
    """What is known on the way down."""

    around: tuple[Around, ...] = ()
    values: tuple[tuple[str, Affine], ...] = ()
    tests: tuple[Affine, ...] = ()                    # conditions, over coordinates
    either: tuple[tuple[Affine, ...], ...] = ()       # of each of these groups one is negative: an `else` branch
    time: tuple[str | int, ...] = ()


def sites(nest: LoopNest, context: isl.Set) -> tuple[Site, ...]:
    """Every Store of `nest`, in text order; `context` is what is known about the sizes."""
    found: list[Site] = []
    loops = 0

    def walk(body: Sequence[Node], w: _Walk) -> None:
        nonlocal loops
        for place, n in enumerate(body):
            time = (*w.time, place) if len(body) > 1 else w.time
            env = dict(w.values)
            match n:
                case For():
                    around = (*w.around, Around(n, loops))
                    loops += 1
                    value, tests = counted(n, env)
                    walk(n.body, _Walk(around, (*w.values, (n.index, value)), (*w.tests, *tests), w.either, (*time, n.index)))
                case If():
                    tests = tuple(substitute(t, env) for t in n.tests)
                    walk(n.then, _Walk(w.around, w.values, (*w.tests, *tests), w.either, (*time, 0)))
                    walk(n.other, _Walk(w.around, w.values, w.tests, (*w.either, tests), (*time, 1)))
                case Store():
                    found.append(_site(nest, context, len(found), n, w, time))
                case IfData():
                    raise InternalError(f"verify: `{n.test}` chooses in a nest that is not proved yet")
                case Prefetch() | Barrier():
                    pass

    walk(nest.body, _Walk())
    return tuple(found)


def _site(nest: LoopNest, context: isl.Set, number: int, store: Store, w: _Walk, time: tuple[str | int, ...]) -> Site:
    frame = Frame(f"N{number}", nest.sizes, tuple(a.loop.index for a in w.around))
    domain = frame.where(w.tests)
    for group in w.either:
        domain = domain.subtract(frame.where(group))
    return Site(number, store, w.around, frame, domain.intersect_params(context), dict(w.values), time)


def counted(loop: For, env: dict[str, Affine]) -> tuple[Affine, tuple[Affine, ...]]:
    """The value of a loop's index over its coordinate, and the tests that bound the coordinate.

    for i in [l, u) by s   is   i = l + s i',  i' >= 0,  i < u;   where l is no plain sum, i is the coordinate itself.
    """
    lower, upper = substitute(loop.lower, env), substitute(loop.upper, env)
    if is_linear(lower):
        value = lower + affine(loop.index) * loop.step
        start: tuple[Affine, ...] = (affine(loop.index),)
    else:
        value = affine(loop.index)
        start = tuple(value - b for b in bounds(lower, "max"))
        if loop.step > 1:
            start += (quasi("mod", value - lower, affine(loop.step)) * -1,)
    return value, start + tuple(b - value - 1 for b in bounds(upper))


Scoped = tuple[Node, frozenset[str], tuple[For, ...]]


def names_in_scope(nest: LoopNest) -> Iterator[Scoped]:
    """Every node with the names it may use and the loops around it."""
    def walk(body: Sequence[Node], known: frozenset[str], loops: tuple[For, ...]) -> Iterator[Scoped]:
        for n in body:
            yield n, known, loops
            match n:
                case For():
                    yield from walk(n.body, known | {n.index}, (*loops, n))
                case If():
                    yield from walk((*n.then, *n.other), known, loops)
    yield from walk(nest.body, frozenset(nest.sizes), ())
