"""log, log2, log1p, softplus and pow.

    x = 2^k (1 + f),  sqrt(1/2) < 1 + f < sqrt(2),   s = f / (2 + f)
    log(1 + f) = f - f^2/2 + s (f^2/2 + R(s^2))

Source: fdlibm, e_log.c and e_logf.c, for R and the order of summation.
"""

from __future__ import annotations

from polyop.codegen.vecmath.exponential import LN2, exp, exp2, exp_tail
from polyop.codegen.vecmath.ops import V, polynomial
from polyop.codegen.vecmath.scaling import BIAS, MAGIC, scale

R = {
    "float": (0.66666662693023682, 0.40000972151756287, 0.28498786687850952, 0.24279078841209412),
    "double": (6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01, 2.222219843214978396e-01,
               1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860511658591e-01),
}
LN2_HI = {"float": 6.9313812256e-01, "double": 6.93147180369123816490e-01}
LN2_LO = {"float": 9.0580006145e-06, "double": 1.90821492927058770002e-10}
LOG2E_HI = {"float": 1.4428710938e+00, "double": 1.44269504072144627571e+00}
LOG2E_LO = {"float": -1.7605285393e-04, "double": 1.67517131648865118353e-10}
ROOT_HALF = {"float": 0x3F3504F3, "double": 0x3FE6A09E667F3BCD}
SMALLEST = {"float": 2.0**-126, "double": 2.0**-1022}
SHIFT = {"float": 25, "double": 54}


def to_float(n: V) -> V:
    """A small integer as a float of its size."""
    element = "double" if n.element == "i64" else "float"
    magic = n.const(MAGIC[element], element)
    return (n + magic.like(n.b.do(f"bitcast {magic.type_} {magic.text} to {n.type_}"), n.element)).real() - magic


def split(x: V) -> tuple[V, V]:
    """(k, f) for x > 0, denormals included."""
    bias, bits = BIAS[x.element]
    small = x.cmp("olt", SMALLEST[x.element])
    y = small.pick(x * 2.0 ** SHIFT[x.element], x)
    root = ROOT_HALF[x.element]
    shifted = y.bits() + ((bias << bits) - root)
    k = to_float(shifted.ashr(bits) - bias)
    f = ((shifted & ((1 << bits) - 1)) + root).real() - 1.0
    return small.pick(k - float(SHIFT[x.element]), k), f


def log_tail(f: V) -> tuple[V, V]:
    """(f^2 / 2, s (f^2 / 2 + R))."""
    s = f / (f + 2.0)
    z = s * s
    half = f * f * 0.5
    return half, s * (half + z * polynomial(z, R[f.element]))


def _special(x: V, out: V) -> V:
    """`out` for 0 < x < inf; log has -inf at 0, inf at inf, and NaN below 0."""
    out = x.cmp("oeq", float("inf")).pick(x, out)
    out = x.cmp("oeq", 0).pick(x.const(float("-inf")), out)
    return x.cmp("ult", 0).pick(x.const(float("nan")), out)


def log(x: V) -> V:
    k, f = split(x)
    half, tail = log_tail(f)
    return _special(x, k * LN2_HI[x.element] - ((half - (tail + k * LN2_LO[x.element])) - f))


def log2(x: V) -> V:
    """log(1 + f) in two parts, so that its product with log2 e loses nothing."""
    k, f = split(x)
    half, tail = log_tail(f)
    keep = -(1 << 32) if x.element == "double" else -(1 << 12)
    high = ((f - half).bits() & keep).real()
    low = f - high - half + tail
    hi, lo = LOG2E_HI[x.element], LOG2E_LO[x.element]
    whole = k + high * hi
    error = k - whole + high * hi
    return _special(x, whole + (error + (low * lo + (high * lo + low * hi))))


def log1p(x: V) -> V:
    """log(u) + c / u, where u + c = 1 + x exactly."""
    u = x.exact() + 1.0
    c = x.abs().cmp("olt", 1.0).pick(x.exact() - (u - 1.0), 1.0 - (u - x))
    k, f = split(x.like(u.text))
    half, tail = log_tail(f)
    out = k * LN2_HI[x.element] - ((half - (tail + (k * LN2_LO[x.element] + c / u))) - f)
    return x.cmp("oeq", 0).pick(x, _special(u, out))


ATANH = {
    "float": (0.333332080611677, 0.20010767107228036, 0.14000856414045004, 0.140061879561283),
    "double": (0.33333333333333154, 0.20000000000077559, 0.14285714274059208, 0.11111111976798166, 0.09090872240768634,
               0.07693274164279856, 0.06650561169081778, 0.0605246831156298, 0.04172504946271397, 0.08504841301362336),
}
"""(atanh(s) / s - 1) / s^2 on |s| <= 1/3, in s^2; errors 2^-27.7 and 2^-59.4 of atanh."""


