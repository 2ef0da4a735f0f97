"""Strategy "rows", chosen: where lanes run, by how the accesses stride along each loop; `rows.py` builds it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from polyop.ir.expr import Affine, Load, affine, names
from polyop.ir.expr import Test as Tests
from polyop.poly.build import Plan, is_local, stride
from polyop.poly.schedule import Cluster, Group, Serial
from polyop.poly.scop import UPDATE, Stmt


@dataclass(frozen=True, slots=True)
class RowStrategy:
    """Where lanes run.

    lane      a class of the shell, or None
    inner     for each group, in order, the class its lanes run along, or None; used where `lane` is None
    rows      a class of the shell that runs in lock step too, `row_extent` at a time, or None
    vectors   vector registers' worth of lanes in one pass
    apart     conditions between the lanes and the loops inside them stand as tests, since those loops run in step
    """

    lane: str | None
    inner: tuple[str | None, ...]
    rows: str | None
    row_extent: int
    vectors: int
    lanes: int
    apart: bool = False

    def __str__(self) -> str:
        where = f"lanes {self.lane} (shell)" if self.lane else f"lanes {', '.join(i or '-' for i in self.inner)}"
        rows = f", rows {self.rows} x {self.row_extent}" if self.rows else ""
        return f"rows: {where}, {self.vectors} x {self.lanes}{rows}{', conditions apart' if self.apart else ''}"


def groups_of(items: Iterable[Group | Serial | Cluster]) -> list[Group]:
    """All groups, in order, with those inside serial loops."""
    out: list[Group] = []
    for item in items:
        if isinstance(item, Group):
            out.append(item)
        elif isinstance(item, Serial):
            out += groups_of(item.body)
    return out


def choose(plan: Plan, cluster: Cluster) -> tuple[RowStrategy, ...]:
    """Strategies to try, best first; the last one has no lanes."""
    lanes = plan.target.lanes(plan.lane_bytes)
    groups = groups_of(cluster.body)
    strict = plan.options.numerics == "strict"
    inner: list[str | None] = []
    total = 0
    for g in groups:
        loops = [c for c in (*g.kept, *g.reduced) if not (strict and c in g.reduced)]
        loops = [c for c in loops if not is_few(plan, g.stmts, c, lanes)]
        best = max(loops, key=lambda c: score(plan, g.stmts, c), default=None)
        gain = score(plan, g.stmts, best) if best else 0
        if best and gain <= 0:
            best, gain = None, 0
        inner.append(best)
        total += gain
    local = frozenset(s.target.source for s in cluster.stmts if is_local(plan, cluster, s.target.source))
    shell = {c: score(plan, cluster.stmts, c, local) for c in cluster.shell}
    lane = max(shell, key=lambda c: shell[c], default=None)
    none = RowStrategy(None, (None,) * len(groups), None, 1, 1, 1)
    by_inner = RowStrategy(None, tuple(inner), None, 1, 4, lanes)
    out: list[RowStrategy] = []
    if lane and shell[lane] > 0:
        rows = transposed(plan, cluster, lane)
        by_shell = RowStrategy(lane, (None,) * len(groups), None, 1, 4, lanes)
        if rows:
            out.append(replace(by_shell, rows=rows, row_extent=lanes, vectors=1))
        out.append(by_shell)
        if is_tied(plan, cluster, lane):
            out.append(replace(by_shell, apart=True))
    if any(inner):
        out.insert(len(out) if lane and shell[lane] >= total else 0, by_inner)
    return (*out, none)


def score(plan: Plan, stmts: Iterable[Stmt], loop: str, free: frozenset[str] = frozenset()) -> int:
    """How well accesses run along `loop`: unit strides count for it, other strides against; reductions weigh more.

    Tensors in `free` have no stride yet: they get the one that the lanes want.
    """
    total = 0
    for s in stmts:
        own = plan.classes[s.name].values()
        if loop not in own:
            continue
        weight = 3 if s.kind == UPDATE else 1
        for load in s.reads:
            if load.source in free:
                continue
            step = stride(plan, s, unclamped(load, [i for i in s.dims if plan.classes[s.name].get(i) == loop]), loop)
            total += weight * (2 if step in (1, -1) else 0 if step == 0 else -2)
        if s.target.source in free:
            continue
        step = stride(plan, s, s.target, loop)
        total += 4 if step in (1, -1) else 0 if step == 0 else -6
    return total


def unclamped(load: Load, own: list[str]) -> Load:
    """`load` as it is where no minimum or maximum along the iterators `own` holds it back: `X[i - 2]` of `X[max(i - 2, 0)]`."""
    def free(x: Affine) -> Affine:
        total = Affine(const=x.const)
        for atom, factor in x.terms:
            part = affine(atom)
            if not isinstance(atom, str) and atom.op in ("min", "max") and names(part) & set(own):
                part = max(map(free, atom.args), key=lambda a: (any(map(a.factor, own)), sum(map(a.factor, own))))
            total = total + part * factor
        return total

    return replace(load, index=tuple(free(p) if isinstance(p, Affine) else p for p in load.index))


def is_few(plan: Plan, stmts: Iterable[Stmt], loop: str, lanes: int) -> bool:
    """Whether `loop` is known to have fewer iterations than a vector has lanes, as the window of a pooling has."""
    extents = [r.upper - r.lower for s in stmts for r in s.ranges if plan.classes[s.name].get(r.index) == loop]
    return any(e.is_constant and e.const < lanes for e in extents)


def is_tied(plan: Plan, cluster: Cluster, lane: str) -> bool:
    """Whether a condition ties `lane` to a loop inside the lanes: `k >= i` where k is added up and i has the lanes."""
    def loops(s: Stmt, t: Affine) -> set[str]:
        return {plan.classes[s.name][i] for i in names(t) & set(s.dims)}

    found = [loops(s, t) for s in cluster.stmts for w in s.where if isinstance(w, Tests) for t in w.tests]
    return any(lane in x and x - set(cluster.shell) for x in found)


def transposed(plan: Plan, cluster: Cluster, lane: str) -> str | None:
    """A loop of the shell along which some read of another stride than the lanes' has its unit stride."""
    if len(cluster.stmts) != 1:
        return None
    s = cluster.stmts[0]
    for load in s.reads:
        if stride(plan, s, load, lane) is None:
            for c in cluster.shell:
                if c != lane and stride(plan, s, load, c) == 1:
                    return c
    return None
