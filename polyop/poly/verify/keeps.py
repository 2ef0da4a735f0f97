"""That rewritten loops of a block of threads store what they stored before, for all sizes, whatever registers hold meanwhile.

    { before }  and  { after }  write the same to memory, in the same order, between the same barriers

Two nests are followed side by side. What writes memory, or meets at a barrier, stands in both, in the same order. Between that
may stand any nodes that write registers alone: what they make of the values in these is worked out on both sides, as functions of
the element (`numbered.py`, `assigned.py`). Values are compared, by the laws that stand in `alike.py` and `opened.py`, where they
are stored, where one node reads them on both sides, and at the end of a turn of a loop:

    a store to memory      the same place, and values that are equal
    a loop                 an induction: registers that hold the same on both sides before a turn do so behind it, and in the
                           first turn hold what they held before the loop; but for what a turn writes before it reads it
    a test of indices      each branch along the same branch

So values that no one stores may differ: of elements that are nobody's, too. What stands in `after` alone stays within its buffers
(`within.py`), and reads no memory on another side of a barrier.

The nests are those that are printed; what registers mean, of which each lane has its own, the proved nest says (`elements.py`). A
test of data has one truth for all lanes: `isfinite(x)` says that all elements of the tile of `x` are finite, in memory or in
registers, `x != 1` that some element of it is not 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher

import islpy as isl

from polyop.cached import cached_property
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Load, affine, bounds, loads, substitute
from polyop.ir.loops import Barrier, Buffer, For, If, IfData, Kind, LoopNest, Node, Prefetch, Space, Store, children, stores, walk
from polyop.ir.module import Proof
from polyop.poly.verify.alike import Alike, UnlikeError
from polyop.poly.verify.assigned import Assigned, NotPlainError, slots, tile_of
from polyop.poly.verify.elements import with_elements
from polyop.poly.verify.known import Known, nothing_but
from polyop.poly.verify.numbered import Numbers, whole
from polyop.poly.verify.opened import Opened
from polyop.poly.verify.ranges import Body, range_of
from polyop.poly.verify.trees import Differs, raise_where
from polyop.poly.verify.verdict import decided
from polyop.poly.verify.within import require_within

CLAIM = "the rewritten loops of a block store what they stored before"
STEPS = 200  # of comparing, for each node

Held = dict[str, str]
"""The value that each register holds."""


def stores_alike(before: LoopNest, after: LoopNest, proved: LoopNest, context: isl.Set) -> Proof:
    """The claim that `after` stores what `before` does, for all sizes in `context`; `proved`: the nest that both came from."""
    return decided(CLAIM, lambda: difference(before, after, proved, context))


def difference(before: LoopNest, after: LoopNest, proved: LoopNest, context: isl.Set) -> str | None:
    """The smallest case that shows `after` storing something else, or maybe, in words; None if there is none.

    Raises  UnsupportedError, if that takes too long to find out, or it is not plain what registers mean.
    """
    if replace(before, body=()) != replace(after, body=()):
        return "other arguments, or memory, than before"
    before, after = with_elements((before, after), proved)
    registers = {b.name: b for b in before.buffers if b.space == Space.REG}
    count = sum(1 for body in (before.body, after.body) for _ in walk(body))
    numbers = Numbers()
    pair = _Pair({b.name: b for b in before.buffers}, registers, Assigned(numbers, registers, {}),
                 Alike(Opened(numbers, STEPS * count)), _Names(frozenset(registers)), (before.body, after.body))
    held = {name: numbers.fresh() for name in registers}
    try:
        pair.body(before.body, after.body, held, dict(held), nothing_but(before.sizes, context))
    except Differs as case:
        return str(case)
    except UnlikeError as found:
        return _case(found, pair.parted)
    return None


def _case(found: UnlikeError, parted: Mapping[str, tuple[str, UnlikeError]]) -> str:
    """The smallest case of something that is not shown to be equal; of registers that have `parted`, where they have."""
    for v in found.values:
        if isinstance(v, Load) and v.source in parted:
            where, why = parted[v.source]
            return f"{_case(why, {})}, in {where}"
    try:
        raise_where(found.known.domain, found.known, found.what)
    except Differs as case:
        return str(case)
    return found.what


@dataclass(frozen=True, slots=True)
class _Uses:
    """How often a node names each register, which of them it reads and writes, and whether it does anything that others see."""

    named: Counter[str]
    read: frozenset[str]
    written: frozenset[str]
    is_seen: bool


@dataclass(frozen=True, eq=False)
class _Names:
    """What nodes name, each looked at once."""

    registers: frozenset[str]
    found: dict[int, _Uses] = field(default_factory=dict)

    def of(self, n: Node) -> _Uses:
        if id(n) not in self.found:
            self.found[id(n)] = self.looked(n)
        return self.found[id(n)]

    def looked(self, n: Node) -> _Uses:
        match n:
            case Store(target=target, expr=expr, reduce=reduce):
                inner = [x.source for p in target.index if not isinstance(p, Affine) for x in loads(p)]
                read = [*inner, *(x.source for x in loads(expr)), *([target.source] if reduce else [])]
                mine = [x.source for e in (target, expr) for x in loads(e) if x.source in self.registers]
                return _Uses(Counter(mine), self.registers & {*read}, self.registers & {target.source},
                             target.source not in self.registers)
            case Prefetch():
                return _Uses(Counter(), frozenset(), frozenset(), False)
            case Barrier():
                return _Uses(Counter(), frozenset(), frozenset(), True)
        asked = [x.source for x in loads(n.test) if x.source in self.registers] if isinstance(n, IfData) else []
        parts = [self.of(x) for x in children(n)]
        total = Counter(asked)
        for u in parts:
            total.update(u.named)
        return _Uses(total, frozenset(asked).union(*(u.read for u in parts)), frozenset[str]().union(*(u.written for u in parts)),
                     any(u.is_seen for u in parts))


@dataclass(frozen=True, eq=False)
class _Pair:
    """Follows two nests, `bodies`.

    names    what their nodes name
    parted   a value that stands for what is not the same on both sides any more -> the register, and why
    """

    buffers: dict[str, Buffer]
    registers: dict[str, Buffer]
    assigned: Assigned
    alike: Alike
    names: _Names
    bodies: tuple[Body, Body]
    parted: dict[str, tuple[str, UnlikeError]] = field(default_factory=dict)

    @cached_property
    def named(self) -> Counter[str]:
        """How often the nests name each register."""
        return sum((self.names.of(n).named for body in self.bodies for n in body), Counter[str]())

    def body(self, before: Body, after: Body, a: Held, b: Held, k: Known) -> None:
        """Raises  UnlikeError, if `after` is not shown to store what `before` does, with registers that hold `a` and `b`."""
        i = j = 0
        for p, q in (*self.beside(before, after), (len(before), len(after))):
            for body, held in ((before[i:p], a), (after[j:q], b)):
                for n in body:
                    self.alone(n, held, k)
                    if held is b:
                        require_within(n, self.buffers, k)
            if p < len(before):
                self.together(before[p], after[q], a, b, k)
            i, j = p + 1, q + 1

    def beside(self, before: Body, after: Body) -> list[tuple[int, int]]:
        """Which nodes of both are followed side by side, in order: those that are one, and those that all can see."""
        one = {id(n) for n in before} & {id(n) for n in after}
        keys = [[id(n) if id(n) in one else self.key(n) for n in body] for body in (before, after)]
        found = SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_matching_blocks()
        return [(m.a + d, m.b + d) for m in found for d in range(m.size)]

    def key(self, n: Node) -> object:
        """By what a node is found on the other side, if it is not the same one there."""
        if not self.names.of(n).is_seen and not (isinstance(n, For) and n.kind == Kind.SERIAL and self.is_long(n)):
            return id(n)
        match n:
            case For():
                return n.index, n.lower, n.upper, n.kind
            case If():
                return n.tests
        return n

    def is_long(self, n: For) -> bool:
        """Whether turns of a loop hand on registers in another way than by adding to them."""
        begun = self.begun(n.body)
        return any(s.reduce is None and s.target.source not in begun for s in stores(n.body))

    def alone(self, n: Node, held: Held, k: Known) -> None:
        """What `n` makes of registers on one side."""
        if self.names.of(n).is_seen:
            if not k.domain.is_empty():
                raise UnlikeError(k, f"{_headline(n)} stands in one of the nests only")
        elif not isinstance(n, Prefetch):
            self.assigned.node(n, held)

    def together(self, m: Node, n: Node, a: Held, b: Held, k: Known) -> None:
        """`m` and `n`, side by side."""
        if m is n:
            uses = self.names.of(m)
            for x in sorted(uses.read):
                self.unified(x, a, b, k)
            if all(a[x] == b[x] for x in uses.named):
                self.one(m, a, b)
                return
            if not self.names.of(m).is_seen:
                try:
                    first, second = dict(a), dict(b)
                    self.assigned.plainly(m, first)
                    self.assigned.plainly(m, second)
                    a |= first
                    b |= second
                    return
                except NotPlainError:
                    pass
        self.inside(m, n, a, b, k)

    def one(self, n: Node, a: Held, b: Held) -> None:
        """`n`, which does the same on both sides."""
        written = sorted(self.names.of(n).written)
        if self.names.of(n).is_seen:
            self.passed((n,))
            a |= {x: self.fresh() for x in written}
        else:
            self.assigned.node(n, a)
        b |= {x: a[x] for x in written}

    def passed(self, body: Body) -> None:
        """Memory that `body` writes is another one from here on; all of it, where threads meet."""
        met = [""] if any(isinstance(n, Barrier) for n in walk(body)) else []
        for x in dict.fromkeys([*met, *(s.target.source for s in stores(body) if s.target.source not in self.registers)]):
            self.assigned.times[x] = self.assigned.times.get(x, 0) + 1

    def unified(self, name: str, a: Held, b: Held, k: Known, apart: dict[str, UnlikeError] | None = None) -> bool:
        """Whether a register is shown to hold the same on both sides, all of it; it has one number then. `apart`: why not."""
        if a[name] != b[name]:
            if not {a[name], b[name]} & self.assigned.numbers.meaning.keys():
                return False
            try:
                buffer = self.registers[name]
                self.alike.same(whole(a[name], buffer), whole(b[name], buffer), _each(buffer, k))
            except UnlikeError as why:
                if apart is not None:
                    apart.setdefault(name, why)
                return False
            b[name] = a[name]
        return True

    def inside(self, m: Node, n: Node, a: Held, b: Held, k: Known) -> None:
        first, second = tile_of(m), tile_of(n)
        if first and second and first.store.target.source not in self.registers:
            self.stored(m, n, a, b, k)
            self.passed((m,))
            return
        match m, n:
            case For(), For() if replace(m, body=()) == replace(n, body=()):
                self.loop(m, n, a, b, k)
            case If(), If() if m.tests == n.tests:
                others = dict(a), dict(b)
                self.body(m.then, n.then, a, b, k.also(m.tests))
                self.body(m.other, n.other, *others, k.unless(m.tests))
                for held, other in zip((a, b), others, strict=True):
                    for x in self.registers:
                        held[x] = self.assigned.merged(m.tests, held[x], other[x], x)
            case _ if m == n and not stores((m,)):
                pass
            case _:
                raise UnlikeError(k, f"{_headline(n)} stands where {_headline(m)} should")

    def stored(self, m: Node, n: Node, a: Held, b: Held, k: Known) -> None:
        """Raises  UnlikeError, if two tiles do not store the same to memory."""
        x, y = tile_of(m), tile_of(n)
        assert x and y
        if m is not n:
            require_within(n, self.buffers, k)
        if [replace(f, body=()) for f in x.loops] != [replace(f, body=()) for f in y.loops] or x.tests != y.tests or (
                replace(x.store, expr=y.store.expr) != y.store):
            raise UnlikeError(k, f"`{y.store.target}` is stored in another way")
        env = {f.index: affine(f.index) * f.step for f in x.loops}
        for f in x.loops:
            count = affine(f.index)
            k = k.inside(For(f.index, Affine(), affine(1), ()))
            k = k.also((count, *(substitute(u, env) - count * f.step - 1 for u in bounds(f.upper))))
        k = k.also(substitute(t, env) for t in x.tests)
        try:
            for e, new in ((x.store.target, y.store.target), (x.store.expr, y.store.expr)):
                self.alike.same(self.assigned.expression(e, a, env), self.assigned.expression(new, b, env), k)
        except NotPlainError:
            raise UnlikeError(k, f"it is not told what `{y.store.target}` becomes") from None

    # --- loops -------------------------------------------------------------------------------------------------------

    def loop(self, m: For, n: For, a: Held, b: Held, k: Known) -> None:
        """A loop on both sides, by induction."""
        written = sorted(self.names.of(m).written | self.names.of(n).written)
        if m.kind == Kind.PARALLEL:  # what registers hold when an iteration begins is nobody's
            for x in written:
                a[x] = b[x] = self.fresh()
            self.passed(m.body)
            self.body(m.body, n.body, dict(a), dict(b), k.inside(m).also(range_of(m)))
            self.passed(m.body)
            return
        here = self.names.of(m).named + self.names.of(n).named
        begun = self.begun(m.body) & self.begun(n.body)
        own = {x for x in written if here[x] == self.named[x] and x in begun}
        common = [x for x in written if x not in own and self.unified(x, a, b, k)]
        inner = k.inside(m).also(range_of(m))
        apart = dict[str, UnlikeError]()
        while True:
            first, second = dict(a), dict(b)
            for x in written:
                first[x] = self.entered(m, x, a[x]) if x in common else self.fresh()
                second[x] = first[x] if x in common else self.fresh()
            self.passed(m.body)
            self.body(m.body, n.body, first, second, inner)
            left = [x for x in common if self.unified(x, first, second, inner, apart)]
            if left == common:
                break
            common = left
        self.passed(m.body)
        for x in written:
            a[x] = self.fresh()
            b[x] = a[x] if x in common else self.fresh()
            if x in apart:
                self.parted.update(dict.fromkeys((a[x], b[x]), (f"{x} behind a turn of {m.index}", apart[x])))

    def fresh(self) -> str:
        return self.assigned.numbers.fresh()

    def entered(self, n: For, name: str, held: str) -> str:
        """What a register holds that holds the same on both sides when a turn begins: in the first one, what it `held` before."""
        return self.assigned.merged((affine(n.index) - n.lower - 1,), self.fresh(), held, name)

    def begun(self, body: Body) -> frozenset[str]:
        """Registers of which `body` writes all before it reads any of it, as far as that is plain, or which it does not name.

        Who is told too few of them, or too many, proves less.
        """
        found, seen = set[str](), set[str]()
        uses = [self.names.of(n) for n in body]
        for n, u in zip(body, uses, strict=True):
            tile = tile_of(n)
            if tile and u.written and self.assigned.fills(tile):
                found |= u.written - seen
            elif isinstance(n, For | If | IfData) and not tile:
                parts = [n.body] if isinstance(n, For) else [n.then, n.other]
                inner = frozenset.intersection(*map(self.begun, parts))
                found |= {x for x in u.written & inner - seen if sum(v.named[x] for v in uses) == u.named[x]}
            seen |= u.named.keys()
        return frozenset(found | (self.registers.keys() - seen))


def _each(b: Buffer, k: Known) -> Known:
    """For all elements of a register."""
    sizes = slots(b)
    if sizes is None:
        raise UnsupportedError(f"{b} has no constant size")
    for d, n in enumerate(sizes):
        f = For(f"#{d}", Affine(), affine(n), ())
        k = k.inside(f).also(range_of(f))
    return k


def _headline(n: Node) -> str:
    match n:
        case For():
            return f"loop {n.index}"
        case Store():
            return f"`{n.target}`"
        case Barrier():
            return "a barrier"
    return "a test"
