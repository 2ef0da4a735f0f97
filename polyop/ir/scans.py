"""Scans: `c = f(c, x)` step by step, where functions `c -> f(c, x)` follow each other as one function of their kind.

    c = g(c, x)          g associative: (g, x) then (g, y) is (g, g(x, y)); log(exp(c) + exp(x)) is one (ir/logsums.py)
    c = a * c + b        (a, b) then (a', b') is (a a', a' b + b')

So steps may be joined before it is known what they start from, in any grouping, if not in any order. That sums of floats come
out otherwise then is for whoever asks to allow.

Source: Blelloch, "Prefix sums and their applications", 1990.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from polyop.ir.expr import Apply, Expr, Load, Scalar, Test, loads, rebuild, walk
from polyop.ir.logsums import is_logaddexp
from polyop.ir.op import Monoid, builtin_monoid

ASSOCIATIVE = ("add", "mul", "max", "min", "bitand", "bitor", "bitxor")


@dataclass(frozen=True, slots=True)
class Scan:
    """What one step takes beside `c`: `each` of the `monoid`; or, without a monoid, the factor and the addend of `a * c + b`."""

    monoid: Monoid | None
    each: tuple[Expr, ...]


def scan_of(e: Expr, carried: Expr) -> Scan | None:
    """`e` as a step from `carried`, which is of its type; None if it is none."""
    if not isinstance(e, Apply) or e.dtype != carried.dtype:
        return None
    if e.fn == "select":
        return _of_logarithms(e, carried)
    if len(e.args) != 2:
        return None
    own = [x for x in e.args if _has(x, carried)]
    if len(own) != 1:
        return None
    (before,), (each,) = own, [x for x in e.args if not _has(x, carried)]
    if each.dtype != e.dtype:
        return None
    if before == carried:
        return Scan(builtin_monoid(e.fn, e.dtype), (each,)) if e.fn in ASSOCIATIVE else None
    inner = scan_of(before, carried)
    if inner and e.fn == (inner.monoid.fn if inner.monoid else "add"):  # (c + x) + y is c + (x + y)
        return Scan(inner.monoid, (*inner.each[:-1], Apply(e.fn, (inner.each[-1], each), e.dtype)))
    if e.fn != "add" or not isinstance(before, Apply) or before.fn != "mul":
        return None
    factors = [x for x in before.args if x != carried]
    if len(factors) != 1 or _has(factors[0], carried) or any(x.dtype != e.dtype for x in (before, factors[0])):
        return None
    return Scan(None, (factors[0], each))


def _of_logarithms(e: Apply, carried: Expr) -> Scan | None:
    """`e` as log(exp(carried) + exp(x)), for an x that it takes the maximum of `carried` with."""
    for x in walk(e):
        if isinstance(x, Apply) and x.fn == "max" and carried in x.args and x.dtype == e.dtype:
            each = x.args[x.args[0] == carried]
            if not _has(each, carried) and is_logaddexp(e, carried, each):
                a, b = Scalar("a", e.dtype), Scalar("b", e.dtype)
                return Scan(Monoid("logaddexp", -inf, None, _put(e, {carried: a, each: b})), (each,))
    return None


def joined(m: Monoid, x: Expr, y: Expr) -> Expr:
    """`x` and `y` by a monoid."""
    if m.fn:
        return Apply(m.fn, (x, y), x.dtype)
    return _put(m.body, {Scalar("a", x.dtype): x, Scalar("b", y.dtype): y})


def _put(e: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """`e` with `values` in the places of some of its parts."""
    return values[e] if e in values else rebuild(e, lambda x: _put(x, values))


def step_of(e: Expr, carried: Load) -> Scan | None:
    """`scan_of`, where nothing else of the memory of `carried` is read."""
    return scan_of(e, carried) if {x for x in loads(e) if x.source == carried.source} == {carried} else None


def _has(e: Expr, what: Expr) -> bool:
    return e == what or (isinstance(e, Apply) and any(_has(x, what) for x in e.args))


def is_one_instruction(e: Expr) -> bool:
    """Whether a step is one addition or multiplication, whatever it begins with."""
    applied = [x.fn for x in walk(e) if isinstance(x, Apply) and not (x.fn == "select" and isinstance(x.args[0], Test))]
    return len(applied) <= 1 and set(applied) <= {"add", "sub", "mul"}
