"""sin, cos, tan; asin, acos, atan, atan2.

    x = n pi/2 + r,  |r| <= pi/4

is carried out in f64 also for f32: in three parts of pi/2 for |x| < 2^20, and beyond, lane by lane, with as many bits of
2/pi as x needs. Where products and sums are rounded once, f32 below 2^15 stays f32.
"""

from __future__ import annotations

from polyop.codegen.vecmath.lanes import by_another_way, one_by_one
from polyop.codegen.vecmath.ops import V, polynomial
from polyop.codegen.vecmath.scaling import MAGIC

LARGE = 2.0**20
PIO2 = (1.57079632673412561417e+00, 6.07710050630396597660e-11, 2.02226624871116645580e-21, 8.47842766036889956997e-32)
"""pi/2 in parts of 33 bits: their products with n < 2^20 are exact. Source: fdlibm, e_rem_pio2.c."""

SHORT = 2.0**15
SHORT_PIO2 = (1.57079637050628662109375, -4.37113900018624283e-8, -1.7151245100058819e-15)
"""pi/2 in parts of f32. The first one and x are multiples of 2^-23 (below 1: 2^-24), and x - n times it is less than 1: exact."""

SIN = {
    "float": (-0.1666666716337204, 0.008333331905305386, -0.00019840085587929934, 2.7249864160694415e-06),
    "double": (-0.16666666666666666, 0.008333333333333331, -0.0001984126984126506, 2.7557319219335453e-06,
               -2.5052106231157904e-08, 1.605853141458901e-10, -7.586685070091267e-13),
}
"""(sin r / r - 1) / r^2 on |r| <= pi/4, in r^2."""
COS = {
    "float": (0.0416666641831398, -0.001388830249197781, 2.454789137118496e-05),
    "double": (0.041666666666666664, -0.0013888888888887395, 2.4801587298763433e-05, -2.7557317270560326e-07,
               2.0876146024689747e-09, -1.1382614868556325e-11),
}
"""(cos r - 1 + r^2 / 2) / r^4."""
ATAN = {
    "float": (-0.3333333134651184, 0.19999539852142334, -0.14263930916786194, 0.10743467509746552, -0.06451054662466049),
    "double": (-0.3333333333333333, 0.19999999999999804, -0.1428571428565962, 0.11111111105135144, -0.0909090875249078,
               0.07692296345833015, -0.06666424361404927, 0.05878922970309668, -0.052304098866177415, 0.045513908032899016,
               -0.03456535729190067, 0.01627999005782057),
}
"""(atan r / r - 1) / r^2 on |r| <= tan(pi/8)."""
ASIN = {
    "float": (0.1666666567325592, 0.07500094920396805, 0.044599320739507675, 0.031101727858185768, 0.017143717035651207,
              0.03370072692632675),
    "double": (0.16666666666666669, 0.07499999999998425, 0.04464285714637338, 0.030381944137085216, 0.022372173002005596,
               0.017352391265909227, 0.013971235301124539, 0.011478952690257387, 0.010324318288744113, 0.00545087818772055,
               0.017419357964884856, -0.014881409392818066, 0.02877844261259304),
}
"""(asin r / r - 1) / r^2 on |r| <= 1/2."""

HALF_PI = {"float": (1.5707963705062866, -4.3711390001862426e-08), "double": (1.5707963267948966, 6.123233995736766e-17)}
TWO_OVER_PI = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921cfe1deb1cb129a73e"
    "e88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980fef2f118b5a0a6d1f6d367ecf27cb09b7"
    "4f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046fc7b6babf0cfbc209af4361d", 16)
"""floor(2/pi * 2^1280)."""


def reduced(x: V) -> tuple[V, V, V]:
    """(r, its error, n mod 4 as an integer) for f64 x; NaN for inf."""
    n = (x * 0.6366197723675814).rint()
    first = x - n * PIO2[0]
    second = first - n * PIO2[1]
    error = first - second - n * PIO2[1]
    r = second - n * PIO2[2]
    error = error + (second - r - n * PIO2[2]) - n * PIO2[3]
    quadrant = (n + MAGIC["double"]).bits() & 3
    big = x.abs().cmp("oge", LARGE) & x.abs().cmp("olt", float("inf"))
    r = r + (x - x)
    _define_large(x)

    def reduced(xs: list[str]) -> list[str]:
        out = x.b.do(f"call {{ double, i64 }} @pop.reduce.large(double {xs[0]})")
        first, last = (x.b.do(f"extractvalue {{ double, i64 }} {out}, {k}") for k in (0, 1))
        return [first, "0.0", last]

    r, error, quadrant = one_by_one(big, (x,), (r, error, quadrant), reduced)
    return r, error, quadrant


