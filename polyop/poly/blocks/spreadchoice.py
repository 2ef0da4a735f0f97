"""Where the threads of a block run, for strategy "spread": along which loops, how many, and how many rows are side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import evaluate, names
from polyop.ir.integers import power_of_two
from polyop.poly.build import Plan
from polyop.poly.schedule.nodes import Cluster, Group
from polyop.poly.scop import Stmt
from polyop.poly.strategies.along import is_few, score
from polyop.poly.strategies.rows import scatters
from polyop.poly.strategies.sharing import is_window
from polyop.poly.strides import stride

BLOCK = 256     # threads where nothing is known of a row's length
EACH = 8        # iterations of a thread that are worth a thread
SHORT = 16      # loops of less iterations are not spread
FEWEST = 4      # threads of a row
ACROSS = 8      # threads that share a point of the shell at least, where the shell has the unit stride
MOST = 1024     # threads of a block at most
COPIES = 4      # iterations of a thread that wait for memory at once
FLIGHT, TOGETHER = 64, 16  # bytes of a thread, and iterations, that wait at once where the shell has the unit stride


@dataclass(frozen=True, slots=True)
class SpreadStrategy:
    """Where threads run.

    inner    for each group, in order, the class that is spread over `many` threads, or None
    beside   a class of the shell of which a block has `rows` values side by side, or None
    near     how many threads that are neighbours differ in `beside`; the next ones along `inner`, and then in `beside` again
    across   for each group a second loop, if the first one has few iterations: so many threads have these, the others that loop
    """

    inner: tuple[str | None, ...]
    many: int
    beside: str | None
    rows: int
    near: int = 1
    across: tuple[tuple[str, int] | None, ...] = ()
    copies: int = COPIES

    def __str__(self) -> str:
        along = ", ".join(i or "-" for i in self.inner)
        near = "" if self.near == 1 else ", side by side" if self.near == self.rows else f", {self.near} side by side"
        beside = f", {self.rows} of {self.beside} in a block{near}" if self.beside else ""
        both = ", ".join(f"{i} x {many} and {c}" for i, a in zip(self.inner, self.across, strict=False) if a for c, many in [a])
        return f"spread: threads {along} x {self.many}{f', of which {both}' if both else ''}{beside}"


def choose(plan: Plan, cluster: Cluster) -> tuple[SpreadStrategy, ...]:
    """The strategy for `cluster`.

    Raises  UnsupportedError, if no loop inside its shell is worth threads.
    """
    groups = [g for g in cluster.body if isinstance(g, Group)]
    if len(groups) < len(cluster.body):
        raise UnsupportedError("there is a recurrence inside")
    tile = next((c for c in cluster.shell if c in plan.tiled), None)
    if plan.block and tile:  # the rows of a block, side by side, and what is left of its threads along each of them
        rows = plan.tiled[tile].step
        inner = tuple(_best(plan, g)[0] or _longest(plan, g) for g in groups)
        many = plan.block // rows
        return (SpreadStrategy(inner, many, tile, rows, max(1, min(rows, plan.target.warp // many))),)
    if any(scatters(plan, s, g.reduced) for g in groups for s in g.stmts):
        raise UnsupportedError("where it writes is known only inside")
    local = frozenset(s.target.source for s in cluster.stmts if plan.scop.op.tensor(s.target.source).role == "temp")
    shell = {c: score(plan, cluster.stmts, c, local) for c in cluster.shell}
    lane = max(shell, key=lambda c: shell[c], default=None)
    found = [_best(plan, g) for g in groups]
    if any(c for c, _ in found) and not (lane and shell[lane] >= sum(gain for _, gain in found) > 0):
        inner = tuple(c for c, gain in found)
        if any(gain > 0 for _, gain in found):
            return (_along(plan, cluster, inner),)
    if lane and shell[lane] > 0 and not cluster.is_contraction:
        inner = tuple(_longest(plan, g) for g in groups)
        if any(inner):
            return (_beside(plan, cluster, inner, lane),)
    raise UnsupportedError("no loop inside is long, and all of it in order")


def _beside(plan: Plan, cluster: Cluster, inner: tuple[str | None, ...], lane: str) -> SpreadStrategy:
    """Points of the shell side by side, a warp of them, which all other threads of a block share."""
    warp = plan.target.warp
    bytes_ = max((x.dtype.bytes_ for s in cluster.stmts for x in s.reads
                  if plan.scop.op.tensor(x.source).role != "temp" and stride(plan, s, x, lane) in (1, -1)), default=FLIGHT)
    copies, groups = max(COPIES, min(TOGETHER, FLIGHT // bytes_)), [g for g in cluster.body if isinstance(g, Group)]
    extents = [longest_of(plan, g.stmts, c) for g, c in zip(groups, inner, strict=True) if c]
    many = MOST // warp
    if all(extents):
        many = min(many, max(ACROSS, power_of_two(-(-max(extents) // copies))))
    return SpreadStrategy(inner, many, lane, warp, warp, copies=copies)


def _loops(plan: Plan, g: Group) -> list[str]:
    """The loops of `g` that may be spread."""
    strict = plan.options.numerics == "strict"
    loops = (c for c in (*g.kept, *g.reduced) if not (strict and c in g.reduced) and not is_few(plan, g.stmts, c, SHORT))
    return [c for c in loops if not 0 < longest_of(plan, g.stmts, c) < SHORT]


def _best(plan: Plan, g: Group) -> tuple[str | None, int]:
    """The loop of `g` that its accesses run along best, and how well they do."""
    gains = {c: score(plan, g.stmts, c, once=True) // (2 if c in g.reduced and is_window(plan, g.stmts, c) else 1)
             for c in _loops(plan, g)}
    best = max(gains, key=lambda c: gains[c], default=None)
    return (best, gains[best]) if best and gains[best] > 0 else (None, 0)


def _longest(plan: Plan, g: Group) -> str | None:
    """The outermost loop of `g` whose length is not known, or else the longest one."""
    loops = [c for c in _loops(plan, g) if not is_window(plan, g.stmts, c)]
    return max(loops, key=lambda c: longest_of(plan, g.stmts, c) or 1 << 30, default=None)


def longest_of(plan: Plan, stmts: Iterable[Stmt], loop: str) -> int:
    """The most iterations of `loop` that are known or hinted at; 0, if some are not."""
    hints = dict(plan.options.hints)
    sizes = [r.upper - r.lower for s in stmts for r in s.ranges if plan.classes[s.name].get(r.index) == loop]
    known = [evaluate(e, hints) if names(e) <= hints.keys() else 0 for e in sizes]
    return max(known) if known and all(known) else 0


def _along(plan: Plan, cluster: Cluster, inner: tuple[str | None, ...]) -> SpreadStrategy:
    """Threads along `inner`: a block for a row, unless rows are known to be short, of which a block has several then."""
    groups = [g for g in cluster.body if isinstance(g, Group)]
    extents = [longest_of(plan, g.stmts, c) for g, c in zip(groups, inner, strict=True) if c]
    longest = max(extents) if all(extents) else 0
    if not longest or _hands_on(cluster):
        across = tuple(_across(plan, g, c) for g, c in zip(groups, inner, strict=True))
        return SpreadStrategy(inner, BLOCK, None, 1, across=across)
    many = min(4 * BLOCK // 2, _threads(longest))
    rows = BLOCK // 2 // many
    if rows > 1 and cluster.shell and not is_few(plan, cluster.stmts, cluster.shell[-1], rows):
        return SpreadStrategy(inner, many, cluster.shell[-1], rows)
    return SpreadStrategy(inner, max(many, plan.target.warp), None, 1)


def _across(plan: Plan, g: Group, lane: str | None) -> tuple[str, int] | None:
    """Another loop of `g` for what a `lane` of few iterations leaves of a block's threads, and how many the lane keeps.

    One of the two is a sum's: what its threads have is folded. { s[j] += Q[d] K[j, d] }, { o[v] += p[j] V[j, v] }
    """
    extent = longest_of(plan, g.stmts, lane) if lane else 0
    many = _threads(extent)
    others = [c for c in _loops(plan, g) if (c in g.reduced) != (lane in g.reduced) and not is_window(plan, g.stmts, c)]
    longest = max(others, key=lambda c: longest_of(plan, g.stmts, c) or 1 << 30, default=None)
    return (longest, many) if extent and longest and many <= BLOCK // FEWEST else None


def _threads(extent: int) -> int:
    """Threads along so many iterations, each of which has some."""
    return max(FEWEST, power_of_two(-(-extent // EACH)))


def _hands_on(cluster: Cluster) -> bool:
    """Whether a row is written to memory and read again: the proof that the same threads do so knows one row in a block."""
    written = {s.target.source for s in cluster.stmts if len(s.target.index) > len(cluster.shell)}
    return any(x.source in written for s in cluster.stmts for x in s.reads)
