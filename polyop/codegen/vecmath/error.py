"""erf and gelu: near 0 an odd polynomial, else by the exponent of erfc, or by Mills' ratio where its tail counts.

    erf(x) = sign(x) (1 - 2^L(|x|)),            L(a) = log2 erfc(a)
    gelu(x) = max(x, 0) - u e^(-u^2 / 2) h(u),  u = |x|,  h(u) = e^(u^2 / 2) Phi(-u),  u h(u) = P(u) / Q(u)

Of a 16-bit result    gelu(x) = max(x, 0) - u 2^M(u),  M(u) = log2 Phi(-u)

All coefficients of P and Q are positive, so that nothing cancels. u^2 is exact, so that large arguments lose nothing.

Source: Cody, "Rational Chebyshev approximations for the error function", 1969, for quotients of e^(x^2) erfc x.
"""

from __future__ import annotations

from polyop.codegen.vecmath.exponential import (
    LN2,
    LN2_HI,
    LN2_LO,
    LOG2E,
    TAIL,
    above,
    exp2_reduced,
    exp_reduced,
)
from polyop.codegen.vecmath.ops import V, in_halves, polynomial, row
from polyop.codegen.vecmath.scaling import power_from, power_of_two, scale

ERF = {
    "float": (0.12837916709551256, -0.37612342834472656, 0.11280316859483719, -0.026715055108070374, 0.004921761807054281,
              -0.0005648059886880219),
    "double": (0.12837916709551256, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792, 0.0052239776248180145,
               -0.000854832698083379, 0.0001205533111164271, -1.4925595266831182e-05, 1.6461000484121368e-06,
               -1.6350312701054695e-07, 1.4659775274047436e-08, -1.1372848856791674e-09, 5.957176147748911e-11),
}
"""erf(x) / x - 1 on |x| <= 1, in x^2."""
L = {
    "float": (-0.003854569481143004, -1.6121226165925044, -0.9442283223407696, -0.1278719112725659, 0.02132028791024051,
              -0.0016597071591617266),
    "double": (-7.406323279922467e-07, -1.627899560335324, -0.918483229174355, -0.14816806150769857, 0.027393910029391805,
               0.0005966699722350269, -0.0027685214026730897, 0.0011153226576697424, -0.00019704385936981767,
               -2.8147183288735623e-05, 3.250049930684189e-05, -1.2374111850718399e-05, 3.0503940970370803e-06,
               -5.330524102629717e-07, 6.625115033798617e-08, -5.610515773039387e-09, 2.9137974855732945e-10,
               -7.016273086978685e-12),
}
"""log2 erfc(a) on [1, ERF_IS_ONE]; errors 2^-25.9 and 2^-57.1 of erf."""
ERF_IS_ONE = {"float": 4.0, "double": 6.0}

P = {
    "float": (0.0, 0.569744348526001, 0.5003355145454407, 0.20946498215198517, 0.046527549624443054, 0.004724201280623674),
    "double": (0.0, 0.264756523188519, 0.43863808413551464, 0.3602385146188492, 0.18950971715447595, 0.07006296503606597,
               0.01893517082845732, 0.0037835077585693854, 0.0005526136039813801, 5.668257255660523e-05, 3.7131697810145586e-06,
               1.1943799570173693e-07),
}
Q = {
    "float": (1.139488697052002, 1.9098519086837769, 1.3730213642120361, 0.5367271304130554, 0.1166343167424202,
              0.011841687373816967),
    "double": (0.529513046377038, 1.2997664527189596, 1.4927840913231405, 1.06103568184438, 0.5198166043755117,
               0.18482448255012213, 0.048830016545538715, 0.00962533088604247, 0.0013945044211506167, 0.00014238152570470808,
               9.307536361611391e-06, 2.993866570911662e-07),
}
"""u h(u) = P(u) / Q(u) on [0, TAIL_IS_ZERO]; errors 2^-26.7 and 2^-57.6 of h, at the scale where rounding them harms least."""
M = {
    "f16": (-1.0000489950180054, -1.1503961086273193, -0.4607705771923065, -0.051595259457826614, 0.007345471531152725,
            -0.0006361310370266438, 2.454479727020953e-05),
    "bf16": (-1.000894546508789, -1.1419302225112915, -0.4743674397468567, -0.04366781562566757, 0.005276225507259369,
             -0.0003963649505749345, 1.648537909204606e-05, -2.882567571305117e-07),
}
"""log2 Phi(-u) on [0, TAIL_IS_ZERO]; errors 2^-14.8 and 2^-10.6 of Phi, in f32."""
TAIL_IS_ZERO = {"float": 14.8, "double": 39.6, "f16": 5.75, "bf16": 13.6}
"""u e^(-u^2 / 2) h(u) is 0 here."""
BEYOND = 1 / 32
"""So far beyond it the exponent of a 16-bit tail is about -28 and -139.1: no half, which might be rounded up or down."""
TAIL_IS_SMALL = {"float": 6.0, "double": 9.0, "f16": 5.75, "bf16": 6.0}
"""u less it is u here."""


