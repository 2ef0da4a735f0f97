"""exp, exp2, expm1 and the functions made of them: sinh, cosh, tanh, sigmoid, silu.

    e^x = 2^n e^r,  n = round(x log2 e),  r = x - n ln 2 in two parts,  e^r = 1 + r + r^2 p(r)

The factor 2^n is applied in one instruction, so that overflow gives inf and small results are rounded once, denormals
included. Where no instruction does that, 2^n is made of bits (`scaling.py`), in other orders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, floor, inf

from polyop.codegen.vecmath.ops import V, polynomial, row
from polyop.codegen.vecmath.scaling import BIAS, NOTHING, nearest, power_from, power_of_two, scale

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
LN2_HI = {"float": 0.693145751953125, "double": 6.93147180369123816490e-01}
"""ln 2 in so few bits that its product with any exponent is exact."""
LN2_LO = {"float": 1.428606820309417e-06, "double": 1.90821492927058770002e-10}

TAIL = {
    "float": (0.5, 0.16666576266288757, 0.041666556149721146, 0.008363178931176662, 0.0013926184037700295),
    "double": (0.5000000000000001, 0.16666666666666669, 0.04166666666662413, 0.008333333333330062, 0.0013888888917213717,
               0.00019841269863053618, 2.4801521295954376e-05, 2.7557268459997064e-06, 2.7620088445409746e-07,
               2.510038549551032e-08),
    "f16": (0.5000511407852173, 0.16753514111042023, 0.041277747601270676),
    "bf16": (0.503940999507904, 0.16662810742855072),
}
"""p(r) = (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2; errors 2^-26.7, 2^-55.8, 2^-17.5 and 2^-13 of e^r."""

TOP = {"float": 89.0, "double": 710.0}
"""e^x is inf here."""
BOTTOM = {"float": -104.0, "double": -746.0}
"""e^x is 0 here."""
BOTTOM2 = {"float": -152.0, "double": -1077.0}
"""2^x is 0 here."""


def above(x: V, bottom: V | float, order: str = "ugt") -> tuple[V, V]:
    """Where x is above `bottom` or NaN; and x, which is at least `bottom` where `scale` needs a finite n.

    Where a function of x that is scaled becomes 0, it is made 0 before: a product that underflows takes Intel's CPUs 200 cycles,
    though it is 0 then, and one of 0 takes none.
    """
    return x.cmp(order, bottom), x if x.scales else x.most(bottom)


def _from(x: V, bottom: V | None, own: Mapping[str, float]) -> tuple[V, V]:
    """`above` one's `own` bottom, where a power is 0 already; or from another one on, where it is not yet."""
    return above(x, own[x.element]) if bottom is None else above(x, bottom, "uge")


def reduced(x: V, top: V | None = None) -> tuple[V, V]:
    """(n, r): x = n ln 2 + r; `top` as in `rest_of`."""
    n, _ = nearest(x, LOG2E)
    return n, rest_of(x, n, top)


def rest_of(x: V, n: V, top: V | None = None) -> V:
    """x - n ln 2. The f32 nearest to ln 2 is so near that one product is enough for a difference, whose own rounding changes the
    power 20 times as much; a `top` says that x is one.
    """
    if top is not None and x.element == "float" and x.fuses:
        return (-n).times_plus(x.const(LN2), x)
    if x.digits:
        return x - n * LN2
    return x - n * LN2_HI[x.element] - n * LN2_LO[x.element]


def exp_tail(r: V) -> V:
    """e^r - 1 for |r| <= ln 2 / 2."""
    return r * r * polynomial(r, row(TAIL, r)) + r


def exp_reduced(r: V, times: float = 1.0) -> V:
    """e^r times `times` for |r| <= ln 2 / 2; `times` is a power of two."""
    return polynomial(r, tuple(c * times for c in (1.0, 1.0, *row(TAIL, r))))


def exp2_reduced(f: V, times: float = 1.0) -> V:
    """2^f times `times` for |f| <= 1/2; `times` is a power of two."""
    return polynomial(f, tuple(c * LN2**k * times for k, c in enumerate((1.0, 1.0, *row(TAIL, f)))))


def exp(x: V, bottom: V | None = None, top: V | None = None, least: V | None = None) -> V:
    """e^x; or x < bottom ? 0 : e^x, in as many instructions, for a bottom between e^x's own and 0.

    top     what x is known to be at most, a difference that was rounded; None where nothing is
    least   from where on a power is needed, and may be 0 below; None where all are
    """
    x = x if top is not None else x.least(TOP[x.element])
    if not x.scales:
        return _of_bits(x, bottom, top, least, LOG2E)
    some, x = _from(x, least or bottom, BOTTOM)
    n, r = reduced(x, top)
    return scale(some.pick(exp_reduced(r), 0.0), n)


def exp2(x: V, bottom: V | None = None, top: V | None = None, least: V | None = None) -> V:
    """2^x; or x < bottom ? 0 : 2^x, as `exp`."""
    x = x if top is not None else x.least(float(BIAS[x.element][0] + 2))
    if not x.scales:
        return _of_bits(x, bottom, top, least, 1.0)
    some, x = _from(x, least or bottom, BOTTOM2)
    n = x.rint()
    return scale(some.pick(exp_reduced((x - n) * LN2), 0.0), n)


def _of_bits(x: V, bottom: V | None, top: V | None, least: V | None, factor: float) -> V:
    """2^(x factor): one factor for 2^n if the exponents that it may have leave room, else two.

    Where a power is 0 by itself, or may be, its factor is. An exact bottom takes a mask.
    """
    zero = max(NOTHING[x.element], _times(least, factor, floor, -inf) - 1)
    highest = min(BIAS[x.element][0] + 2, _times(top, factor, ceil, inf))
    exact = _times(bottom, factor, floor, zero + 1)
    some = None
    if bottom is None or exact <= zero:
        x = x.most(zero / factor)
    else:
        some, x = x.cmp("uge", bottom), x.most(bottom)
        zero = exact - 1
    power = power_from(x, factor, int(zero), int(highest))
    if factor == 1.0:
        p = exp2_reduced(x - power.n, power.rest)
    else:
        p = exp_reduced(rest_of(x, power.n, top), power.rest)
    return power.times(p if some is None else some.pick(p, 0.0))


def _times(bound: V | None, factor: float, rounded: Callable[[float], int], unknown: float) -> float:
    """The integer beside bound factor, or `unknown` if the code does not know it."""
    return unknown if bound is None or bound.known is None else rounded(bound.known * factor)


def expm1(x: V) -> V:
    """2^n (e^r - 1) + (2^n - 1), where the last is exact or does not matter; x itself where it is tiny."""
    _, bits = BIAS[x.element]
    y = x.least(TOP[x.element]).most(-(bits + 3.0))
    n, r = reduced(y)
    q = exp_tail(r)
    inverse = power_of_two((-n).most(-(bits + 20.0)))
    out = scale(q + (1.0 - inverse), n)
    return x.abs().cmp("olt", 2.0**-bits).pick(x, out)


def _half_exp(x: V) -> V:
    """e^|x| / 2, which overflows only where cosh does."""
    n, r = reduced(x.abs().least(TOP[x.element] + 1.0))
    return scale(exp_reduced(r), n - 1.0)


SINH = {
    "float": (0.1666666716337204, 0.008333328180015087, 0.0001984216768993065, 2.7164383450727863e-06),
    "double": (0.16666666666666666, 0.008333333333333333, 0.0001984126984127146, 2.7557319222970256e-06, 2.5052110434586254e-08,
               1.6058939009577266e-10, 7.66193085953655e-13),
}


def sinh(x: V) -> V:
    e = _half_exp(x)
    t = x * x
    small = x * t * polynomial(t, SINH[x.element]) + x
    return x.abs().cmp("olt", 1.0).pick(small, (e - 0.25 / e).copysign(x))


def cosh(x: V) -> V:
    e = _half_exp(x)
    return e + 0.25 / e


TANH = {
    "float": (-0.33331, 0.131),
    "double": (-0.33333333333332486, 0.13333333332784302, -0.053968252782959386, 0.0218693707845714, -0.0088573110961709661,
               0.0034448663885211334),
    "bf16": (-0.33005014896083074,),
}
"""(tanh(r) / r - 1) / r^2 on |r| <= ln 2 / 4, in r^2; errors 2^-22.8 near 0.1 and 2^-24.8 at the end, 2^-57.8 and 2^-15.6."""


def tanh(x: V) -> V:
    """((1 + p) t - (1 - p)) / ((1 + p) - (1 - p) t), t = tanh(r), x = n ln 2 / 2 + r, p = 2^n.

    That is (T + t) / (1 + T t) with T = tanh(n ln 2 / 2) = (p - 1) / (p + 1). 1 - p is exact where it counts, and 0 where x is
    small, so that nothing is lost there. Signs stay where they are: -x has 1 / p and -t, whose quotient is -1 times that of x,
    digit by digit. It is at most 1, since rounding keeps the order of both sides. A zero keeps its sign, as -0 + 0 is 0 and times
    a negative number -0. Of f32 ln 2 needs no second part: where n is large, e^-2|x| is small.
    """
    bias, shift = BIAS[x.element]
    y = x.least(20.0).most(-20.0)
    n, shifted = nearest(y, 2.0 * LOG2E, bias)
    p = shifted.bits().shl(shift).real()
    double = x.element == "double"
    r = y - n * (LN2_HI["double"] / 2.0) - n * (LN2_LO["double"] / 2.0) if double else y - n * (LN2 / 2.0)
    square = r * r
    t = (r * square + 0.0) * polynomial(square, row(TANH, x)) + r
    less, more = 1.0 - p, 1.0 + p
    return (more * t - less).over(more - less * t)


def _power_beside(n: V, x: V) -> V:
    """2^n + x for x of about 1; n may be so small that 2^n does not matter."""
    n = n.most(1.0 - BIAS[n.element][0])
    return (x.const(1.0).scaled(n) if x.scales else power_of_two(n)) + x


ENOUGH = {"float": 30.0, "double": 44.0}
"""1 + e^-x is 1 here."""


def sigmoid(x: V) -> V:
    """1 / (1 + e^-x) = 2^n / (2^n + e^-r), x = n ln 2 + r, which is e^x to the last denormal where x is small."""
    if not x.scales:
        return _sigmoid_of_bits(x.least(ENOUGH[x.element]))
    some, x = above(x.least(ENOUGH[x.element]), BOTTOM[x.element])
    n, r = reduced(x)
    return scale(some.pick(_power_beside(n, exp_reduced(-r)).inverse(), 0.0), n)


def _sigmoid_of_bits(x: V) -> V:
    """s / (s + s e^-x), with s so small that s e^-x is infinite only where the quotient is 0."""
    bias, shift = BIAS[x.element]
    offset = 2 * bias + 1 + NOTHING[x.element]
    x = x.most(NOTHING[x.element] / LOG2E)
    n, shifted = nearest(x, -LOG2E, offset)
    s = 2.0 ** (offset - bias)
    p = polynomial(rest_of(x, -n), _turned((1.0, 1.0, *row(TAIL, x))))
    return s / (p * shifted.bits().shl(shift).real() + s)


def _turned(coefficients: tuple[float, ...]) -> tuple[float, ...]:
    """Those of a polynomial of -x."""
    return tuple(c * (-1.0) ** k for k, c in enumerate(coefficients))


SILU_BOTTOM = {"float": -109.0, "double": -753.0}
"""x e^x is 0 here."""


def silu(x: V) -> V:
    """x sigmoid(x), scaled as a whole; where that is 0, x 0, which is NaN at -inf, as x sigmoid(x) is.

    scalef with an infinite n would make 0 of NaN.
    """
    if not x.scales:
        return _silu_of_bits(x)
    bottom = SILU_BOTTOM[x.element]
    some, y = x.cmp("ugt", bottom), x.most(bottom)
    n, r = reduced(y.least(ENOUGH[x.element]))
    return scale(some.pick(y.over(_power_beside(n, exp_reduced(-r))), x * 0.0), n)


def _silu_of_bits(x: V) -> V:
    """max(x, 0) - |x| / (1 + e^|x|), the last with 2^-n put on both sides, so that it is rounded once."""
    zero = floor(SILU_BOTTOM[x.element] * LOG2E)
    size = x.least(-zero / LOG2E).abs()  # infinite at -inf alone, where 0 times it is NaN
    y = size.least(-zero / LOG2E)
    power = power_from(y, -LOG2E, zero, 0)
    p = exp_reduced(rest_of(y, -power.n), 1.0 / power.rest)
    return x.most(0.0) - size * power.first / (p + power.first)
