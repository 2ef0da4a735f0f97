"""That what each read finds is the value which the Scop says, through all copies, chunks and partial results.

An *epoch* is an assigning execution together with every reduction into the same element until it is assigned again. Each
epoch gets a *label*, the element of the Scop's tensors whose value it holds (whole, or part of a reduction):

    label { N -> Tensor[index] }

Labels are found by following the flow for a few rounds and need no trust: every edge of the flow is then checked, which is
an induction over time; but for those that alone gave all executions of a store their labels. A copy has the label of what it
copies, an update goes into an epoch labelled with its target, a fold joins two epochs of one label. No transitive closure is
needed.

A reduction may live in many epochs (partial sums, spilled accumulators, copies of the result). An epoch is *passed on*
if it is folded, or copied into an epoch that is reduced into or passed on. All updates of `T[i]` are in the result if

    an epoch that is passed on goes to one place only, after the last reduction into it;
    all else labelled T[i] comes from one epoch: the result;
    only results are read, after the last reduction into them.

For then every epoch has exactly one way to the result, each update runs once (another proof), and an epoch starts with
nothing, the identity, or with what exactly one epoch passed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import islpy as isl

from polyop.cached import cached_property
from polyop.poly.scop import UPDATE
from polyop.poly.sets import fewer
from polyop.poly.verify.accesses import Accesses, Read, Role, constant
from polyop.poly.verify.flow import Flow, flow, maps, union
from polyop.poly.verify.frame import IN, OUT
from polyop.poly.verify.sites import Site

ROUNDS = 6  # chunks, copies and folds that stand between a computing store and what its value is moved to


@dataclass(frozen=True, eq=False)
class Labelled:
    """{ N -> Tensor[index] or a constant }; whether all that is assigned has one; and the reads of `Values.says`."""

    labels: isl.UnionMap
    is_complete: bool
    said: frozenset[str]


@dataclass(frozen=True, eq=False)
class Values:
    """The flow and the labels of the accesses `a`."""

    a: Accesses

    @cached_property
    def flow(self) -> Flow:
        return flow(self.a)

    @cached_property
    def empty(self) -> isl.UnionMap:
        return isl.UnionMap.empty(self.a.context.get_space())

    @cached_property
    def _moves(self) -> tuple[Site, ...]:
        """The sites that assign without computing."""
        return tuple(s for s in self.a.sites if s.store.origin is None and s.store.reduce is None)

    @property
    def labels(self) -> isl.UnionMap:
        """{ N -> Tensor[index] or a constant }, as far as the flow tells."""
        return self._labelled.labels

    @cached_property
    def _labelled(self) -> Labelled:
        known = union(self.a.context.get_space(), [
            self.a.wanted_place(s, self.a.stmt(s).target, s.frame).intersect_domain(s.domain)
            for s in self.a.sites if s.store.origin is not None and s.store.reduce is None])
        missing = {s.name: s.domain for s in self._moves}
        said: set[str] = set()
        for r in self.a.reads:
            if r.role == Role.OWN and r.wanted is not None:
                known = _more(known, missing, self.flow.base[r.frame.name].reverse().apply_range(r.wanted))
        added = {self.a.memory(s.store.target.source) for s in self.a.sites if s.store.reduce is not None}
        # where something is added later, a constant begins a sum, and has the sum's label
        known = self._constant([s for s in self._moves if self.a.memory(s.store.target.source) not in added], known, missing)
        known = self._spread(known, missing, said)
        known = self._constant(self._moves, known, missing)
        known = self._spread(known, missing, said)
        for s in self._moves:
            known = _guess(s, known, missing)
        known = fewer(self._spread(known, missing, said))  # a triangle's came in many parts
        return Labelled(known, not missing, frozenset(said))

    def _constant(self, moves: Iterable[Site], known: isl.UnionMap, missing: dict[str, isl.Set]) -> isl.UnionMap:
        """`known` and the constants that `moves` write."""
        for s in moves:
            for c, domain in self.a.constants(s):
                if s.name in missing:
                    fixed = s.frame.function(constant(c), ()).intersect_domain(domain)
                    known = _more(known, missing, isl.UnionMap.from_map(fixed))
        return known

    def _spread(self, known: isl.UnionMap, missing: dict[str, isl.Set], said: set[str]) -> isl.UnionMap:
        """`known` and what follows from it: copies from their sources, partial results from where they are folded.

        said   the reads that gave all executions of their sites a label, to which more are added
        """
        for _ in range(ROUNDS):
            before = known
            for r in self.a.reads:
                if not missing:
                    return known
                if r.role == Role.COPY and r.site is not None and r.site.name in missing:
                    new, is_first = r.to_site.reverse().apply_range(self.found(r, known)), missing[r.site.name] is r.site.domain
                    if is_first and self._says_all(r, missing):
                        known = known.union(new)
                        del missing[r.site.name]
                    else:
                        known = _more(known, missing, new)
                    if is_first and r.site.name not in missing:
                        said.add(r.frame.name)
                elif r.role == Role.FOLD:
                    known = _more(known, missing, self.flow.base[r.frame.name].reverse().apply_range(self._joined(r, known)))
            if known is before:
                break
        return known

    @property
    def is_complete(self) -> bool:
        """Whether every execution that assigns has a label: then so has what a read finds that was written."""
        return self._labelled.is_complete

    def says(self, r: Read) -> bool:
        """Whether the labels of all executions of the copy `r` are those of what it finds, by which they were given."""
        return r.frame.name in self._labelled.said

    def _says_all(self, r: Read, missing: Mapping[str, isl.Set]) -> bool:
        """Whether `r` reads in all executions of its site, and what it finds has a label in each of them."""
        assert r.site is not None
        sources = {m.get_tuple_name(OUT) for m in maps(self.flow.base[r.frame.name])}
        reads = r.place.domain().set_tuple_name(r.site.name)
        return not sources & missing.keys() and uninitialised(self, r) is None and bool(reads.is_equal(r.site.domain))

    def _own(self, site: Site | None) -> Read:
        return next(r for r in self.a.reads if r.role == Role.OWN and r.site is site)

    def _joined(self, fold: Read, labels: isl.UnionMap) -> isl.UnionMap:
        """{ R -> Tensor[index] }: the label of what `fold` is added to."""
        own = self._own(fold.site)
        return fold.to_site.apply_range(own.to_site.reverse()).apply_range(self.found(own, labels))

    def found(self, r: Read, labels: isl.UnionMap | None = None) -> isl.UnionMap:
        """{ R -> Tensor[index] }: the label of what `r` finds; memory that was not written holds its input."""
        out = self.flow.base[r.frame.name].apply_range(self.labels if labels is None else labels)
        initial = self.a.initial(self.a.memory(r.load.source))
        if initial is None or r.frame.name not in self.flow.unset:
            return out
        before = self.flow.unset[r.frame.name].set_tuple_name(OUT, initial)
        return out.union(isl.UnionMap.from_map(before))

    def expected(self, r: Read) -> isl.UnionMap:
        """{ R -> Tensor[index] }: what `r` should find."""
        if r.wanted is not None:
            return r.wanted
        if r.role == Role.COPY:
            return r.to_site.apply_range(self.labels)
        if r.role == Role.FOLD:
            return self._joined(r, self.labels)
        reduced = [s.target.source for s in self.a.scop.stmts if s.kind == UPDATE]
        found = self.found(r)
        return union(self.a.context.get_space(), [m for m in maps(found) if m.get_tuple_name(OUT) in reduced])


def _more(known: isl.UnionMap, missing: dict[str, isl.Set], labels: isl.UnionMap) -> isl.UnionMap:
    """`known` and those of `labels` that are `missing` in it, which they then are no longer; `known` itself, if there are none.

    missing   site -> its executions without a label, for the sites that have such
    """
    for m in maps(labels):
        name = m.get_tuple_name(IN) or ""
        new = m.intersect_domain(missing[name]) if name in missing else None
        if new is not None and not new.is_empty():
            known = known.union(isl.UnionMap.from_map(new))
            missing[name] = missing[name].subtract(new.domain()).coalesce()
            if missing[name].is_empty():
                del missing[name]
    return known


def _guess(s: Site, known: isl.UnionMap, missing: dict[str, isl.Set]) -> isl.UnionMap:
    """`known` with labels of `s` where none are known, by the rule of those that are.

    A triangle's chunks have columns in which nothing is added up, only moved on, so that no round ever gets to the end of it.
    """
    if s.name not in missing:
        return known
    for m in maps(known.intersect_domain(isl.UnionSet.from_set(s.domain))):
        rule = isl.Map.from_basic_map(m.affine_hull())
        if s.name in missing and rule.is_single_valued():
            known = _more(known, missing, isl.UnionMap.from_map(rule))
    return known


def uninitialised(v: Values, r: Read) -> isl.Set | None:
    """The executions of `r` that read what nothing has written."""
    if r.frame.name not in v.flow.unset or v.a.initial(v.a.memory(r.load.source)) is not None:
        return None
    bad = v.flow.unset[r.frame.name].domain()
    return None if bad.is_empty() else bad


def wrong(v: Values, r: Read) -> tuple[isl.Set, isl.UnionMap, isl.UnionMap] | None:
    """The executions of `r` that find another value than they should, with both labels, of which each execution has one."""
    if v.says(r):
        return None
    found, wanted = v.found(r), v.expected(r)
    here, told = isl.UnionSet.from_set(r.place.domain()), found.domain()
    is_told = v.is_complete and uninitialised(v, r) is None
    if (is_told or here.is_subset(told)) and found.is_subset(wanted):  # which takes half as long as what is left of them
        return None
    return maps_to_set(found.subtract(wanted).domain().union(here.subtract(told))), found, wanted


def maps_to_set(s: isl.UnionSet) -> isl.Set:
    """The one set of a union that has one."""
    found = s.get_set_list()
    return found.get_at(0)
