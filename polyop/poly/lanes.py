"""Strategy "rows", chosen: where lanes run, by how the accesses stride along each loop; `rows.py` builds it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from polyop.ir.expr import Affine, Apply, Const, Load, affine, expr_names, loads, names, walk
from polyop.ir.expr import Test as Tests
from polyop.ir.options import SHORT
from polyop.ir.target import NEAR
from polyop.poly.build import Plan
from polyop.poly.homes import is_local
from polyop.poly.iterators import blocks_of, written
from polyop.poly.nodes import Cluster, Group, Node, Serial
from polyop.poly.scop import UPDATE, Stmt
from polyop.poly.strides import spacing, stride
from polyop.poly.turned import TurnedStrategy
from polyop.poly.turned import choose as turned

OTHERS = 4
"""Rows in lock step around few columns, where these have a window: its elements for all columns are then too many for L1."""


@dataclass(frozen=True, slots=True)
class RowStrategy:
    """Where lanes run.

    lane      a class of the shell, or None
    inner     for each group, in order, the class its lanes run along, or None; used where `lane` is None
    rows      a class of the shell that runs in lock step too, `row_extent` at a time, or None
    also      another one around these, and how many at a time
    vectors   vector registers' worth of lanes in one pass
    around    blocks of lanes stand around those of rows: what a window reads for one of them, filters too, stays in L1
    apart     conditions between the lanes and the loops inside them stand as tests, since those loops run in step
    """

    lane: str | None
    inner: tuple[str | None, ...]
    rows: str | None
    row_extent: int
    vectors: int
    lanes: int
    apart: bool = False
    around: bool = False
    also: tuple[str, int] | None = None

    def __str__(self) -> str:
        where = f"lanes {self.lane} (shell)" if self.lane else f"lanes {', '.join(i or '-' for i in self.inner)}"
        rows = f", rows {self.rows} x {self.row_extent}" if self.rows else ""
        rows += f" and {self.also[0]} x {self.also[1]}" if self.also else ""
        return f"rows: {where}, {self.vectors} x {self.lanes}{rows}{', conditions apart' if self.apart else ''}"


def groups_of(items: Iterable[Node]) -> list[Group]:
    """All groups, in order, with those inside serial loops."""
    out: list[Group] = []
    for item in items:
        if isinstance(item, Group):
            out.append(item)
        elif isinstance(item, Serial):
            out += groups_of(item.body)
    return out


def choose(plan: Plan, cluster: Cluster) -> tuple[RowStrategy | TurnedStrategy, ...]:
    """Strategies to try, best first; the last one has no lanes."""
    found = turned(plan, cluster)
    return (found, *_in_rows(plan, cluster)) if found else _in_rows(plan, cluster)


def _in_rows(plan: Plan, cluster: Cluster) -> tuple[RowStrategy, ...]:
    lanes = plan.target.lanes(plan.lane_bytes)
    groups = groups_of(cluster.body)
    strict = plan.options.numerics == "strict"
    inner: list[str | None] = []
    total = 0
    for g in groups:
        loops = [c for c in (*g.kept, *g.reduced) if not (strict and c in g.reduced)]
        loops = [c for c in loops if not is_few(plan, g.stmts, c, lanes)]
        gains = {c: score(plan, g.stmts, c) // (2 if c in g.reduced and is_window(plan, g.stmts, c) else 1) for c in loops}
        best = max(loops, key=lambda c: gains[c], default=None)
        gain = gains[best] if best else 0
        if best and gain <= 0:
            best, gain = None, 0
        inner.append(best)
        total += gain
    local = frozenset(s.target.source for s in cluster.stmts if is_local(plan, cluster, s.target.source))
    shell = {c: score(plan, cluster.stmts, c, local) for c in cluster.shell}
    lane = max(shell, key=lambda c: shell[c], default=None)
    none = RowStrategy(None, (None,) * len(groups), None, 1, 1, 1)
    by_inner = RowStrategy(None, tuple(inner), None, 1, 4, plan.target.lanes(_widest(plan, groups, inner)))
    out: list[RowStrategy] = []
    if lane and shell[lane] > 0:
        rows = transposed(plan, cluster, lane)
        by_shell = RowStrategy(lane, (None,) * len(groups), None, 1, 1 if is_turned_back(plan, cluster, lane) else 4, lanes)
        copies = min(4, (plan.target.registers - 2) // 4 - 1)  # of four vectors of sums, and four of what they share
        if plan.options.fixed and plan.options.short == SHORT and plan.options.height + 2 < plan.target.registers:
            by_shell, copies = replace(by_shell, vectors=1), plan.options.height or copies
        shared = None if rows or copies < 2 else sharing(plan, cluster, lane)
        if rows:
            out.append(replace(by_shell, rows=rows, row_extent=lanes, vectors=1))
        if shared:
            out.append(replace(by_shell, rows=shared, row_extent=copies, around=is_line(plan, cluster, lane, shared)))
        out.append(by_shell)
        if is_tied(plan, cluster, lane):
            out.append(replace(by_shell, apart=True))
    if any(inner):
        few = beside(plan, cluster)
        at = len(out) if lane and shell[lane] >= total else 0
        sides = [with_rows(plan, by_inner, *few)] if few else []
        across = others(plan, cluster, few[0]) if few and not plan.options.rows else None
        out[at:at] = [*(with_others(plan, x, across) for x in sides if across), *sides, by_inner]
    return (*out, none)


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
    if plan.options.rows <= 1:
        return None
    shared = frozenset[str]().union(*(expr_names(x) for x in s.reads if last.name in expr_names(x)))
    rows = [i for i in s.dims if own[i] in cluster.shell and i not in shared and any(i in expr_names(x) for x in s.reads)]
    return (own[rows[-1]], plan.options.rows) if rows else None


def with_rows(plan: Plan, r: RowStrategy, rows: str, few: int) -> RowStrategy:
    """`r` with its `few` `rows` in lock step, each with sums of its own in as many vectors as there are registers for."""
    most = max(v for v in (1, 2, 4) if (few + 1) * v < plan.target.registers and few * v <= 16)
    return replace(r, rows=rows, row_extent=few, vectors=most)


def others(plan: Plan, cluster: Cluster, few: str) -> str | None:
    """The innermost loop of the shell that shares what `few` has, if that has a window: q of `X[q + s, c] * F[k, s, c]`."""
    (s,) = (x for x in cluster.stmts if x.kind == UPDATE)
    if not any(is_window(plan, cluster.stmts, c) for c in plan.classes[s.name].values() if c not in cluster.shell):
        return None
    own = {c: i for i, c in plan.classes[s.name].items()}
    reads = [expr_names(x) for x in s.reads if own[few] in expr_names(x)]
    found = [c for c in cluster.shell if c != few and c in own and not any(own[c] in x for x in reads)]
    return found[-1] if found else None


def with_others(plan: Plan, r: RowStrategy, across: str) -> RowStrategy:
    """`r` with four rows `across` in lock step around its own: each vector of either side then serves four sums."""
    return replace(r, also=(across, OTHERS), vectors=1)


def _widest(plan: Plan, groups: Iterable[Group], inner: Iterable[str | None]) -> int:
    """The bytes of the widest element that statements along the lanes `inner` of their groups use, if that is 8; else 4.

    Where all that they do is with integers of one or two bytes, these.
    """
    along = [s for g, c in zip(groups, inner, strict=True) for s in g.stmts if c in plan.classes[s.name].values()]
    used = [x for s in along for x in (s.target, *walk(s.expr))]
    if all(isinstance(x, Load | Apply | Const) and x.dtype.bytes_ < 4 and not x.dtype.is_float for x in used):
        return max((x.dtype.bytes_ for x in used), default=4)
    return 8 if any(x.dtype.bytes_ == 8 for s in along for x in (s.target, *loads(s.expr))) else 4


def score(plan: Plan, stmts: Iterable[Stmt], loop: str, free: frozenset[str] = frozenset(), once: bool = False) -> int:
    """How well accesses run along `loop`: unit strides count for it, others against, but for near ones; reductions weigh more.

    Tensors in `free` have no stride yet: they get the one that the lanes want.

    once   whether a read counts once, and not as often as the text has it
    """
    total = 0
    for s in stmts:
        own = plan.classes[s.name].values()
        if loop not in own:
            continue
        weight = 3 if s.kind == UPDATE and set(s.dims) - written(s) else 1
        for load in dict.fromkeys(s.reads) if once else s.reads:
            if load.source in free:
                continue
            step = stride(plan, s, unclamped(load, [i for i in s.dims if plan.classes[s.name].get(i) == loop]), loop)
            near = spacing(plan, s, load, loop) in range(2, NEAR + 1)
            total += weight * (2 if step in (1, -1) else 0 if step == 0 else 1 if near else -2)
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


def is_turned_back(plan: Plan, cluster: Cluster, lane: str) -> bool:
    """Whether some read goes along `lane` and back again, as `X[max(j - 1, 1 - j)]` does at the edge of an image.

    The vectors at the edge are then put together from several, so only these are tiles of their own: one vector each.
    """
    def back(p: Affine, own: list[str]) -> bool:
        choices = [a.args for a, _ in p.terms if not isinstance(a, str) and a.op in ("min", "max")]
        return any(any(x.factor(i) < 0 for x in args for i in own) or any(back(x, own) for x in args) for args in choices)

    for s in cluster.stmts:
        own = [i for i in s.dims if plan.classes[s.name][i] == lane]
        if any(back(p, own) for x in s.reads for p in x.index if isinstance(p, Affine)):
            return True
    return False


def is_few(plan: Plan, stmts: Iterable[Stmt], loop: str, lanes: int) -> bool:
    """Whether `loop` is known to have fewer iterations than a vector has lanes, as the window of a pooling has."""
    extents = [r.upper - r.lower for s in stmts for r in s.ranges if plan.classes[s.name].get(r.index) == loop]
    return any(e.is_constant and e.const < lanes for e in extents)


def is_window(plan: Plan, stmts: Iterable[Stmt], loop: str) -> bool:
    """Whether the iterator of `loop` is added to another one in some read: `s` of `X[2*q + s]`, which is mostly short.

    An element of a block is none, `p` of `X[4096*b + p]`: its loop is known to be long.
    """
    return any(names(p) & set(s.dims) - own and names(p) & own and not any(blocks_of(p, i, s) for i in own)
               for s in stmts for own in [{i for i in s.dims if plan.classes[s.name].get(i) == loop}]
               for load in s.reads for p in load.index if isinstance(p, Affine))


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
