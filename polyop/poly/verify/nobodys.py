"""That loops over threads, rows and lanes that run on, or lack a test, write only elements that nobody reads, for all sizes.

    for p in [0, min(16, M - i)) { e[p] = f(s[p]) }        becomes        for p in [0, 16) { e[p] = f(s[p]) }

Iterations that `after` alone has write registers, and read inside of buffers. Then all others do what they did, and so the
same is stored, if none of them reads what those wrote:

    { e[p] : M - i - p <= 0 }   and   { e[p] : p is read where i runs }                            have nothing in common

That is asked of each such store and each use of its register in one iteration of the parallel loops around both, for elements
are those of one block. In one turn of a serial loop as well, if the element is written in that turn before it is read: what was
there in front of that is gone. Most questions are answered by a test around the use that is the bound with other names, and isl
is asked the others. What is left out, or moved behind a test, is followed the other way round:

    if t { x[v] = V[v]   c += a x[v] }                     becomes        x[v] = V[v]   if t { c += a x[v] }
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile

import islpy as isl

from polyop.cached import cached_property
from polyop.ir.expr import Affine, Load, Position, affine, bounds, loads, names, substitute, substitute_expr
from polyop.ir.loops import Barrier, Buffer, For, If, Kind, LoopNest, Node, Prefetch, Space, Store, stores
from polyop.ir.module import Proof
from polyop.poly.verify.elements import with_elements
from polyop.poly.verify.keeps import CLAIM
from polyop.poly.verify.known import Known, Tests, nothing_but
from polyop.poly.verify.ranges import Body, range_of
from polyop.poly.verify.same import Path, computed, loads_with_paths
from polyop.poly.verify.trees import Differs, raise_where
from polyop.poly.verify.verdict import decided
from polyop.poly.verify.within import require_within

_LONGER = (Kind.ROWS, Kind.ATOM, Kind.THREADS)


def nobody_reads(before: LoopNest, after: LoopNest, proved: LoopNest, context: isl.Set) -> Proof:
    """The claim that `after` stores what `before` does, for all sizes in `context`; `proved`: the nest that both came from."""
    return decided(CLAIM, lambda: difference(before, after, proved, context))


def difference(before: LoopNest, after: LoopNest, proved: LoopNest, context: isl.Set) -> str | None:
    """The smallest case in which something is read that `after` alone writes, in words; None if there is none.

    Raises  UnsupportedError, if it is not plain what registers mean.
    """
    if replace(before, body=()) != replace(after, body=()):
        return "other arguments, or memory, than before"
    if before.buffers != proved.buffers:  # registers have lost dimensions
        before, after = with_elements((before, after), proved)
    runs = list[_Run]()
    k = nothing_but(before.sizes, context)
    try:
        for x in _pairs(before.body, _placed(after.body, k, ()), (), _Where(k, k)):
            runs.append(x)
        nobodys = _Nobodys({b.name: b for b in before.buffers}, runs)
        for x in runs:
            if x.gone:
                nobodys.require(x)
    except Differs as case:
        return str(case)
    return None


@dataclass(frozen=True, eq=False)
class _Where:
    """Where something runs: what is `known`, and the `whole` of it without what is asked of the indices that are `free`.

    A matrix unit takes whole tiles, so it also reads what lies beyond the end of a sum, where zeros are (`accesses._beyond`).
    """

    known: Known
    whole: Known
    free: frozenset[str] = frozenset()

    def also(self, tests: Tests) -> _Where:
        known = self.known.also(tests)
        if self.whole is self.known:
            return replace(self, known=known, whole=known)
        return replace(self, known=known, whole=self.whole.also(t for t in tests if not names(t) & self.free))

    def unless(self, tests: Tests) -> _Where:
        known = self.known.unless(tests)
        if self.whole is self.known:
            return replace(self, known=known, whole=known)
        whole = self.whole if any(names(t) & self.free for t in tests) else self.whole.unless(tests)
        return replace(self, known=known, whole=whole)

    def inside(self, n: For) -> _Where:
        is_summed = n.kind in (Kind.ATOM, Kind.ROWS) and not n.is_full and any(
            s.reduce is not None and n.index not in chosen_by(s.target) for s in stores(n.body))
        if not is_summed:
            same = self.whole is self.known
            inner = self.known.inside(n)
            return replace(self, known=inner, whole=inner if same else self.whole.inside(n)).also(_says(n))
        at = affine(n.index)
        return _Where(self.known.inside(n).also(_says(n)), self.whole.inside(n).also((at, at * -1 + (n.end - n.step))),
                      self.free | {n.index})


@dataclass(frozen=True, eq=False)
class _Run:
    """A store that stands in both nests.

    around   the loops of `before`
    where    where `before` runs it; `more`: where `after` does
    gone     what must be >= 0 in `before` alone
    """

    store: Store
    around: tuple[For, ...]
    where: _Where
    more: Known
    gone: Tests

    @property
    def known(self) -> Known:
        return self.where.known

    @property
    def is_whole(self) -> bool:
        """Whether a side of a matrix unit's tile is summed over, of which it reads all."""
        kept = chosen_by(self.store.target)
        return self.store.reduce is not None and any(f.kind == Kind.ATOM and f.index not in kept for f in self.around)

    @cached_property
    def used(self) -> tuple[_Use, ...]:
        """What it reads."""
        s = self.store
        mine = (s.target,) if s.reduce is not None else ()
        return (*(_Use(self, x, ()) for x in (*mine, *(x for p in computed(s.target) for x in loads(p)))),
                *(_Use(self, x, path) for x, path in loads_with_paths(s.expr)))


