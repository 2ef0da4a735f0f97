"""What nodes that write registers alone make of the values that registers hold, element by element.

    for i, j { if t(i, j) >= 0 { r[i, j] = f(s[j, i]) } }     { r'[e0, e1] = t(e0, e1) >= 0 ? f(s[e1, e0]) : r[e0, e1] }
    for i, k { r[i] += p[i, k] }                              { r'[e0] = r[e0] + sum { p[e0, $0] : $0 in its bounds } }
    for k { x[i] = p[i, k]   r[i] += x[i] q[k] }              likewise of p[e0, $0] q[$0]: what a turn makes for itself is put in
    if t >= 0 { .. }                                          { r' = t >= 0 ? .. : r };  likewise where data is asked

An element is a place in steps of its dimension's unit. All else that is written holds something unknown afterwards, to which
nothing is equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from polyop.ir.expr import (
    Affine,
    Apply,
    Const,
    Expr,
    Load,
    Test,
    affine,
    bounds,
    loads,
    map_loads,
    names,
    substitute,
    substitute_expr,
)
from polyop.ir.loops import Buffer, For, If, IfData, Kind, Node, Store, stores
from polyop.poly.verify.elements import ANY
from polyop.poly.verify.numbered import Definition, Folded, Numbers, Tests, coordinate, whole

CHOSEN = "chosen"
"""Like "select", by a test of data that has one truth for all elements."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One store, in loops from 0 in one another, and what is asked among them (>= 0)."""

    loops: tuple[For, ...]
    tests: Tests
    store: Store


def tile_of(n: Node) -> Tile | None:
    """`n`, if it is one."""
    loops, tests = list[For](), list[Affine]()
    while not isinstance(n, Store):
        match n:
            case For(kind=Kind.ROWS | Kind.ATOM | Kind.THREADS, body=(inner,)) if n.lower == Affine():
                loops.append(n)
            case If(then=(inner,), other=()):
                tests += n.tests
            case _:
                return None
        n = inner
    return Tile(tuple(loops), tuple(tests), n)


