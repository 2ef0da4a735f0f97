"""That two values of registers are equal, wherever something is known to hold: by what they are made of, and a few laws.

    a + (b + c) = (a + b) + c,   a + b = b + a,   a - b = a + (-b),   fma(a, b, c) = a b + c
                                                            sums have no order, which rounds them in another way
    0 + a = a,   max(-inf, a) = a,   1 a = a,   a b = b a   and so on: exact, but for the sign of a sum that is 0
    0 a = 0   where a is finite                             so that terms of a sum are left out, or added
    c max { a } = max { c a },   c (-inf) = -inf   where 0 < c < inf        exact, as rounding keeps the order of numbers
    f16(0) = 0

What is known: tests of indices, which isl decides, and tests of data that were asked. A sum is finite only if all its terms are.
A choice by either is followed both ways, if it is not decided. Of two values the younger one is opened first, so that what they
have in common is found without being opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import (
    Affine,
    Apply,
    Const,
    Expr,
    Load,
    Number,
    Test,
    affine,
    is_affine_condition,
    substitute,
    substitute_expr,
)
from polyop.ir.loops import For
from polyop.poly.verify.assigned import CHOSEN
from polyop.poly.verify.elements import ANY
from polyop.poly.verify.known import Known
from polyop.poly.verify.numbered import Folded, Numbers
from polyop.poly.verify.same import brief

Facts = frozenset[tuple[Expr, bool]]
"""Tests of data, each with its truth."""

Value = Expr | Folded

_EXTREMES = ("max", "min")
_INFINITE = (float("inf"), float("-inf"))
_SUMS = ("add", "sub", "fma", "neg")


class UnlikeError(Exception):
    """Two values are not shown to be equal where `known` holds: `what`. `values`: the values that it comes to in the end."""

    def __init__(self, known: Known, what: str, *values: Value) -> None:
        super().__init__(what)
        self.known = known
        self.what = what
        self.values = values


class AskedError(Exception):
    """What two values are depends on a test, of indices or of data."""

    def __init__(self, test: Expr) -> None:
        super().__init__(str(test))
        self.test = test


@dataclass(eq=False)
class Alike:
    """Compares values; `left` is how many more steps it may take, `asked` what was found out about tests in one place."""

    numbers: Numbers
    left: int
    asked: dict[tuple[int, tuple[Affine, ...]], tuple[Known, bool | None]] = field(default_factory=dict)

    def same(self, a: Value, b: Value, k: Known, facts: Facts = frozenset()) -> None:
        """Raises  UnlikeError, if `a` and `b` are not shown to be equal where `k` and `facts` hold."""
        if a != b:
            self.cases(partial(self.alike, a, b), k, facts)

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

    # --- what a value is ---------------------------------------------------------------------------------------------

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
                return Const(0, dtype) if _is(inner, 0) else e
            case Apply(fn="max" | "min" as fn, args=(x, y)):
                for one, other in ((x, y), (y, x)):
                    if _is(self.simple(one, k, facts), e.dtype.lowest if fn == "max" else e.dtype.highest):
                        return self.simple(other, k, facts)
            case Apply(fn="mul", args=(x, y), dtype=dtype):
                for one, other in ((x, y), (y, x)):
                    if _is(self.simple(one, k, facts), 1):
                        return self.simple(other, k, facts)
                    if _is_positive(one, facts):
                        inner = self.simple(other, k, facts)
                        if isinstance(inner, Const) and inner.value in _INFINITE:
                            return inner
                        if isinstance(inner, Folded) and inner.monoid.fn in _EXTREMES:
                            return replace(inner, first=Apply("mul", (one, inner.first), dtype),
                                           term=Apply("mul", (one, inner.term), dtype), of=None)
        return e

    # --- comparing ---------------------------------------------------------------------------------------------------

    def alike(self, a: Value, b: Value, k: Known, facts: Facts) -> None:
        """Raises  UnlikeError, as `same`; AskedError, if it depends."""
        while True:
            a, b = self.chosen(a, k, facts), self.chosen(b, k, facts)
            if a == b:
                return
            ages = [self.numbers.age(x) if isinstance(x, Load) else -1 for x in (a, b)]
            if max(ages) < 0:
                break
            if ages[0] == ages[1] and isinstance(a, Load) and isinstance(b, Load):
                try:
                    self.places(a, b, k)
                    return
                except UnlikeError:
                    a = self.numbers.opened(a)
                    continue
            if ages[0] > ages[1]:
                assert isinstance(a, Load)
                a = self.numbers.opened(a)
            else:
                assert isinstance(b, Load)
                b = self.numbers.opened(b)
        if any(isinstance(x, Folded) and x.monoid.fn == "add" for x in (a, b)) or any(
                isinstance(x, Apply) and x.fn in _SUMS for x in (a, b)):
            self.sums(a, b, k, facts)
            return
        try:
            self.parts(a, b, k, facts)
        except UnlikeError:
            new = self.simple(a, k, facts), self.simple(b, k, facts)
            if new == (a, b):
                raise
            self.same(*new, k, facts)

    def parts(self, a: Value, b: Value, k: Known, facts: Facts) -> None:
        """Raises  UnlikeError, if `a` and `b` are not made in one way of equal parts."""
        match a, b:
            case Folded(), Folded():
                self.folds(a, b, k, facts)
                self.same(a.first, b.first, k, facts)
            case Load(), Load() if a.source == b.source and a.dtype == b.dtype and len(a.index) == len(b.index):
                self.places(a, b, k)
            case Apply(fn="mul", args=(x, y)), Apply(fn="mul", args=(v, w)) if a.dtype == b.dtype:
                try:
                    self.same(x, v, k, facts)
                    self.same(y, w, k, facts)
                except UnlikeError:
                    self.same(x, w, k, facts)
                    self.same(y, v, k, facts)
            case Apply(), Apply() if a.fn == b.fn and a.dtype == b.dtype and len(a.args) == len(b.args):
                for x, y in zip(a.args, b.args, strict=True):
                    self.same(x, y, k, facts)
            case Number(), Number() if a.dtype == b.dtype:
                _require_equal(a.value, b.value, a, b, k)
            case Const(), Const() if a.dtype == b.dtype and repr(float(a.value)) == repr(float(b.value)):
                pass
            case _:
                _unlike(a, b, k)

    def places(self, a: Load, b: Load, k: Known) -> None:
        """Raises  UnlikeError, if two elements of one memory, or value, are two."""
        if a.guard != b.guard:
            _unlike(a, b, k)
        for p, q in zip(a.index, b.index, strict=True):
            if isinstance(p, Affine) and isinstance(q, Affine):
                _require_equal(p, q, a, b, k)
            elif isinstance(p, Affine) or isinstance(q, Affine):
                _unlike(a, b, k)
            else:
                self.same(p, q, k)

    # --- sums --------------------------------------------------------------------------------------------------------

    def sums(self, a: Value, b: Value, k: Known, facts: Facts) -> None:
        """Raises  UnlikeError, if two sums do not add up the same."""
        mine, theirs = self.addends(a, k, facts), self.addends(b, k, facts)
        for common in [x for x in mine if x in theirs]:
            mine.remove(common)
            theirs.remove(common)
        if len(mine) == len(theirs) == 1 and not isinstance(mine[0], Folded) and not isinstance(theirs[0], Folded):
            if (mine[0], theirs[0]) == (a, b):
                self.parts(a, b, k, facts)
            else:
                self.same(mine[0], theirs[0], k, facts)
            return
        for x in list(mine):
            for y in theirs:
                if self.is_term(x, y, k, facts):
                    mine.remove(x)
                    theirs.remove(y)
                    break
        for x in (*mine, *theirs):
            self.nothing(x, k, facts)

    def addends(self, e: Value, k: Known, facts: Facts) -> list[Value]:
        """What `e` adds up, but for zeros."""
        found = self.opened(e, k, facts)
        match found:
            case Folded(first=first) if found.monoid.fn == "add":
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

    def is_term(self, a: Value, b: Value, k: Known, facts: Facts) -> bool:
        """Whether two addends are equal."""
        if isinstance(a, Folded) != isinstance(b, Folded):
            return False
        try:
            if isinstance(a, Folded) and isinstance(b, Folded):
                self.folds(a, b, k, facts)
            else:
                self.same(a, b, k, facts)
        except UnlikeError:
            return False
        return True

    def folds(self, a: Folded, b: Folded, k: Known, facts: Facts) -> None:
        """Raises  UnlikeError, if terms of `a` and `b` differ, or those that only one of them has change something."""
        if a.monoid != b.monoid or len(a.bound) != len(b.bound):
            _unlike(a, b, k)
        k, names = _inside(k, len(a.bound))
        envs = [dict(zip(x.bound, names, strict=True)) for x in (a, b)]
        asked = [tuple(substitute(t, env) for t in x.tests) for x, env in zip((a, b), envs, strict=True)]
        terms = [substitute_expr(x.term, env) for x, env in zip((a, b), envs, strict=True)]
        self.same(terms[0], terms[1], k.also(asked[0]).also([t for t in asked[1] if t not in asked[0]]), facts)
        for x, term, (here, there) in ((a, terms[0], (asked[0], asked[1])), (b, terms[1], (asked[1], asked[0]))):
            more = tuple(t for t in there if t not in here)
            if more:
                self.cases(partial(self.idle, x, term), k.also(here).unless(more), facts)

    def idle(self, f: Folded, term: Expr, k: Known, facts: Facts) -> None:
        """Raises  UnlikeError, if a `term` of `f` changes something."""
        is_sum = f.monoid.fn == "add"
        limited = f.of is not None and any(_is_finite(t, f.of) for t, truth in facts if truth)
        if not (is_sum and self.is_zero(term, limited, k, facts)) and not _is(self.simple(term, k, facts), f.monoid.identity):
            if not k.domain.is_empty():
                raise UnlikeError(k, f"`{brief(term)}` is one term more, or less")

    def nothing(self, x: Value, k: Known, facts: Facts) -> None:
        """Raises  UnlikeError, if the addend `x` is not 0."""
        if isinstance(x, Folded):
            k, names = _inside(k, len(x.bound))
            env = dict(zip(x.bound, names, strict=True))
            self.cases(partial(self.idle, x, substitute_expr(x.term, env)), k.also(substitute(t, env) for t in x.tests), facts)
        elif not self.is_zero(x, False, k, facts) and not k.domain.is_empty():
            raise UnlikeError(k, f"`{brief(x)}` is added, or is not")

    def is_zero(self, e: Expr, limited: bool, k: Known, facts: Facts) -> bool:
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
        match self.opened(e, k, facts):
            case Apply(fn="cast" | "neg", args=(x,), dtype=dtype) if dtype.bytes_ >= x.dtype.bytes_:
                return self.is_finite(x, k, facts)
            case Load(guard=()) as x:
                return any(truth and isinstance(t, Apply) and t.fn == "isfinite" and isinstance(y := t.args[0], Load)
                           and x.source == y.source and x.index[:-2] == y.index[:-2]
                           and all(p == Affine() for p in y.index[-2:]) for t, truth in facts)
            case Const(value=value):
                return abs(float(value)) < float("inf")
        return False


def _inside(k: Known, count: int) -> tuple[Known, list[Affine]]:
    """What is known in `count` loops of a sum, and their indices, which no sum around it has."""
    deep = sum(1 for d in k.frame.dims if d.startswith("$"))
    names = [f"${deep}.{i}" for i in range(count)]
    for n in names:
        k = k.inside(For(n, Affine(), affine(1), ()))
    return k, [affine(n) for n in names]


def _is(e: Value, value: float | int | bool) -> bool:
    return isinstance(e, Const) and repr(float(e.value)) == repr(float(value))


def _is_among(x: Load, some: Load) -> bool:
    """Whether `x` is one of `some` elements, in which a position may be any."""
    return x.source == some.source and all(p == q or (isinstance(q, Affine) and (q.name or "").startswith(ANY))
                                           for p, q in zip(x.index, some.index, strict=True))


def _is_finite(test: Expr, x: Load) -> bool:
    return isinstance(test, Apply) and test.fn == "isfinite" and isinstance(y := test.args[0], Load) and _is_among(x, y)


def _is_positive(c: Expr, facts: Facts) -> bool:
    """Whether 0 < c < inf, as was asked."""
    asked = [t.args for t, truth in facts if truth and isinstance(t, Apply) and t.fn == "lt"]
    return any(_is(x, 0) and y == c for x, y in asked) and any(x == c and _is(y, float("inf")) for x, y in asked)


def _require_equal(p: Affine, q: Affine, a: Expr, b: Expr, k: Known) -> None:
    if p != q:
        apart = k.unequal(p, q)
        if not apart.is_empty():
            _unlike(a, b, k.only(apart))


def _unlike(a: Value, b: Value, k: Known) -> None:
    if not k.domain.is_empty():
        mine, theirs = ("a sum" if isinstance(x, Folded) else f"`{brief(x)}`" for x in (a, b))
        raise UnlikeError(k, f"{theirs} where {mine} is expected", a, b)