@dataclass(frozen=True, eq=False)
class _Use:
    """A place in `by` that reads an element, on the path to it."""

    by: _Run
    load: Load
    path: Path

    @property
    def known(self) -> Known:
        return self.by.where.whole if self.by.is_whole else self.by.known

    @cached_property
    def domain(self) -> isl.Set:
        """Where it is read."""
        k = self.known
        if self.by.is_whole:
            return k.domain
        out = k.also(self.load.guard).domain if self.load.guard else k.domain
        for condition, truth in self.path:
            held = k.frame.condition(substitute_expr(condition, k.values), out)
            out = held if truth else out.subtract(held)
        return out


# --- the trees --------------------------------------------------------------------------------------------------------

@dataclass(frozen=True, eq=False)
class _Placed:
    """A node of `after`, where it runs, and what must be >= 0 in `before` alone."""

    node: Node
    more: Known
    gone: Tests


def _placed(body: Body, more: Known, gone: Tests) -> list[_Placed]:
    return [_Placed(n, more, gone) for n in body]


def _pairs(before: Body, after: list[_Placed], around: tuple[For, ...], k: _Where) -> Iterator[_Run]:
    """The stores of two bodies. Raises  Differs, if these differ by anything else than bounds and tests that `after` lacks."""
    todo = list(after)
    for m in before:
        if not todo:
            raise Differs("one nest has more nodes than the other one")
        behind = _behind(m, todo)
        if isinstance(m, If) and behind:  # what stands in front of the same test there is asked here, too
            same = todo[behind]
            inner, yes = same.node, k.also(m.tests)
            assert isinstance(inner, If)
            more = yes.known if same.more is k.known else same.more.also(m.tests)
            moved = [replace(x, gone=(*x.gone, *m.tests)) for x in todo[:behind]]
            yield from _pairs(m.then, [*moved, *_placed(inner.then, more, same.gone)], around, yes)
            todo = todo[behind + 1:]
        else:
            yield from _pair(m, todo.pop(0), around, k)
    if todo:
        raise Differs("one nest has more nodes than the other one")


def _behind(m: Node, after: list[_Placed]) -> int:
    """How many nodes stand in front of the test `m` in `after`; 0, if it is not found behind others."""
    if not isinstance(m, If) or m.other:
        return 0
    return next((k for k, x in enumerate(after) if isinstance(x.node, If) and x.node.tests == m.tests and not x.node.other), 0)