def softplus(x: V) -> V:
    """max(x, 0) + log(1 + e), e = e^-|x| <= 1, as 2 atanh(s) with s = e / (2 + e): nothing needs to be split or corrected."""
    e = exp(-x.abs())
    s = e / (e + 2.0)
    z = s * s
    twice = s + s
    return x.most(0.0) + (twice * (z * polynomial(z, ATANH[x.element])) + twice)


# --- pow


def power(x: V, y: V) -> V:
    """x^y; signs, zeros, infinities and NaN as C has them."""
    a = x.abs()
    size = _power_float(a, y) if x.element == "float" else _power_double(a, y)
    whole = y.intrinsic("trunc").cmp("oeq", y)
    half = y * 0.5
    odd = whole & half.intrinsic("trunc").cmp("one", half) & y.abs().cmp("olt", float("inf"))
    negative = x.bits().cmp("slt", 0)
    size = (negative & odd).pick(-size, size)
    broken = x.cmp("olt", 0) & (whole ^ 1) & x.cmp("one", float("-inf"))
    size = broken.pick(x.const(float("nan")), size)
    one = x.cmp("oeq", 1.0) | y.cmp("oeq", 0) | (a.cmp("oeq", 1.0) & y.abs().cmp("oeq", float("inf")))
    return one.pick(x.const(1.0), x.cmp("uno", y).pick(x + y, size))


def _power_float(a: V, y: V) -> V:
    """In f64, whose errors are far below an ulp of f32."""
    product = y.cast("fpext", "double") * log2(a.cast("fpext", "double"))
    return exp2(product).cast("fptrunc", "float")


def two_sum(a: V, b: V) -> tuple[V, V]:
    """a + b and its error; |a| >= |b|."""
    total = a.exact() + b
    return total, b.exact() - (total.exact() - a)


def two_product(a: V, b: V) -> tuple[V, V]:
    """a b and its error, without fused operations. Source: Dekker, 1971."""
    a, b = a.exact(), b.exact()
    product = a * b
    ah, bh = ((v.bits() & -(1 << 27)).real().exact() for v in (a, b))
    al, bl = a - ah, b - bh
    return product, ah * bh - product + ah * bl + al * bh + al * bl


def _power_double(a: V, y: V) -> V:
    """e^(y log a) with log a as a sum of two numbers, good to 2^-66.

        log a = k ln 2 + 2 s + 2 s^3 (1/3 + s^2/5 + ..)
    """
    k, f = split(a)
    s, s_low = _quotient(f)
    z, z_low = two_product(s, s)
    z_low = z_low + 2.0 * s * s_low
    rest = z * polynomial(z, SERIES)
    third, third_low = two_sum(z.const(1 / 3), rest)
    third_low = third_low + 1.850371707708594e-17 + z_low * 0.2
    cube, cube_low = two_product(z, s)
    cube_low = cube_low + z * s_low + z_low * s
    term, term_low = two_product(cube, third)
    term_low = term_low + cube * third_low + cube_low * third
    high, low = two_sum(s, term)
    low = low + (s_low + term_low)
    high, low = high * 2.0, low * 2.0
    base, base_low = two_product(k, k.const(LN2))
    base_low = base_low + k * 2.3190468138462996e-17
    # k ln 2 is 0, or greater than log(1 + f)
    total, error = two_sum(k.cmp("oeq", 0).pick(high, base), k.cmp("oeq", 0).pick(k.const(0.0), high))
    error = error + (low + base_low)
    product, product_low = two_product(total, y)
    product_low = product_low + error * y
    sane = product.abs().cmp("olt", 1000.0)
    product_low = sane.pick(product_low, product.const(0.0))
    product = product.least(1000.0).most(-1000.0)
    n = (product * 1.4426950408889634).rint()
    r = product - n * 6.93147180369123816490e-01
    r = r - n * 1.90821492927058770002e-10 + product_low
    out = scale(exp_tail(r) + 1.0, n)
    extreme = a.cmp("oeq", 0) | a.cmp("oeq", float("inf"))
    grows = a.cmp("oeq", 0) ^ y.cmp("ogt", 0)
    return extreme.pick(grows.pick(a.const(float("inf")), a.const(0.0)), out)


SERIES = (0.2, 0.14285714285714285, 0.1111111111111111, 0.09090909090909091, 0.07692307692307693, 0.06666666666666667,
          0.058823529411764705, 0.05263157894736842, 0.047619047619047616, 0.043478260869565216)
"""atanh s = s + s^3 (1/3 + s^2/5 + s^4/7 + ..); |s| < 0.172, so ten terms after 1/3 leave 2^-62 of their sum."""


def _quotient(f: V) -> tuple[V, V]:
    """f / (2 + f) and its error."""
    under = f.exact() + 2.0
    under_low = f.exact() - (under - 2.0)
    s = f / under
    p, p_low = two_product(s, under)
    return s, (f.exact() - p - p_low - s * under_low) / under
