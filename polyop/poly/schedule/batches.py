"""Clusters that hand over large temporaries run batch by batch, so that only one batch of each is ever kept.

    [b i j : scores] [b i : softmax] [b i v : values]    becomes    b around [i j : scores] [i : softmax] [i v : values]

The loop must be a batch in every contraction, so that no operand is fetched again for each of its iterations, and each
dependence between the clusters must stay at one of its values. What lies in memory between them is then small enough for
a cache, and each thread has its own.

A loop that has all that but is a row of the contractions is shared too, some iterations at a time:

    b around, 192 of i at a time around [i j : scores] [i : softmax] [i v : values]

The other operand is fetched again for each tile of rows, which is worth it where what is handed over is written and read
several times: by a contraction, by another one, and by something between them that is none.

Columns of a recurrence that do not wait for each other go through all its turns, some of them at a time:

    t! ( [i n : product of what came before] [n : i! ( .. )] )    becomes    48 of n at a time around t! ( .. )

where the product reads what the turns before have written. That of a few columns stays in a cache, and threads, of which each
has columns of its own, meet once, and not in each turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from polyop.ir.expr import Affine, Load, affine, names
from polyop.poly.edges import Edge, counterpart, same_value
from polyop.poly.iterators import blocks_of, shares_of, written
from polyop.poly.schedule.nodes import Classes, Cluster, Node, Schedule, Serial, Shared
from polyop.poly.scop import MAP, UPDATE, Scop, Stmt

BLOCK = 8  # rows that make it worth it to fetch an operand for them
LARGE = 2  # dimensions beside the batch that make it worth it: a matrix for each batch, not a row


def share(found: Schedule, scop: Scop, deps: Sequence[Edge], apart: bool = False, columns: bool = True,
          pieces: bool = False) -> Schedule:
    """`found`, with such loops around clusters that follow each other.

    apart     whether shares of sums are for several threads: no loop goes around what adds them up, too
    columns   whether columns go through all turns of a recurrence
    pieces    whether sums are turned for one piece of their operand's rows after the other
    """
    classes = {s: dict(own) for s, own in found.classes.items()}
    parts = frozenset(s.target.source for s in scop.stmts if apart and shares_of(s))

    def shared(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return _shared(nodes, scop, deps, classes, parts, pieces)
    nodes = tuple(replace(n, body=shared(n.body)) if isinstance(n, Serial) else n for n in found.nodes)
    nodes = tuple(_by_columns(n, scop, deps, classes) for n in nodes) if columns else nodes
    return replace(found, nodes=shared(nodes), classes=classes)


def _by_columns(node: Node, scop: Scop, deps: Sequence[Edge], classes: dict[str, dict[str, str]]) -> Node:
    """`node` inside a loop over some columns at a time, if it is a recurrence in which these do not wait for each other."""
    if not isinstance(node, Serial):
        return node
    clusters = tuple(n for n in node.body if isinstance(n, Cluster))
    run = Run(clusters, scop, deps, classes)
    column = run.column() if len(clusters) == len(node.body) else ()
    if not column:
        return node
    run.rename((column,), classes)
    body = tuple(replace(c, shell=tuple(column[0] if k == mine else k for k in c.shell))
                 for c, mine in zip(clusters, column, strict=True))
    return Shared((), (replace(node, body=body),), column[0])


def _shared(nodes: tuple[Node, ...], scop: Scop, deps: Sequence[Edge], classes: dict[str, dict[str, str]],
            parts: frozenset[str], pieces: bool) -> tuple[Node, ...]:
    out: list[Node] = []
    left = list(nodes)
    while left:
        run = [left.pop(0)]
        best = None
        while left and isinstance(run[-1], Cluster) and isinstance(left[0], Cluster):
            if any(x.source in parts for s in left[0].stmts for x in s.reads):
                break
            more = Run(tuple(n for n in (*run, left[0]) if isinstance(n, Cluster)), scop, deps, classes, pieces)
            if not more.loops() and (not more.tile() or (best and best.loops())):
                break
            run.append(left.pop(0))
            best = more
        out += [best.shared(classes)] if best and best.pays() else run
    return tuple(out)


@dataclass(frozen=True, eq=False)
class Run:
    """Clusters in order. A loop of theirs is one class of each, in the same order. `pieces`: see `share`."""

    clusters: tuple[Cluster, ...]
    scop: Scop
    deps: Sequence[Edge]
    classes: Classes
    pieces: bool = False

    @property
    def stmts(self) -> tuple[Stmt, ...]:
        return tuple(s for c in self.clusters for s in c.stmts)

    def loops(self) -> list[tuple[str, ...]]:
        """Those that are batches everywhere, and leave lanes what lies side by side; or that have blocks of rows inside."""
        found = [x for x in map(self._from, self.clusters[0].shell) if x and not self._is_lane(x)]
        around = found[: max((n for n, x in enumerate(found, 1) if self._has_blocks(x)), default=0)]
        return [x for x in found if self._is_batch(x) or (x in around and self._leaves_rows(x, around)) or self._is_piece(x)]

    def tile(self) -> tuple[str, ...]:
        """One that is a row of some contraction, and a batch or a row of the others; empty if there is none."""
        found = [x for x in map(self._from, self.clusters[0].shell) if x and not self._is_batch(x) and self._is_row(x)]
        return found[0] if len(found) == 1 else ()

    def column(self) -> tuple[str, ...]:
        """For the turns of a recurrence: a column of each contraction, along which no turn needs another value of any; or empty.

        What a contraction reads by it is what the recurrence writes: some columns of that stay in a cache.
        """
        heavy = [s for c in self.clusters if c.is_contraction for s in c.stmts if s.kind == UPDATE]
        written_here = {s.target.source for s in self.stmts}
        for x in (x for x in map(self._from, self.clusters[0].shell) if x and heavy):
            own = {s.name: i for s, i in self._iterators(x)}
            inner = [e for e in self.deps if e.source.name in own and e.sink.name in own]
            if all(s.target.index[-1:] == (affine(own[s.name]),) and
                   {y.source for y in s.reads if y.index[-1:] == (affine(own[s.name]),)} & written_here for s in heavy) \
                    and all(same_value(e.map, own[e.source.name], own[e.sink.name]) for e in inner):
                return x
        return ()

    def in_block(self) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
        """For a GPU: the loops that all clusters have, and the innermost of them that is a row of some contraction, apart."""
        found = [x for x in map(self._from, self.clusters[0].shell) if x]
        tile = next((x for x in reversed(found) if not self._is_batch(x) and self._is_row(x)), ())
        return [x for x in found if x != tile], tile

    def _from(self, first: str) -> tuple[str, ...]:
        """The loop that is `first` in the first cluster, over the same values in all; empty if some cluster has none like it."""
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
        return tuple(found) if self._has_one_range(tuple(found)) else ()

    def _iterator(self, s: Stmt, loop: str) -> str:
        return next(i for i, c in self.classes[s.name].items() if c == loop)

    def _has_one_range(self, loop: tuple[str, ...]) -> bool:
        """Whether all statements run over the same values of it, from 0 on."""
        found = {(r.lower, r.upper) for s, i in self._iterators(loop) for r in s.ranges if r.index == i}
        return len(found) == 1 and next(iter(found))[0] == Affine()

    def _iterators(self, loop: tuple[str, ...]) -> list[tuple[Stmt, str]]:
        return [(s, self._iterator(s, mine)) for c, mine in zip(self.clusters, loop, strict=True) for s in c.stmts]

    def _reads(self, loop: tuple[str, ...]) -> list[list[bool]]:
        """For each contraction, whether the loop is in each of its reads."""
        heavy = [s for c in self.clusters if c.is_contraction for s in c.stmts if s.kind == UPDATE]
        return [[any(isinstance(p, Affine) and i in names(p) for p in x.index) for x in s.reads]
                for s, i in self._iterators(loop) if s in heavy]

    def _is_batch(self, loop: tuple[str, ...]) -> bool:
        return all(all(reads) for reads in self._reads(loop))

    def _is_lane(self, loop: tuple[str, ...]) -> bool:
        """Whether temporaries have unit stride along it; where rows are read again, whether these have."""
        again = self._read_again()
        if again:
            return any(x.source in again and x.index[-1:] == (affine(i),) for s, i in self._iterators(loop) for x in s.reads)
        made = any(self.scop.op.tensor(s.target.source).role == "temp" and s.target.index[-1:] == (affine(i),)
                   for s, i in self._iterators(loop))
        return made or self._turns(loop)

    def _turns(self, loop: tuple[str, ...]) -> bool:
        """Whether beside contractions something takes whole matrices from where the loop has unit stride, or there: by squares
        of several of its values.
        """
        beside = {s.name for c in self.clusters if not c.is_contraction for s in c.stmts}
        return any(s.name in beside and len(x.index) > LARGE and x.index[-1] == affine(i)
                   for s, i in self._iterators(loop) for x in (s.target, *s.reads))

    def _is_piece(self, loop: tuple[str, ...]) -> bool:
        """Whether a contraction is only turned afterwards, and each iteration has a piece of the rows of its one large operand.

        { Z[c, j, b, d, a] = t[a, j, d, b, c] } of X[a, k, d, b, c] * W[j, k]: of each d rows of b and c, which stay long.
        """
        if not self.pieces or len(self.clusters) != 2 or not self.clusters[0].is_contraction or len(self.clusters[1].stmts) > 1:
            return False
        turn, = self.clusters[1].stmts
        u = next(s for s in self.clusters[0].stmts if s.kind == UPDATE)
        if turn.kind != MAP or not isinstance(turn.expr, Load) or len(u.reads) != 2:
            return False
        i, kept = self._iterator(u, loop[0]), written(u)
        having = [x for x in u.reads if affine(i) in x.index]
        if len(having) != 1:
            return False
        behind = having[0].index[having[0].index.index(affine(i)) + 1:]
        return len(behind) >= LARGE and all(isinstance(p, Affine) and names(p) <= kept for p in behind)

    def _has_blocks(self, loop: tuple[str, ...]) -> bool:
        """Whether each iteration has a block of rows, in which operands are used again, as b of { Y[8 b + p] : 0 <= p < 8 }."""
        return any(isinstance(p, Affine) and p.factor(i) >= BLOCK and len(names(p) & {*s.dims}) > 1
                   for s, i in self._iterators(loop) if s.kind == MAP for x in (s.target, *s.reads) for p in x.index)

    def _leaves_rows(self, loop: tuple[str, ...], taken: list[tuple[str, ...]]) -> bool:
        """Whether each operand of a contraction that has the loop has another one that is not `taken` and the result has, too."""
        own = {s.name: i for s, i in self._iterators(loop)}
        gone = {(s.name, i) for x in taken for s, i in self._iterators(x)}
        for s in (s for c in self.clusters if c.is_contraction for s in c.stmts if s.kind == UPDATE):
            for x in s.reads:
                here = frozenset[str]().union(*(names(p) for p in x.index if isinstance(p, Affine))) & written(s)
                if own[s.name] in here and not any((s.name, i) not in gone for i in here):
                    return False
        return True

    def _is_row(self, loop: tuple[str, ...]) -> bool:
        """Whether the loop is no column: nothing that a contraction reads by it has a unit stride of the result."""
        heavy = [s for c in self.clusters if c.is_contraction for s in c.stmts if s.kind == UPDATE]
        last = {s.name: s.target.index[-1] for s in heavy}
        return all(last[s.name] != affine(i) for s, i in self._iterators(loop) if s.name in last)

    def pays(self) -> bool:
        """Whether a temporary that only the run needs, and more than one cluster of it, has a matrix for each batch."""
        if self.loops() and self._read_again():
            return True
        return bool(self._matrices()) and bool(self.loops() or self._tile_pays())

    def _read_again(self) -> frozenset[str]:
        """What one cluster goes over block by block, and the last one reads again."""
        first = {x.source for c in self.clusters[:-1] for s in c.stmts for x in s.reads for p in x.index if isinstance(p, Affine)
                 for i in s.dims if any(self.classes[s.name][b] in c.shell for b in blocks_of(p, i, s))}
        return frozenset(x.source for s in self.clusters[-1].stmts for x in s.reads if x.source in first)

    def _matrices(self) -> list[str]:
        loops = len(self.loops())
        return [t.name for t in self.scop.op.temporaries if len(t.shape) - loops >= LARGE and self._hands_over(t.name)]

    def _hands_over(self, tensor: str) -> bool:
        users = self.scop.users(tensor)
        inside = [c for c in self.clusters if any(s in c.stmts for s in users)]
        return len(inside) > 1 and all(s in self.stmts for s in users)

    def _tile_pays(self) -> bool:
        """Whether between two contractions something reads such a matrix and writes one."""
        matrices = set(self._matrices())
        between = any(not c.is_contraction and matrices & {s.target.source for s in c.stmts}
                      and matrices & {x.source for s in c.stmts for x in s.reads} for c in self.clusters[1:-1])
        return bool(self.tile()) and between and self.clusters[0].is_contraction and self.clusters[-1].is_contraction

    def rename(self, loops: Iterable[tuple[str, ...]], classes: dict[str, dict[str, str]]) -> None:
        """Gives each of `loops` one class throughout."""
        for x in loops:
            for s, i in self._iterators(x):
                classes[s.name][i] = x[0]

    def shared(self, classes: dict[str, dict[str, str]]) -> Shared:
        """The node; `classes` are changed, so that each loop has one class throughout."""
        loops = self.loops()
        tile = self.tile() if self._tile_pays() else ()
        gone = {c for x in loops for c in x}
        self.rename([*loops, tile] if tile else loops, classes)
        renamed = dict.fromkeys(tile, tile[0] if tile else "")
        inside = tuple(replace(c, shell=tuple(renamed.get(k, k) for k in c.shell if k not in gone)) for c in self.clusters)
        return Shared(tuple(x[0] for x in loops), inside, tile[0] if tile else None)