def _pair(m: Node, x: _Placed, around: tuple[For, ...], k: _Where) -> Iterator[_Run]:
    n, more, gone, same = x.node, x.more, x.gone, x.more is k.known
    match m, n:
        case For(), For() if replace(m, upper=n.upper, body=()) == replace(n, body=()):
            inner = k.inside(m)
            less = _longer(m, n, inner.known) if m.upper != n.upper else ()
            there = inner.known if same and m.upper == n.upper else more.inside(n).also(_says(n))
            yield from _pairs(m.body, _placed(n.body, there, (*gone, *less)), (*around, m), inner)
        case If(), If() if m.tests == n.tests:
            yes, no = k.also(m.tests), k.unless(m.tests)
            yield from _pairs(m.then, _placed(n.then, yes.known if same else more.also(m.tests), gone), around, yes)
            yield from _pairs(m.other, _placed(n.other, no.known if same else more.unless(m.tests), gone), around, no)
        case If(other=()), If(other=()) if {*n.tests} < {*m.tests}:
            less = tuple(t for t in m.tests if t not in n.tests)
            yield from _pairs(m.then, _placed(n.then, more.also(n.tests), (*gone, *less)), around, k.also(m.tests))
        case If(then=(inner,), other=()), _ if not isinstance(n, If):
            yield from _pair(inner, _Placed(n, more, (*gone, *m.tests)), around, k.also(m.tests))
        case Store(), Store() if m == n:
            yield _Run(m, around, k, more, gone)
        case (Barrier(), Barrier()) | (Prefetch(), Prefetch()) if m == n and not gone:
            pass
        case _:
            raise Differs("one nest has other nodes than the other one")


def _longer(m: For, n: For, inner: Known) -> Tests:
    """What `m` asks and `n` does not. Raises  Differs, if `n` lacks iterations, or has more than there are threads or rows."""
    if m.kind not in _LONGER:
        raise Differs(f"loop {m.index} goes on, one iteration after the other")
    at, old, new = affine(m.index), bounds(m.upper), bounds(n.upper)
    for b in new:
        if b not in old and not inner.implies(b - at - 1):
            raise_where(inner.where((at - b,), inner.domain), inner, f"loop {n.index} ends at {n.upper}, expected {m.upper}")
    if affine(n.end) not in new:
        raise Differs(f"loop {n.index} to {n.upper} may have more iterations than there is room for")
    return tuple(b - at - 1 for b in old if b not in new)


def _says(n: For) -> Tests:
    """What is >= 0 in a loop: an index that begins at 0 is below no bound that is not above 0."""
    more = (b - 1 for b in bounds(n.upper) if not b.is_constant) if n.lower == Affine() else ()
    return *range_of(n), *more


# --- what is read -----------------------------------------------------------------------------------------------------

