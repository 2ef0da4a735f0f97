"""Tile program: every statement, including each one that only moves data, over explicit tile coordinates.

A coordinate is scaled: `m = m_c + m_r + m_p` with m_c in steps of 4800 and m_r in steps of 6. So an index is a plain sum,
a tile size appears only as a step and as a cap, and the lift to the original iterators is addition. The nested `Band`
tree is the whole schedule; what the loops are (rows, lanes, parallel) stands in `kinds`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import islpy as isl

from polyop.ir.errors import InternalError
from polyop.ir.expr import Affine, Expr, Load, affine
from polyop.ir.loops import Buffer, Kind, sign
from polyop.ir.op import Monoid
from polyop.poly.sets import Linear, conjunction, space_text

ZERO = Affine()


@dataclass(frozen=True, slots=True)
class Coord:
    """A tile coordinate: runs from 0 in steps of `step`, below `cap` (None: as far as the domain goes).

    weight   how many values of the iterator one of it is: lanes may lie several apart; 1 in tiles that are packed
    """

    name: str
    step: int = 1
    cap: int | None = None
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Axis:
    """An iterator as a sum: `start` and its coordinates; `sign` -1 if they count down from there."""

    coords: tuple[Coord, ...]
    start: Affine = ZERO
    sign: int = 1

    @property
    def value(self) -> Affine:
        return sum((affine(c.name) * (self.sign * c.weight) for c in self.coords), self.start)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.coords)


@dataclass(frozen=True, eq=False)
class TileStmt:
    """`target reduce= expr` over `coords`, where `tests` are all >= 0.

    later          see Store; outlasts: as well
    origin, lift   the Scop statement that it carries out and the values of that one's iterators; None and () for a
                   statement that only moves data
    """

    name: str
    coords: tuple[Coord, ...]
    domain: isl.Set
    origin: str | None
    lift: tuple[Affine, ...]
    target: Load
    reduce: Monoid | None
    expr: Expr
    tests: tuple[Affine, ...] = ()
    later: bool = False
    outlasts: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """All that happens inside one coordinate's loop, in order."""

    coord: str
    body: tuple[Band | str, ...]

    def __str__(self) -> str:
        return f"{self.coord}({' '.join(map(str, self.body))})"


@dataclass(frozen=True, eq=False)
class TileProgram:
    """Statements, storage and order. `kinds`: coordinate -> (kind, extent) for all that is not a serial loop.

    weights  coordinate -> weight of its digit, for those over threads
    """

    context: isl.Set
    stmts: tuple[TileStmt, ...]
    buffers: tuple[Buffer, ...]
    tree: tuple[Band | str, ...]
    kinds: tuple[tuple[str, Kind, int | None], ...]
    weights: tuple[tuple[str, int], ...] = ()

    def stmt(self, name: str) -> TileStmt:
        return next(s for s in self.stmts if s.name == name)

    def __str__(self) -> str:
        lines = [f"  {b}" for b in self.buffers]
        for s in self.stmts:
            tests = "".join(f" if {t} >= 0" for t in s.tests)
            lines.append(f"  {s.name}: {s.target} {sign(s.reduce)} {s.expr}{tests}\n      over {s.domain}")
        weights = {c: f" by {w}" for c, w in self.weights}
        kinds = ", ".join(f"{c}: {k}{f' {e}' if e else ''}{weights.get(c, '')}" for c, k, e in self.kinds)
        return "\n".join([*lines, f"  kinds {kinds}", f"  order {' '.join(map(str, self.tree))}"])


def band(coords: Iterable[str], *body: Band | str) -> Band | str:
    """Loops over `coords`, outermost first, around `body`; without coords, `body` must be one item."""
    out: tuple[Band | str, ...] = body
    for coord in reversed(tuple(coords)):
        out = (Band(coord, out),)
    if len(out) != 1:
        raise InternalError("tiles: several statements without a loop around them")
    return out[0]


def bands(coords: Iterable[str], *body: Band | str) -> tuple[Band | str, ...]:
    """The same, for any number of items."""
    coords = tuple(coords)
    return (band(coords, *body),) if coords else body


