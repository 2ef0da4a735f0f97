"""Clusters that hand over large temporaries run batch by batch, so that only one batch of each is ever kept.

    [b i j : scores] [b i : softmax] [b i v : values]    becomes    b around [i j : scores] [i : softmax] [i v : values]

The loop must be a batch in every contraction, so that no operand is fetched again for each of its iterations, and each
dependence between the clusters must stay at one of its values. What lies in memory between them is then small enough for
a cache, and each thread has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polyop.ir.expr import Affine, names
from polyop.poly.edges import Edge, counterpart, same_value
from polyop.poly.nodes import Classes, Cluster, Schedule, Serial, Shared
from polyop.poly.scop import UPDATE, Scop, Stmt

LARGE = 2  # dimensions beside the batch that make it worth it: a matrix for each batch, not a row


def share(found: Schedule, scop: Scop, deps: Sequence[Edge]) -> Schedule:
    """`found`, with such loops around clusters that follow each other."""
    classes = {s: dict(own) for s, own in found.classes.items()}
    out: list[Cluster | Serial | Shared] = []
    left = list(found.nodes)
    while left:
        run = [left.pop(0)]
        best = None
        while left and isinstance(run[-1], Cluster) and isinstance(left[0], Cluster):
            more = _Run(tuple(n for n in (*run, left[0]) if isinstance(n, Cluster)), scop, deps, classes)
            if not more.loops():
                break
            run.append(left.pop(0))
            best = more
        out += [best.shared(classes)] if best and best.pays() else run
    return replace(found, nodes=tuple(out), classes=classes)


@dataclass(frozen=True, eq=False)
class _Run:
    """Clusters in order. A loop of theirs is one class of each, in the same order."""

    clusters: tuple[Cluster, ...]
    scop: Scop
    deps: Sequence[Edge]
    classes: Classes

    @property
    def stmts(self) -> tuple[Stmt, ...]:
        return tuple(s for c in self.clusters for s in c.stmts)

    def loops(self) -> list[tuple[str, ...]]:
        return [x for x in map(self._from, self.clusters[0].shell) if x]

    def _from(self, first: str) -> tuple[str, ...]:
        """The loop that is `first` in the first cluster; empty if some cluster has none that goes with it."""
        found = [first]
        for n, c in enumerate(self.clusters[1:], 1):
            back = {s.name: (found[k], s) for k, b in enumerate(self.clusters[:n]) for s in b.stmts}
            between = [e for e in self.deps if e.sink in c.stmts and e.source.name in back]
            mine = ""
            for e in between:
                source = self._iterator(e.source, back[e.source.name][0])
                sink = counterpart(e, source, forward=True, exact=True)
                if sink is None or not same_value(e.map, source, sink) or mine not in ("", self.classes[e.sink.name][sink]):
                    return ()
                mine = self.classes[e.sink.name][sink]
            if mine not in c.shell:
                return ()
            found.append(mine)
        return tuple(found) if self._is_batch(tuple(found)) else ()

    def _iterator(self, s: Stmt, loop: str) -> str:
        return next(i for i, c in self.classes[s.name].items() if c == loop)

    def _is_batch(self, loop: tuple[str, ...]) -> bool:
        """Whether all statements run over the same values, and each contraction has the loop in all that it reads."""
        upper = set()
        for c, mine in zip(self.clusters, loop, strict=True):
            for s in c.stmts:
                i = self._iterator(s, mine)
                r = next(r for r in s.ranges if r.index == i)
                upper.add((r.lower, r.upper))
                if c.is_contraction and s.kind == UPDATE and not all(
                        any(isinstance(p, Affine) and i in names(p) for p in x.index) for x in s.reads):
                    return False
        return len(upper) == 1 and next(iter(upper))[0] == Affine()

    def pays(self) -> bool:
        """Whether a temporary that only the run needs, and more than one cluster of it, has a matrix for each batch."""
        loops = len(self.loops())
        large = [t.name for t in self.scop.op.temporaries if len(t.shape) - loops >= LARGE]
        return any(c.is_contraction for c in self.clusters) and any(map(self._hands_over, large))

    def _hands_over(self, tensor: str) -> bool:
        users = self.scop.users(tensor)
        inside = [c for c in self.clusters if any(s in c.stmts for s in users)]
        return len(inside) > 1 and all(s in self.stmts for s in users)

    def shared(self, classes: dict[str, dict[str, str]]) -> Shared:
        """The node; `classes` are changed, so that each loop has one class throughout."""
        loops = self.loops()
        gone = {c for x in loops for c in x}
        for x in loops:
            for mine in x:
                for s in self.stmts:
                    for i, c in classes[s.name].items():
                        if c == mine:
                            classes[s.name][i] = x[0]
        inside = tuple(replace(c, shell=tuple(k for k in c.shell if k not in gone)) for c in self.clusters)
        return Shared(tuple(x[0] for x in loops), inside)
