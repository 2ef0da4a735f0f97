"""What a value of registers is, wherever something is known to hold: computed, read, or added up, without what changes nothing.

    0 + a = a,   max(-inf, a) = a,   1 a = a   and so on: exact, but for the sign of a sum that is 0
    0 a = 0   where a is finite, in a format that has all numbers of the one in which it was found to be
    c max { a } = max { c a },   c (-inf) = -inf   where 0 < c < inf        exact, as rounding keeps the order of numbers
    f16(0) = 0

What is known: tests of indices, which isl decides, and tests of data that were asked. A sum is finite only if all its terms are.
A choice by either is followed both ways, if it is not decided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from polyop.ir.dtypes import promote
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Test, is_affine_condition
from polyop.poly.verify.assigned import CHOSEN
from polyop.poly.verify.elements import ANY
from polyop.poly.verify.known import Known
from polyop.poly.verify.numbered import Folded, Numbers

Facts = frozenset[tuple[Expr, bool]]
"""Tests of data, each with its truth."""

Value = Expr | Folded

_EXTREMES = ("max", "min")
_INFINITE = (float("inf"), float("-inf"))


class AskedError(Exception):
    """What two values are depends on a test, of indices or of data."""

    def __init__(self, test: Expr) -> None:
        super().__init__(str(test))
        self.test = test


@dataclass(eq=False)
class Opened:
    """Opens values; `left` is how many more cases it may ask of, `asked` what was found out about tests in one place."""

    numbers: Numbers
    left: int
    asked: dict[tuple[int, tuple[Affine, ...]], tuple[Known, bool | None]] = field(default_factory=dict)

    def cases(self, check: Callable[[Known, Facts], None], k: Known, facts: Facts) -> None:
        """`check` where `k` and `facts` hold, in as many parts as it asks for."""
        self.left -= 1
        if self.left < 0:
            raise UnsupportedError("the values of registers are too many to compare")
        try:
            check(k, facts)
            return
        except AskedError as asked:
            test = asked.test
        if isinstance(test, Test):
            self.cases(check, k.also(test.tests), facts)
            self.cases(check, k.unless(test.tests), facts)
        else:
            self.cases(check, k, facts | {(test, True)})
            self.cases(check, k, facts | {(test, False)})

    def holds(self, test: Expr, k: Known, facts: Facts) -> bool:
        """Raises  AskedError, if the truth of `test` is not the same wherever `k` and `facts` hold, or not known."""
        match test:
            case Test(tests=tests):
                key = id(k), tests
                if key not in self.asked:
                    self.asked[key] = k, k.decides(tests)
                truth = self.asked[key][1]
                if truth is None:
                    raise AskedError(test)
                return truth
            case Const(value=value):
                return bool(value)
            case Apply(fn="and", args=(x, y)):
                return self.holds(x, k, facts) and self.holds(y, k, facts)
            case Apply(fn="or", args=(x, y)):
                return self.holds(x, k, facts) or self.holds(y, k, facts)
            case Apply(fn="not", args=(x,)):
                return not self.holds(x, k, facts)
        for truth in (True, False):
            if (test, truth) in facts:
                return truth
        raise AskedError(test)

    def chosen(self, e: Value, k: Known, facts: Facts) -> Value:
        """`e`, or which of two it is."""
        while isinstance(e, Apply) and (e.fn == CHOSEN or (e.fn == "select" and is_affine_condition(e.args[0]))):
            e = e.args[1 if self.holds(e.args[0], k, facts) else 2]
        return e

    def opened(self, e: Value, k: Known, facts: Facts) -> Value:
        """`e` as something that is computed, read or added up."""
        e = self.chosen(e, k, facts)
        while isinstance(e, Load) and self.numbers.age(e) >= 0:
            if self.is_one(e, facts):
                return Const(1, e.dtype)
            e = self.chosen(self.numbers.opened(e), k, facts)
        return e

    def is_one(self, x: Load, facts: Facts) -> bool:
        """Whether no lane has another number than 1 in `x`, as was asked."""
        return any(not truth and isinstance(t, Apply) and t.fn == "ne" and isinstance(y := t.args[0], Load) and _is_among(x, y)
                   and isinstance(c := t.args[1], Const) and c.value == 1 for t, truth in facts)

    def simple(self, e: Value, k: Known, facts: Facts) -> Value:
        """`e`, opened, without what changes nothing."""
        e = self.opened(e, k, facts)
        match e:
            case Apply(fn="cast", args=(x,), dtype=dtype):
                inner = self.simple(x, k, facts)
                return Const(0, dtype) if is_number(inner, 0) else e
            case Apply(fn="max" | "min" as fn, args=(x, y)):
                for one, other in ((x, y), (y, x)):
                    if is_number(self.simple(one, k, facts), e.dtype.lowest if fn == "max" else e.dtype.highest):
                        return self.simple(other, k, facts)
            case Apply(fn="mul", args=(x, y), dtype=dtype):
                for one, other in ((x, y), (y, x)):
                    if is_number(self.simple(one, k, facts), 1):
                        return self.simple(other, k, facts)
                    if _is_positive(one, facts):
                        inner = self.simple(other, k, facts)
                        if isinstance(inner, Const) and inner.value in _INFINITE:
                            return inner
                        if isinstance(inner, Folded) and inner.monoid.fn in _EXTREMES:
                            return replace(inner, first=Apply("mul", (one, inner.first), dtype),
                                           term=Apply("mul", (one, inner.term), dtype), of=None)
        return e

    def addends(self, e: Value, k: Known, facts: Facts) -> list[Value]:
        """What `e` adds up, but for zeros."""
        found = self.opened(e, k, facts)
        match found:
            case Folded(first=first) if is_sum(found):
                rest = self.addends(first, k, facts)
                if any(k.plainly((t,)) is False for t in found.tests):  # it has no terms here
                    return rest
                return [*rest, replace(found, first=Const(0, found.term.dtype))]
            case Apply(fn="add", args=(x, y)):
                return [*self.addends(x, k, facts), *self.addends(y, k, facts)]
            case Apply(fn="sub", args=(x, y), dtype=dtype):
                return [*self.addends(x, k, facts), Apply("neg", (y,), dtype)]
            case Apply(fn="fma", args=(x, y, z), dtype=dtype):
                return [Apply("mul", (x, y), dtype), *self.addends(z, k, facts)]
            case Const(value=0):
                return []
        return [e]

    def simplified(self, addends: list[Value], k: Known, facts: Facts) -> list[Value]:
        """`addends` without what changes nothing, which may be sums then: what these add up."""
        found = list[Value]()
        for x in addends:
            new = self.simple(x, k, facts)
            found += [x] if new == x else self.addends(new, k, facts)
        return found

    def is_zero(self, e: Value, limited: bool, k: Known, facts: Facts) -> bool:
        """Whether `e`, which is finite if it is `limited`, is 0."""
        match self.simple(e, k, facts):
            case Const(value=value):
                return value == 0
            case Apply(fn="cast" | "neg", args=(x,)):
                return self.is_zero(x, False, k, facts)
            case Apply(fn="mul", args=(x, y)):
                return any(self.is_zero(p, False, k, facts) and (limited or self.is_finite(q, k, facts))
                           for p, q in ((x, y), (y, x)))
        return False

    def is_finite(self, e: Expr, k: Known, facts: Facts) -> bool:
        """Whether `e` is finite, as was asked of what it is made of."""
        match self.opened(e, k, facts):
            case Apply(fn="cast" | "neg", args=(x,), dtype=dtype) if x.dtype.is_float and promote(x.dtype, dtype) == dtype:
                return self.is_finite(x, k, facts)
            case Load(guard=()) as x:
                return any(truth and isinstance(t, Apply) and t.fn == "isfinite" and isinstance(y := t.args[0], Load)
                           and x.source == y.source and x.index[:-2] == y.index[:-2]
                           and all(p == Affine() for p in y.index[-2:]) for t, truth in facts)
            case Const(value=value):
                return abs(float(value)) < float("inf")
        return False


def is_sum(e: Value) -> TypeGuard[Folded]:
    """Whether terms of `e` that are 0 may be left out, and 0 that it begins with."""
    return isinstance(e, Folded) and e.monoid.fn == "add"


def is_number(e: Value, value: float | int | bool) -> bool:
    """Whether `e` is this very number, with its sign if it is 0."""
    return isinstance(e, Const) and repr(float(e.value)) == repr(float(value))


def says_finite(test: Expr, x: Load) -> bool:
    """Whether `test` asks whether all of a value is finite of which `x` is an element."""
    return isinstance(test, Apply) and test.fn == "isfinite" and isinstance(y := test.args[0], Load) and _is_among(x, y)


def _is_among(x: Load, some: Load) -> bool:
    """Whether `x` is one of `some` elements, in which a position may be any."""
    return x.source == some.source and all(p == q or (isinstance(q, Affine) and (q.name or "").startswith(ANY))
                                           for p, q in zip(x.index, some.index, strict=True))


def _is_positive(c: Expr, facts: Facts) -> bool:
    """Whether 0 < c < inf, as was asked."""
    asked = [t.args for t, truth in facts if truth and isinstance(t, Apply) and t.fn == "lt"]
    return any(is_number(x, 0) and y == c for x, y in asked) and any(x == c and is_number(y, float("inf")) for x, y in asked)
