"""Loops that cross: what one operand lies along, and what another does, or the result. Squares are then turned in registers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from polyop.ir.expr import Load
from polyop.poly.build import Plan
from polyop.poly.homes import is_local
from polyop.poly.schedule.nodes import Cluster, Group
from polyop.poly.scop import INIT, MAP, UPDATE, Stmt
from polyop.poly.strategies.along import is_few
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
    """Two loops of the shell, where assignments have no others: lanes, across which least lies, and what all of that lies along.

    { Z[b, a] = X[a, b] * Y[a, b] }: lanes along b have values in registers; squares of these are turned where they are written,
    squares of what is read across where it is read.
    """
    if any(s.kind != MAP or not {*plan.classes[s.name].values()} <= {*cluster.shell} for s in cluster.stmts):
        return None
    uses = [(s, x) for s in cluster.stmts for x in (*s.reads, s.target) if not is_local(plan, cluster, x.source)]
    across = {c: [u for u in uses if stride(plan, *u, c) not in (0, 1)] for c in cluster.shell}
    lane = min(cluster.shell, key=lambda c: len(across[c]), default="")
    return _with_rows(plan, lane, across[lane], cluster.shell) if lane else None


def squares_of_sums(plan: Plan, cluster: Cluster, groups: Sequence[Group], lanes: int) -> tuple[str, str] | None:
    """Lanes that some operands of a sum lie along, best around it, and a loop that is added up, along which all others lie.

    { Z[a] += X[a, b, c] * Y[a, c, b] }: squares of Y are turned where they are read, for lanes along c.
    { Z[a] += X[a, b] * Y[b, a] }: of X, for lanes along a.
    """
    sums = [g for g in groups if g.reduced]
    updates = [s for g in sums for s in g.stmts if s.kind != INIT]
    if len(updates) != 1 or updates[0].kind != UPDATE:
        return None
    (g,), (s,) = sums, updates
    inside = () if plan.options.numerics == "strict" else g.reduced
    loops = [c for c in (*cluster.shell, *reversed(inside)) if any(stride(plan, s, x, c) == 1 for x in s.reads)]
    across = {c: [(s, x) for x in s.reads if stride(plan, s, x, c) not in (0, 1)] for c in loops}
    for lane in sorted(loops, key=lambda c: (c not in cluster.shell, len(across[c]))):
        found = _with_rows(plan, lane, across[lane], g.reduced)
        near = any(is_near(plan, s, x, lane) for _, x in across[lane])
        if found and not near and not any(is_few(plan, (s,), c, lanes) for c in found):
            return found
    return None


def _with_rows(plan: Plan, lane: str, across: Sequence[tuple[Stmt, Load]], loops: Iterable[str]) -> tuple[str, str] | None:
    """`lane` and the one of `loops` along which all that lies across it, some access at least, has its unit stride."""
    rows = (c for c in loops if c != lane and all(stride(plan, s, x, c) == 1 for s, x in across))
    found = next(rows, None) if across else None
    return (lane, found) if found else None