@dataclass(frozen=True, eq=False)
class _Nobodys:
    """buffers   by name
    runs      all stores, in order
    covers    (assignment, use behind it) -> whether that has written all that is read in these iterations of common loops
    """

    buffers: Mapping[str, Buffer]
    runs: list[_Run]
    covers: dict[tuple[int, int], bool] = field(default_factory=dict)

    @cached_property
    def uses(self) -> dict[str, list[_Use]]:
        """All uses of each memory."""
        found: dict[str, list[_Use]] = {}
        for u in self.runs:
            for x in u.used:
                found.setdefault(x.load.source, []).append(x)
        return found

    def require(self, r: _Run) -> None:
        """Raises  Differs, if somebody reads what `r` writes in `after` alone, or it does anything else."""
        s = r.store
        register = self.buffers[s.target.source].space == Space.REG and not computed(s.target)
        uses = self.uses.get(s.target.source, [])
        if register and self.is_inside(r) and all(self.is_apart(r, x) for x in uses):
            return
        new = r.more.only(r.more.domain.subtract(r.known.domain))
        if new.domain.is_empty():
            return
        if not register:
            raise_where(new.domain, new, f"`{s.target}` is written, and was not")
        if any(map(computed, loads(s.expr))):
            raise_where(new.domain, new, f"`{s.target}` is written of what lies at a computed place")
        require_within(s, self.buffers, new)
        for x in uses:
            if not self.is_apart(r, x):
                self.apart(r, new, x)

    def is_inside(self, r: _Run) -> bool:
        """Whether all that `r` names in `after` is inside of its buffer, at no computed place."""
        if any(map(computed, (r.store.target, *loads(r.store.expr)))):
            return False
        try:
            require_within(r.store, self.buffers, r.more)
        except Differs:
            return False
        return True

    def is_apart(self, r: _Run, x: _Use) -> bool:
        """Whether tests around the use `x` say that it is none of those elements that `r` writes in `after` alone."""
        env = dict(y for p, q in zip(r.store.target.index, x.load.index, strict=True) for y in _solved(p, q))
        around = {f.index for f in r.around}
        for asked in (False, True):
            inner = around - {f.index for f in self.tied(r, x, asked)}
            put = {i: p for i, p in env.items() if i in inner}
            if all(names(c) & inner <= put.keys() and x.known.implies(substitute(c, put)) for c in r.gone):
                return True
        return False

    def apart(self, r: _Run, new: Known, x: _Use) -> None:
        """Raises  Differs, if the use `x` is one of the elements that `r` writes where `new` holds."""
        tied = [f.index for f in self.tied(r, x, True)]
        target = r.store.target
        dims = [d for d, (p, q) in enumerate(zip(target.index, x.load.index, strict=True))
                if isinstance(p, Affine) and isinstance(q, Affine)]
        written = _places(new, tied, target, dims).intersect_domain(new.domain).range()
        read = _places(x.known, tied, x.load, dims).intersect_domain(x.domain).intersect_range(written).domain()
        raise_where(read, x.known, f"`{x.load}` of {x.by.store.stmt} is read, which {r.store.stmt} may have written")

    def tied(self, r: _Run, x: _Use, asked: bool) -> list[For]:
        """The loops around `r` and `x` of which both are in one iteration, if the one reads what the other one wrote.

        Threads have registers of their own, but for what they combine, or hand on from one to the next.
        """
        common, s = _common(r, x.by), r.store
        alone = s.reduce is None and all(y.source != s.target.source for y in loads(s.expr))
        found = [Kind.SERIAL, *([Kind.THREADS] if alone else [])]
        covered = self.covered(x) if asked and any(f.kind in found for f in common) else ()
        return [f for k, f in enumerate(common) if f.kind == Kind.PARALLEL or (
            f.kind in found and k < len(covered) and covered[k] is f)]

    def covered(self, x: _Use) -> tuple[For, ...]:
        """The loops in whose iteration an element is assigned before it is used there; as many as are found."""
        found: tuple[For, ...] = ()
        for w in takewhile(lambda w: w is not x.by, self.runs):
            common = _common(w, x.by)
            if (w.store.target.source == x.load.source and w.store.reduce is None and len(common) > len(found)
                    and self.is_covered(w, x)):
                found = common
        return found

    def is_covered(self, w: _Run, x: _Use) -> bool:
        """Whether `w` has written the element of the use `x`, in the same iteration of all loops around both."""
        key = id(w), id(x)
        if key not in self.covers:
            indices, dims = [f.index for f in _common(w, x.by)], range(len(x.load.index))
            self.covers[key] = not computed(x.load) and not computed(w.store.target) and (
                _places(x.known, indices, x.load, dims).intersect_domain(x.domain).range().is_subset(
                    _places(w.known, indices, w.store.target, dims).intersect_domain(w.known.domain).range()))
        return self.covers[key]


def chosen_by(x: Load) -> frozenset[str]:
    """The names by which the element is chosen."""
    return frozenset[str]().union(*(names(p) for p in x.index if isinstance(p, Affine)))


def _common(a: _Run, b: _Run) -> tuple[For, ...]:
    return tuple(x for x, _ in takewhile(lambda p: p[0] is p[1], zip(a.around, b.around, strict=False)))


def _solved(p: Position, q: Position) -> Iterator[tuple[str, Affine]]:
    """The index that `p` is a multiple of, as it is where p = q:  64 i = 64 j + 128  is  i = j + 2."""
    match p, q:
        case Affine(terms=((str(i), f),), const=0), Affine(terms=terms, const=c) if f > 0 and not any(
                g % f for g in (c, *(g for _, g in terms))):
            yield i, Affine(tuple((a, g // f) for a, g in terms), c // f)


def _places(k: Known, tied: list[str], x: Load, dims: range | list[int]) -> isl.Map:
    """{ an execution -> [iterations of the loops `tied`, positions of `x` in `dims`] }."""
    at = [x.index[d] for d in dims]
    assert all(isinstance(p, Affine) for p in at)
    return k.frame.function("at", [substitute(p, k.values) for p in (*map(affine, tied), *at) if isinstance(p, Affine)])
