"""Which statements share loops: greedy fusion into clusters, and into groups inside these.

Nothing here is trusted: the checker proves the nest that comes out in the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

import islpy as isl

from polyop.ir.expr import Affine, Apply, Expr, Load, Test, affine, expr_names, loads
from polyop.poly.edges import Edge, counterpart, same_value, single
from polyop.poly.iterators import blocks_of, is_contraction, shares_of, written
from polyop.poly.schedule.classes import Loops
from polyop.poly.schedule.nodes import Cluster, Group
from polyop.poly.schedule.readings import in_step, is_between
from polyop.poly.schedule.scans import ends_scan
from polyop.poly.scop import INIT, MAP, UPDATE, Scop, Stmt

EDGE = 8
"""Elements at the end of a row that are written with it."""


@dataclass(eq=False)
class _Draft:
    """A cluster that is still growing."""

    stmts: list[Stmt]
    shell: tuple[str, ...]
    heavy: bool
    domain: isl.Set


class Fusion:
    """Statements put together below the loops that they have in common, as `schedule` says; `notes`: why some are not."""

    def __init__(self, scop: Scop, loops: Loops, fuse: bool, apart: bool, ordered: bool) -> None:
        self.scop, self.loops, self.fuse, self.ordered = scop, loops, fuse, ordered
        self.classes, self.apart = loops.classes, apart
        self.shares = {s.name: shares_of(s) if apart else frozenset[str]() for s in scop.stmts}
        self.ends = {s.name for s in scop.stmts if apart and ends_scan(scop, s)}
        self.notes: list[str] = []

    def clusters(self, stmts: tuple[Stmt, ...], deps: tuple[Edge, ...], fixed: tuple[str, ...]) -> tuple[Cluster, ...]:
        """Greedy fusion, sources first: a statement joins the last cluster that it reads from, if a shell is left.

        An init goes where the first update of its tensor goes; if it cannot, it stands in a cluster before.
        """
        found: list[_Draft] = []
        inits = {s.target.source: s for s in stmts if s.kind == INIT}
        first = {t: next((s for s in stmts if s.kind == UPDATE and s.target.source == t), None) for t in inits}
        for s in stmts:
            if s.kind == INIT and self.fuse and first[s.target.source]:
                continue
            init = inits.get(s.target.source) if self.fuse and s is first.get(s.target.source) else None
            into = [n for n, d in enumerate(found) if any(e.sink is s and e.source in d.stmts for e in deps)]
            alone = s.name in self.ends or any(q.name in self.ends for n in into[-1:] for q in found[n].stmts)
            joins = into and self.fuse and not alone and (
                self.ends_contraction(found, into, s, deps, fixed) or self.try_join(found[into[-1]], s, deps, fixed))
            at = into[-1] if joins else len(found)
            if not into and self.fuse and s.name not in self.ends:
                ways = (self.reads_with,) if self.apart else (
                    self.lies_beside, self.copies_again, self.writes_with, self.writes_pieces)
                at = next((n for n, d in enumerate(found) if any(join(d, s, fixed) for join in ways)), at)
            elif not joins and self.fuse and not self.apart and s.name not in self.ends:
                at = next((n for n, d in enumerate(found) if n > into[-1] and self.writes_pieces(d, s, fixed)), at)
            if at == len(found):
                found.append(self.draft(s, fixed))
            if init and not self.join_init(found[at], init, s, fixed):
                found.insert(at, self.draft(init, fixed))
        return tuple(self.finish(d, deps, fixed) for d in found)

    def ends_contraction(self, found: list[_Draft], into: list[int], s: Stmt, deps: tuple[Edge, ...],
                         fixed: tuple[str, ...]) -> bool:
        """Put `s` behind the contraction that it reads, though it reads from later clusters, too, if these do without that one.

        They come first then: of { z[m, n] += x[m, k] * w[n, k]; c[n] += w[n, k]; Y[m, n] = z[m, n] - c[n] } the sums c.
        """
        n, last = next((n for n in reversed(into) if found[n].heavy), into[-1]), into[-1]
        first = found[n].stmts
        if n == last or any(e.source in first and e.sink in q.stmts for q in found[n + 1:last + 1] for e in deps):
            return False
        said = len(self.notes)
        if not self.try_join(found[n], s, deps, fixed):
            del self.notes[said:]  # of what is tried first
            return False
        found.insert(last, found.pop(n))
        return True

    def join_init(self, d: _Draft, init: Stmt, update: Stmt, fixed: tuple[str, ...]) -> bool:
        """Put `init` before its `update` in `d`, where it runs over the same points of the shell."""
        own: dict[str, str] = {}
        for p, q in zip(init.target.index, update.target.index, strict=True):
            i, j = (single(x, y.dims) if isinstance(x, Affine) else None for x, y in ((p, init), (q, update)))
            if i and j and p == affine(i) and q == affine(j):
                own[i] = self.classes[update.name][j]
        back = {c: i for i, c in own.items()}
        around = (*fixed, *d.shell)
        if any(c not in back for c in around if c in self.classes[update.name].values()):
            return False
        if not self.loops.projection(init, tuple(back[c] for c in d.shell)).is_equal(d.domain):
            return False
        if d.heavy and own.keys() != set(init.dims):  # tiles start what their update writes: not all of what there is
            return False
        self.classes[init.name] = own | {i: self.loops.fresh(i) for i in init.dims if i not in own}
        d.stmts.insert(d.stmts.index(update), init)
        return True

    def draft(self, s: Stmt, fixed: tuple[str, ...]) -> _Draft:
        free = [i for i in s.dims if i not in self.classes[s.name]]
        for i in free:
            self.classes[s.name][i] = self.loops.fresh(i)
        own = self.classes[s.name]
        kept = written(s)
        shell = tuple(own[i] for i in s.dims if i in kept and own[i] not in fixed)
        heavy = is_contraction(s, self.loops.fixed_of(s, fixed))
        return _Draft([s], shell, heavy, self.loops.projection(s, tuple(i for i in s.dims if own[i] in shell)))

    def try_join(self, d: _Draft, s: Stmt, deps: tuple[Edge, ...], fixed: tuple[str, ...]) -> bool:
        """Add `s` to `d` where each dependence between them stays at one point of what is left of the shell."""
        own, shell = self.common(d, s, deps)
        heavy = is_contraction(s, self.loops.fixed_of(s, fixed))
        why = self.why_apart(d, s, own, shell, fixed, heavy) or self.why_across(d, s, own, shell)
        old = d.domain if why or shell == d.shell else self.loops.projection(d.stmts[0], self.loops.iterators(d.stmts[0], shell))
        why = why or self.why_elsewhere(d, s, {c: i for i, c in own.items()}, shell, old)
        if why:
            self.notes.append(f"{s.name} is not fused with {why}")
            return False
        for i in s.dims:
            if i not in own:
                own[i] = self.loops.fresh(i)
        self.classes[s.name] = own
        d.stmts.append(s)
        d.shell, d.heavy, d.domain = shell, d.heavy or heavy, old
        return True

    def common(self, d: _Draft, s: Stmt, deps: tuple[Edge, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
        """The loops of `d` that dimensions of `s` would go by, and the shell that is left: dependences stay at a point of it."""
        own = dict(self.classes[s.name])
        between = [e for e in deps if e.sink is s and e.source in d.stmts]
        for e in between:
            source = self.classes[e.source.name]
            for i in e.source.dims:
                j = counterpart(e, i, forward=True, exact=True)
                if j and j not in own and source[i] not in own.values():
                    own[j] = source[i]
        theirs = {c: c for q in d.stmts for c in self.classes[q.name].values()}
        if not self.apart:
            theirs |= {i: c for q in d.stmts for i, c in self.classes[q.name].items()}
        for i in s.dims:  # a loop of the same name, for groups: no dependence rests on it
            if i not in own and i in theirs and theirs[i] not in own.values():
                own[i] = theirs[i]
        kept = written(s)
        shell = tuple(c for c in d.shell if any(own.get(i) == c and i in kept for i in s.dims))
        for e in between:
            back = {c: i for i, c in self.classes[e.source.name].items()}
            mine = {c: i for i, c in own.items()}
            shell = tuple(c for c in shell if same_value(e.map, back[c], mine[c]))
        return own, shell

    def why_apart(self, d: _Draft, s: Stmt, own: Mapping[str, str], shell: tuple[str, ...], fixed: tuple[str, ...],
                  heavy: bool) -> str:
        """With what `s` is not fused, and why: what is common to them is too little; "" if it is not."""
        last, kept = d.stmts[-1].name, written(s)
        lost = [c for c in d.shell if c not in shell and self.is_of_blocks(d, c)]
        if any(own.get(b) not in shell for b in self.shares[s.name]):
            return f"{last}: shares of a sum are for several threads"
        theirs = {c for q in d.stmts for i, c in self.classes[q.name].items() if i in written(q)}
        if shell and not {own.get(i) for i in kept} <= theirs and any(self.joins_shares(q) for q in d.stmts):
            return f"{last}: few threads join shares"
        if lost:
            return f"{last}: blocks of {', '.join(lost)} would leave the cache"
        if not shell and d.shell:
            return f"{last}: no loop is common to both"
        if not shell and not fixed and s.kind == UPDATE and kept and kept < set(s.dims):  # threads and rows in step want its loop
            return f"{last}: it has many sums, and no loop is common to both"
        merged = [q for q in d.stmts if q.kind != INIT]
        if heavy and (merged or shell != d.shell):
            return f"{last}: it is a contraction of its own"
        pointwise = s.kind == MAP and shell == d.shell and {own.get(i) for i in s.dims} <= {*shell, *fixed}
        return f"the contraction {last}: it needs more than a point of it" if d.heavy and not pointwise else ""

    def why_across(self, d: _Draft, s: Stmt, own: Mapping[str, str], shell: tuple[str, ...]) -> str:
        """The same where what is common is enough, but `s` goes through memory another way."""
        last = d.stmts[-1].name
        if self.lies_across(d, own, s):
            what, of = ("the contraction ", "tiles") if d.heavy else ("", "lanes")
            return f"{what}{last}: it lies across its {of}"
        if self.has_other_squares(d, own, s):
            return f"{last}: it reads squares of another loop"
        return f"{last}: it writes across the rows that it reads" if not d.heavy and self.is_turned(d, own, s, shell) else ""

    def why_elsewhere(self, d: _Draft, s: Stmt, mine: Mapping[str, str], shell: tuple[str, ...], old: isl.Set) -> str:
        """The same where it goes over other points than `old`, those of `shell`, though it does so in the same way."""
        last = d.stmts[-1].name
        if not self.loops.projection(s, tuple(mine[c] for c in shell)).is_equal(old):
            return f"{last}: they run over different ranges"
        return f"{last}: it runs where no tile is started" if d.heavy and not self.same_points(d, mine, s) else ""

    def lies_across(self, d: _Draft, own: Mapping[str, str], s: Stmt) -> bool:
        """Whether `s` only moves the sums of `d` to where neither lanes nor rows of a tile are neighbours.

        Both ends of the two targets are then columns, in the same operand: { Z[j, b, a] = t[a, j, b] } of X[a, k, b] * W[j, k],
        or { Z[b, a] = t[a, b] } of X[a, k, b]; or the end is a batch, in each operand: { Z[i, j, b] = t[b, i, j] }, of which a
        sum of rows has no tiles, but lanes.
        """
        u = next((q for q in d.stmts if q.kind == UPDATE), None)
        if u is None or s.kind != MAP:
            return False
        names = [p.name for q in (u, s) for p in q.target.index[-1:] if isinstance(p, Affine) and p.name]
        if len(names) < 2 or not isinstance(s.expr, Load):
            return False
        lane, end = self.classes[u.name].get(names[0]), own.get(names[1])
        used = [{self.classes[u.name].get(i) for i in expr_names(x)} for x in u.reads]
        is_batch = all(end in x for x in used)
        beside = all((lane in x) == (end in x) for x in used)
        return lane != end and any(lane in x for x in used) and (is_batch or beside)

    def has_other_squares(self, d: _Draft, own: Mapping[str, str], s: Stmt) -> bool:
        """Whether `d` only turns what lies along one loop, and `s` what lies along another, for lanes along a third.

        { y[a, b, c] = Y[b, c, a]; Z[a, b, c] = X[a, c, b] * y[a, b, c] }: rows in lock step would serve one.
        """
        (q, *more), lane = d.stmts, _end(s.target, own)
        if more or q.kind != MAP or s.kind != MAP or not isinstance(q.expr, Load) or not lane:
            return False
        mine = self.classes[q.name]
        turned = _end(q.expr, mine)
        others = {_end(x, own) for x in s.reads if x.source != q.target.source} - {None, lane, turned}
        return bool(turned and others) and _end(q.target, mine) == lane != turned

    def is_turned(self, d: _Draft, own: Mapping[str, str], s: Stmt, shell: tuple[str, ...]) -> bool:
        """Whether `s` writes along the loop around the rows that `d` reads: { Y[c, r] = e[r, c] / z[r] }, or of x[c, r].

        By itself that is done in squares, or by rows of its own; in the loop around the rows, one by one. So is what only moves
        from along the one loop that would be left of those around the others.
        """
        last = _end(s.target, own)
        if self.apart or s.kind != MAP:
            return False
        ends = {_end(x, own) for x in s.reads if len(x.index) > 1}
        if last not in shell:
            return isinstance(s.expr, Load) and shell != d.shell and len(s.target.index) > 1 and ends <= {*shell}
        read = {_end(x, self.classes[q.name]) for q in d.stmts for x in q.reads}
        return None not in ends and last not in read and any(own.get(i) not in shell for i in s.dims)

    def lies_beside(self, d: _Draft, s: Stmt, fixed: tuple[str, ...]) -> bool:
        """Put `s` into `d` where that copies rows of a tensor, and `s` the few elements before or behind each of them.

        The lines where they meet are then written once. What is computed from several elements stays apart, as its rows may want
        to run in lock step.
        """
        first = d.stmts[0]
        if any(q.kind != MAP or not _moves(q.expr) or q.target.source != s.target.source for q in (*d.stmts, s)) or d.heavy:
            return False
        own = {}
        for p, q in zip(first.target.index, s.target.index, strict=True):
            i, j = (single(x, y.dims) if isinstance(x, Affine) else None for x, y in ((p, first), (q, s)))
            if i and j and p == affine(i) and q == affine(j):
                own[j] = self.classes[first.name][i]
        mine = {c: i for i, c in own.items()}
        shell = tuple(takewhile(mine.__contains__, d.shell))
        while shell and not self.loops.projection(s, tuple(mine[c] for c in shell)).is_equal(
                self.loops.projection(first, self.loops.iterators(first, shell))):
            shell = shell[:-1]
        rest = [i for i in s.dims if own.get(i) not in shell]
        if not shell or not rest or any(i in self.classes[s.name] for i in s.dims) or not all(
                self.loops.is_narrow(s, i, EDGE) for i in rest):
            return False
        self.classes[s.name] = {i: own[i] if own.get(i) in shell else self.loops.fresh(i) for i in s.dims}
        d.stmts.append(s)
        d.shell, d.domain = shell, self.loops.projection(first, self.loops.iterators(first, shell))
        return True

    def copies_again(self, d: _Draft, s: Stmt, fixed: tuple[str, ...]) -> bool:
        """Put `s` into `d` where both copy the same rows to one tensor: a row is in the first cache when it is copied again.

        Each row keeps loops of its own, which are runs.
        """
        first = d.stmts[0]
        if d.heavy or not all(_copies(q) and q.target.source == s.target.source for q in (*d.stmts, s)):
            return False
        alike = in_step(s, first)
        own = {i: self.classes[first.name][j] for i, j in alike.items()} if alike else {}
        shell = tuple(c for c in d.shell if c in own.values() and c != own[s.dims[-1]])
        mine = {c: i for i, c in own.items()}
        if not shell or self.classes[s.name] or not self.loops.projection(s, tuple(mine[c] for c in shell)).is_equal(
                self.loops.projection(first, self.loops.iterators(first, shell))):
            return False
        self.classes[s.name] = {i: c if c in shell else self.loops.fresh(i) for i, c in own.items()}
        d.stmts.append(s)
        d.shell, d.domain = shell, self.loops.projection(first, self.loops.iterators(first, shell))
        return True

    def reads_with(self, d: _Draft, s: Stmt, fixed: tuple[str, ...]) -> bool:
        """Add `s`, which needs nothing before it, to `d`, where both go over the same points and read the same there."""
        if d.heavy or any(q.name in self.ends for q in d.stmts) or is_contraction(s, self.loops.fixed_of(s, fixed)):
            return False
        for q in d.stmts:
            alike = in_step(s, q)
            theirs = self.classes[q.name]
            own = {i: theirs[j] for i, j in alike.items()} if alike else {}
            if not own or any(own[i] != c for i, c in self.classes[s.name].items()):
                continue
            shell = tuple(own[i] for i in s.dims if i in written(s) and own[i] not in fixed)
            mine = {c: i for i, c in own.items()}
            if set(shell) != set(d.shell) or not self.loops.projection(s, tuple(mine[c] for c in d.shell)).is_equal(d.domain):
                continue
            self.classes[s.name] = own
            d.stmts.append(s)
            return True
        return False

    def writes_with(self, d: _Draft, s: Stmt, fixed: tuple[str, ...]) -> bool:
        """Add `s`, which needs nothing before it, to `d`, where it writes between what that writes, in the same lines."""
        return any(is_between(s, q) for q in d.stmts) and self.reads_with(d, s, fixed)

    def writes_pieces(self, d: _Draft, s: Stmt, fixed: tuple[str, ...]) -> bool:
        """Add `s`, which needs nothing of `d`, to it, where both write pieces of one temporary from what both read."""
        alike = all(q.kind == MAP and q.target.source == s.target.source for q in (*d.stmts, s))
        return alike and self.scop.op.tensor(s.target.source).role == "temp" and self.reads_with(d, s, fixed)

    def same_points(self, d: _Draft, mine: Mapping[str, str], s: Stmt) -> bool:
        """Whether `s`, with iterators `mine` by class, runs at the points where `d` starts a tile, loops around included."""
        init = next((q for q in d.stmts if q.kind == INIT), None)
        if init is None:
            return True
        theirs = {c: i for i, c in self.classes[init.name].items()}
        common = [c for c in theirs if c in mine]
        return self.loops.projection(s, tuple(mine[c] for c in common)).is_equal(
            self.loops.projection(init, tuple(theirs[c] for c in common)))

    def is_of_blocks(self, d: _Draft, loop: str) -> bool:
        """Whether `loop` counts blocks of what several statements of `d` read, one after the other, or shares of a sum."""
        found = [x.source for s in d.stmts for x in s.reads for p in x.index if isinstance(p, Affine)
                 for i in s.dims if self.classes[s.name].get(i) not in d.shell and any(
                     self.classes[s.name].get(b) == loop for b in blocks_of(p, i, s))]
        if any(found.count(t) > 1 for t in found):
            return True
        return any(self.classes[s.name].get(b) == loop for s in d.stmts for b in self.shares[s.name])

    def joins_shares(self, s: Stmt) -> bool:
        """Whether `s` reads what another statement sums up in shares."""
        return any(x.source == q.target.source for q in self.scop.stmts if self.shares[q.name] for x in s.reads)

    def finish(self, d: _Draft, deps: tuple[Edge, ...], fixed: tuple[str, ...]) -> Cluster:
        inside = tuple(e for e in deps if e.source in d.stmts and e.sink in d.stmts)
        body = self.groups(tuple(d.stmts), inside, fixed + d.shell)
        return Cluster(tuple(d.stmts), d.shell, body, d.heavy)

    def groups(self, stmts: tuple[Stmt, ...], deps: tuple[Edge, ...], fixed: tuple[str, ...]) -> tuple[Group, ...]:
        """Adjacent statements with the same loops share them, until one reads what a loop has not finished.

        Inits read nothing, so they stand first and part no others.
        """
        out: list[Group] = []
        for s in sorted(stmts, key=lambda s: s.kind != INIT or not self.fuse):
            for i in s.dims:
                if i not in self.classes[s.name]:
                    self.classes[s.name][i] = self.loops.fresh(i)
            own = self.classes[s.name]
            kept = tuple(own[i] for i in s.dims if i in written(s) and own[i] not in fixed)
            reduced = tuple(own[i] for i in s.dims if i not in written(s) and own[i] not in fixed)
            last = out[-1] if out else None
            if last and self.fuse and self.share(last, s, kept, reduced, deps):
                common = tuple(c for c in last.kept if c in kept)
                rest = self.in_order((*last.stmts, s), tuple(c for c in (*last.kept, *last.reduced) if c not in common))
                if rest is not None:
                    out[-1] = Group((*last.stmts, s), common, rest)
                    continue
            out.append(Group((s,), kept, reduced))
        return tuple(out)

    def in_order(self, stmts: tuple[Stmt, ...], loops: tuple[str, ...]) -> tuple[str, ...] | None:
        """`loops` in an order in which each of `stmts` adds up floats in that of the text; None if theirs differ."""
        sums = [s for s in stmts if self.ordered and s.kind == UPDATE and s.target.dtype.is_float]
        orders = [[c for i in s.dims if i not in written(s) and (c := self.classes[s.name][i]) in loops] for s in sums]
        for terms in orders:
            own = iter(terms)
            loops = tuple(next(own) if c in terms else c for c in loops)
        return loops if all([c for c in loops if c in terms] == terms for terms in orders) else None

    def share(self, g: Group, s: Stmt, kept: tuple[str, ...], reduced: tuple[str, ...], deps: tuple[Edge, ...]) -> bool:
        if not (kept + reduced) or set(g.kept + g.reduced) != set(kept + reduced):
            return False
        if s.kind == UPDATE and any(q.kind == UPDATE and q.target.source == s.target.source for q in g.stmts):
            return False  # each adds up in registers of its own, and would lose what the other adds
        between = [e for e in deps if e.sink is s and e.source in g.stmts]
        for e in between:
            if e.source.kind == UPDATE or e.load is None:
                return False
            back = {c: i for i, c in self.classes[e.source.name].items()}
            mine = {c: i for i, c in self.classes[s.name].items()}
            if not all(same_value(e.map, back[c], mine[c]) for c in kept + reduced):
                return False
        loops = g.kept + g.reduced
        here, there = (self.loops.projection(q, self.loops.iterators(q, loops)) for q in (g.stmts[0], s))
        return bool(here.is_equal(there))


def _end(x: Load, loops: Mapping[str, str]) -> str | None:
    """The loop that the last of several positions of `x` is, if it is one."""
    p = x.index[-1] if len(x.index) > 1 else None
    return loops.get(p.name) if isinstance(p, Affine) and p.name else None


def _moves(e: Expr) -> bool:
    """Whether `e` reads one element at most, whichever tests choose."""
    match e:
        case Apply(fn="select", args=(Test(), yes, no)):
            return _moves(yes) and _moves(no)
    return len(loads(e)) <= 1


def _copies(s: Stmt) -> bool:
    """Whether `s` copies rows: element by element of one tensor, whose dimensions keep their order."""
    if s.kind != MAP or not isinstance(s.expr, Load) or s.expr.guard:
        return False
    places = [[i for p in x.index if isinstance(p, Affine) for i in s.dims if p.factor(i) == 1] for x in (s.target, s.expr)]
    return places[0] == places[1] == list(s.dims)
