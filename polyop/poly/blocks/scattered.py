"""Strategy "scattered", chosen and built: on a GPU, updates of places that are known only inside: `Y[at[m], d] += X[m, d]`.

    y.. (parallel) ( init )
    m d (parallel) ( update, indivisible )       one thread for each point; the last loop is the one with unit strides

Each group of statements is a kernel of its own, all of whose loops are parallel. Where several points may meet in one element,
`atomics.py` says so to the emitter; sums come in any order then.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyop.ir.errors import UnsupportedError
from polyop.ir.loops import Buffer, Kind, Space
from polyop.poly.build import Axes, Builder, Home, Part, Plan
from polyop.poly.homes import is_local
from polyop.poly.schedule.nodes import Cluster, Group
from polyop.poly.strategies.along import score
from polyop.poly.strategies.rows import scatters
from polyop.poly.tiles import Axis, Band, Coord, bands


@dataclass(frozen=True, slots=True)
class ScatteredStrategy:
    """Every point on a thread of its own; `last` are the loops of each group along which neighbours lie."""

    last: tuple[str | None, ...]

    def __str__(self) -> str:
        return f"scattered: neighbours along {', '.join(c or '-' for c in self.last)}"


def choose(plan: Plan, cluster: Cluster) -> ScatteredStrategy:
    """The strategy for `cluster`.

    Raises  UnsupportedError, if it adds up nothing at places that are known only inside, or in order.
    """
    groups = [g for g in cluster.body if isinstance(g, Group)]
    if plan.options.numerics == "strict":
        raise UnsupportedError("it would add up in any order")
    if len(groups) < len(cluster.body):
        raise UnsupportedError("there is a recurrence inside")
    if not any(scatters(plan, s, g.reduced) for g in groups for s in g.stmts):
        raise UnsupportedError("it is known outside where it writes")
    loops = [(*cluster.shell, *g.kept, *g.reduced) for g in groups]
    return ScatteredStrategy(tuple(max(x, key=lambda c: score(plan, g.stmts, c), default=None)
                                   for g, x in zip(groups, loops, strict=True)))


def build(plan: Plan, cluster: Cluster, outer: Axes, s: ScatteredStrategy) -> Part:
    """The part of the tile program that `s` stands for, inside the loops `outer`."""
    if plan.tiled:
        raise UnsupportedError(f"{' and '.join(plan.tiled)} is taken tile by tile")
    homes = {}
    for tensor in dict.fromkeys(x.target.source for x in cluster.stmts):
        if is_local(plan, cluster, tensor):
            t = plan.scop.op.tensor(tensor)
            whole = Buffer(f"{tensor}_all", t.dtype, tuple((e, 1) for e in t.shape), Space.WORK)
            homes[tensor] = Home(whole, (False,) * len(t.shape), ())
    b = Builder(plan, cluster, homes)
    for h in homes.values():
        b.buffer(h.buffer)
    tree: list[Band | str] = []
    groups = [g for g in cluster.body if isinstance(g, Group)]
    for g, last in zip(groups, s.last, strict=True):
        loops = sorted((*cluster.shell, *g.kept, *g.reduced), key=lambda c, last=last: c == last)  # type: ignore[misc]
        axes = dict(outer) | {c: Axis((Coord(c),)) for c in loops}
        b.kinds |= dict.fromkeys(loops, (Kind.PARALLEL, None))
        tree += bands(loops, *(b.compute(x, axes, (*outer, *loops)) for x in g.stmts))
    return b.part(tree)
