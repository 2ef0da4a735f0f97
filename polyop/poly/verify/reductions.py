"""That each result of a reduction holds every update exactly once: see `values.py` for epochs and labels."""

from __future__ import annotations

from dataclasses import dataclass

import islpy as isl

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Const
from polyop.ir.op import Monoid
from polyop.poly.scop import UPDATE
from polyop.poly.verify.accesses import Role, constant
from polyop.poly.verify.flow import maps, not_before, union
from polyop.poly.verify.frame import OUT
from polyop.poly.verify.sites import Site
from polyop.poly.verify.values import ROUNDS, Values


@dataclass(frozen=True, eq=False)
class Fault:
    """What is wrong with a reduction, and the executions of `site` that show it."""

    what: str
    site: Site
    bad: isl.Set


def monoids(v: Values) -> dict[str, Monoid]:
    """How each reduced tensor combines."""
    return {s.target.source: s.reduce for s in v.a.scop.stmts if s.kind == UPDATE and s.reduce is not None}


def fault(v: Values) -> Fault | None:
    """The first fault in how reductions are started, split, passed on, joined and read."""
    known = monoids(v)
    if not known:
        return None
    return _starts(v, known) or _joins(v, known) or _late(v) or _paths(v, tuple(known))


def _site(v: Values, name: str | None) -> Site:
    return next(s for s in v.a.sites if s.name == name)


def _fault(v: Values, what: str, bad: isl.UnionSet) -> Fault | None:
    """A fault at one of the executions of `bad`, if there are any."""
    if bad.is_empty():
        return None
    first = bad.get_set_list().get_at(0)
    return Fault(what, _site(v, first.get_tuple_name()), first)


def _starts(v: Values, known: dict[str, Monoid]) -> Fault | None:
    """A partial result begins with the identity, or with what another epoch passes on."""
    reduced = labelled(v, tuple(known))
    for s in v.a.sites:
        if s.store.origin is None and s.store.reduce is None:
            for found, domain in v.a.constants(s):
                for m in maps(reduced.intersect_domain(isl.UnionSet.from_set(domain))):
                    identity = Const(known[m.get_tuple_name(OUT) or ""].identity, found.dtype)
                    if constant(found) != constant(identity) and not m.is_empty():
                        return Fault(f"starts from {found.value}, expected {identity.value}", s, m.domain())
    return None


def _joins(v: Values, known: dict[str, Monoid]) -> Fault | None:
    """Partial results are joined with the operator of their reduction."""
    for r in v.a.reads:
        if r.role == Role.FOLD and r.site is not None:
            for m in maps(v.found(r)):
                tensor = m.get_tuple_name(OUT)
                if tensor not in known or known[tensor] != r.site.store.reduce:
                    return Fault(f"joins partial results of {tensor} with {r.site.store.reduce}", r.site, r.site.domain)
    return None


def _late(v: Values) -> Fault | None:
    """Nothing is added to an epoch after it was read, by its own reductions apart."""
    adding = [r for r in v.a.reads if r.role == Role.OWN]
    for r in v.a.reads:
        if r.site is None or r.role == Role.OWN:
            continue
        for u in adding:
            assert u.site is not None
            if v.a.memory(u.load.source) != v.a.memory(r.load.source):
                continue
            pairs = v.flow.base[u.frame.name].apply_range(v.flow.base[r.frame.name].reverse())
            for m in maps(pairs):
                bad = not_before(u.site, r.site, m)
                if not bad.is_empty():
                    back = r.to_site
                    return _fault(v, f"{r.load} is read before the last `{u.site.store.target}` is added to it",
                                  isl.UnionSet.from_set(bad.range()).apply(back))
    return None


def labelled(v: Values, tensors: tuple[str, ...]) -> isl.UnionMap:
    """The labels that are elements of `tensors`."""
    return union(v.a.context.get_space(), [m for m in maps(v.labels) if m.get_tuple_name(OUT) in tensors])


def _paths(v: Values, tensors: tuple[str, ...]) -> Fault | None:
    label = labelled(v, tensors)
    epochs = label.domain()
    nothing = v.empty
    added = nothing.domain()
    copied, folded = nothing, nothing          # { N -> N }, and { N -> R } for the execution that folds
    for r in v.a.reads:
        base = v.flow.base[r.frame.name]
        match r.role:
            case Role.OWN:
                added = added.union(base.range())
            case Role.COPY:
                copied = copied.union(base.reverse().apply_range(r.to_site))
            case Role.FOLD:
                folded = folded.union(base.reverse())
            case _:
                pass
    copied = copied.intersect_domain(epochs).intersect_range(epochs)
    folded = folded.intersect_domain(epochs)

    # passed on: folded, or copied into what is reduced into or passed on
    passed = folded.domain().union(copied.intersect_range(added).domain())
    for _ in range(ROUNDS):
        more = passed.union(copied.intersect_range(passed).domain())
        if more.is_subset(passed):
            break
        passed = more
    else:
        raise UnsupportedError("partial results are passed on through too many copies to follow")

    ways = copied.union(folded).intersect_domain(passed).coalesce()  # which takes a tenth of what asking of all its parts does
    if not ways.is_single_valued():
        twice = ways.reverse().apply_range(ways)
        twice = twice.subtract(twice.range().identity())
        return _fault(v, "passes its partial result on twice", ways.intersect_range(twice.domain()).domain())
    for r in v.a.reads:
        if r.role in (Role.OPERAND, Role.END):
            early = v.flow.base[r.frame.name].intersect_range(passed)
            if not early.is_empty():
                return _fault(v, f"writes a partial result that is read as if it were whole, as {r.load}", early.range())
    whole = epochs.subtract(passed)
    results = whole.subtract(copied.intersect_domain(whole).range())
    chosen = label.intersect_domain(results)
    if not chosen.is_injective():
        pairs = chosen.apply_range(chosen.reverse())
        return _fault(v, "is one of several results of one reduction, each with a part of it",
                      pairs.subtract(results.identity()).domain())
    return None
