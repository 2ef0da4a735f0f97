"""Scop -> Schedule: which statements share loops, and which loops must run in order.

Nothing here is trusted: the checker proves the nest that comes out in the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import islpy as isl

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, affine, names
from polyop.poly.edges import Edge, compared, components, counterpart, digits, edges, same_value, single
from polyop.poly.labels import loop_name
from polyop.poly.nodes import Cluster, Group, Schedule, Serial
from polyop.poly.scans import ends_scan
from polyop.poly.scop import INIT, MAP, UPDATE, Scop, Stmt
from polyop.poly.sets import params, space_text

BLOCK = 64
"""Elements of a block that is worth a loop around several statements, and is no window that slides along."""


def schedule(scop: Scop, context: isl.Set, fuse: bool = True, apart: bool = False) -> Schedule:
    """The Schedule of `scop` for the sizes in `context`; without `fuse`, every statement has loops of its own.

    apart   whether shares of a sum keep their loop, and what joins them stays alone, since many threads want work; so does what
            ends a scan in chunks
    Raises  UnsupportedError, if a recurrence has no order along single iterators.
    """
    return _Scheduler(scop, context, fuse, apart).run()


class _Scheduler:
    def __init__(self, scop: Scop, context: isl.Set, fuse: bool, apart: bool) -> None:
        self.scop, self.context, self.fuse = scop, context, fuse
        self.shares = {s.name: shares_of(s) if apart else frozenset[str]() for s in scop.stmts}
        self.ends = {s.name for s in scop.stmts if apart and ends_scan(scop, s)}
        self.classes: dict[str, dict[str, str]] = {s.name: {} for s in scop.stmts}
        self.taken = set(scop.op.sizes) | {t.name for t in scop.op.tensors} | {p.name for p in scop.op.params}
        self.notes: list[str] = []

    def run(self) -> Schedule:
        nodes = self.nodes(self.scop.stmts, edges(self.scop), ())
        for s in self.scop.stmts:
            for i in s.dims:
                if i not in self.classes[s.name]:
                    self.classes[s.name][i] = self.fresh(i)
        return Schedule(nodes, self.classes, tuple(self.notes))

    def fresh(self, name: str) -> str:
        """A class name that nothing else has, nor any of its coordinates."""
        loops = {c for own in self.classes.values() for c in own.values()}
        out = loop_name(name, self.taken, loops, self.classes.keys())
        self.taken.add(out)
        return out

    # --- recurrences
    def nodes(self, stmts: tuple[Stmt, ...], deps: Iterable[Edge], fixed: tuple[str, ...]) -> tuple[Cluster | Serial, ...]:
        """Nodes for `stmts` inside the serial loops `fixed`; `deps` are those that act at equal values of them."""
        out: list[Cluster | Serial] = []
        waiting: list[Stmt] = []
        deps = tuple(deps)
        for component, inner in self.recurrences(stmts, deps):
            if not inner:
                waiting += component
                continue
            out += self.clusters(tuple(waiting), deps, fixed)
            waiting = []
            heavy = any(is_contraction(s, self.fixed_of(s, fixed)) for s in component)
            parallel = () if heavy else self.parallel(component, inner)
            if parallel:
                body = self.items(component, inner, fixed + parallel)
                out.append(Cluster(component, parallel, body))
            else:
                loop, left, back = self.carry(component, inner)
                out.append(Serial(loop, self.nodes(component, left, (*fixed, loop)), component, back))
        return (*out, *self.clusters(tuple(waiting), deps, fixed))

    def items(self, stmts: tuple[Stmt, ...], deps: tuple[Edge, ...], fixed: tuple[str, ...]) -> tuple[Group | Serial, ...]:
        """The same inside a cluster: groups and serial loops."""
        out: list[Group | Serial] = []
        waiting: list[Stmt] = []
        for component, inner in self.recurrences(stmts, deps):
            if not inner:
                waiting += component
                continue
            out += self.groups(tuple(waiting), deps, fixed)
            waiting = []
            loop, left, back = self.carry(component, inner)
            out.append(Serial(loop, self.items(component, left, (*fixed, loop)), component, back))
        return (*out, *self.groups(tuple(waiting), deps, fixed))

    def recurrences(self, stmts: tuple[Stmt, ...],
                    deps: tuple[Edge, ...]) -> list[tuple[tuple[Stmt, ...], tuple[Edge, ...]]]:
        """Components in order, each with the dependences inside it if it is a recurrence, else with none.

        An init that only a recurrence needs goes inside it, if it has an iterator for the loop that carries it.
        """
        found = components(stmts, deps)
        cyclic = [c for c in found if self.is_cyclic(c, self.inside(c, deps))]
        merged = self.one_loop_for_blocks(stmts, deps) or self.one_loop_for_each_tensor(stmts, deps, cyclic)
        if merged:
            found = merged
            cyclic = [c for c in found if self.is_cyclic(c, self.inside(c, deps))]
        moved: dict[str, tuple[Stmt, ...]] = {}
        for c in cyclic if self.fuse else []:
            for s in stmts:
                sinks = [e.sink for e in deps if e.source is s]
                only_here = s.kind == INIT and sinks and all(q in c for q in sinks)
                if only_here and self.candidates((*c, s), self.inside((*c, s), deps)):
                    moved[s.name] = c
        out = []
        for c in found:
            if c[0].name in moved:
                continue
            if c in cyclic:
                whole = tuple(s for s in stmts if s in c or moved.get(s.name) == c)
                out.append((whole, self.inside(whole, deps)))
            else:
                out.append((c, ()))
        return out

    def one_loop_for_each_tensor(self, stmts: tuple[Stmt, ...], deps: tuple[Edge, ...],
                                 cyclic: list[tuple[Stmt, ...]]) -> list[tuple[Stmt, ...]] | None:
        """Components in which recurrences that write pieces of one tensor are one; None, if that has no order or nothing to do.

        They may not need each other, but only in one loop can the tensor be folded along it.
        """
        links = [(a[0], b[0]) for a in cyclic for b in cyclic
                 if a is not b and {s.target.source for s in a} & {s.target.source for s in b}]
        if not self.fuse or not links:
            return None
        found = components(stmts, (*deps, *(Edge(a, b, None, deps[0].map) for a, b in links)))
        for c in found:
            inner = self.inside(c, deps)
            if self.is_cyclic(c, inner) and not any(self.carried(x, inner, against) is not None
                                                    for x in self.candidates(c, inner) for against in "<>"):
                return None
        return found

    def one_loop_for_blocks(self, stmts: tuple[Stmt, ...], deps: tuple[Edge, ...]) -> list[tuple[Stmt, ...]] | None:
        """Components in which all that goes over blocks, one after the other, is one recurrence; None, if nothing does.

        What a block is made of is then in a cache when the next recurrence over blocks asks for it.
        """
        blocks = {b: None for s in stmts for x in s.reads for p in x.index if isinstance(p, Affine) for i in s.dims
                  for b in sorted(blocks_of(p, i, s)) if b not in self.classes[s.name]}
        for b in blocks if self.fuse else ():
            members = tuple(s for s in stmts if b in s.dims and s.kind != INIT and b not in self.classes[s.name])
            if sum(self.is_cyclic(c, self.inside(c, deps)) for c in components(members, self.inside(members, deps))) < 2:
                continue
            around = zip(members, (*members[1:], members[0]), strict=True)
            found = components(stmts, (*deps, *(Edge(x, y, None, deps[0].map) for x, y in around)))
            whole = next(c for c in found if members[0] in c)
            inner = self.inside(whole, deps)
            if set(whole) == set(members) and any(self.carried(x, inner, ">") is not None for x in self.candidates(whole, inner)):
                return found
        return None

    def inside(self, component: tuple[Stmt, ...], deps: tuple[Edge, ...]) -> tuple[Edge, ...]:
        return tuple(e for e in deps if e.source in component and e.sink in component)

    def is_cyclic(self, component: tuple[Stmt, ...], inner: tuple[Edge, ...]) -> bool:
        return len(component) > 1 or any(e.source is e.sink for e in inner)

    def fixed_of(self, s: Stmt, fixed: tuple[str, ...]) -> frozenset[str]:
        return frozenset(i for i, c in self.classes[s.name].items() if c in fixed)

    def carry(self, component: tuple[Stmt, ...], inner: tuple[Edge, ...]) -> tuple[str, tuple[Edge, ...], bool]:
        """A loop along which no dependence goes backwards and some go forwards; those that stay inside it; its direction."""
        candidates = self.candidates(component, inner)
        for back in (False, True):
            for candidate in candidates:
                left = self.carried(candidate, inner, "<" if back else ">")
                if left is not None:
                    return self.join(candidate), left, back
        text = ", ".join(s.name for s in component)
        raise UnsupportedError(f"the recurrence of {text} has no order along single iterators")

    def carried(self, candidate: dict[str, str], inner: tuple[Edge, ...], against: str) -> tuple[Edge, ...] | None:
        """What is left inside the loop over `candidate`; None, if some dependence goes `against` it or none goes along."""
        left: list[Edge] = []
        for e in inner:
            i, j = candidate[e.source.name], candidate[e.sink.name]
            if not compared(e.map, i, j, against).is_empty():
                return None
            same = compared(e.map, i, j, "=")
            if not same.is_empty():
                left.append(Edge(e.source, e.sink, e.load, same))
        moved = len(left) < len(inner) or any(not a.map.is_equal(b.map) for a, b in zip(left, inner, strict=True))
        return tuple(left) if moved else None

    def parallel(self, component: tuple[Stmt, ...], inner: tuple[Edge, ...]) -> tuple[str, ...]:
        """Loops along which every dependence stays at one value."""
        out = []
        for candidate in self.candidates(component, inner):
            if all(same_value(e.map, candidate[e.source.name], candidate[e.sink.name]) for e in inner) \
                    and self.one_range(component, candidate):
                out.append(self.join(candidate))
        return tuple(out)

    def candidates(self, component: tuple[Stmt, ...], inner: tuple[Edge, ...]) -> tuple[dict[str, str], ...]:
        """Choices of one iterator for each statement that correspond through the accesses of `inner`, or by name."""
        out: list[dict[str, str]] = []
        first = component[0]
        for i in first.dims:
            found, todo = {first.name: i}, [first]
            while todo:
                s = todo.pop()
                for e in inner:
                    for a, b in ((e.source, e.sink), (e.sink, e.source)):
                        if a is s and b.name not in found:
                            j = counterpart(e, found[a.name], forward=a is e.source)
                            if j and j not in self.classes[b.name]:  # another access may have one whose loop is not around yet
                                found[b.name] = j
                                todo.append(b)
            for s in component:
                if s.name not in found and i in s.dims:
                    found[s.name] = i
            if len(found) == len(component) and not any(found[s.name] in self.classes[s.name] for s in component):
                out.append(found)
        return tuple(out)

    def join(self, candidate: dict[str, str]) -> str:
        """One class for the iterators of `candidate`."""
        name = self.fresh(next(iter(candidate.values())))
        for s, i in candidate.items():
            self.classes[s][i] = name
        return name

    def one_range(self, stmts: Iterable[Stmt], candidate: dict[str, str]) -> bool:
        sets = [self.projection(s, (candidate[s.name],)) for s in stmts]
        return all(sets[0].is_equal(x) for x in sets[1:])

    def projection(self, s: Stmt, iterators: tuple[str, ...]) -> isl.Set:
        """{ [iterators] } of the domain of `s`."""
        head = params(self.scop.op.sizes)
        m = isl.Map(f"{head}{{ {space_text(s.name, s.dims)} -> [{', '.join(iterators)}] }}")
        return s.domain.intersect_params(self.context).apply(m)

    def iterators(self, s: Stmt, loops: tuple[str, ...]) -> tuple[str, ...]:
        """The iterators of `s` of the classes `loops`."""
        back = {c: i for i, c in self.classes[s.name].items()}
        return tuple(back[c] for c in loops)

    # --- fusion
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
            joins = into and self.fuse and not alone and self.try_join(found[into[-1]], s, deps, fixed)
            at = into[-1] if joins else len(found)
            if at == len(found):
                found.append(self.draft(s, fixed))
            if init and not self.join_init(found[at], init, s, fixed):
                found.insert(at, self.draft(init, fixed))
        return tuple(self.finish(d, deps, fixed) for d in found)

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
        if not self.projection(init, tuple(back[c] for c in d.shell)).is_equal(d.domain):
            return False
        if d.heavy and own.keys() != set(init.dims):  # tiles start what their update writes: not all of what there is
            return False
        self.classes[init.name] = own | {i: self.fresh(i) for i in init.dims if i not in own}
        d.stmts.insert(d.stmts.index(update), init)
        return True

    def draft(self, s: Stmt, fixed: tuple[str, ...]) -> _Draft:
        free = [i for i in s.dims if i not in self.classes[s.name]]
        for i in free:
            self.classes[s.name][i] = self.fresh(i)
        own = self.classes[s.name]
        kept = written(s)
        shell = tuple(own[i] for i in s.dims if i in kept and own[i] not in fixed)
        heavy = is_contraction(s, self.fixed_of(s, fixed))
        return _Draft([s], shell, heavy, self.projection(s, tuple(i for i in s.dims if own[i] in shell)))

    def try_join(self, d: _Draft, s: Stmt, deps: tuple[Edge, ...], fixed: tuple[str, ...]) -> bool:
        """Add `s` to `d` where each dependence between them stays at one point of what is left of the shell."""
        own = dict(self.classes[s.name])
        between = [e for e in deps if e.sink is s and e.source in d.stmts]
        for e in between:
            source = self.classes[e.source.name]
            for i in e.source.dims:
                j = counterpart(e, i, forward=True, exact=True)
                if j and j not in own and source[i] not in own.values():
                    own[j] = source[i]
        for i in s.dims:  # a loop of the same name, for groups: no dependence rests on it
            known = {c for q in d.stmts for c in self.classes[q.name].values()}
            if i not in own and i in known and i not in own.values():
                own[i] = i
        kept = written(s)
        shell = tuple(c for c in d.shell if any(own.get(i) == c and i in kept for i in s.dims))
        for e in between:
            back = {c: i for i, c in self.classes[e.source.name].items()}
            mine = {c: i for i, c in own.items()}
            shell = tuple(c for c in shell if same_value(e.map, back[c], mine[c]))
        lost = [c for c in d.shell if c not in shell and self.is_of_blocks(d, c)]
        if any(own.get(b) not in shell for b in self.shares[s.name]):
            self.notes.append(f"{s.name} is not fused with {d.stmts[-1].name}: shares of a sum are for several threads")
            return False
        if shell and set(written(s)) - {i for i in s.dims if own.get(i) in shell} and any(self.joins_shares(q) for q in d.stmts):
            self.notes.append(f"{s.name} is not fused with {d.stmts[-1].name}: few threads join shares")
            return False
        if lost:
            self.notes.append(f"{s.name} is not fused with {d.stmts[-1].name}: blocks of {', '.join(lost)} would leave the cache")
            return False
        if not shell and d.shell:
            self.notes.append(f"{s.name} is not fused with {d.stmts[-1].name}: no loop is common to both")
            return False
        heavy = is_contraction(s, self.fixed_of(s, fixed))
        merged = [q for q in d.stmts if q.kind != INIT]
        if heavy and (merged or shell != d.shell):
            self.notes.append(f"{s.name} is not fused with {d.stmts[-1].name}: it is a contraction of its own")
            return False
        pointwise = s.kind == MAP and shell == d.shell and {own.get(i) for i in s.dims} <= {*shell, *fixed}
        if d.heavy and not pointwise:
            self.notes.append(f"{s.name} is not fused with the contraction {d.stmts[-1].name}: it needs more than a point of it")
            return False
        mine = {c: i for i, c in own.items()}
        old = d.domain if shell == d.shell else self.projection(d.stmts[0], self.iterators(d.stmts[0], shell))
        if not self.projection(s, tuple(mine[c] for c in shell)).is_equal(old):
            self.notes.append(f"{s.name} is not fused with {d.stmts[-1].name}: they run over different ranges")
            return False
        if d.heavy and not self.same_points(d, mine, s):
            self.notes.append(f"{s.name} is not fused with {d.stmts[-1].name}: it runs where no tile is started")
            return False
        for i in s.dims:
            if i not in own:
                own[i] = self.fresh(i)
        self.classes[s.name] = own
        d.stmts.append(s)
        d.shell, d.heavy, d.domain = shell, d.heavy or heavy, old
        return True

    def same_points(self, d: _Draft, mine: Mapping[str, str], s: Stmt) -> bool:
        """Whether `s`, with iterators `mine` by class, runs at the points where `d` starts a tile, loops around included."""
        init = next((q for q in d.stmts if q.kind == INIT), None)
        if init is None:
            return True
        theirs = {c: i for i, c in self.classes[init.name].items()}
        common = [c for c in theirs if c in mine]
        return self.projection(s, tuple(mine[c] for c in common)).is_equal(
            self.projection(init, tuple(theirs[c] for c in common)))

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
                    self.classes[s.name][i] = self.fresh(i)
            own = self.classes[s.name]
            kept = tuple(own[i] for i in s.dims if i in written(s) and own[i] not in fixed)
            reduced = tuple(own[i] for i in s.dims if i not in written(s) and own[i] not in fixed)
            last = out[-1] if out else None
            if last and self.fuse and self.share(last, s, kept, reduced, deps):
                common = tuple(c for c in last.kept if c in kept)
                rest = tuple(c for c in (*last.kept, *last.reduced) if c not in common)
                out[-1] = Group((*last.stmts, s), common, rest)
            else:
                out.append(Group((s,), kept, reduced))
        return tuple(out)

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
        here, there = (self.projection(q, self.iterators(q, loops)) for q in (g.stmts[0], s))
        return bool(here.is_equal(there))


@dataclass(eq=False)
class _Draft:
    """A cluster that is still growing."""

    stmts: list[Stmt]
    shell: tuple[str, ...]
    heavy: bool
    domain: isl.Set


def written(s: Stmt) -> frozenset[str]:
    """The iterators that the target of `s` is indexed by, each the only one in a position.

    Where something is added up in `Y[K + i]` it must stand alone: an init runs over the positions themselves. What is assigned at
    `Y[32*b + p]` is known by both, if p in 0:32.
    """
    found = [names(p) & set(s.dims) for p in s.target.index if isinstance(p, Affine) and (s.kind == MAP or p.name)]
    both = [digits(p, s.ranges) for p in s.target.index if isinstance(p, Affine) and s.kind == MAP]
    return frozenset(i for own in found if len(own) == 1 for i in own).union(*both)


def blocks_of(p: Affine, i: str, s: Stmt) -> frozenset[str]:
    """The iterators of `s` that count blocks in the position `p`, of which `i` counts the elements: `b` of `4096*b + i`."""
    extent = next((r.upper for r in s.ranges if r.index == i and r.lower == Affine() and r.upper.is_constant), None)
    if extent is None or p.factor(i) != 1 or extent.const < BLOCK:
        return frozenset()
    return frozenset(b for b in s.dims if p.factor(b) == extent.const)


def shares_of(s: Stmt) -> frozenset[str]:
    """The iterators of `s` that count shares of a sum, which are made so that several threads have work."""
    summed = [i for i in s.dims if i not in written(s)] if s.kind == UPDATE else []
    return frozenset(b for x in s.reads for p in x.index if isinstance(p, Affine) for i in summed for b in blocks_of(p, i, s))


def is_contraction(s: Stmt, fixed: frozenset[str]) -> bool:
    """Whether `s` reduces over a product with reuse both ways: two loads, each with a kept iterator that the other lacks."""
    if s.kind != UPDATE or any(not isinstance(p, Affine) or (p.name is None and names(p) & set(s.dims)) for p in s.target.index):
        return False
    kept = written(s) - fixed
    if not [i for i in s.dims if i not in written(s) and i not in fixed]:
        return False
    over = []
    for load in s.reads:
        if any(not isinstance(p, Affine) for p in load.index):
            return False
        over.append(frozenset[str]().union(*(names(p) for p in load.index if isinstance(p, Affine))) & kept)
    return any(a - b and b - a for a in over for b in over)
