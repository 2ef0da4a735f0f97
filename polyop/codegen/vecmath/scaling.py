"""Powers of two as factors: by one instruction, or made of bits.

1.5 2^(p-1) added to a number rounds it to an integer n, and leaves n in the low bits of the sum; shifted to the exponent's
place they are 2^n. The field of an exponent has a value for 0 below the least one and one for infinity above the greatest, so
that a power which is 0 or infinite at one end of its range needs no test. What has no room in one field has in two, and the
rest of the exponent goes into the coefficients of the polynomial that is multiplied with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyop.codegen.vecmath.ops import V

MAGIC = {"float": 12582912.0, "double": 6755399441055744.0}
"""1.5 2^(p-1): added to a small integer it leaves that integer in the low bits."""
BIAS = {"float": (127, 23), "double": (1023, 52)}
NOTHING = {"float": -151, "double": -1076}
"""2^n times what is below sqrt(2) is 0, and is not for n + 1."""


def power_of_two(n: V) -> V:
    """2^n for an integer n that is a normal exponent."""
    bias, shift = BIAS[n.element]
    return (n + (MAGIC[n.element] + bias)).bits().shl(shift).real()


def scale(x: V, n: V) -> V:
    """x 2^n, where n may be twice what an exponent can be."""
    if x.scales:
        return x.scaled(n)
    bias, shift = BIAS[x.element]
    bits = (n + (MAGIC[x.element] + 2 * bias)).bits()
    first, second = _halves(bits, shift)
    return x * first * second


def nearest(x: V, factor: float, offset: int = 0) -> tuple[V, V]:
    """The integer n nearest to x factor, which is below 2^(p-2), and a number whose low bits are n + offset."""
    magic = MAGIC[x.element] + offset
    shifted = x * factor + magic
    return shifted - magic, shifted


@dataclass(frozen=True, slots=True)
class Power:
    """2^n = rest first second, n = round(x factor); the last is None where two are enough."""

    n: V
    rest: float
    first: V
    second: V | None

    def times(self, x: V) -> V:
        """2^n x / rest, rounded once."""
        out = x * self.first
        return out if self.second is None else out * self.second


def power_from(x: V, factor: float, zero: int, highest: int) -> Power:
    """2^n for `zero` <= n <= `highest`, or 0 for `zero` itself."""
    bias, shift = BIAS[x.element]
    if highest - zero <= 2 * bias:
        n, shifted = nearest(x, factor, -zero)
        return Power(n, 2.0 ** (zero + bias), shifted.bits().shl(shift).real(), None)
    n, shifted = nearest(x, factor, 1 - zero)
    return Power(n, 2.0 ** (zero + 2 * bias - 1), *_halves(shifted.bits(), shift))


def _halves(bits: V, shift: int) -> tuple[V, V]:
    """Two powers of two that halve the exponent in the low ones of `bits`, which is not negative; the lesser first."""
    half = bits.lshr(1)
    return half.shl(shift).real(), (bits - half).shl(shift).real()
