"""That two values of registers are equal, wherever something is known to hold: by what they are made of (`opened.py`).

    a + (b + c) = (a + b) + c,   a + b = b + a,   a - b = a + (-b),   fma(a, b, c) = a b + c
                                                            sums have no order, which rounds them in another way
    max { -inf, a + b } + c = 1 (a + b) + c = a + b + c     a term without what changes nothing may be a sum itself
    a + 0 = a                                               so that terms of a sum are left out, or added; -inf of a maximum
    a b = b a

Of two values the younger one is opened first, so that what they have in common is found without being opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Number, affine, substitute, substitute_expr
from polyop.ir.loops import For
from polyop.poly.verify.known import Known
from polyop.poly.verify.numbered import Folded
from polyop.poly.verify.opened import Facts, Opened, Value, is_number, is_sum, says_finite
from polyop.poly.verify.same import brief

_SUMS = ("add", "sub", "fma", "neg")


class UnlikeError(Exception):
    """Two values are not shown to be equal where `known` holds: `what`. `values`: the values that it comes to in the end."""

    def __init__(self, known: Known, what: str, *values: Value) -> None:
        super().__init__(what)
        self.known = known
        self.what = what
        self.values = values


@dataclass(frozen=True, eq=False)
class Alike:
    """Compares values."""

    values: Opened

    def same(self, a: Value, b: Value, k: Known, facts: Facts = frozenset()) -> None:
        """Raises  UnlikeError, if `a` and `b` are not shown to be equal where `k` and `facts` hold."""
        if a != b:
            self.values.cases(partial(self.alike, a, b), k, facts)

    def alike(self, a: Value, b: Value, k: Known, facts: Facts) -> None:
        """Raises  UnlikeError, as `same`; AskedError, if it depends."""
        while True:
            a, b = self.values.chosen(a, k, facts), self.values.chosen(b, k, facts)
            if a == b:
                return
            ages = [self.values.numbers.age(x) if isinstance(x, Load) else -1 for x in (a, b)]
            if max(ages) < 0:
                break
            if ages[0] == ages[1] and isinstance(a, Load) and isinstance(b, Load):
                try:
                    self.places(a, b, k)
                    return
                except UnlikeError:
                    a = self.values.numbers.opened(a)
                    continue
            if ages[0] > ages[1]:
                assert isinstance(a, Load)
                a = self.values.numbers.opened(a)
            else:
                assert isinstance(b, Load)
                b = self.values.numbers.opened(b)
        if any(is_sum(x) or (isinstance(x, Apply) and x.fn in _SUMS) for x in (a, b)):
            self.sums(a, b, k, facts)
            return
        try:
            self.parts(a, b, k, facts)
        except UnlikeError:
            new = self.values.simple(a, k, facts), self.values.simple(b, k, facts)
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

    # --- sums ---------------------------------------------------------------------------------------------------------

    def sums(self, a: Value, b: Value, k: Known, facts: Facts) -> None:
        """Raises  UnlikeError, if two sums do not add up the same."""
        mine, theirs = self.values.addends(a, k, facts), self.values.addends(b, k, facts)
        for common in [x for x in mine if x in theirs]:
            mine.remove(common)
            theirs.remove(common)
        if len(mine) == len(theirs) == 1 and not is_sum(mine[0]) and not is_sum(theirs[0]):
            if (mine[0], theirs[0]) == (a, b):
                self.parts(a, b, k, facts)
            else:
                self.same(mine[0], theirs[0], k, facts)
            return
        while True:
            for x in list(mine):
                for y in theirs:
                    if self.is_term(x, y, k, facts):
                        mine.remove(x)
                        theirs.remove(y)
                        break
            simple = self.values.simplified(mine, k, facts), self.values.simplified(theirs, k, facts)
            if simple == (mine, theirs):
                break
            mine, theirs = simple
        for x in (*mine, *theirs):
            self.nothing(x, k, facts)

    def is_term(self, a: Value, b: Value, k: Known, facts: Facts) -> bool:
        """Whether two addends are equal."""
        if is_sum(a) != is_sum(b):
            return False
        try:
            if is_sum(a) and is_sum(b):
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
                self.values.cases(partial(self.idle, x, term), k.also(here).unless(more), facts)

    def idle(self, f: Folded, term: Expr, k: Known, facts: Facts) -> None:
        """Raises  UnlikeError, if a `term` of `f` changes something."""
        limited = f.of is not None and any(says_finite(t, f.of) for t, truth in facts if truth)
        if is_sum(f) and self.values.is_zero(term, limited, k, facts):
            return
        if not is_number(self.values.simple(term, k, facts), f.monoid.identity) and not k.domain.is_empty():
            raise UnlikeError(k, f"`{brief(term)}` is one term more, or less")

    def nothing(self, x: Value, k: Known, facts: Facts) -> None:
        """Raises  UnlikeError, if the addend `x` is not 0."""
        if is_sum(x):
            k, names = _inside(k, len(x.bound))
            env = dict(zip(x.bound, names, strict=True))
            term, k = substitute_expr(x.term, env), k.also(substitute(t, env) for t in x.tests)
            self.values.cases(partial(self.idle, x, term), k, facts)
        elif not self.values.is_zero(x, False, k, facts) and not k.domain.is_empty():
            raise UnlikeError(k, f"{_said(x)} is added, or is not")


def _inside(k: Known, count: int) -> tuple[Known, list[Affine]]:
    """What is known in `count` loops of a sum, and their indices, which no sum around it has."""
    deep = sum(1 for d in k.frame.dims if d.startswith("$"))
    names = [f"${deep}.{i}" for i in range(count)]
    for n in names:
        k = k.inside(For(n, Affine(), affine(1), ()))
    return k, [affine(n) for n in names]


def _require_equal(p: Affine, q: Affine, a: Expr, b: Expr, k: Known) -> None:
    if p != q:
        apart = k.unequal(p, q)
        if not apart.is_empty():
            _unlike(a, b, k.only(apart))


def _unlike(a: Value, b: Value, k: Known) -> None:
    if not k.domain.is_empty():
        raise UnlikeError(k, f"{_said(b)} where {_said(a)} is expected", a, b)


def _said(x: Value) -> str:
    return f"`{brief(x)}`" if not isinstance(x, Folded) else "a sum" if is_sum(x) else f"a `{x.monoid}` of terms"
