"""The claims about one nest, cheap ones first; each check returns the case that breaks its claim, in words, or None."""

from __future__ import annotations

from dataclasses import dataclass

import islpy as isl

from polyop.cached import cached_property
from polyop.ir.expr import Affine, Load, Test, bounds, is_computed, quasi, substitute
from polyop.ir.loops import COUNTED, LOCKSTEP, For, Kind, Space, walk
from polyop.poly.scop import Stmt
from polyop.poly.verify.accesses import Accesses, Role
from polyop.poly.verify.barriers import unordered
from polyop.poly.verify.beyond import read_beyond
from polyop.poly.verify.conflicts import Conflict, Touch, concurrent, conflict, touches
from polyop.poly.verify.ordered import disorder, folded
from polyop.poly.verify.reductions import fault
from polyop.poly.verify.same import Differ, Operand, brief, leaves
from polyop.poly.verify.sites import Site
from polyop.poly.verify.threads import crossed, misnumbered, strayed
from polyop.poly.verify.values import Values, uninitialised, wrong
from polyop.poly.verify.verdict import Check
from polyop.poly.verify.witness import case, elements, equations, instance, named, point, reading, smallest, spot


@dataclass(frozen=True, eq=False)
class Claims:
    """What is to be shown about the accesses `a`.

    whole  of all slices, if `a` are those of one: what blocks of threads leave to each other if they are persistent
    strict whether floats are to be added up in the order of the text
    """

    a: Accesses
    whole: Accesses
    strict: bool = False

    @cached_property
    def values(self) -> Values:
        return Values(self.a)

    @cached_property
    def touches(self) -> tuple[Touch, ...]:
        return touches(self.a)

    def all(self) -> tuple[tuple[str, Check], ...]:
        return (
            ("no lock-step loop is longer than its extent", self.extents),
            ("each store computes what its statement says", self.expressions),
            ("each instance of each statement runs exactly once", self.once),
            ("no access leaves its buffer", self.bounds),
            ("nothing is read before it is written", self.initialised),
            ("each value read is the one that the operator says", self.same_values),
            ("each reduction has all its terms, and each of them once", self.reductions),
            *((("floats are added up in the order of the text", self.order),) if self.strict else ()),
            ("lock-step loops do not meet themselves in memory", lambda: self.conflicts(LOCKSTEP)),
            ("parallel loops do not meet themselves in memory", lambda: self.conflicts((Kind.PARALLEL,))),
            *self._of_threads(),
        )

    def _of_threads(self) -> tuple[tuple[str, Check], ...]:
        if not any(x.loop.kind == Kind.THREADS for s in self.a.sites for x in s.around):
            return ()
        units = any(x.loop.kind == Kind.ATOM for s in self.a.sites for x in s.around)
        return (
            ("each thread has its own digits and registers",
             lambda: misnumbered(self.a.nest) or strayed(self.a) or crossed(self.a)),
            ("threads of a block do not meet themselves in memory", lambda: self.conflicts((Kind.THREADS, Kind.ATOM))),
            ("between threads of a block that meet there is a barrier", self.barriers),
            *((("nobody reads what a matrix unit writes beyond the bounds of a tile",
                lambda: read_beyond(self.a.nest, self.a.context)),) if units else ()),
        )

    def barriers(self) -> str | None:
        stays = any(isinstance(n, For) and n.persistent for n in walk(self.a.nest.body))
        found = unordered(self.whole, touches(self.whole)) if stays else unordered(self.a, self.touches)
        if found is None:
            return None
        first, second = found.first, found.second
        env = named(first.site, *smallest(found.pairs.domain()))
        there = named(second.site, *smallest(found.pairs.intersect_domain(point(found.pairs.domain())).range()))
        verbs = ["writes" if t.writes else "reads" for t in (first, second)]
        return (f"{equations(env)}: `{first.site.store.stmt}` {verbs[0]} {spot(first.load, env)}, and `{second.site.store.stmt}` "
                f"{verbs[1]} {spot(second.load, there)} on another thread, without a barrier between them")

    def extents(self) -> str | None:
        """upper <= extent wherever something inside runs."""
        seen: set[int] = set()
        for s in self.a.sites:
            for x in s.around:
                loop = x.loop
                if loop.kind not in COUNTED or x.key in seen:
                    continue
                seen.add(x.key)
                if any(b.is_constant and b.const <= loop.end for b in bounds(loop.upper)):
                    continue
                bad = s.frame.where([s.at(b) - loop.end - 1 for b in bounds(loop.upper)], s.domain)
                if not bad.is_empty():
                    return f"{case(s, bad)}: loop {loop.index} runs to {loop.upper}, more than {loop.end}"
        return None

    def expressions(self) -> str | None:
        """The tree of each computing store is its statement's; all else only moves or joins."""
        for s in self.a.sites:
            reason = self._moves(s) if s.store.origin is None else self._computes(s, self.a.stmt(s))
            if reason:
                return f"`{s.store.target}`: {reason}"
        return None

    def _moves(self, s: Site) -> str | None:
        moved = leaves(s.store.expr)
        if moved is None or (s.store.reduce and not (isinstance(s.store.expr, Load) and not s.store.expr.guard)):
            return f"`{brief(s.store.expr)}` computes something and carries out no statement"
        other = [x for x, _ in moved if x.dtype != s.store.target.dtype]
        return f"`{other[0]}` is moved as {s.store.target.dtype}" if other else None

    def _computes(self, s: Site, stmt: Stmt) -> str | None:
        if s.store.reduce != stmt.reduce:
            return f"combines by {s.store.reduce}, expected {stmt.reduce}"
        if s.store.target.dtype != stmt.target.dtype:
            return f"is {s.store.target.dtype}, expected {stmt.target.dtype}"
        pairs = [(stmt.target, s.store.target)] if any(map(is_computed, stmt.target.index)) else []
        for x in self.a.compared(s):
            match x:
                case Differ():
                    return str(x)
                case Operand():
                    bad = self._unread(s, x)
                    if bad is not None:
                        return f"{case(s, bad)}: {spot(x.given, _env(s, bad))} is not read"
                    if any(map(is_computed, x.wanted.index)):
                        pairs.append((x.wanted, x.given))
                case (a, b):
                    reason = _unequal(s, a, b)
                    if reason:
                        return reason
        for wanted, given in pairs:
            theirs, ours = self._searched(self.a.scop.op.tensor(wanted.source).shape, wanted), \
                self._searched(tuple(e for e, _ in self.a.buffers[given.source].dims), given)
            if theirs != ours:
                return f"`{given}` looks among {', '.join(map(str, ours))}, expected {', '.join(map(str, theirs))}"
        return None

    def _searched(self, shape: tuple[Affine, ...], load: Load) -> list[Affine]:
        """The extents of the dimensions in which the position is computed."""
        return [e for e, p in zip(shape, load.index, strict=True) if is_computed(p)]

    def _unread(self, s: Site, o: Operand) -> isl.Set | None:
        """Executions in which the specification reads and the nest takes 0 instead."""
        env = self.a.env(s)
        if not o.given.guard or {substitute(g, env) for g in o.wanted.guard} >= set(o.given.guard):
            return None
        domain = self.a.along(o.path, s, s.frame, s.domain)
        bad = self.a.guarded(s, o.wanted, s.frame, domain).subtract(s.frame.where(map(s.at, o.given.guard)))
        return None if bad.is_empty() else bad

    def once(self) -> str | None:
        """{ N -> S[lift] } of all stores that carry out S is one to one, and onto the domain of S."""
        for stmt in self.a.scop.stmts:
            domain = stmt.domain.intersect_params(self.a.context)
            done = isl.Set.empty(domain.get_space())
            for s in self.a.sites:
                if s.store.origin != stmt.name:
                    continue
                lift = s.frame.function(stmt.name, [s.at(x) for x in s.store.lift]).intersect_domain(s.domain)
                reached = lift.range()
                twice = reached.intersect(done)
                if not twice.is_empty():
                    return f"{instance(stmt, twice)} runs twice"
                if not _plainly_injective(s) and not lift.is_injective():
                    pairs = lift.apply_range(lift.reverse())
                    twice = lift.intersect_domain(pairs.subtract(isl.Map.identity(pairs.get_space())).domain()).range()
                    return f"{instance(stmt, twice)} runs twice"
                done = done.union(reached)
            if not done.is_subset(domain):
                return f"{instance(stmt, done.subtract(domain))} runs, and is no instance"
            if not domain.is_subset(done):
                return f"{instance(stmt, domain.subtract(done))} does not run"
        return None

    def bounds(self) -> str | None:
        """Every affine position is inside its dimension, and a multiple of its unit."""
        for t in self.touches:
            b = self.a.buffers[t.load.source]
            domain: isl.Set | None = None
            for d, (p, (extent, unit)) in enumerate(zip(t.load.index, b.dims, strict=True)):
                if not isinstance(p, Affine):
                    continue
                domain = t.place.domain() if domain is None else domain
                at = t.site.at(p)
                last = d == len(b.dims) - 1 and b.space == Space.WORK and b.pad > 1
                limit = quasi("div", extent + (unit * b.pad - 1), Affine(const=unit * b.pad)) * (unit * b.pad) if last else extent
                tests = [at * -1 - 1, at - limit]
                if unit > 1:
                    tests.append(quasi("mod", at, Affine(const=unit)) - 1)
                for test in tests:
                    if test.is_constant and test.const < 0:
                        continue
                    bad = t.frame.where([test], domain)
                    if not bad.is_empty():
                        return f"{case(t.site, bad)}: {spot(t.load, _env(t.site, bad))}"
        return None

    def initialised(self) -> str | None:
        for r in self.a.reads:
            bad = uninitialised(self.values, r)
            if bad is not None:
                env = reading(r, bad)
                what = "never written" if r.role == Role.END else "read and was not written"
                return f"{equations(env)}: {spot(r.load, env)} is {what}"
        return None

    def same_values(self) -> str | None:
        labels = self.values.labels
        if not labels.is_single_valued():
            twice = labels.reverse().apply_range(labels)
            twice = twice.subtract(twice.range().identity())
            bad = labels.intersect_range(twice.domain()).domain().get_set_list().get_at(0)
            s = next(s for s in self.a.sites if s.name == bad.get_tuple_name())
            return f"{case(s, bad)}: {spot(s.store.target, _env(s, bad))} stands for two values"
        for r in self.a.reads:
            found = wrong(self.values, r)
            if found is not None:
                bad, have, want = found
                env, here = reading(r, bad), isl.UnionSet.from_set(point(bad))
                place, held = spot(r.load, env), elements(have, here)
                fact = "is read" if held == place else f"holds {held}"
                return f"{equations(env)}: {place} {fact}, expected {elements(want, here)}"
        return None

    def reductions(self) -> str | None:
        found = fault(self.values)
        if found is None:
            return None
        env = _env(found.site, found.bad)
        return f"{equations(env)}: `{spot(found.site.store.target, env)} = {brief(found.site.store.expr)}` {found.what}"

    def order(self) -> str | None:
        site = folded(self.a)
        if site is not None:
            return f"{case(site, site.domain)}: `{site.store.target}` gets a partial sum added to it"
        found = disorder(self.a)
        if found is None:
            return None
        late = point(found.pairs.range())
        first = instance(found.first, found.pairs.intersect_range(late).domain())
        at = ", ".join(map(str, smallest(late)[1]))
        return f"{first} may be added after {found.second.name}[{at}]"

    def conflicts(self, kinds: tuple[Kind, ...]) -> str | None:
        for key, loop in concurrent(self.a):
            if loop.kind in kinds:
                found = conflict(self.a, self.touches, key, loop)
                if found is not None:
                    return _met(found)
        return None


