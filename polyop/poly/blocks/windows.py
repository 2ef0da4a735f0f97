"""Strategy "rows" on a GPU, for windows that overlap: each thread has some results below each other, which share what they read.

    Y[p, q] += X[p + r, q + s] * F[r, s]      4 of p: rows p to p + 5 of X once, and not 4 x 3 of them

Neighbours in a warp go along what has unit stride, as before, so nothing has to lie at multiples of 16 bytes, and rows of any
length do. What is read once the text says (`codegen/c/windows.py`); the nest has the rows in lock step inside the window's loops.
"""

from __future__ import annotations

from math import prod

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Load, names
from polyop.poly.build import Plan
from polyop.poly.schedule.nodes import Cluster
from polyop.poly.scop import UPDATE, Stmt
from polyop.poly.strategies.along import is_few
from polyop.poly.strategies.lanes import RowStrategy, groups_of

ROWS = 4        # results of a thread, unless the options say how many
TERMS = 256     # of all of them that are written out
ELEMENTS = 64   # of what they share, which are in registers; of more rows than `ROWS` half of it


def choose(plan: Plan, cluster: Cluster) -> RowStrategy:
    """The strategy for `cluster`; `rows.py` builds it.

    Raises  UnsupportedError, if no windows of known sizes overlap beside the loop along which threads are neighbours.
    """
    groups = groups_of(cluster.body)
    reduced = {c for g in groups for c in g.reduced}
    if any(g.kept for g in groups) or not reduced or len(groups) < len(cluster.body):
        raise UnsupportedError("there is no sum over a window alone")
    for c in cluster.shell[:-1]:
        for rows in dict.fromkeys((plan.options.height or ROWS, ROWS)):
            shared = [n for s in cluster.stmts if s.kind == UPDATE for x in s.reads
                      if (n := _elements(plan, s, x, c, rows, reduced))]
            most = ELEMENTS if rows == ROWS else ELEMENTS // 2
            if shared and max(shared) <= most and not is_few(plan, cluster.stmts, c, 2 * rows):
                return RowStrategy(None, (None,) * len(groups), c, rows, 1, 1, inside=True)
    raise UnsupportedError("no windows overlap beside the last loop, or they are of any size")


def _elements(plan: Plan, s: Stmt, x: Load, c: str, rows: int, reduced: set[str]) -> int:
    """How many elements of `x` the windows of so many `rows` of points along `c` have together; 0, if none is in two of them."""
    own = plan.classes[s.name]
    extents = {r.index: r.upper - r.lower for r in s.ranges if own.get(r.index) in reduced}
    index = [p for p in x.index if isinstance(p, Affine)]
    if any(not e.is_constant for e in extents.values()) or len(index) < len(x.index):
        return 0
    if rows * prod(e.const for e in extents.values()) > TERMS:
        return 0
    ends = {i: e.const for i, e in extents.items()} | {i: rows for i in s.dims if own.get(i) == c}
    used = [[(p.factor(i), ends[i]) for i in sorted(names(p) & set(ends))] for p in index]
    if any(f < 1 for p in used for f, _ in p) or not any(own[i] == c for p in index for i in names(p) & set(ends)):
        return 0
    each = prod(sum(f * (n - 1) for f, n in p) + 1 for p in used if p)
    return each if each < prod(n for p in used for _, n in p) else 0
