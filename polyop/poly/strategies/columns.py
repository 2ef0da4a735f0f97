"""Strategy "packed" without rows, chosen: a sum of rows, `y[n] op= f(x[k], B[k, n])`; `packed.py` builds it.

A strip of lanes that runs down all of B touches one short piece of every row: a page for each of them, and too few lines in
a row for the hardware to fetch ahead. Here a few rows are added up at a time, over a run of columns whose results are a
sixteenth of L2. These are whole rows, mostly: memory is read in order then, and L2 has to do with results once for `CHUNK` rows.
Where such a row has pieces, { y[a, n] += x[k] B[k, a, n] }, a few rows have `PIECES` of each added up at a time, not one.
"""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.expr import Affine, Load, expr_names, is_computed
from polyop.ir.options import CHUNK
from polyop.poly.build import Axes, Plan
from polyop.poly.iterators import shares_of
from polyop.poly.schedule.nodes import Cluster
from polyop.poly.scop import INIT, MAP, UPDATE, Stmt
from polyop.poly.strategies.blocking import run_length
from polyop.poly.strategies.contract import PackedStrategy
from polyop.poly.strategies.roles import COLUMN, CONTRACTED, Contraction, is_long, iterators_of, stands_alone, written_order
from polyop.poly.strides import stride

VECTORS = 4
PIECES = 64
FEW_PIECES = 16  # of several threads, which share the pieces
PART = 8         # of the results of a run, that a piece has at most: those of all pieces have half of L2


def choose(plan: Plan, cluster: Cluster, outer: Axes) -> tuple[PackedStrategy, ...]:
    """A strategy, if the cluster is one update of such a kind and what follows it at the same points; else none."""
    if plan.options.strip:
        return ()
    updates = [s for s in cluster.stmts if s.kind == UPDATE]
    if len(updates) != 1:
        return ()
    u = updates[0]
    own = plan.classes[u.name]
    order = written_order(u)
    running = [p for p in u.target.index if not (isinstance(p, Affine) and p.is_constant)]  # a size that is 1 leaves a 0
    if len(order) != len(running) or not all(_fits(s, u, cluster, plan) for s in cluster.stmts if s is not u):
        return ()
    kept = [i for i in order if own[i] not in outer]
    long = [i for i in u.dims if i not in order and own[i] not in outer and is_long(u, i)
            and all(stands_alone(u, i, x) for x in u.reads if i in iterators_of(x))]
    lane = next((i for i in kept if stride(plan, u, u.target, own[i]) == 1), None)
    rights = tuple(x for x in u.reads if lane in iterators_of(x))
    if lane is None or not rights or not long or any(stride(plan, u, x, own[lane]) != 1 for x in rights):
        return ()
    depth = long[-1]
    inside = set(order) - shares_of(u)
    tied = any(depth in expr_names(w) and expr_names(w) & inside for w in u.where)
    if tied or not any(depth in expr_names(x) for x in rights):
        return ()
    roles = dict.fromkeys(kept, COLUMN) | {i: CONTRACTED for i in u.dims if i not in order and own[i] not in outer}
    if plan.options.numerics == "strict" and list(roles.values()).count(CONTRACTED) > 1:
        return ()  # blocks would sum in another order
    lefts = tuple(x for x in u.reads if x not in rights)
    what = Contraction(u, lefts, rights, roles, lane)
    vector = plan.target.lanes(plan.lane_bytes)
    if any(is_computed(p) for x in rights for p in x.index):  # rows from anywhere: the more of one is read at a time, the better
        columns = 2 * VECTORS * vector
        return (PackedStrategy(what, None, lane, depth, columns, columns, vector, None),)
    columns = VECTORS * vector
    free = (i for i in kept if i != lane and own[i] not in plan.tiled)
    beyond = tuple(i for i in free if all(_lies_inside(x, i, depth) for x in rights if i in iterators_of(x)))
    room = plan.target.l2 // 16
    run = max(1, room // PART // plan.lane_bytes // columns) * columns if beyond else run_length(plan, u, columns, room)
    pieces = FEW_PIECES if plan.splits(u) else PIECES
    return (PackedStrategy(what, None, lane, depth, columns, run, vector, CHUNK, beyond=beyond, together=pieces),)


def _lies_inside(x: Load, i: str, depth: str) -> bool:
    """Whether steps along `i` are smaller than along `depth`, where `x` lies as its dimensions are given."""
    at = {n: d for d, p in enumerate(x.index) for n in expr_names(replace(x, index=(p,)))}
    return depth in at and at.get(i, -1) > at[depth]


def _fits(s: Stmt, u: Stmt, cluster: Cluster, plan: Plan) -> bool:
    """Whether `s` is the init of `u`, or comes after it and runs over the very points that `u` writes."""
    if s.kind == INIT:
        return s.target.source == u.target.source
    same = {plan.classes[s.name][i] for i in s.dims} == {plan.classes[u.name][i] for i in written_order(u)}
    return s.kind == MAP and same and cluster.stmts.index(s) > cluster.stmts.index(u)
