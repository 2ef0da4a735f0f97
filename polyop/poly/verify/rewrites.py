"""That a rewritten nest does what the proved one does, for all sizes: one tree is followed along the other.

    {before}  and  {after}  under what is known around them

`after` does the same where `before` runs the same stores in the same order, and each computes the same there. Both are
read from the front; the rules are few, and know no rewrite by name:

    an `if` in `after`      each branch against the same of `before`, knowing its tests
    an `if` in `before`     its branch where the tests are decided; else likewise
    a loop                  one or more loops with its index, whose ranges are in order and make up its range, but for
                            iterations that do nothing; the body of each against the loop's, knowing both ranges; an `if`
                            among them asks for its branches one by one
    a store                 the same statement and monoid; equal trees, with positions and guards that are equal here
    c ? a : b in either     each against the same of the other, knowing c
    an `if` of data         tests registers that nothing here writes: each branch, and what follows if need be, against the same
                            of `before`, with the truth of the test in its place in both
    what stores nothing     (hints, loops around them, what never runs) is left out

A parallel loop may become a serial one, whose order is one of those that were proved; lock step remains, in as few copies
as exist. So what was proved of loops that do not meet themselves in memory holds of the new ones: they have the same
iterations, or some of them. Instances and lifts are claims that nobody looks at again, and `stream` is a hint.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import islpy as isl

from polyop.ir.dtypes import BOOL
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Expr, affine, bounds, expr_names, loads, quasi
from polyop.ir.loops import (
    LOCKSTEP,
    For,
    If,
    IfData,
    Kind,
    LoopNest,
    Node,
    Prefetch,
    Space,
    Store,
    children,
    rebuild,
    sign,
    stores,
)
from polyop.ir.module import Proof
from polyop.poly.verify.known import Known, nothing_but
from polyop.poly.verify.same import brief
from polyop.poly.verify.trees import Differs, put_in, raise_where, same
from polyop.poly.verify.verdict import decided
from polyop.poly.verify.witness import smallest

Body = tuple[Node, ...]

CLAIM = "the rewritten loops do what the proved loops do"
STEPS = 50  # of following, for each node: sixteen copies of a body are many


def follows(before: LoopNest, after: LoopNest, context: isl.Set) -> Proof:
    """The claim that `after` does what `before` does, for all sizes in `context`."""
    return decided(CLAIM, lambda: difference(before, after, context))


def difference(before: LoopNest, after: LoopNest, context: isl.Set) -> str | None:
    """The smallest case that shows `after` doing something else, in words; None if there is none.

    Raises  UnsupportedError, if that takes too long to find out.
    """
    for what, a, b in (("sizes", before.sizes, after.sizes), ("scalars", before.scalars, after.scalars),
                       ("buffers", before.buffers, after.buffers)):
        if a != b:
            return f"the {what} are {', '.join(map(str, b))}, expected {', '.join(map(str, a))}"
    registers = frozenset(b.name for b in before.buffers if b.space == Space.REG)
    follower = Follower(registers, STEPS * (_count(before.body) + _count(after.body)))
    try:
        follower.body(before.body, after.body, nothing_but(before.sizes, context))
    except Differs as found:
        return str(found)
    return None


def _count(body: Body) -> int:
    return sum(1 + _count(children(n)) for n in body)


def _stores(n: Node) -> bool:
    return isinstance(n, Store) or any(map(_stores, children(n)))


@dataclass(eq=False)
class Follower:
    """Follows one tree along another; `left` is how many more steps it may take."""

    registers: frozenset[str]
    left: int

    def body(self, before: Body, after: Body, k: Known) -> None:
        """Raises  Differs, if `after` does anything else than `before` where `k` holds."""
        while True:
            self.left -= 1
            if self.left < 0:
                raise UnsupportedError("the rewritten loops are too many to follow")
            a, b = before[0] if before else None, after[0] if after else None
            match a, b:
                case None, None:
                    return
                case _, Prefetch() | For() | If() | IfData() if not _stores(b):
                    after = after[1:]
                case Prefetch() | For() | If(), _ if not _stores(a):
                    before = before[1:]
                case Store(), Store():
                    self.store(a, b, k)
                    before, after = before[1:], after[1:]
                case For(), For() if a.index == b.index:
                    used, turn = self.loop(a, after, k)
                    if turn is not None:
                        k.require_names(turn.tests)
                        self.body(before, after[:used] + turn.then + after[used + 1:], k.also(turn.tests))
                        self.body(before, after[:used] + turn.other + after[used + 1:], k.unless(turn.tests))
                        return
                    before, after = before[1:], after[used:]
                case If(), If() if a.tests == b.tests:
                    inner, other = k.also(a.tests), k.unless(a.tests)
                    self.body(a.then, b.then, inner)
                    self.body(a.other, b.other, other)
                    before, after = before[1:], after[1:]
                case _, IfData():
                    if not self.chosen(before[:1], b, k):
                        self.either(before, b, after[1:], k)
                        return
                    before, after = before[1:], after[1:]
                case _, If():
                    k.require_names(b.tests)
                    truth = k.plainly(b.tests)
                    if truth is not None:
                        after = (b.then if truth else b.other) + after[1:]
                    elif self.branches(before[:1], b, k):
                        before, after = before[1:], after[1:]
                    else:
                        self.body(before, b.then + after[1:], k.also(b.tests))
                        self.body(before, b.other + after[1:], k.unless(b.tests))
                        return
                case If(), _:
                    truth = k.decides(a.tests)
                    if truth is None:
                        self.body(a.then + before[1:], after, k.also(a.tests))
                        self.body(a.other + before[1:], after, k.unless(a.tests))
                        return
                    before = (a.then if truth else a.other) + before[1:]
                case For(), _ if not _runs(a, k):
                    before = before[1:]
                case _, For() if not _runs(b, k):
                    after = after[1:]
                case _:
                    _apart(a, b, k)
                    return

    def branches(self, before: Body, b: If, k: Known) -> bool:
        """Whether each branch of `b` alone does what `before` does."""
        try:
            self.body(before, b.then, k.also(b.tests))
            self.body(before, b.other, k.unless(b.tests))
        except Differs:
            return False
        return True

    def chosen(self, before: Body, b: IfData, k: Known) -> bool:
        """Whether `b` alone does what `before` does."""
        try:
            self.either(before, b, (), k)
        except Differs:
            return False
        return True

    def either(self, before: Body, b: IfData, rest: Body, k: Known) -> None:
        """Raises  Differs, if `b` and `rest` do anything else than `before`. The test has one truth in all of this."""
        changed = {s.target.source for s in stores((*before, b, *rest))}
        if b.test.dtype != BOOL or expr_names(b.test) or not {x.source for x in loads(b.test)} <= self.registers - changed:
            raise_where(k.domain, k, f"`{brief(b.test)}` chooses, which is not the same in all that it chooses")
        for truth, branch in ((True, b.then), (False, b.other)):
            mine, theirs = (tuple(_where(n, b.test, truth) for n in x) for x in (before, branch + rest))
            self.body(mine, theirs, k)

    def store(self, a: Store, b: Store, k: Known) -> None:
        if a is b:
            return
        if a.stmt != b.stmt or a.reduce != b.reduce:
            raise_where(k.domain, k, f"`{b.target} {sign(b.reduce)} ..` of {b.stmt} runs where `{a.target} {sign(a.reduce)} ..` "
                                     f"of {a.stmt} should")
        same(a.target, b.target, k)
        same(a.expr, b.expr, k)

    # --- loops -------------------------------------------------------------------------------------------------------

    def loop(self, a: For, after: Body, k: Known) -> tuple[int, If | None]:
        """Follow the first of `after` along `a`, and as many of the next as it takes.

        Returns how many those are; and the test behind them, if it decides which loops make up the rest of the range.
        """
        first = after[0]
        assert isinstance(first, For)
        k.require_names((first.lower, first.upper))
        inner = k.inside(a)
        mine = inner.also(_range(a))
        if a.step == first.step and a.lower == first.lower and k.same_minimum(a.upper, first.upper):
            _runs_like(a, first, k)
            self.body(a.body, first.body, mine if a.upper == first.upper else mine.also(_range(first)))
            return 1, None
        rest, parts = mine.domain, list[For]()
        for b in after:
            if rest.is_empty() or not isinstance(b, For) or b.index != a.index:
                break
            k.require_names((b.lower, b.upper))
            _runs_like(a, b, k)
            _on_grid(a, b, k)
            part = inner.also(_range(b))
            wrong = _misplaced(b, part, parts, mine)
            if wrong:
                if not _least(a.body, mine.only(rest)):
                    break
                raise_where(wrong[0], part, f"loop {b.index} from {b.lower} to {b.upper} {wrong[1]}")
            self.body(a.body, b.body, part.also(_range(a)))
            parts.append(b)
            rest = rest.subtract(part.domain)
        missing = _least(a.body, mine.only(rest))
        turn = after[len(parts)] if missing and len(parts) < len(after) else None
        if isinstance(turn, If) and _stores(turn):
            return len(parts), turn
        if missing:
            raise_where(missing.domain, missing, f"loop {a.index} does not run")
        return len(parts), None


def _misplaced(b: For, part: Known, before: list[For], whole: Known) -> tuple[isl.Set, str] | None:
    """The iterations `part` of `b` that are none of the `whole` loop, or come too late after the loops `before`."""
    outside = part.domain.subtract(whole.domain)
    if not outside.is_empty():
        return outside, "runs, and should not"
    for c in before:
        late = part.where((c.upper - affine(c.index) - 1, c.upper - c.lower - 1), part.domain)
        if not late.is_empty():
            return late, "runs after later iterations, or again"
    return None


def _range(n: For) -> tuple[Affine, ...]:
    i = affine(n.index)
    return (*(i - b for b in bounds(n.lower, "max")), *(b - i - 1 for b in bounds(n.upper)))


def _runs_like(a: For, b: For, k: Known) -> None:
    """`b` may take the place of `a`, its bounds apart."""
    if b.step != a.step:
        raise_where(k.domain, k, f"loop {b.index} goes in steps of {b.step}, expected {a.step}")
    if b.kind != a.kind and (a.kind, b.kind) != (Kind.PARALLEL, Kind.SERIAL):
        raise_where(k.domain, k, f"loop {b.index} is {b.kind}, expected {a.kind}")
    if a.kind in LOCKSTEP and a.extent and b.extent and (b.extent, b.upper) != (a.extent, a.upper):
        if b.extent > a.extent:
            raise_where(k.domain, k, f"loop {b.index} has room for {b.extent} copies, expected {a.extent}")
        if not any(k.implies(affine(b.extent) - x) for x in bounds(b.upper)):
            long = k.where((b.upper - b.extent - 1,), k.domain)
            raise_where(long, k, f"loop {b.index} runs to {b.upper}, and has room for {b.extent} copies")


def _on_grid(a: For, b: For, k: Known) -> None:
    """`b` starts at some step of `a`, before or after; where it runs."""
    offsets = [x - a.lower for x in bounds(b.lower, "max")]
    if all(x.const % a.step == 0 and all(f % a.step == 0 for _, f in x.terms) for x in offsets):
        return
    off = k.where((quasi("mod", b.lower - a.lower, affine(a.step)) - 1, b.upper - b.lower - 1), k.domain)
    raise_where(off, k, f"loop {b.index} starts at {b.lower}, which is no step of the loop from {a.lower} by {a.step}")


def _where(n: Node, test: Expr, truth: bool) -> Node:
    """`n` where `test` is `truth`."""
    if isinstance(n, Store):
        return replace(n, expr=put_in(n.expr, test, truth))
    if isinstance(n, IfData):
        n = replace(n, test=put_in(n.test, test, truth))
    return rebuild(n, lambda body: tuple(_where(c, test, truth) for c in body))


def _running(n: Node, k: Known) -> Iterator[Known]:
    """The places of the stores of `n` that run."""
    match n:
        case Store():
            if not k.domain.is_empty():
                yield k
        case For(body=body):
            inner = k.inside(n).also(_range(n))
            if not inner.domain.is_empty():
                yield from (p for x in body for p in _running(x, inner))
        case If():
            for part, body in ((k.also(n.tests), n.then), (k.unless(n.tests), n.other)):
                yield from (p for x in body for p in _running(x, part))
        case IfData():
            yield from (p for x in (*n.then, *n.other) for p in _running(x, k))


def _runs(n: Node, k: Known) -> bool:
    return next(_running(n, k), None) is not None


def _least(body: Body, k: Known) -> Known | None:
    """The place of a store of `body` that runs for the smallest sizes; None if none runs."""
    if k.given is not None and k.given.is_empty():
        return None
    places = [p for n in body for p in _running(n, k)]
    return min(places, key=lambda p: sum(smallest(p.domain)[0].values()), default=None)


def _apart(a: Node | None, b: Node | None, k: Known) -> None:
    """Raises  Differs, if one of these runs: they have nothing to do with each other."""
    expected, found = ("nothing" if x is None else _headline(x) for x in (a, b))
    for n in (a, b):
        if n and (place := _least((n,), k)):
            raise_where(place.domain, place, f"{found} runs, expected {expected}")


def _headline(n: Node) -> str:
    match n:
        case For():
            return f"loop {n.index}"
        case Store():
            return f"`{n.target} {sign(n.reduce)} {brief(n.expr)}`"
    return "a test"
