"""Which calls of a graph share a kernel.

A kernel has at most one anchor (reduction, contraction, recurrence). Two neighbours are merged if

    the second is an epilogue        it is pointwise, and reads every element where the first leaves it
    the first is a prologue          it is pointwise, and the second needs no element of it twice (or it is cheap)

and if no third kernel would have to run between them. What is cheap and made of inputs alone is computed in every kernel
that needs it. Nothing but cheap pointwise work is ever done twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyop.graph.graph import Graph
from polyop.graph.traits import Kind, Traits, reads_elementwise, repeats, traits

CHEAP = 2
"""About the additions that may be computed again rather than stored and loaded."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Calls, by number and in order, that become one kernel; `notes` say why each joined."""

    calls: tuple[int, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why two calls with `tensor` between them are not in one kernel."""

    producer: int
    consumer: int
    tensor: str
    reason: str


@dataclass(frozen=True, slots=True)
class Clustering:
    """The kernels of a graph, in an order in which they can run, and why there are no fewer."""

    graph: Graph
    clusters: tuple[Cluster, ...]
    refusals: tuple[Refusal, ...]

    def __str__(self) -> str:
        calls = self.graph.calls
        lines = []
        for n, c in enumerate(self.clusters):
            lines.append(f"kernel {n}: {' + '.join(calls[k].name for k in c.calls)}")
            lines += [f"    {note}" for note in c.notes]
        for r in self.refusals:
            lines.append(f"{calls[r.producer].name} and {calls[r.consumer].name} are apart: {r.reason}")
        return "\n".join(lines)


def cluster(g: Graph) -> Clustering:
    """Merge greedily, in the order of the calls; of several producers the latest first."""
    state = _State(g)
    edges = sorted({(c, p) for c, call in enumerate(g.calls) for _, t in call.reads if (p := g.writer(t)) is not None},
                   key=lambda e: (e[0], -e[1]))
    refused: dict[tuple[int, int], Refusal] = {}
    for c, p in edges:
        if p in state.copies or state.of[p] == state.of[c]:
            continue
        reason = state.join(p, c)
        if reason:
            refused[p, c] = Refusal(p, c, state.between(p, c)[0], reason)
    together = [r for (p, c), r in refused.items() if state.of[p] != state.of[c]]
    return Clustering(g, state.result(), tuple(together))


class _State:
    """Which cluster each call is in, halfway."""

    def __init__(self, g: Graph) -> None:
        self.g = g
        self.traits: list[Traits] = [traits(c.op) for c in g.calls]
        self.of = list(range(len(g.calls)))
        self.notes: dict[int, list[str]] = {k: [] for k in self.of}
        self.sources = [{p for _, t in c.reads if (p := g.writer(t)) is not None} for c in g.calls]
        self.copies = self.cheap()

    def cheap(self) -> set[int]:
        """Calls that are computed wherever they are needed."""
        found: set[int] = set()
        for k, call in enumerate(self.g.calls):
            t = self.traits[k]
            written = [n for _, n in call.writes]
            several = all(len(self.g.readers(n)) > 1 for n in written)
            kept = any(self.g.tensor(n).role == "out" for n in written)
            if t.kind is Kind.POINTWISE and t.cost <= CHEAP and several and not kept and self.sources[k] <= found:
                found.add(k)
        return found

    def between(self, p: int, c: int) -> list[str]:
        written = {t for _, t in self.g.calls[p].writes}
        return [t for _, t in self.g.calls[c].reads if t in written]

    def join(self, p: int, c: int) -> str:
        """Put the clusters of `p` and `c` together, or say why not."""
        kind, reason = self.relation(p, c)
        if reason:
            return reason
        a, b = self.of[p], self.of[c]
        others = (self.relation(q, d)[1] for d, needs in enumerate(self.sources) for q in needs
                  if {self.of[q], self.of[d]} == {a, b} and q not in self.copies)
        refused = next(filter(None, others), "")
        if refused:
            return refused
        anchors = [k for k in range(len(self.of)) if self.of[k] in (a, b) and self.traits[k].is_anchor]
        if len(anchors) > 1:
            first, second = (self.g.calls[k].name for k in anchors[:2])
            return f"{first} and {second} each need a kernel of their own"
        third = self.third(a, b)
        if third:
            return f"{third} has to run between them"
        self.notes[a] += [f"{self.g.calls[c].name} {kind} {self.g.calls[p].name}", *self.notes.pop(b)]
        self.of = [a if x == b else x for x in self.of]
        return ""

    def relation(self, p: int, c: int) -> tuple[str, str]:
        """How `c` follows `p`, or why they do not go together."""
        first, second = self.traits[p], self.traits[c]
        name = self.g.calls[c].name
        reasons = []
        inner = [i for i, t in self.g.calls[c].reads if t in self.between(p, c)]
        if second.kind is Kind.POINTWISE:
            repeated = first.kind is Kind.REDUCTION
            why = next((w for i in inner if (w := reads_elementwise(second.flat, i, repeated))), "")
            if not why:
                return "is an epilogue of", ""
            reasons.append(f"{name} is no epilogue: {why}")
        if first.kind is Kind.POINTWISE:
            if first.cost <= CHEAP:
                return "computes as it loads", ""
            why = next((w for i in inner if (w := repeats(second.flat, i))), "")
            if not why:
                return "computes as it loads", ""
            reasons.append(f"{self.g.calls[p].name} would be computed again {why}")
        if not reasons:
            reasons.append(f"{self.g.calls[p].name} is a {first.kind.value}, and {name} a {second.kind.value}")
        return "", "; ".join(reasons)

    def third(self, a: int, b: int) -> str:
        """A call outside clusters `a` and `b` on a path from one to the other; empty if there is none."""
        for source, sink in ((a, b), (b, a)):
            behind: set[int] = set()  # clusters that need `source`, by way of another one or as such another one
            grew = True
            while grew:
                grew = False
                for k, here in enumerate(self.of):
                    needs = {self.of[n] for n in self.sources[k] if n not in self.copies} - {here}
                    if here not in behind and here != source and (needs & behind or (source in needs and here != sink)):
                        behind.add(here)
                        grew = True
            if sink in behind:
                needed = (n for k, here in enumerate(self.of) if here == sink for n in self.sources[k])
                return self.g.calls[next(n for n in needed if self.of[n] in behind - {sink})].name
        return ""

    def result(self) -> tuple[Cluster, ...]:
        """The clusters in an order in which they can run, each with the cheap calls that it needs."""
        members: dict[int, list[int]] = {}
        for k, a in enumerate(self.of):
            if k not in self.copies:
                members.setdefault(a, []).append(k)
        needs = {a: {self.of[s] for k in ks for s in self.sources[k] if s not in self.copies} - {a} for a, ks in members.items()}
        order: list[int] = []
        while len(order) < len(members):
            order.append(next(a for a in members if a not in order and needs[a] <= set(order)))
        return tuple(self.with_copies(members[a], self.notes[a]) for a in order)

    def with_copies(self, calls: list[int], notes: list[str]) -> Cluster:
        needed: set[int] = set()
        frontier = list(calls)
        while frontier:
            found = (self.sources[frontier.pop()] & self.copies) - needed
            needed |= found
            frontier += found
        more = [f"{self.g.calls[k].name} is cheap and computed here" for k in sorted(needed)]
        return Cluster(tuple(sorted({*calls, *needed})), (*notes, *more))
