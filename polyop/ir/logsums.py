"""log(exp(a) + exp(b)), in the ways that people write it so that nothing overflows.

    max(a, b) + log1p(exp(-abs(a - b)))      max(a, b) + log(exp(a - max(a, b)) + exp(b - max(a, b)))

A logarithm of a sum of exponentials, plus something, is one of other exponents: m + log(e^x + e^y) = log(e^(x + m) + e^(y + m)).
So each way is a list of exponents, which are sums of a, b and d = abs(a - b): max(a, b) is (a + b + d) / 2. It is log(e^a + e^b)
if the exponents are a and b, whichever is greater.
"""

from __future__ import annotations

from fractions import Fraction
from math import inf, isclose, log

from polyop.ir.expr import Apply, Const, Expr

Sum = tuple[Fraction, Fraction, Fraction]
"""How often a, b and abs(a - b) are in a sum."""

_HALF, _NONE, _ONE = Fraction(1, 2), Fraction(0), Fraction(1)
_ZERO: Sum = (_NONE, _NONE, _NONE)


def is_logaddexp(e: Expr, a: Expr, b: Expr) -> bool:
    """Whether `e` is log(exp(a) + exp(b)), and -inf for two times -inf, which takes a test: inf - inf is NaN."""
    if not isinstance(e, Apply) or e.fn != "select":
        return False
    test, special, other = e.args
    if not isinstance(test, Apply) or test.fn != "eq" or not _is_plain(other, a, b):
        return False
    if set(test.args) == {a, b}:  # log(2 exp(a))
        return isinstance(special, Apply) and special.fn == "add" and any(
            x in (a, b) and isinstance(y, Const) and isclose(float(y.value), log(2), rel_tol=1e-6)
            for x, y in (special.args, special.args[::-1]))
    if not any(isinstance(x, Const) and x.value == -inf for x in test.args):
        return False
    return any(_sum(x, a, b) == _extreme(1) for x in test.args) and isinstance(special, Const) and special.value == -inf


def _is_plain(e: Expr, a: Expr, b: Expr) -> bool:
    found = _exponents(e, a, b)
    if found is None:
        return False
    each = [(_NONE, _ONE), (_ONE, _NONE)]
    return all(sorted((x + s * d, y - s * d) for x, y, d in found) == each for s in (1, -1))  # d is a - b, or b - a


def _exponents(e: Expr, a: Expr, b: Expr) -> list[Sum] | None:
    """The exponents of `e` as a logarithm of a sum of exponentials; None, if it is none."""
    alone = _sum(e, a, b)
    if alone is not None:
        return [alone]
    match e:
        case Apply(fn="log", args=(x,)):
            return _exponentials(x, a, b)
        case Apply(fn="log1p", args=(x,)):
            found = _exponentials(x, a, b)
            return None if found is None else [_ZERO, *found]
        case Apply(fn="add", args=(x, y)):
            for one, two in ((x, y), (y, x)):
                shift, found = _sum(one, a, b), _exponents(two, a, b)
                if shift is not None and found is not None:
                    return [_plus(s, shift) for s in found]
    return None


def _exponentials(e: Expr, a: Expr, b: Expr) -> list[Sum] | None:
    """The exponents of `e` as a sum of exponentials."""
    match e:
        case Apply(fn="exp", args=(x,)):
            return _exponents(x, a, b)
        case Apply(fn="add", args=(x, y)):
            one, two = _exponentials(x, a, b), _exponentials(y, a, b)
            return None if one is None or two is None else [*one, *two]
    return None


def _sum(e: Expr, a: Expr, b: Expr) -> Sum | None:
    """`e` as a sum of a, b and abs(a - b)."""
    if e == a:
        return (_ONE, _NONE, _NONE)
    if e == b:
        return (_NONE, _ONE, _NONE)
    if not isinstance(e, Apply) or e.fn not in ("neg", "abs", "add", "sub", "max", "min"):
        return None
    args = [_sum(x, a, b) for x in e.args]
    if None in args:
        return None
    found = [x for x in args if x is not None]
    match e.fn, found:
        case "neg", [x]:
            return _times(x, -1)
        case "add", [x, y]:
            return _plus(x, y)
        case "sub", [x, y]:
            return _plus(x, _times(y, -1))
        case "abs", [x] if x in (_difference(1), _difference(-1)):
            return (_NONE, _NONE, _ONE)
        case ("max" | "min"), [x, y] if {x, y} == {_sum(a, a, b), _sum(b, a, b)}:
            return _extreme(1 if e.fn == "max" else -1)
    return None


def _extreme(sign: int) -> Sum:
    """The greater one, or the other one, of a and b."""
    return (_HALF, _HALF, sign * _HALF)


def _difference(sign: int) -> Sum:
    return (Fraction(sign), Fraction(-sign), _NONE)


def _plus(x: Sum, y: Sum) -> Sum:
    return (x[0] + y[0], x[1] + y[1], x[2] + y[2])


def _times(x: Sum, f: int) -> Sum:
    return (x[0] * f, x[1] * f, x[2] * f)
