"""Loops that cross: what one operand lies along, and what another does, or the result. Squares are then turned in registers."""

from __future__ import annotations

from collections.abc import Sequence

from polyop.poly.along import is_few
from polyop.poly.build import Plan
from polyop.poly.nodes import Cluster, Group
from polyop.poly.scop import INIT, MAP, UPDATE
from polyop.poly.strides import is_near, stride


def transposed(plan: Plan, cluster: Cluster, lane: str) -> str | None:
    """A loop of the shell along which some read of another stride than the lanes' has its unit stride."""
    if len(cluster.stmts) != 1:
        return None
    s = cluster.stmts[0]
    for load in s.reads:
        if stride(plan, s, load, lane) is None and not is_near(plan, s, load, lane):
            for c in cluster.shell:
                if c != lane and stride(plan, s, load, c) == 1:
                    return c
    return None


def square_of(plan: Plan, cluster: Cluster) -> tuple[str, str] | None:
    """Two loops of the shell, along one of which each access of a single assignment has its unit stride: most along the first.

    Lanes along that one have their values in registers, and squares of these are turned where they are written, or one is read.
    """
    s = cluster.stmts[0]
    if len(cluster.stmts) > 1 or s.kind != MAP:
        return None
    along = [next((c for c in cluster.shell if stride(plan, s, x, c) == 1), "") for x in (*s.reads, s.target) if x.index]
    found = sorted(dict.fromkeys(along), key=along.count, reverse=True)
    return (found[0], found[1]) if len(found) == 2 and "" not in found else None


def squares_of_sums(plan: Plan, cluster: Cluster, groups: Sequence[Group], lanes: int) -> tuple[str, str] | None:
    """A loop that some operands of a sum lie along, best one around it, and one that is added up, along which all others do.

    { Z[a] += X[a, b, c] * Y[a, c, b] }: squares of Y are turned where they are read, for lanes along c.
    { Z[a] += X[a, b] * Y[b, a] }: of X, for lanes along a.
    """
    sums = [g for g in groups if g.reduced]
    updates = [s for g in sums for s in g.stmts if s.kind != INIT]
    if len(updates) != 1 or updates[0].kind != UPDATE:
        return None
    (g,), (s,) = sums, updates
    inside = () if plan.options.numerics == "strict" else g.reduced
    along = {c: [x for x in s.reads if stride(plan, s, x, c) == 1] for c in (*cluster.shell, *g.reduced)}
    for lane in sorted((*cluster.shell, *reversed(inside)), key=lambda c: (c in cluster.shell, len(along[c])), reverse=True):
        across = [x for x in s.reads if stride(plan, s, x, lane) != 0 and x not in along[lane]]
        rows = next((c for c in g.reduced if c != lane and all(x in along[c] for x in across)), None)
        near = any(is_near(plan, s, x, lane) for x in across)
        if along[lane] and across and rows and not near and not any(is_few(plan, (s,), c, lanes) for c in (lane, rows)):
            return lane, rows
    return None
