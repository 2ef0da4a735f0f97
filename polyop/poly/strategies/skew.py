"""Time tiles: several steps of a recurrence over a grid go over its rows together, one row behind the other.

    t! ( i ( S ) )        becomes        t_c! ( w! ( t_p! ( S with t = t_c + t_p, i = w - s t_p ) ) )

Step t_p works on a row that is s t_p behind the front w. A step reads at most s rows from the one it writes, so the steps before
have been there already, and those two steps back, whose place in memory it takes, are not needed any more. Only a few rows of
each step are touched at a time: they stay in a cache, where plain loops would fetch the whole grid for every step.

Sources: Lamport, "The parallel execution of DO loops", 1974; Wonnacott, "Using time skewing to eliminate idle time due to memory
bandwidth and network limitations", 2000.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyop.ir.expr import Affine, Load, affine
from polyop.poly.build import Axes, Plan
from polyop.poly.edges import single
from polyop.poly.schedule.nodes import Cluster, Serial
from polyop.poly.scop import Stmt
from polyop.poly.strides import stride
from polyop.poly.tiles import Axis, Coord

STEPS = 16
"""Steps that go together: a grid is fetched once for all of them, and two rows of each are in the cache at a time."""


@dataclass(frozen=True, slots=True)
class Skew:
    """A serial loop over `time` in tiles; `rows`: the class of the rows of each cluster, `slope`: rows between two steps."""

    time: str
    rows: tuple[str, ...]
    slope: int

    @property
    def around(self) -> tuple[str, ...]:
        """The coordinates of the loops, outermost first."""
        return f"{self.time}_c", f"{self.time}_w", f"{self.time}_p"

    def axes(self, row: str) -> Axes:
        """Time, and the rows of the cluster of which they are class `row`, in these coordinates."""
        block, front, step = self.around
        return {self.time: Axis((Coord(block, STEPS), Coord(step, 1, STEPS))),
                row: Axis((Coord(front),), affine(step) * -self.slope)}

    def __str__(self) -> str:
        return f"{STEPS} steps of {self.time} go over {self.rows[0]} together, {self.slope} behind each other"


def find_skew(plan: Plan, node: Serial) -> Skew | None:
    """How `node` may be taken in time tiles; None, if it may not, or if no step reads another row than it writes.

    Rows run along the first dimension that is not time, and not where lanes do. Whether the order is right is for the checker to
    prove.
    """
    if node.is_reversed or not all(isinstance(c, Cluster) and not c.is_contraction for c in node.body):
        return None
    dims: dict[str, tuple[int, int]] = {}
    rows: dict[str, str] = {}
    for s in node.stmts:
        found = _time_and_row(plan, node, s)
        if found is None or dims.setdefault(s.target.source, found[0]) != found[0]:
            return None
        rows[s.name] = found[1]
    classes: list[str] = []
    for c in node.body:
        mine = {plan.classes[s.name][rows[s.name]] for s in c.stmts}
        if len(mine) != 1 or not isinstance(c, Cluster) or not mine <= set(c.shell):
            return None
        classes += mine
    away = [_distance(plan, node, s, x, dims[x.source], rows[s.name]) for s in node.stmts for x in s.reads if x.source in dims]
    if any(d is None for d in away):
        return None
    slope = max((abs(d) for d in away if d is not None), default=0)
    return Skew(node.loop, tuple(classes), slope) if slope else None


def _time_and_row(plan: Plan, node: Serial, s: Stmt) -> tuple[tuple[int, int], str] | None:
    """The dimensions of the target of `s` that are time and rows, and the iterator of the rows."""
    own = plan.classes[s.name]
    alone = [p.name if isinstance(p, Affine) and p.name in s.dims else None for p in s.target.index]
    times = [d for d, i in enumerate(alone) if i and own[i] == node.loop]
    others = [d for d in range(len(alone)) if d not in times]
    if len(times) != 1 or not others:
        return None
    row = alone[others[0]]
    if row is None or stride(plan, s, s.target, own[row]) == 1:
        return None
    return (times[0], others[0]), row


def _distance(plan: Plan, node: Serial, s: Stmt, x: Load, dims: tuple[int, int], row: str) -> int | None:
    """How many rows the place `x` is from the one that `s` writes, if it is of an earlier step, and the same everywhere."""
    time, place = x.index[dims[0]], x.index[dims[1]]
    if not isinstance(time, Affine) or not isinstance(place, Affine):
        return None
    t = single(time, s.dims)
    if t is None or plan.classes[s.name][t] != node.loop or time.const >= 0:
        return None
    away = place - affine(row)
    return away.const if away.is_constant else None
