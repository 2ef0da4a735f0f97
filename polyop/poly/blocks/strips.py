"""Strategy "rows" on a GPU, for what is computed point by point: each thread has some neighbours along what has unit stride.

It reads and writes them at once where they lie so, see `codegen/c/wide.py`.
"""

from __future__ import annotations

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Load, affine, place
from polyop.ir.residues import runs_of
from polyop.poly.build import Plan
from polyop.poly.homes import is_local
from polyop.poly.schedule.nodes import Cluster
from polyop.poly.scop import Stmt
from polyop.poly.strategies.along import is_few, score
from polyop.poly.strategies.lanes import RowStrategy, groups_of
from polyop.poly.strides import spacing, unit_of

WIDE = 16  # bytes that a thread moves at once
MOST = 8   # neighbours of a thread


def choose(plan: Plan, cluster: Cluster) -> RowStrategy:
    """The strategy for `cluster`; `rows.py` builds it.

    Raises  UnsupportedError, if it has loops inside its shell, or does not read and write neighbours.
    """
    groups = groups_of(cluster.body)
    if any(g.kept or g.reduced for g in groups) or len(groups) < len(cluster.body):
        raise UnsupportedError("there are loops inside")
    local = frozenset(s.target.source for s in cluster.stmts if is_local(plan, cluster, s.target.source))
    gains = {c: score(plan, cluster.stmts, c, local) for c in cluster.shell}
    lane = max(gains, key=lambda c: gains[c], default=None)
    used = [(s, x) for s in cluster.stmts for x in (s.target, *s.reads) if x.source not in local]
    steps = [(x, _step(plan, s, x, lane, used)) for s, x in used] if lane else []
    if lane is None or any(step not in (0, 1) for _, step in steps):
        raise UnsupportedError("not all that it reads and writes are neighbours")
    count = min(MOST, WIDE // min(x.dtype.bytes_ for x, step in steps if step))
    if count < 2 or is_few(plan, cluster.stmts, lane, 2 * count):
        raise UnsupportedError(f"{lane} is short")
    return RowStrategy(None, (None,) * len(groups), lane, count, 1, 1)


def _step(plan: Plan, s: Stmt, x: Load, lane: str, used: list[tuple[Stmt, Load]]) -> int | None:
    """The stride of `x` along `lane`, where accesses in steps that leave nothing out together are neighbours."""
    found = spacing(plan, s, x, lane)
    if found is None or found < 2:
        return found
    each = [(_by_class(plan, q, y), unit) for q, y in used if spacing(plan, q, y, lane) == found
            and (unit := unit_of(plan, y)) is not None]
    return 1 if any(_by_class(plan, s, x) in r for r in runs_of(each, lane)) else found


def _by_class(plan: Plan, s: Stmt, x: Load) -> Load:
    """`x` with the classes of iterators in their places."""
    return place(x, {i: affine(c) for i, c in plan.classes[s.name].items()})
