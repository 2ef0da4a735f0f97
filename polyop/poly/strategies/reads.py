"""What is known of a contraction before its loops are cut: which row and depth are, strides, and how long loops mostly are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from polyop.ir.expr import Affine, Load
from polyop.ir.registers import is_narrow
from polyop.ir.target import NEAR
from polyop.poly.build import Plan
from polyop.poly.strategies.roles import (
    CONTRACTED,
    ROW,
    Contraction,
    is_movable,
    is_window,
    iterators_of,
    stands_alone,
    written_order,
)
from polyop.poly.strides import spacing, stride, unbent

WINDOW = 3  # what the extent of an index that is added to another is taken for, where nothing is known


@dataclass(frozen=True, eq=False)
class Reads:
    """A contraction whose `row` and `depth` are cut into tiles, and what is known of it.

    long      contracted iterators that are worth cutting; `apart`: whether these stand alone in some position of both operands
    typical   extents where they are constants, or where an option says what they mostly are
    """

    plan: Plan
    what: Contraction
    row: str
    depth: str
    long: tuple[str, ...]
    apart: bool
    typical: dict[str, int | None]

    @property
    def left(self) -> Load:
        return self.what.lefts[0]

    @property
    def right(self) -> Load:
        return self.what.rights[0]

    @property
    def vector(self) -> int:
        return self.plan.target.lanes(self.plan.lane_bytes)

    @property
    def heads(self) -> int:
        """How many rows there are at most, or columns of dot products; 0: more."""
        return self.plan.options.dots or self.plan.options.rows or self.few(self.what.lane, 0)

    @property
    def is_one(self) -> bool:
        """Whether all that stands on the right is one operand that has everything contracted, and so may be copied."""
        return (len(self.what.rights) == 1 and set(self.what.having(CONTRACTED)) <= iterators_of(self.right)
                and is_movable(self.what.update, self.right))

    def few(self, iterator: str, more: int) -> int:
        """How often `iterator` runs at most in each turn of a recurrence, as an option says; else `more`."""
        return dict(self.plan.options.few).get(self.what.update.extent(iterator).name or "", more)

    def unit(self, load: Load, pool: tuple[str, ...]) -> str | None:
        """That of the iterators `pool` along which `load` has unit stride."""
        return unit_of(self.plan, self.what, load, pool)

    def straight(self, load: Load, pool: tuple[str, ...]) -> str | None:
        """That of the iterators `pool` along which lanes of `load` lie side by side: `j` of `W[n, j/2]`, too."""
        return self.unit(load if self.plan.target.warp else unbent(load, [*pool]), pool)

    def spacing(self, load: Load, iterator: str) -> int | None:
        u = self.what.update
        return spacing(self.plan, u, load, self.plan.classes[u.name][iterator])

    def inside(self, without: Iterable[str] = ()) -> int:
        """How many steps there mostly are of all that is contracted beside the depth."""
        u, beside = self.what.update, set(self.what.having(CONTRACTED)) - {self.depth, *without}
        return prod(self.typical[i] or (WINDOW if is_window(u, i) else 1) for i in beside)


def reads_of(plan: Plan, c: Contraction) -> Reads:
    """Which row and which contracted iterator of `c` are cut."""
    u, few = c.update, dict(plan.options.few)
    many = tuple(i for i in c.having(ROW) if u.extent(i).name not in few) or c.having(ROW)
    last = next(i for i in reversed(written_order(u)) if i in many)
    # of few columns neighbours are one piece of the result; parts of long rows are better on pages of their own, a stream on each
    contracted = c.having(CONTRACTED)
    brief = all(u.extent(i).is_constant and not is_window(u, i) for i in contracted)  # so are they where they bypass the caches
    row = last if is_narrow(plan.options.height) or plan.options.pair or brief else unit_of(plan, c, c.lefts[0], many) or last
    if 0 < plan.options.down < len(many):
        row = [i for i in written_order(u) if i in many][-1 - plan.options.down]
    long = tuple(i for i in contracted if not u.extent(i).is_constant) or contracted  # a 3 is not worth cutting
    alone = tuple(i for i in long if all(stands_alone(u, i, x) for x in (c.lefts[0], c.rights[0])))
    long = alone or long  # what is added to another index is a window, mostly short
    depth = unit_of(plan, c, c.lefts[0], long) or unit_of(plan, c, c.rights[0], long) or long[-1]
    hints = dict(plan.options.hints) | few
    return Reads(plan, c, row, depth, long, bool(alone), {r.index: typical_of(r.upper - r.lower, hints) for r in u.ranges})


def is_close(x: Reads) -> bool:
    """Whether the rows of a tile lie side by side in the left operand, so that a line of it holds several."""
    return x.spacing(x.left, x.row) in range(1, NEAR + 1)


def unit_of(plan: Plan, c: Contraction, load: Load, pool: tuple[str, ...]) -> str | None:
    """That of the iterators `pool` along which `load` has unit stride."""
    own = plan.classes[c.update.name]
    return next((i for i in pool if stride(plan, c.update, load, own[i]) == 1), None)


def typical_of(extent: Affine, hints: dict[str, int]) -> int | None:
    if extent.is_constant:
        return extent.const
    return hints.get(extent.name) if extent.name else None