def _plainly_injective(s: Site) -> bool:
    """Whether each loop around `s` is alone in one value of the lift."""
    alone = {x.name for x in s.store.lift}
    return all(a.loop.index in alone for a in s.around)


def _unequal(s: Site, a: Affine | Test, b: Affine | Test) -> str | None:
    """Where two index expressions, or two tests, differ."""
    if isinstance(a, Affine) and isinstance(b, Affine):
        x, y = s.at(a), s.at(b)
        bad = s.frame.where([x - y - 1], s.domain).union(s.frame.where([y - x - 1], s.domain))
    elif isinstance(a, Test) and isinstance(b, Test):
        one, two = (s.frame.where(map(s.at, t.tests), s.domain) for t in (a, b))
        bad = one.subtract(two).union(two.subtract(one))
    else:
        return str(Differ(str(a), str(b)))
    return None if bad.is_empty() else f"{case(s, bad)}: {Differ(str(a), str(b))}"


def _env(s: Site, bad: isl.Set) -> dict[str, int]:
    return named(s, *smallest(bad))


def _met(c: Conflict) -> str:
    """Two iterations that meet, in words."""
    first, second = c.first, c.second
    depth = next(i for i, x in enumerate(first.site.around) if x.loop is c.loop)
    sizes, at = smallest(c.pairs.domain())
    env = named(first.site, sizes, at)
    there = named(second.site, *smallest(c.pairs.intersect_domain(point(c.pairs.domain())).range()))
    index = first.site.around[depth].loop.index
    verb = "writes" if second.writes else "reads"
    return (f"{equations(sizes)}: {index} = {env[index]} writes {spot(first.load, env)}, "
            f"and {index} = {there[index]} {verb} {spot(second.load, there)}")