def slots(b: Buffer) -> tuple[int, ...] | None:
    """The number of elements in each dimension of a register, if they are numbers."""
    return tuple(-(-e.const // u) for e, u in b.dims) if all(e.is_constant for e, _ in b.dims) else None


def element(x: Load, b: Buffer, env: Mapping[str, Affine]) -> tuple[Affine, ...] | None:
    """Which element `x` is, counted in each dimension from 0; None, if that is no plain sum."""
    out = []
    for p, (_, unit) in zip(x.index, b.dims, strict=True):
        at = substitute(p, env) if isinstance(p, Affine) else None
        if at is not None and (at.name or "").startswith(ANY):
            out.append(at)
            continue
        if at is None or at.const % unit or any(f % unit for _, f in at.terms):
            return None
        out.append(Affine(tuple((a, f // unit) for a, f in at.terms), at.const // unit))
    return tuple(out)


@dataclass(frozen=True, slots=True)
class _Region:
    """The elements of a register that a tile writes, by their coordinates.

    put     the indices of its loops by coordinates, and by `$0`, .. of those loops that do not choose the element: `bound`
    at      the element
    where   what is asked of it, but for what all elements answer alike
    """

    buffer: Buffer
    put: Mapping[str, Affine]
    at: tuple[Affine, ...]
    bound: tuple[str, ...]
    where: Tests


class NotPlainError(Exception):
    """What a node makes of registers is not told by the rules."""


@dataclass(eq=False)
class Assigned:
    """registers   by name
    times       of each memory, how often it has been written; of "", how often threads have met
    regions     the elements that tiles write
    """

    numbers: Numbers
    registers: Mapping[str, Buffer]
    times: dict[str, int]
    regions: dict[tuple[object, ...], _Region] = field(default_factory=dict)

    def nodes(self, body: tuple[Node, ...], held: dict[str, str]) -> None:
        """`held` behind `body`."""
        for n in body:
            self.node(n, held)

    def node(self, n: Node, held: dict[str, str]) -> None:
        try:
            self.plainly(n, held)
        except NotPlainError:
            for s in stores((n,)):
                held[s.target.source] = self.numbers.fresh()

    def plainly(self, n: Node, held: dict[str, str]) -> None:
        """`held` behind `n`.

        Raises  NotPlainError, if that is not told by the rules; `held` is as it was then.
        """
        tile = tile_of(n)
        match n:
            case _ if tile is not None:
                name, made = self.stored(tile, held)
                held[name] = made
            case For(kind=Kind.SERIAL, step=1):
                self.summed(n, held)
            case If(tests=tests, then=then, other=other):
                self.either(Test(tests), then, other, held, "select")
            case IfData(test=test, then=then, other=other):
                self.either(self.expression(test, held, {}), then, other, held, CHOSEN)
            case _ if stores((n,)):
                raise NotPlainError

    def either(self, test: Expr, then: tuple[Node, ...], other: tuple[Node, ...], held: dict[str, str], fn: str) -> None:
        yes, no = dict(held), dict(held)
        self.nodes(then, yes)
        self.nodes(other, no)
        for name in dict.fromkeys((*yes, *no)):
            a, b = yes.get(name), no.get(name)
            if a and b:
                held[name] = self.chosen(test, a, b, name, fn)
            else:
                held[name] = self.numbers.fresh()

    def chosen(self, test: Expr, a: str, b: str, name: str, fn: str) -> str:
        """The value of the register `name` that is `a` where `test` holds, else `b`."""
        if a == b:
            return a
        buffer = self.registers[name]
        return self.numbers.number(Apply(fn, (test, whole(a, buffer), whole(b, buffer)), buffer.dtype), buffer)

    def merged(self, tests: Tests, a: str, b: str, name: str) -> str:
        """The value of the register `name` that is `a` where all `tests` are >= 0, else `b`."""
        return self.chosen(Test(tests), a, b, name, "select")

    # --- one store ---------------------------------------------------------------------------------------------------

    def stored(self, t: Tile, held: Mapping[str, str]) -> tuple[str, str]:
        """The register that a tile writes, and its value then."""
        s, r = t.store, self.region(t)
        old = whole(self.held(s.target.source, held), r.buffer)
        expr = self.expression(s.expr, held, r.put, s.target.source, r.at)
        if r.bound:
            if s.reduce is None or any(x.source == old.source for x in loads(expr)):
                raise NotPlainError
            new: Definition = Folded(s.reduce, old, bound_names(len(r.bound)), r.where, expr)
        else:
            one = expr if s.reduce is None else Apply(s.reduce.fn or s.reduce.name, (old, expr), r.buffer.dtype)
            new = Apply("select", (Test(r.where), one, old), r.buffer.dtype) if r.where else one
        return r.buffer.name, self.numbers.number(new, r.buffer)

    def fills(self, t: Tile) -> bool:
        """Whether a tile writes all elements of a register, and reads none of them."""
        try:
            r = self.region(t)
        except NotPlainError:
            return False
        s = t.store
        return not (r.bound or r.where or s.reduce) and all(x.source != r.buffer.name for x in loads(s.expr))

    def region(self, t: Tile) -> _Region:
        """The elements that a tile writes."""
        key = id(t.store), *map(id, t.loops), t.tests
        if key not in self.regions:
            self.regions[key] = self._region(t)
        return self.regions[key]

    def _region(self, t: Tile) -> _Region:
        b = self.registers.get(t.store.target.source)
        sizes = slots(b) if b else None
        env = {f.index: affine(f.index) * f.step for f in t.loops}
        at = element(t.store.target, b, env) if b else None
        if b is None or sizes is None or at is None:
            raise NotPlainError
        own = {f.index for f in t.loops}
        named: dict[str, Affine] = {}
        tests = list[Affine]()
        for d, p in enumerate(at):
            if p.name in own and p.name not in named:
                named[p.name or ""] = coordinate(d)
            elif names(p) & own:
                raise NotPlainError
            elif sizes[d] > 1:
                tests += [coordinate(d) - p, p - coordinate(d)]
        bound = tuple(f.index for f in t.loops if f.index not in named)
        named |= {i: affine(f"${k}") for k, i in enumerate(bound)}
        put = {i: substitute(x, named) for i, x in env.items()}
        of = {f"#{d}": n for d, n in enumerate(sizes)}
        for f in t.loops:
            ends = [substitute(x, put) - put[f.index] - 1 for x in bounds(f.upper)]
            tests += [affine(f"{named[f.index]}")] if f.index in bound else []
            tests += [x for x in ends if f.index in bound or not _is_sure(x, of)]
        tests += [substitute(x, put) for x in t.tests]
        where = tuple(sorted(dict.fromkeys(tests), key=str))
        return _Region(b, put, tuple(substitute(p, named) for p in at), bound, where)

    def held(self, name: str, held: Mapping[str, str]) -> str:
        if name not in held:
            raise NotPlainError
        return held[name]

    def expression(self, e: Expr, held: Mapping[str, str], put: Mapping[str, Affine], target: str = "",
                   at: tuple[Affine, ...] = ()) -> Expr:
        """`e` over the values of registers and memory as it is now; it may read of `target` the element that it is stored to."""
        def one(x: Load) -> Expr:
            b = self.registers.get(x.source)
            if b is None:
                return replace(x, source=f"{x.source}@{self.times.get(x.source, 0)}.{self.times.get('', 0)}")
            place = element(x, b, {})
            if place is None:
                raise NotPlainError
            if x.source == target and place != at and not any(p.is_constant and q.is_constant and p != q
                                                              for p, q in zip(place, at, strict=True)):
                raise NotPlainError  # it may have been written already
            found: Expr = Load(self.held(x.source, held), place, x.dtype)
            return Apply("select", (Test(x.guard), found, Const(0, x.dtype)), x.dtype) if x.guard else found

        return map_loads(substitute_expr(e, put), one)

    # --- one loop ----------------------------------------------------------------------------------------------------

    def summed(self, n: For, held: dict[str, str]) -> None:
        """`held` behind a loop whose turns add to registers, and make for themselves what they add."""
        written = {s.target.source for s in stores((n,))}
        if any(name not in self.registers for name in written):
            raise NotPlainError
        heads = {name: self.numbers.fresh() for name in written}
        inside = {**held, **heads}
        self.nodes(n.body, inside)
        on, seen = frozenset(heads.values()), dict[str, bool]()
        k = affine("$0")
        turns = tuple(x for b in bounds(n.lower, "max") for x in (k - b,)) + tuple(b - k - 1 for b in bounds(n.upper))
        for name in written:
            b, new = self.registers[name], self.numbers.fresh()
            mine = [s for s in stores(n.body) if s.target.source == name]
            found = self.term(inside[name], whole(heads[name], b), mine) if name in held else None
            if found is not None and not self.numbers.is_made(found.term, on, seen):
                term = self.numbers.spelled(found.term, n.index)
                env = {n.index: k, **{x: affine(f"${i + 1}") for i, x in enumerate(found.bound)}}
                if term is not None:
                    tests = (*turns, *(substitute(t, env) for t in found.tests))
                    where = tuple(sorted(dict.fromkeys(tests), key=str))
                    new = self.numbers.number(Folded(found.monoid, whole(held[name], b), bound_names(len(found.bound) + 1), where,
                                                     substitute_expr(term, env)), b)
            held[name] = new

    def term(self, value: str, head: Load, only: Sequence[Store]) -> Folded | None:
        """What a turn adds to a register that holds `head` when it begins, of which it has `only` such stores; None, if it does
        anything else.
        """
        monoid = only[0].reduce if len(only) == 1 else None
        match self.numbers.meaning.get(value):
            case Folded(first=first) as found if first == head:
                return found
            case Apply(fn="select", args=(Test(tests=tests), Apply(args=(x, term)), y)) if monoid and x == y == head:
                return Folded(monoid, head, (), tests, term)
            case Apply(args=(x, term)) if monoid and x == head:
                return Folded(monoid, head, (), (), term)
        return None


def bound_names(count: int) -> tuple[str, ...]:
    return tuple(f"${k}" for k in range(count))


def _is_sure(t: Affine, sizes: Mapping[str, int]) -> bool:
    """Whether t >= 0 for all elements: t is made of coordinates alone."""
    least = t.const
    for a, f in t.terms:
        if not isinstance(a, str) or a not in sizes:
            return False
        least += min(0, f * (sizes[a] - 1))
    return least >= 0
