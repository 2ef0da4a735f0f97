"""That a rewritten nest does what the proved one does, for all sizes: one tree is followed along the other.

    {before}  and  {after}  under what is known around them

`after` does the same where `before` runs the same stores in the same order, and each computes the same there. Both are
read from the front; the rules are few, and know no rewrite by name:

    what is equal           does the same
    an `if` in `after`      each branch against the same of `before`, knowing its tests
    an `if` in `before`     its branch where the tests are decided; else likewise
    a loop                  one or more loops with its index, whose ranges are in order and make up its range, but for
                            iterations that do nothing; the body of each against the loop's, knowing both ranges; an `if`
                            among them asks for its branches one by one; or one loop that lacks some of its bounds, and does
                            nothing beyond them
    rows by s               rows counted one by one, as long as the index has s times its number wherever it stands
    a store                 the same statement and monoid, at one time; equal trees, with positions and guards that are equal here
    c ? a : b in either     each against the same of the other, knowing c
    an `if` of data         tests registers that nothing here writes: each branch, and what follows if need be, against the same
                            of `before`, with the truth of the test in its place in both
    what stores nothing     (hints, loops around them, what never runs) is left out
    what changes nothing    in `before`, since what it reads is not there, and it reduces by its own identity, may be left out

A parallel loop may become a serial one, whose order is one of those that were proved; lock step remains, in as few copies
as exist, and so do threads. So what was proved of loops that do not meet themselves in memory holds of the new ones: they have
the same iterations, some of them, or more that do nothing. Instances and lifts are claims that nobody looks at again, and
`stream` is a hint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import islpy as isl

from polyop.ir.dtypes import BOOL
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Const, Expr, expr_names, loads
from polyop.ir.loops import (
    Barrier,
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
    walk,
)
from polyop.ir.module import Proof
from polyop.poly.verify.idle import is_idle
from polyop.poly.verify.known import Known, nothing_but
from polyop.poly.verify.ranges import Body, in_ones, is_longer, least, misplaced, on_grid, range_of, runs, runs_like
from polyop.poly.verify.same import brief
from polyop.poly.verify.trees import Differs, put_in, raise_where, same
from polyop.poly.verify.verdict import decided

CLAIM = "the rewritten loops do what the proved loops do"
STEPS = 50  # of following, for each node: sixteen copies of a body are many


def follows(before: LoopNest, after: LoopNest, context: isl.Set, strict: bool = False) -> Proof:
    """The claim that `after` does what `before` does, for all sizes in `context`.

    strict   whether no float that is 0 may be left out of a sum
    """
    return decided(CLAIM, lambda: difference(before, after, context, strict))


def difference(before: LoopNest, after: LoopNest, context: isl.Set, strict: bool = False) -> str | None:
    """The smallest case that shows `after` doing something else, in words; None if there is none.

    Raises  UnsupportedError, if that takes too long to find out.
    """
    for what, a, b in (("sizes", before.sizes, after.sizes), ("scalars", before.scalars, after.scalars),
                       ("buffers", before.buffers, after.buffers)):
        if a != b:
            return f"the {what} are {', '.join(map(str, b))}, expected {', '.join(map(str, a))}"
    if any(isinstance(n, IfData) for n in walk(before.body)):
        return "a test of data stands in what was proved"
    registers = frozenset(b.name for b in before.buffers if b.space == Space.REG)
    follower = Follower(registers, STEPS * (1 + _count(before.body) + _count(after.body)), strict)
    try:
        follower.body(before.body, after.body, nothing_but(before.sizes, context))
    except Differs as found:
        return str(found)
    return None


def _count(body: Body) -> int:
    return sum(1 + _count(children(n)) for n in body)


def _stores(n: Node) -> bool:
    """Whether `n` stores something, or threads meet in it."""
    return isinstance(n, Store | Barrier) or any(map(_stores, children(n)))


@dataclass(eq=False)
class Follower:
    """Follows one tree along another; `left` is how many more steps it may take."""

    registers: frozenset[str]
    left: int
    strict: bool

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
                case _ if a == b:
                    before, after = before[1:], after[1:]
                case _, Prefetch() | For() | If() | IfData() if not _stores(b):
                    after = after[1:]
                case Prefetch() | For() | If(), _ if not _stores(a):
                    before = before[1:]
                case Store(), Store():
                    self.store(a, b, k)
                    before, after = before[1:], after[1:]
                case For(), For() if a.index == b.index:
                    used, turn = self.loop(a, after, k)
                    if isinstance(turn, IfData):
                        self.either(before, turn, after[used + 1:], k, after[:used])
                        return
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
                case For(), _ if not runs(a, k) or is_idle(a, k, self.strict):
                    before = before[1:]
                case _, For() if not runs(b, k):
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

    def either(self, before: Body, b: IfData, rest: Body, k: Known, first: Body = ()) -> None:
        """Raises  Differs, if `first`, `b` and `rest` do anything else than `before`. The test has one truth in all of this."""
        changed = {s.target.source for s in stores((*before, *first, b, *rest))}
        if b.test.dtype != BOOL or expr_names(b.test) or not {x.source for x in loads(b.test)} <= self.registers - changed:
            raise_where(k.domain, k, f"`{brief(b.test)}` chooses, which is not the same in all that it chooses")
        for truth, branch in ((True, b.then), (False, b.other)):
            self.body(_where(before, b.test, truth), _asked(_where(first + branch + rest, b.test, truth)), k)

    def store(self, a: Store, b: Store, k: Known) -> None:
        if a is b:
            return
        if a.stmt != b.stmt or a.reduce != b.reduce:
            raise_where(k.domain, k, f"`{b.target} {sign(b.reduce)} ..` of {b.stmt} runs where `{a.target} {sign(a.reduce)} ..` "
                                     f"of {a.stmt} should")
        if (a.later, a.atomic, a.outlasts) != (b.later, b.atomic, b.outlasts):
            raise_where(k.domain, k, f"`{b.target}` is written at another time, or not at once")
        same(a.target, b.target, k)
        same(a.expr, b.expr, k)

    # --- loops -------------------------------------------------------------------------------------------------------

    def loop(self, a: For, after: Body, k: Known) -> tuple[int, If | IfData | None]:
        """Follow the first of `after` along `a`, and as many of the next as it takes.

        Returns how many those are; and the test behind them, if it decides which loops make up the rest of the range.
        """
        first = after[0]
        assert isinstance(first, For)
        if a.kind == first.kind == Kind.ROWS and a.step > first.step == 1:
            a = in_ones(a)
        k.require_names((first.lower, first.upper))
        inner = k.inside(a)
        mine = inner.also(range_of(a))
        if a.step == first.step and a.lower == first.lower and (
                k.same_minimum(a.upper, first.upper) or is_longer(a, first, inner)):
            runs_like(a, first, k)
            self.body(a.body, first.body, mine if a.upper == first.upper else mine.also(range_of(first)))
            return 1, None
        rest, parts = mine.domain, list[For]()
        for b in after:
            if rest.is_empty() or not isinstance(b, For) or b.index != a.index:
                break
            k.require_names((b.lower, b.upper))
            runs_like(a, b, k)
            on_grid(a, b, k)
            part = inner.also(range_of(b))
            wrong = misplaced(b, part, parts, mine)
            if wrong:
                if not least(a.body, mine.only(rest)):
                    break
                raise_where(wrong[0], part, f"loop {b.index} from {b.lower} to {b.upper} {wrong[1]}")
            self.body(a.body, b.body, part.also(range_of(a)))
            parts.append(b)
            rest = rest.subtract(part.domain)
        missing = least(a.body, mine.only(rest))
        turn = after[len(parts)] if missing and len(parts) < len(after) else None
        if isinstance(turn, If | IfData) and _stores(turn):
            return len(parts), turn
        if missing:
            raise_where(missing.domain, missing, f"loop {a.index} does not run")
        return len(parts), None


def _where(body: Body, test: Expr, truth: bool) -> Body:
    """`body` where `test` is `truth`."""
    def one(n: Node) -> Node:
        if isinstance(n, Store):
            return replace(n, expr=put_in(n.expr, test, truth))
        if isinstance(n, IfData):
            n = replace(n, test=put_in(n.test, test, truth))
        return rebuild(n, lambda inner: tuple(map(one, inner)))

    return tuple(map(one, body))


def _asked(body: Body) -> Body:
    """`body` with one branch of each test whose truth has been put in."""
    out: list[Node] = []
    for n in body:
        match n:
            case IfData(test=Const(value=bool(truth)), then=then, other=other):
                out += _asked(then if truth else other)
            case _:
                out.append(rebuild(n, _asked))
    return tuple(out)


def _apart(a: Node | None, b: Node | None, k: Known) -> None:
    """Raises  Differs, if one of these runs: they have nothing to do with each other."""
    expected, found = ("nothing" if x is None else _headline(x) for x in (a, b))
    for n in (a, b):
        if n and (place := least((n,), k)):
            raise_where(place.domain, place, f"{found} runs, expected {expected}")


def _headline(n: Node) -> str:
    match n:
        case For():
            return f"loop {n.index}"
        case Store():
            return f"`{n.target} {sign(n.reduce)} {brief(n.expr)}`"
        case Barrier():
            return "a barrier"
    return "a test"
