"""How often a store is written, and what it gives where several lanes meet in one place."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from polyop.codegen.llvm.expressions import operand
from polyop.codegen.llvm.index import existing
from polyop.codegen.llvm.loads import lanes_part
from polyop.codegen.llvm.monoids import combined, fold, fold_in_order, pair
from polyop.codegen.llvm.state import Active, Axis, Point, State, Value
from polyop.codegen.llvm.types import register
from polyop.codegen.vecmath.ops import V
from polyop.ir.errors import InternalError
from polyop.ir.loops import Store


def points(s: State, rows: frozenset[str]) -> Iterator[dict[str, int]]:
    """Every copy of the rows axes in `rows`, in order; the others stay at 0."""
    axes = s.rows
    for at in product(*(range(a.extent) if a.index in rows else (0,) for a in axes)):
        yield {a.index: i for a, i in zip(axes, at, strict=True)}


def row_exists(s: State, axes: tuple[Axis, ...], point: Point) -> str | None:
    """Whether the copy `point` exists on all of `axes`; None if it always does."""
    total: str | None = None
    for a in axes:
        if a.valid is not None and point[a.index] > 0:
            total = s.b.both(total, s.b.compare("sgt", a.valid, point[a.index]))
    return total


def rows_needed(s: State, n: Store, x: Value, target: frozenset[str]) -> frozenset[str]:
    """The rows axes that must be run through: all of them if repeating the store changes the result."""
    if n.reduce is not None:
        return frozenset(a.index for a in s.rows)
    return target.union(x.rows, *(c.value.rows for c in s.active))


def rows_alike(s: State, n: Store, used: frozenset[str]) -> tuple[Axis, ...]:
    """The rows axes whose copies update one place, whatever exists, and in any order; `used` decides where, or whether."""
    if n.reduce is None or s.shared.strict:
        return ()
    return tuple(a for a in s.rows if a.valid is None and a.index not in used)


def together(s: State, n: Store, x: Value, alike: tuple[Axis, ...]) -> Value:
    """`x` of all copies of `alike`, combined as a tree, so that their place is updated once."""
    if not alike:
        return x
    assert n.reduce is not None
    m, own = n.reduce, frozenset(a.index for a in alike)

    def make(point: Point, v: int) -> str:
        copies = [{**point, **{i: at[i] for i in own}} for at in points(s, own)]
        return combined(s, m, [operand(s, x, at, v, x.lanes) for at in copies], n.target.dtype).text

    return Value(x.dtype, x.rows - own, x.lanes, make)


def is_folded(s: State, n: Store, x: Value, target_lanes: bool) -> bool:
    """Whether several lanes meet in one target."""
    return s.lanes is not None and not target_lanes and (n.reduce is not None or x.lanes or any(c.value.lanes for c in s.active))


def as_scalar(s: State, n: Store, text: str) -> V:
    return V(s.b, register(n.target.dtype), 1, text, "" if s.shared.strict else "contract ")


def lanes_of(s: State, x: Value, point: Point, conditions: Active) -> tuple[list[V], list[str | None]]:
    """The vectors of `x`, and for each the mask of lanes that exist and for which the conditions hold."""
    xs = [operand(s, x, point, v, True) for v in s.pieces()]
    return xs, [s.b.both(existing(s, v), lanes_part(s, conditions, point, v), s.width) for v in s.pieces()]


def across(s: State, n: Store, x: Value, point: Point, conditions: Active, old: V | None) -> V:
    """What a target that does not depend on the lanes gets from all that exist."""
    xs, masks = lanes_of(s, x, point, conditions)
    t = n.target.dtype
    if n.reduce is None:
        return _last(s, xs, masks, old)
    if old is None:
        raise InternalError(f"emit: {n.target} is updated before it is written")
    if s.shared.strict:
        return fold_in_order(s, n.reduce, old, xs, masks, t)
    return pair(s, n.reduce, old, fold(s, n.reduce, xs, masks, t), t)


def _last(s: State, xs: list[V], masks: list[str | None], old: V | None) -> V:
    """The value of the last lane for which a mask holds: what remains if all write to one place in order."""
    for x, mask in zip(xs, masks, strict=True):
        for i in range(x.width):
            lane = V(x.b, x.element, 1, s.b.do(f"extractelement {x.type_} {x.text}, i64 {i}"), x.flags)
            if mask is not None and old is not None:
                lane = V(x.b, "i1", 1, s.b.do(f"extractelement <{x.width} x i1> {mask}, i64 {i}")).pick(lane, old)
            old = lane
    assert old is not None
    return old
