"""Loops of a cluster's shell whose neighbours share what its one update reads, so that they had better run in lock step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from polyop.ir.expr import Affine, Load, expr_names, names
from polyop.ir.expr import Test as Tests
from polyop.poly.build import Plan
from polyop.poly.iterators import blocks_of
from polyop.poly.schedule.nodes import Cluster, Group
from polyop.poly.scop import MAP, UPDATE, Stmt


def beside(plan: Plan, cluster: Cluster) -> tuple[str, int] | None:
    """The loop of the shell over few rows that share what else the cluster's one update reads: `m` of `A[m, k] * B[n, k]`.

    Or that over few columns, `n`; and how many they are.
    """
    updates = [s for s in cluster.stmts if s.kind == UPDATE]
    last = updates[0].target.index[-1] if len(updates) == 1 and updates[0].target.index else None
    if not isinstance(last, Affine) or last.name is None:
        return None
    s, own = updates[0], plan.classes[updates[0].name]
    columns = dict(plan.options.few).get(s.extent(last.name).name or "", 0) if last.name in s.dims else 0
    if columns > 1 and own[last.name] in cluster.shell and not all(last.name in expr_names(x) for x in s.reads):
        return own[last.name], columns
    most = plan.options.dots or plan.options.rows
    if most <= 1:
        return None
    shared = frozenset[str]().union(*(expr_names(x) for x in s.reads if last.name in expr_names(x)))
    rows = [i for i in s.dims if own[i] in cluster.shell and i not in shared and any(i in expr_names(x) for x in s.reads)]
    return (own[rows[-1]], most) if rows else None


def others(plan: Plan, cluster: Cluster, few: str) -> str | None:
    """The innermost loop of the shell that shares what `few` has: n of `A[m, k] * B[n, k]`, q of `X[q + s, c] * F[k, s, c]`.

    Each vector of either side then serves several sums, and what comes from memory does so in several streams.
    """
    (s,) = (x for x in cluster.stmts if x.kind == UPDATE)
    own = {c: i for i, c in plan.classes[s.name].items()}
    reads = [expr_names(x) for x in s.reads if own[few] in expr_names(x)]
    found = [c for c in cluster.shell if c != few and c in own and not any(own[c] in x for x in reads)]
    return found[-1] if found and not is_tied(plan, cluster, found[-1]) else None


def multiplied(plan: Plan, cluster: Cluster, groups: Sequence[Group], inner: Sequence[str | None]) -> str | None:
    """The loop of the shell over rows that are all multiplied with the same vector: n of `x[k] * B[n, k]`, lanes along k.

    Not where anything else has lanes, or a window is added up.
    """
    of = [(c, g) for c, g in zip(inner, groups, strict=True) if c]
    if len(of) != 1 or of[0][0] not in of[0][1].reduced or any(is_window(plan, cluster.stmts, c) for c in of[0][1].reduced):
        return None
    found = sharing(plan, cluster, of[0][0])
    return found if found and not is_tied(plan, cluster, found) else None


def sharing(plan: Plan, cluster: Cluster, lane: str) -> str | None:
    """The innermost loop of the shell whose neighbours may share a read of the cluster's one update: `p` of `X[p + r] * F[r]`.

    They run in lock step then: what they share is read once, and their sums do not wait for each other.
    """
    updates = [s for s in cluster.stmts if s.kind == UPDATE]
    if len(updates) != 1:
        return None
    s = updates[0]
    own = plan.classes[s.name]

    def uses(x: Load, c: str) -> bool:
        return any(own[i] == c and i in (names(p) if isinstance(p, Affine) else expr_names(p)) for p in x.index for i in s.dims)

    inside = [own[i] for i in s.dims if own[i] not in cluster.shell]
    for c in reversed(cluster.shell):
        if c != lane and c in own.values() and any(not uses(x, c) and any(uses(x, i) for i in inside) for x in s.reads):
            return c
    return None


def looked_up(plan: Plan, cluster: Cluster, lane: str) -> str | None:
    """The innermost loop of the shell that a place looked up along `lane` is the same for: a of { Y[a, p] = X[a, ids[p]] }.

    What `ids` has, and whether that is a place in X, is asked once for rows that run in lock step.
    """
    if len(cluster.stmts) != 1 or cluster.stmts[0].kind != MAP:
        return None
    (s,) = cluster.stmts
    at = {c: i for i, c in plan.classes[s.name].items()}
    places = [expr_names(p) for x in s.reads for p in x.index if not isinstance(p, Affine)]
    found = [c for c in cluster.shell if c != lane and any(at[lane] in p and at.get(c) not in p for p in places)]
    return found[-1] if found else None


def is_line(plan: Plan, cluster: Cluster, lane: str, rows: str) -> bool:
    """Whether a window slides along `rows` in one line of an image after another, and `lane` goes through its channels.

    Lines are short, so that blocks of channels may go along one each: { Y[p, q, c] += X[p + r, q + s, c] * F[r, s, c] }.
    """
    s, = (s for s in cluster.stmts if s.kind == UPDATE)
    own = plan.classes[s.name]
    slides = {own[i] for x in s.reads for p in x.index if isinstance(p, Affine) and len(names(p) & set(s.dims)) > 1
              for i in names(p) & set(s.dims)}
    return rows in slides and lane not in slides and any(c in slides for c in cluster.shell if c != rows)


def is_tied(plan: Plan, cluster: Cluster, lane: str) -> bool:
    """Whether a condition ties `lane` to a loop inside the lanes: `k >= i` where k is added up and i has the lanes."""
    def loops(s: Stmt, t: Affine) -> set[str]:
        return {plan.classes[s.name][i] for i in names(t) & set(s.dims)}

    found = [loops(s, t) for s in cluster.stmts for w in s.where if isinstance(w, Tests) for t in w.tests]
    return any(lane in x and x - set(cluster.shell) for x in found)


def is_window(plan: Plan, stmts: Iterable[Stmt], loop: str) -> bool:
    """Whether the iterator of `loop` is added to another one in some read: `s` of `X[2*q + s]`, which is mostly short.

    An element of a block is none, `p` of `X[4096*b + p]`: its loop is known to be long.
    """
    return any(names(p) & set(s.dims) - own and names(p) & own and not any(blocks_of(p, i, s) for i in own)
               for s in stmts for own in [{i for i in s.dims if plan.classes[s.name].get(i) == loop}]
               for load in s.reads for p in load.index if isinstance(p, Affine))
