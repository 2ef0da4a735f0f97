"""erf and gelu, by way of erfc.

    erfc(a) = e^(-a^2) G(t) / (1 + 2 a),   t = (a - c) / (a + c),   a >= 0

G is smooth on all of [-1, 1]: one polynomial serves every a. a^2 is held in two parts, so that large arguments lose nothing.

Source: Shepherd and Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x", 1981, for the form.
"""

from __future__ import annotations

from polyop.codegen.vecmath.exponential import LN2_HI, LN2_LO, LOG2E, exp_tail, scale
from polyop.codegen.vecmath.ops import V, polynomial

ERF = {
    "float": (0.12837916709551256, -0.37612342834472656, 0.11280316859483719, -0.026715055108070374, 0.004921761807054281,
              -0.0005648059886880219),
    "double": (0.12837916709551256, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792, 0.0052239776248180145,
               -0.000854832698083379, 0.0001205533111164271, -1.4925595266831182e-05, 1.6461000484121368e-06,
               -1.6350312701054695e-07, 1.4659775274047436e-08, -1.1372848856791674e-09, 5.957176147748911e-11),
}
"""erf(x) / x - 1 on |x| <= 1, in x^2."""
CENTRE = {"float": 2.0, "double": 3.0}
G = {
    "float": (1.2769783735275269, -0.09276381134986877, -0.16603048145771027, 0.1640508621931076, -0.054218485951423645,
              -0.008029675111174583, 0.008713103830814362, 0.0012503897305577993, -0.0014309898251667619, -0.0004018801264464855,
              0.0001785904314601794, 8.423400140600279e-05),
    "double": (1.2530080582697296, -0.1356211061245807, -0.047562294353446055, 0.12964515870270674, -0.11927366341554416,
               0.06830802734576415, -0.023770514913937224, 0.0025293917889036557, 0.0018886903091815883, -0.0007798320435020403,
               -0.00010515947518254091, 0.0001250981811675896, 4.9480999111481404e-06, -2.0096729199781912e-05,
               -7.274998681019412e-07, 3.464205248370816e-06, 3.4891228555428936e-07, -6.052736528350745e-07,
               -1.3110991326501397e-07, 9.205670051510656e-08, 3.2961782057401945e-08, -8.56013974464918e-09,
               -4.235582752607375e-09),
}
"""G(t), as above, for a <= 10.7 and a <= 28.5."""
FARTHEST = {"float": 10.5, "double": 28.0}
"""erfc is 0 here."""


def _square(x: V) -> tuple[V, V]:
    """x^2 in two parts."""
    keep = -(1 << 27) if x.element == "double" else -(1 << 12)
    high = (x.bits() & keep).real()
    return high * high, (x - high) * (x + high)


def _erfc(a: V, high: V, low: V) -> tuple[V, V]:
    """(m, n): erfc(a) = m 2^n, where a^2 = high + low."""
    c = CENTRE[a.element]
    near, twice = a + c, a * 2.0 + 1.0
    inverse = 1.0 / (near * twice)
    t = (a - c) * (twice * inverse)
    n = (high * -LOG2E).rint()
    r = n * -LN2_HI[a.element] - high - n * LN2_LO[a.element] - low
    return (exp_tail(r) + 1.0) * (polynomial(t, G[a.element]) * (near * inverse)), n


def erf(x: V) -> V:
    a = x.abs()
    t = x * x
    small = x * polynomial(t, ERF[x.element]) + x
    b = a.least(FARTHEST[x.element])
    m, n = _erfc(b, *_square(b))
    return a.cmp("olt", 1.0).pick(small, (1.0 - scale(m, n)).copysign(x))


def gelu(x: V) -> V:
    """x/2 erfc(-x / sqrt 2); the square of that argument is x^2 / 2, in two parts."""
    a = x.abs().least(FARTHEST[x.element] * 1.4142135623730951)
    high, low = _square(a)
    m, n = _erfc(a * 0.7071067811865476, high * 0.5, low * 0.5)
    left = scale(m * a * -0.5, n)
    return x.cmp("olt", 0).pick(left, x - x.abs().least(FARTHEST[x.element] * 1.5) * 0.5 * scale(m, n))