def coords_in(tree: Iterable[Band | str]) -> frozenset[str]:
    """The coordinates whose loops stand in `tree`."""
    return frozenset(c for b in tree if isinstance(b, Band) for c in (b.coord, *coords_in(b.body)))


def instances(head: str, name: str, coords: tuple[Coord, ...], value: tuple[Affine, ...], within: isl.Set,
              only: Iterable[str] = (), tests: Iterable[Affine] = ()) -> isl.Set:
    """{ name[coords] : value(coords) in within, the box of each coordinate, `only`, and `tests` >= 0 }.

    By isl's interface, which takes a tenth of the time of a text with all coordinates.
    """
    only, tests, text = tuple(only), tuple(tests), space_text(name, [c.name for c in coords])
    linear = Linear.over(within.get_space(), name, [c.name for c in coords])
    if all(map(linear.has, value)):
        inside = within.preimage_multi_aff(linear.point(within.get_space(), value))
        inside = inside.intersect(isl.Set(f"{head}{{ {text} : {conjunction(only)} }}")) if only else inside
        inside = inside.intersect(linear.holding(tests)) if tests else inside
    else:  # names that are no coordinates stand for some value, of which `only` and `tests` may say more
        at, said = space_text(within.get_tuple_name() or "point", value), conjunction((*only, *(f"{t} >= 0" for t in tests)))
        inside = isl.Map(f"{head}{{ {text} -> {at} : {said} }}").intersect_range(within).domain()
    box = linear.universe
    for c in coords:
        at_c = affine(c.name)
        if c.step > 1 or c.cap:
            box = box.add_constraint(isl.Constraint.inequality_from_aff(linear.aff(at_c)))
        if c.cap:
            box = box.add_constraint(isl.Constraint.inequality_from_aff(linear.aff(affine(c.cap - 1) - at_c)))
        if c.step > 1:
            box = box.intersect(linear.aff(at_c).mod_val(isl.Val(c.step)).zero_basic_set())
    return inside.intersect(box.to_set())


@dataclass(frozen=True, eq=False)
class Order:
    """When each instance runs: the map for isl, each statement's time vector, and the step of each coordinate.

    Coordinates are counted in steps in `schedule`: isl writes an AST 2.5 times as fast without strides.
    """

    schedule: isl.UnionMap
    times: dict[str, tuple[str, ...]]
    steps: dict[str, int]


def order(p: TileProgram) -> Order:
    """{ stmt[coords] -> [time] } for the tree of `p`."""
    times: dict[str, tuple[str, ...]] = {}

    def walk(body: tuple[Band | str, ...], prefix: tuple[str, ...]) -> None:
        for place, item in enumerate(body):
            here = prefix + ((str(place),) if len(body) > 1 else ())
            if isinstance(item, str):
                if item in times:
                    raise InternalError(f"tiles: {item} stands twice in the tree")
                times[item] = here
            else:
                walk(item.body, (*here, item.coord))

    walk(p.tree, ())
    depth = max(map(len, times.values()))
    times = {s: t + ("0",) * (depth - len(t)) for s, t in times.items()}
    steps = {c.name: c.step for s in p.stmts for c in s.coords}
    schedule = isl.UnionMap.empty(p.context.get_space())
    for s in p.stmts:
        names = [c.name for c in s.coords]
        loops = [t for t in times[s.name] if not t.isdigit()]
        if sorted(loops) != sorted(names):
            raise InternalError(f"tiles: {s.name} has coordinates {names} but stands in loops {loops}")
        counted, linear = s.domain, Linear.over(p.context.get_space(), s.name, names)
        if any(c.step > 1 for c in s.coords):
            scaled = linear.point(linear.space, [affine(c.name) * c.step for c in s.coords])
            counted = counted.preimage_multi_aff(scaled).coalesce()
        at = linear.point(linear.beside("", depth), [affine(int(t) if t.isdigit() else t) for t in times[s.name]])
        schedule = schedule.union(isl.UnionMap.from_map(isl.Map.from_multi_aff(at).intersect_domain(counted)))
    return Order(schedule.intersect_params(p.context), times, steps)
