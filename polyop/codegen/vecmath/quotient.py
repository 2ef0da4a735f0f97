"""Division by what many numbers are divided by: its inverse as a sum of two numbers, found once.

    1 / d = power (high + low), with twice as many digits as d;   x / d = (x power) high + (x power) low, rounded once at the end

So a quotient is right to hardly more than half of the last place, and exact where it is a number: x / x is 1. Only
quotients that are denormal, or whose last digits are, are rounded more than once: to less than two of the last place.

Source  Brisebarre, Muller, Raina, "Accelerating correctly rounded floating-point division when the divisor is known in
        advance", IEEE Transactions on Computers 53 (8), 2004.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyop.codegen.vecmath.ops import V
from polyop.codegen.vecmath.scaling import BIAS

LESS = {"float": 2.0**-22, "double": 2.0**-51}
"""By how much of it `high` is less than the inverse, about: more than rounding it may add."""


@dataclass(frozen=True, slots=True)
class Inverse:
    """1 / d = power (high + low); None stands for the power 1.

    Notes   d power is between 1/2 and 4, or smaller if d is denormal. `low` is neither 0 nor of another sign than `high`, so that
            an infinity divided by d is one; of 0 and infinity both are the inverse.
    """

    high: V
    low: V
    power: V | None


def inverse(d: V, moderate: bool = False) -> Inverse:
    """The inverse of `d`; only where `d.fuses`.

    moderate    whether |d| is known to be 0 or between 2^-64 and 2^64: it is then not brought near 1
    """
    power = None if moderate else _power(d)
    near = d if power is None else d * power
    high = (1.0 / near) * (1.0 - LESS[d.element])
    rest, least = (-high).times_plus(near, near.const(1.0)), near.const(LESS[d.element] / 2)
    rest = rest.cmp("ogt", least).pick(rest, least)  # NaN where `high` is 0 or infinite, and positive elsewhere
    return Inverse(high, high * rest, power)


def _power(d: V) -> V:
    """The power of two that brings `d` between 1/2 and 1; not less than the least normal number."""
    bias, shift = BIAS[d.element]
    exponent = d.bits() & (2 * bias + 1 << shift)
    power, least = exponent.const(2 * bias - 1 << shift) - exponent, exponent.const(1 << shift)
    return power.cmp("sgt", least).pick(power, least).real()


def quotient(x: V, by: Inverse) -> V:
    """x / d."""
    near = x if by.power is None else x * by.power
    return near.times_plus(by.high, near * by.low)
