"""The floating-point remainder with the divisor's sign, and the next number towards another."""

from __future__ import annotations

from polyop.codegen.vecmath.lanes import one_by_one
from polyop.codegen.vecmath.logarithmic import two_product
from polyop.codegen.vecmath.ops import V


def mod(a: V, b: V) -> V:
    """a - b floor(a / b), exact; NaN for b = 0 and infinite a."""
    x, y = a.cast("fpext", "double"), b.cast("fpext", "double")
    r = _fmod(x, y)
    other = y.cmp("olt", 0) ^ r.cmp("olt", 0)
    out = r.cmp("oeq", 0).pick(r.const(0.0).copysign(y), other.pick(r.exact() + y, r))
    return out.cast("fptrunc", a.element)


def _fmod(x: V, y: V) -> V:
    """x - y trunc(x / y). A quotient below 2^52 is wrong by one at most; greater ones are done lane by lane."""
    a, d = x.abs(), y.abs()
    q = (a / d).intrinsic("trunc")
    p, p_low = two_product(q, d)
    r = a.exact() - p - p_low
    r = r.cmp("olt", 0).pick(r + d, r)
    r = a.cmp("olt", d).pick(a, r)
    big = q.cmp("oge", 2.0**52) & a.cmp("olt", float("inf")) & d.cmp("ogt", 0)
    _define_large(a)
    (r,) = one_by_one(big, (a, d), (r,), lambda xs: [a.b.do(f"call double @pop.fmod.large(double {xs[0]}, double {xs[1]})")])
    return r.copysign(x)


def _define_large(x: V) -> None:
    """@pop.fmod.large(a, d) for finite a >= d 2^52 > 0: long division of the mantissas, 11 bits at a time."""
    text = x.b.text
    if "pop.fmod.large" in text.outlined:
        return
    text.outlined.add("pop.fmod.large")
    text.declare("declare i64 @llvm.umax.i64(i64, i64)")
    text.declare("declare i64 @llvm.smin.i64(i64, i64)")
    text.functions.append(f"""define internal double @pop.fmod.large(double %a, double %d) #1 {{
entry:
  %abits = bitcast double %a to i64
  %dbits = bitcast double %d to i64
  %ae = lshr i64 %abits, 52
  %dfield = lshr i64 %dbits, 52
  %de = call i64 @llvm.umax.i64(i64 %dfield, i64 1)
  %alow = and i64 %abits, {(1 << 52) - 1}
  %am = or i64 %alow, {1 << 52}
  %dlow = and i64 %dbits, {(1 << 52) - 1}
  %normal = icmp ne i64 %dfield, 0
  %hidden = select i1 %normal, i64 {1 << 52}, i64 0
  %dm = or i64 %dlow, %hidden
  %r0 = urem i64 %am, %dm
  %n0 = sub i64 %ae, %de
  br label %loop
loop:
  %r = phi i64 [ %r0, %entry ], [ %r2, %loop ]
  %n = phi i64 [ %n0, %entry ], [ %n2, %loop ]
  %step = call i64 @llvm.smin.i64(i64 %n, i64 11)
  %r1 = shl i64 %r, %step
  %r2 = urem i64 %r1, %dm
  %n2 = sub i64 %n, %step
  %more = icmp sgt i64 %n2, 0
  br i1 %more, label %loop, label %done
done:
  %whole = uitofp i64 %r2 to double
  %e = sub i64 %de, 1075
  %e1 = ashr i64 %e, 1
  %e2 = sub i64 %e, %e1
  %b1 = add i64 %e1, 1023
  %b2 = add i64 %e2, 1023
  %s1 = shl i64 %b1, 52
  %s2 = shl i64 %b2, 52
  %f1 = bitcast i64 %s1 to double
  %f2 = bitcast i64 %s2 to double
  %x1 = fmul double %whole, %f1
  %x2 = fmul double %x1, %f2
  ret double %x2
}}""")


def nextafter(x: V, y: V) -> V:
    """The neighbour of x towards y: a step of its bits, outwards or inwards."""
    bits = x.bits()
    outwards = x.cmp("olt", y) ^ bits.cmp("slt", 0)
    stepped = outwards.pick(bits + 1, bits - 1)
    tiny = (y.bits() & (-(1 << 63) if x.element == "double" else -(1 << 31))) | 1
    out = x.cmp("oeq", 0).pick(tiny, stepped).real()
    out = x.cmp("oeq", y).pick(y, out)
    return x.cmp("uno", y).pick(x + y, out)