def _define_large(x: V) -> None:
    """@pop.reduce.large(x) -> (r, n mod 4) for finite |x| >= 2^20.

    With x = m 2^e: the 256 bits of 2/pi from weight 2^(1-e) down, times m, are x 2/pi mod 4 in units of 2^-254.
    """
    text = x.b.text
    if "pop.reduce.large" in text.outlined:
        return
    text.outlined.add("pop.reduce.large")
    table = ", ".join(f"i8 {byte}" for byte in TWO_OVER_PI.to_bytes(200, "little"))
    text.constants["two_over_pi"] = f"@two_over_pi = internal constant [200 x i8] [{table}], align 8"
    text.declare("declare i256 @llvm.ctlz.i256(i256, i1)")
    quarter = 1 << 253
    text.functions.append(f"""define internal {{ double, i64 }} @pop.reduce.large(double %x) #1 {{
entry:
  %bits = bitcast double %x to i64
  %low = and i64 %bits, {(1 << 52) - 1}
  %m = or i64 %low, {1 << 52}
  %high = lshr i64 %bits, 52
  %biased = and i64 %high, 2047
  %e = sub i64 %biased, 1075
  %shift = sub i64 1026, %e
  %byte = lshr i64 %shift, 3
  %odd = and i64 %shift, 7
  %place = getelementptr i8, ptr @two_over_pi, i64 %byte
  %raw = load i264, ptr %place, align 1
  %odd264 = zext i64 %odd to i264
  %moved = lshr i264 %raw, %odd264
  %window = trunc i264 %moved to i256
  %wide = zext i64 %m to i256
  %product = mul i256 %window, %wide
  %up = add i256 %product, {quarter}
  %n = lshr i256 %up, 254
  %whole = shl i256 %n, 254
  %f = sub i256 %product, %whole
  %negative = icmp slt i256 %f, 0
  %minus = sub i256 0, %f
  %a = select i1 %negative, i256 %minus, i256 %f
  %zeros = call i256 @llvm.ctlz.i256(i256 %a, i1 false)
  %aligned = shl i256 %a, %zeros
  %top256 = lshr i256 %aligned, 192
  %top = trunc i256 %top256 to i64
  %head = and i64 %top, -2048
  %rest = and i64 %top, 2047
  %dhead = uitofp i64 %head to double
  %drest = uitofp i64 %rest to double
  %z = trunc i256 %zeros to i64
  %exponent = sub i64 961, %z
  %scalebits = shl i64 %exponent, 52
  %scale = bitcast i64 %scalebits to double
  %shead = fmul double %dhead, %scale
  %srest = fmul double %drest, %scale
  %r0 = fmul double %shead, 0x3FF921FB54442D18
  %r1 = fmul double %srest, 0x3FF921FB54442D18
  %r = fadd double %r0, %r1
  %below = icmp slt i64 %bits, 0
  %flip = xor i1 %negative, %below
  %negr = fneg double %r
  %out = select i1 %flip, double %negr, double %r
  %n64 = trunc i256 %n to i64
  %negn = sub i64 0, %n64
  %q = select i1 %below, i64 %negn, i64 %n64
  %q4 = and i64 %q, 3
  %pair = insertvalue {{ double, i64 }} poison, double %out, 0
  %both = insertvalue {{ double, i64 }} %pair, i64 %q4, 1
  ret {{ double, i64 }} %both
}}""")


def _by_doubles(x: V) -> tuple[V, V]:
    """(r, n mod 4) for f32 x."""
    r, _, quadrant = reduced(x.cast("fpext", "double"))
    return r.cast("fptrunc", "float"), quadrant.cast("trunc", "i32")


def _briefly(x: V) -> tuple[V, V]:
    """The same, by f32 alone if all lanes are below `SHORT`."""
    n = (x * 0.6366197723675814).rint()
    r = x
    for part in SHORT_PIO2:
        r = n.times_plus(x.const(-part), r)
    quadrant = (n + MAGIC["float"]).bits() & 3
    r, quadrant = by_another_way(x.abs().cmp("oge", SHORT), (r, quadrant), lambda: _by_doubles(x))
    return r, quadrant


