"""That two stores compute the same: equal trees, with places, numbers and tests that are equal where they run."""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from polyop.ir.dtypes import BOOL
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Number, Scalar, Test, evaluate, is_affine_condition, rebuild
from polyop.poly.verify.known import Known
from polyop.poly.verify.same import brief
from polyop.poly.verify.witness import equations, smallest


class Differs(Exception):
    """Something is not the same: the smallest case that shows it, and what."""


def raise_where(bad: isl.Set, k: Known, what: str) -> None:
    """Raises  Differs, if `bad`, some executions of `k`, is not empty."""
    if not bad.is_empty():
        raise Differs(f"{equations(_env(bad, k))}: {what}")


def _env(bad: isl.Set, k: Known) -> dict[str, int]:
    """The sizes and loop indices of the smallest case."""
    sizes, at = smallest(bad)
    env = sizes | dict(zip(k.frame.dims, at, strict=True))
    return sizes | {index: evaluate(x, env) for index, x in k.values.items()}


def same(a: Expr, b: Expr, k: Known) -> None:
    """Raises  Differs, if `b` computes anything else than `a` somewhere in `k`.

    Where a condition chooses, in either of them, only what it chooses is compared.
    """
    stack = [(a, b, k)]
    while stack:
        a, b, k = stack.pop()
        if a is b:
            continue
        match a, b:
            case _, Apply(fn="select", args=(c, x, y), dtype=t) if t == a.dtype and is_affine_condition(c):
                for truth, old, new in ((True, _choice(a, c, True), x), (False, _choice(a, c, False), y)):
                    stack += [(old, new, part) for part in _under(c, truth, k) if old is not new]
            case Apply(fn="select", args=(c, x, y), dtype=t), _ if t == b.dtype and is_affine_condition(c):
                for truth, old in ((True, x), (False, y)):
                    stack += [(old, b, part) for part in _under(c, truth, k)]
            case _ if (first := _asked(a) or _asked(b)) is not None and a != b:
                for truth in (True, False):
                    stack += [(_taken(a, first, truth), _taken(b, first, truth), part) for part in _under(first, truth, k)]
            case Load(), Load() if a.source == b.source and a.dtype == b.dtype and len(a.index) == len(b.index):
                if a.guard != b.guard:
                    _tests(a.guard, b.guard, k)
                inside = k.also(a.guard) if a.guard else k
                for p, q in zip(a.index, b.index, strict=True):
                    if isinstance(p, Affine) and isinstance(q, Affine):
                        if p != q:
                            raise_where(inside.unequal(p, q), inside, f"`{b}` where `{a}` is expected")
                    elif isinstance(p, Affine) or isinstance(q, Affine):
                        raise_where(inside.domain, inside, f"`{b}` where `{a}` is expected")
                    else:
                        stack.append((p, q, inside))
            case Apply(), Apply() if a.fn == b.fn and a.dtype == b.dtype and len(a.args) == len(b.args):
                stack.extend((x, y, k) for x, y in zip(a.args, b.args, strict=True))
            case Number(), Number() if a.dtype == b.dtype:
                if a.value != b.value:
                    raise_where(k.unequal(a.value, b.value), k, f"{b.value} where {a.value} is expected")
            case Test(), Test():
                if a.tests != b.tests:
                    _tests(a.tests, b.tests, k)
            case Const(), Const() if a.dtype == b.dtype and repr(a.value) == repr(b.value):
                pass
            case Scalar(), Scalar() if a == b:
                pass
            case _:
                raise_where(k.domain, k, f"`{brief(b)}` where `{brief(a)}` is expected")


def put_in(e: Expr, test: Expr, truth: bool) -> Expr:
    """`e` where `test` is `truth`, wherever it stands."""
    if e == test:
        return Const(truth, BOOL)
    match rebuild(e, lambda x: put_in(x, test, truth)):
        case Apply(fn="and" | "or" as fn, args=(Const(value=bool(x)), y) | (y, Const(value=bool(x)))):
            return y if x == (fn == "and") else Const(x, BOOL)
        case new:
            return new


def _choice(a: Expr, c: Expr, truth: bool) -> Expr:
    """What `a` computes where `c` is `truth`: the branch, if it chooses by that too."""
    return a.args[1 if truth else 2] if isinstance(a, Apply) and a.fn == "select" and a.args[0] == c else a


def _asked(e: Expr) -> Expr | None:
    """The first affine condition that chooses between truths in the condition of the choice `e`; None if none does."""
    return _chooses(e.args[0]) if isinstance(e, Apply) and e.fn == "select" else None


def _chooses(c: Expr) -> Expr | None:
    match c:
        case Apply(fn="select", args=(first, _, _)) if is_affine_condition(first):
            return first
        case Apply(fn="select" | "and" | "or" | "not", args=args, dtype=t) if t == BOOL:
            return next((found for x in args if (found := _chooses(x)) is not None), None)
    return None


def _taken(e: Expr, first: Expr, truth: bool) -> Expr:
    """`e` where `first` is `truth`, by which the condition of the choice `e` may choose."""
    def taken(c: Expr) -> Expr:
        match c:
            case Apply(fn="select", args=(x, yes, no)) if x == first:
                return taken(yes if truth else no)
            case Apply(fn="select" | "and" | "or" | "not", dtype=t) if t == BOOL:
                return rebuild(c, taken)
        return c

    if not isinstance(e, Apply) or e.fn != "select":
        return e
    return replace(e, args=(taken(e.args[0]), *e.args[1:]))


def _under(c: Expr, truth: bool, k: Known) -> list[Known]:
    """Places that together are `k` where the affine condition `c` is `truth`."""
    match c:
        case Test(tests=tests):
            k.require_names(tests)
            return [k.also(tests) if truth else k.unless(tests)]
        case Apply(fn="not", args=(x,)):
            return _under(x, not truth, k)
        case Apply(fn="and" | "or", args=(x, y)) if truth == (c.fn == "and"):
            return [z for one in _under(x, truth, k) for z in _under(y, truth, one)]
        case Apply(fn="and" | "or", args=(x, y)):
            return [*_under(x, truth, k), *_under(y, truth, k)]
    assert isinstance(c, Const)
    return [k] if bool(c.value) == truth else []


def _tests(a: tuple[Affine, ...], b: tuple[Affine, ...], k: Known) -> None:
    mine, theirs = k.where(a, k.domain), k.where(b, k.domain)
    raise_where(mine.subtract(theirs).union(theirs.subtract(mine)), k, f"`{Test(b)}` where `{Test(a)}` is expected")
