"""Scop -> Schedule: which loops must run in order, and around what; `fusion.py` says which statements share the others.

Nothing here is trusted: the checker proves the nest that comes out in the end.
"""

from __future__ import annotations

from collections.abc import Iterable

import islpy as isl

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine
from polyop.poly.edges import Edge, compared, components, counterpart, edges, same_value
from polyop.poly.iterators import blocks_of, is_contraction
from polyop.poly.schedule.classes import Loops
from polyop.poly.schedule.fusion import Fusion
from polyop.poly.schedule.nodes import Cluster, Group, Schedule, Serial
from polyop.poly.scop import INIT, Scop, Stmt


def schedule(scop: Scop, context: isl.Set, fuse: bool = True, apart: bool = False,
             deps: tuple[Edge, ...] | None = None, ordered: bool = False) -> Schedule:
    """The Schedule of `scop` for the sizes in `context`; without `fuse`, every statement has loops of its own.

    apart   whether shares of a sum keep their loop, and what joins them stays alone, since many threads want work; so does what
            ends a scan in chunks
    deps    all dependences, where somebody has them already
    ordered whether each statement adds up floats in the order of its indices, whatever shares loops with it
    Raises  UnsupportedError, if a recurrence has no order along single iterators.
    """
    return _Scheduler(scop, context, fuse, apart, ordered).run(edges(scop) if deps is None else deps)


class _Scheduler:
    def __init__(self, scop: Scop, context: isl.Set, fuse: bool, apart: bool, ordered: bool) -> None:
        self.scop, self.fuse = scop, fuse
        self.loops = Loops(scop, context)
        self.classes = self.loops.classes
        self.fusion = Fusion(scop, self.loops, fuse, apart, ordered)

    def run(self, deps: tuple[Edge, ...]) -> Schedule:
        nodes = self.nodes(self.scop.stmts, deps, ())
        for s in self.scop.stmts:
            for i in s.dims:
                if i not in self.classes[s.name]:
                    self.classes[s.name][i] = self.loops.fresh(i)
        return Schedule(nodes, self.classes, tuple(self.fusion.notes))

    def nodes(self, stmts: tuple[Stmt, ...], deps: Iterable[Edge], fixed: tuple[str, ...]) -> tuple[Cluster | Serial, ...]:
        """Nodes for `stmts` inside the serial loops `fixed`; `deps` are those that act at equal values of them."""
        out: list[Cluster | Serial] = []
        waiting: list[Stmt] = []
        deps = tuple(deps)
        for component, inner in self.recurrences(stmts, deps):
            if not inner:
                waiting += component
                continue
            out += self.fusion.clusters(tuple(waiting), deps, fixed)
            waiting = []
            parallel = () if self.is_heavy(component, inner, fixed) else self.parallel(component, inner)
            if parallel:
                body = self.items(component, inner, fixed + parallel)
                out.append(Cluster(component, parallel, body))
            else:
                loop, left, back = self.carry(component, inner)
                out.append(Serial(loop, self.nodes(component, left, (*fixed, loop)), component, back))
        return (*out, *self.fusion.clusters(tuple(waiting), deps, fixed))

    def items(self, stmts: tuple[Stmt, ...], deps: tuple[Edge, ...], fixed: tuple[str, ...]) -> tuple[Group | Serial, ...]:
        """The same inside a cluster: groups and serial loops."""
        out: list[Group | Serial] = []
        waiting: list[Stmt] = []
        for component, inner in self.recurrences(stmts, deps):
            if not inner:
                waiting += component
                continue
            out += self.fusion.groups(tuple(waiting), deps, fixed)
            waiting = []
            loop, left, back = self.carry(component, inner)
            out.append(Serial(loop, self.items(component, left, (*fixed, loop)), component, back))
        return (*out, *self.fusion.groups(tuple(waiting), deps, fixed))

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

    def is_heavy(self, component: tuple[Stmt, ...], inner: tuple[Edge, ...], fixed: tuple[str, ...]) -> bool:
        """Whether a turn of the recurrence has a contraction: then its rows and columns stay inside, where they are tiles."""
        around = {s.name: self.loops.fixed_of(s, fixed) for s in component}
        if not any(is_contraction(s, around[s.name]) for s in component):
            return False
        found = self.carrier(component, inner)
        return found is None or any(is_contraction(s, around[s.name] | {found[0][s.name]}) for s in component)

    def carry(self, component: tuple[Stmt, ...], inner: tuple[Edge, ...]) -> tuple[str, tuple[Edge, ...], bool]:
        """A loop along which no dependence goes backwards and some go forwards; those that stay inside it; its direction."""
        found = self.carrier(component, inner)
        if found is None:
            text = ", ".join(s.name for s in component)
            raise UnsupportedError(f"the recurrence of {text} has no order along single iterators")
        candidate, left, back = found
        return self.join(candidate), left, back

    def carrier(self, component: tuple[Stmt, ...],
                inner: tuple[Edge, ...]) -> tuple[dict[str, str], tuple[Edge, ...], bool] | None:
        """The iterators that such a loop runs over, before they are one; None, if there is none."""
        candidates = self.candidates(component, inner)
        for back in (False, True):
            for candidate in candidates:
                left = self.carried(candidate, inner, "<" if back else ">")
                if left is not None:
                    return candidate, left, back
        return None

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
        name = self.loops.fresh(next(iter(candidate.values())))
        for s, i in candidate.items():
            self.classes[s][i] = name
        return name

    def one_range(self, stmts: Iterable[Stmt], candidate: dict[str, str]) -> bool:
        first, *others = (self.loops.projection(s, (candidate[s.name],)) for s in stmts)
        # at the sizes at which one of two is nowhere, the other may be anywhere
        return all(first.intersect_params(x.params()).is_equal(x.intersect_params(first.params())) for x in others)