def _sin_cos(x: V) -> tuple[V, V, V]:
    """(sin r, cos r, n mod 4) in the type of x."""
    if x.element == "float":
        r, quadrant = _briefly(x) if x.fuses else _by_doubles(x)
    else:
        r, error, quadrant = reduced(x)
    t = r * r
    s = r * t * polynomial(t, SIN[r.element])
    c = t * t * polynomial(t, COS[r.element])
    if x.element == "float":
        return r + s, 1.0 - t * 0.5 + c, quadrant
    half = t * 0.5
    one = 1.0 - half
    cos = one + (1.0 - one - half + (c - r * error))
    return r + (s + error * one), cos, quadrant


def _turned(x: V, a: V, b: V, quadrant: V) -> V:
    """a, b, -a, -b for the quadrants 0 to 3."""
    y = (quadrant & 1).cmp("ne", 0).pick(b, a)
    sign = (quadrant & 2).shl(62 if x.element == "double" else 30)
    return (y.bits() ^ sign).real()


def sin(x: V) -> V:
    s, c, q = _sin_cos(x)
    return x.cmp("oeq", 0).pick(x, _turned(x, s, c, q))


def cos(x: V) -> V:
    s, c, q = _sin_cos(x)
    return _turned(x, c, -s, q)


def tan(x: V) -> V:
    s, c, q = _sin_cos(x)
    odd = (q & 1).cmp("ne", 0)
    return x.cmp("oeq", 0).pick(x, odd.pick(-c, s) / odd.pick(s, c))


# --- inverse functions


def _atan_core(r: V) -> V:
    """atan r - r for |r| <= tan(pi/8)."""
    t = r * r
    return r * t * polynomial(t, ATAN[r.element])


def atan(x: V) -> V:
    """By pi/2 - atan(1/a) and pi/4 + atan((a - 1) / (a + 1))."""
    a = x.abs()
    return _atan_ratio(a, x.const(1.0)).copysign(x)


def _atan_ratio(top: V, bottom: V) -> V:
    """atan(top / bottom) for both >= 0."""
    high, low = HALF_PI[top.element]
    steep, middle = top.cmp("ogt", bottom * 2.414213562373095), top.cmp("ogt", bottom * 0.41421356237309503)
    over = steep.pick(-bottom, middle.pick(top - bottom, top))
    under = steep.pick(top, middle.pick(top + bottom, bottom))
    r = over / under
    base = steep.pick(r.const(high), middle.pick(r.const(high / 2), r.const(0.0)))
    rest = steep.pick(r.const(low), middle.pick(r.const(low / 2), r.const(0.0)))
    return base + (r + (_atan_core(r) + rest))


def atan2(y: V, x: V) -> V:
    """The angle of (x, y); zeros, infinities and signs as C has them."""
    high, low = HALF_PI[x.element]
    a, b = y.abs(), x.abs()
    endless = a.cmp("oeq", b) & a.cmp("oeq", float("inf"))
    top, bottom = endless.pick(a.const(1.0), a), endless.pick(b.const(1.0), b)
    # Products with 2.4 and sums must neither vanish nor overflow.
    tiny, huge = top.most(bottom).cmp("olt", 2.0**-60), top.most(bottom).cmp("ogt", 2.0**60)
    factor = tiny.pick(x.const(2.0**60), huge.pick(x.const(2.0**-60), x.const(1.0)))
    angle = _atan_ratio(top * factor, bottom * factor)
    angle = a.cmp("oeq", 0).pick(a.const(0.0), angle)
    left = (x.bits().cmp("slt", 0)).pick((high * 2.0 - (angle - low * 2.0)), angle)
    bad = a.cmp("uno", b)
    return bad.pick(a + b, left).copysign(y)


def _asin_core(r: V) -> V:
    """asin r - r for |r| <= 1/2."""
    t = r * r
    return r * t * polynomial(t, ASIN[r.element])


def asin(x: V) -> V:
    """By pi/2 - 2 asin(sqrt((1 - |x|) / 2)) above 1/2."""
    high, low = HALF_PI[x.element]
    a = x.abs()
    far = a.cmp("ogt", 0.5)
    root = ((1.0 - a) * 0.5).sqrt()
    r = far.pick(root, a)
    core = r + _asin_core(r)
    return far.pick(high - (core + core - low), core).copysign(x)


def acos(x: V) -> V:
    high, low = HALF_PI[x.element]
    a = x.abs()
    far = a.cmp("ogt", 0.5)
    root = ((1.0 - a) * 0.5).sqrt()
    r = far.pick(root, x)
    core = _asin_core(r)
    twice = (r + core) * 2.0
    outside = x.cmp("olt", 0).pick(2.0 * high - (twice - 2.0 * low), twice)
    return far.pick(outside, high - (r - (low - core)))
