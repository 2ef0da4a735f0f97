"""Short loops of known length: rows that are turned in registers, and narrow sums that are several, so that none waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from polyop.ir.expr import Affine, Load, affine, is_computed, place
from polyop.ir.options import BRIEF
from polyop.ir.scalars import computes
from polyop.poly.build import Plan
from polyop.poly.homes import is_local
from polyop.poly.schedule.nodes import Cluster, Group
from polyop.poly.scop import INIT, UPDATE, Stmt
from polyop.poly.strides import lies_along, stride

SUMS = 4
"""Vectors of lanes that are added up in one pass, where nothing else is known of them."""


def short_loops(plan: Plan, groups: Sequence[Group]) -> dict[str, int]:
    """The loops of `groups` that are known to have at most `BRIEF` iterations, and how many."""
    found: dict[str, set[Affine]] = {}
    for g in groups:
        for c in (*g.kept, *g.reduced):
            found.setdefault(c, set()).update(r.upper - r.lower for s in g.stmts for r in s.ranges
                                              if plan.classes[s.name][r.index] == c)
    counts = {c: next(iter(e)) for c, e in found.items() if len(e) == 1}
    return {c: e.const for c, e in counts.items() if e.is_constant and 1 < e.const <= BRIEF}


def turned_rows(plan: Plan, cluster: Cluster, groups: Sequence[Group], lane: str,
                few: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Which of the loops `few` are rows inside lanes along `lane`, since what lies along them is turned, and how many; () if that
    takes longer than sums across lanes along them, or vectors of functions with few elements.
    """
    def by_class(s: Stmt, x: Load) -> Load:
        return place(x, {i: affine(c) for i, c in plan.classes[s.name].items()})

    def moved(places: Iterable[tuple[Stmt, Load]]) -> dict[Load, list[str]]:
        return {by_class(s, x): [c for c in few if lies_along(plan, s, x, lane, (c,))] for s, x in places
                if not is_local(plan, cluster, x.source)}

    reads = moved((s, x) for s in cluster.stmts for x in s.reads)
    turned = {**reads, **moved((s, s.target) for s in cluster.stmts)}
    both = [(s, x) for s in cluster.stmts for x in s.reads if not is_local(plan, cluster, x.source)
            and stride(plan, s, x, lane) != 0 and any(stride(plan, s, x, c) != 0 for c in few)]
    if not any(reads.values()) or any(not reads[by_class(s, x)] for s, x in both):
        return ()
    folds = sum(s.kind == UPDATE and any(c in few and c in plan.classes[s.name].values() for c in g.reduced)
                for g in groups for s in g.stmts)
    functions = sum(computes(s.expr) for s in cluster.stmts)
    taken = sum(few[c] for loops in turned.values() for c in loops)
    short = dict.fromkeys(c for loops in reads.values() for c in loops)
    if plan.options.numerics == "strict" and any(sorted(g.reduced, key=short.__contains__) != [*g.reduced] for g in groups):
        return ()  # rows are inside all other loops
    sums = max((prod(few[c] for c in g.kept if c in short) for g in groups if g.reduced), default=1)  # each in a register
    return tuple((c, few[c]) for c in short) if taken <= BRIEF * (folds + functions) and sums <= BRIEF else ()


def several_sums(plan: Plan, cluster: Cluster, groups: Sequence[Group], lane: str, lanes: int) -> tuple[int, str, int] | None:
    """(vectors, loop, iterations in lock step) where lanes are known to be few, so that one addition would wait for the next.

    Each of these iterations has a sum of its own.
    """
    over = [c for g in groups for c in g.reduced]
    sums = [s for g in groups if g.kept or g.reduced for s in g.stmts if s.kind != INIT]
    may = plan.options.strip and plan.options.numerics != "strict" and not plan.target.warp
    if not may or len(over) != 1 or any(s.kind != UPDATE or _looks_up(s) for s in sums):
        return None
    own = plan.classes[sums[0].name]
    extent = next((x.upper - x.lower for x in sums[0].ranges if own[x.index] == lane), Affine())
    if not extent.is_constant or extent.const < 1:  # a sum more for each number of vectors takes twice as long to compile
        return None
    vectors = -(-extent.const // lanes)
    count = min(SUMS, plan.target.registers // 2 // (vectors * len(sums)))
    return (vectors, over[0], count) if count > 1 else None


def _looks_up(s: Stmt) -> bool:
    """Whether places that `s` reads or writes are looked up."""
    return any(is_computed(p) for x in (s.target, *s.reads) for p in x.index)