def erf(x: V) -> V:
    a = x.abs()
    t = x * x
    small = x * polynomial(t, ERF[x.element]) + x
    exponent = polynomial(a.least(ERF_IS_ONE[x.element]), L[x.element])
    n = exponent.rint()
    fraction = exp_reduced((exponent - n) * LN2)
    erfc = fraction.scaled(n) if fraction.scales else fraction * power_of_two(n)
    return a.cmp("olt", 1.0).pick(small, (1.0 - erfc).copysign(x))


def gelu(x: V) -> V:
    if not x.scales:
        return x.most(0.0) - _tail_of_bits(x)
    zero = row(TAIL_IS_ZERO, x)
    some, y = above(x.least(row(TAIL_IS_SMALL, x)), -zero)
    u = y.abs()
    if x.digits:
        u = u.least(zero)
        exponent = in_halves((u, u * u), M[x.digits])
        n = exponent.rint()
        return x.most(0.0) - scale(some.pick(u * exp2_reduced(exponent - n), 0.0), n)
    square = u * u
    n = (square * (-0.5 * LOG2E)).rint()
    tail = _bell(u, n) * _mills(u, square)
    return x.most(0.0) - scale(some.pick(tail, 0.0), n)


def _tail_of_bits(x: V) -> V:
    """What `gelu` takes off. Its power of two, which is 0 where that is, is first, then comes its other power with the rest."""
    zero = row(TAIL_IS_ZERO, x) + (BEYOND if x.digits else 0.0)
    u = x.least(row(TAIL_IS_SMALL, x)).most(-zero).abs()
    if x.digits:
        exponent = in_halves((u, u * u), M[x.digits])
        power = power_from(exponent, 1.0, round(sum(c * zero**k for k, c in enumerate(M[x.digits]))), 0)
        return u * power.first * exp2_reduced(exponent - power.n, power.rest)
    square = u * u
    power = power_from(square, -0.5 * LOG2E, round(-0.5 * LOG2E * zero * zero), 0)
    return _mills(u, square) * power.first * _bell(u, power.n, power.rest)


def _mills(u: V, square: V) -> V:
    """u h(u)."""
    powers = (u, square) if u.element == "float" else (u, square, square * square)
    return in_halves(powers, P[u.element]) / in_halves(powers, Q[u.element])


def _bell(u: V, n: V, times: float = 1.0) -> V:
    """m times `times`, a power of two, e^(-u^2 / 2) = m 2^n. With -u^2 = n 2 ln 2 + r, where u^2 is exact, m = e^(r / 2)."""
    whole = n * (-2.0 * LN2_HI[u.element])
    low = n * (-2.0 * LN2_LO[u.element])
    if u.fuses:
        r = (-u).times_plus(u, whole) + low
    else:
        keep = -(1 << 27) if u.element == "double" else -(1 << 12)
        high = (u.bits() & keep).real()
        r = whole - high * high + low + (high - u) * (high + u)
    return polynomial(r, tuple(c * 0.5**k * times for k, c in enumerate((1.0, 1.0, *TAIL[u.element]))))
