// pop_mathf.h: the functions of pop_math.h for floats, in floats: on GPUs doubles take 2 to 32 times as long, divisions aside.
//
// Methods and coefficients are those of kernels for x86 (codegen/vecmath), within four units in the last place; sin, cos, tan,
// their inverses and pow go through doubles.
#pragma once

POP_FN float pop_own_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
POP_FN float pop_own_abs(float x) { return pop_float_of(pop_bits(x) & 0x7fffffffu); }
POP_FN float pop_own_signed(float size, float sign) {
    return pop_float_of((pop_bits(size) & 0x7fffffffu) | (pop_bits(sign) & 0x80000000u));
}

// c + c1 x + c2 x^2 + ..
POP_FN float pop_own_sum(float, float c) { return c; }
template <class... C> POP_FN float pop_own_sum(float x, float c, C... more) { return pop_own_fma(pop_own_sum(x, more...), x, c); }

// x 2^n, rounded once; 2^n for -126 <= n <= 127.
POP_FN float pop_own_scaled(float x, int n) {
#if defined(__HIP__) && !defined(POP_EMULATOR)
    return __builtin_amdgcn_ldexpf(x, n);
#else
    return __builtin_ldexpf(x, n);
#endif
}
POP_FN float pop_own_power(int n) { return pop_float_of((pop_u32)(n + 127) << 23); }

// Added to a small number it leaves the nearest integer in the low bits.
#define POP_MAGIC 12582912.0f
POP_FN int pop_own_integer(float shifted) { return (int)(pop_bits(shifted) - 0x4b400000u); }

// --- exponentials ---------------------------------------------------------------------------------------------------

// x = n ln 2 + r, |r| <= ln 2 / 2, for |x| below 2^21; n is of no matter if x is NaN.
POP_FN float pop_own_reduced(float x, int* n) {
    const float shifted = pop_own_fma(x, 1.442695f, POP_MAGIC), k = shifted - POP_MAGIC;
    *n = pop_own_integer(shifted);
    return pop_own_fma(-k, 1.4286068e-06f, pop_own_fma(-k, 0.69314575f, x));
}
// (e^r - 1 - r) / r^2, and e^r.
POP_FN float pop_own_exp_tail(float r) { return pop_own_sum(r, 0.5f, 0.16666576f, 0.041666556f, 0.008363179f, 0.0013926184f); }
POP_FN float pop_own_exp_reduced(float r) {
    return pop_own_sum(r, 1.0f, 1.0f, 0.5f, 0.16666576f, 0.041666556f, 0.008363179f, 0.0013926184f);
}
POP_FN float pop_own_between(float x, float least, float most) { return x < least ? least : x > most ? most : x; }

POP_FN float pop_own_exp(float x) {
    int n;
    const float r = pop_own_reduced(pop_own_between(x, -104.0f, 89.0f), &n);
    return pop_own_scaled(pop_own_exp_reduced(r), n);
}
POP_FN float pop_own_exp2(float x) {
    const float y = pop_own_between(x, -152.0f, 129.0f), shifted = y + POP_MAGIC;
    return pop_own_scaled(pop_own_exp_reduced((y - (shifted - POP_MAGIC)) * 0.6931472f), pop_own_integer(shifted));
}
// 2^n (e^r - 1) + (2^n - 1), where the last is exact or does not matter.
POP_FN float pop_own_expm1(float x) {
    int n;
    const float r = pop_own_reduced(pop_own_between(x, -26.0f, 89.0f), &n), inverse = pop_own_power(n < 43 ? -n : -43);
    const float out = pop_own_scaled(pop_own_fma(r * r, pop_own_exp_tail(r), r) + (1.0f - inverse), n);
    return pop_own_abs(x) < 1.1920929e-07f ? x : out;
}

// e^|x| / 2, which overflows only where cosh does.
POP_FN float pop_own_half_exp(float x) {
    int n;
    const float r = pop_own_reduced(pop_own_between(pop_own_abs(x), 0.0f, 90.0f), &n);
    return pop_own_scaled(pop_own_exp_reduced(r), n - 1);
}
POP_FN float pop_own_sinh(float x) {
    const float e = pop_own_half_exp(x), t = x * x;
    const float near = pop_own_fma(x * t, pop_own_sum(t, 0.16666667f, 0.008333328f, 0.00019842168f, 2.7164383e-06f), x);
    return pop_own_abs(x) < 1.0f ? near : pop_own_signed(e - 0.25f / e, x);
}
POP_FN float pop_own_cosh(float x) {
    const float e = pop_own_half_exp(x);
    return e + 0.25f / e;
}
// (1/2 - e/2) / (1/2 + e/2) with e = e^-2|x| = p (1 + 2 h), |x| = n ln 2 / 2 + r, p = 2^-n, h = (e^-2r - 1) / 2.
POP_FN float pop_own_tanh(float x) {
    const float y = pop_own_between(pop_own_abs(x), 0.0f, 20.0f), shifted = pop_own_fma(y, -2.88539f, POP_MAGIC);
    const float p = pop_float_of((pop_bits(shifted) + 127) << 23), r = pop_own_fma(shifted - POP_MAGIC, 0.3465736f, y);
    const float h = pop_own_fma(r * r, pop_own_sum(r, 1.0f, -0.66666305f, 0.33333245f, -0.13381086f, 0.04456379f), -r);
    return pop_own_signed(pop_own_fma(-p, h, 0.5f - p * 0.5f) / pop_own_fma(p, h, 0.5f + p * 0.5f), x);
}

// --- logarithms -----------------------------------------------------------------------------------------------------

// x = 2^k (1 + f), sqrt(1/2) < 1 + f < sqrt(2), for x > 0; log(1 + f) = f - half + tail.
struct pop_own_parts { float k, f, half, tail; };
POP_FN pop_own_parts pop_own_split(float x) {
    const bool tiny = x < 1.1754944e-38f;
    const pop_u32 shifted = pop_bits(tiny ? x * 33554432.0f : x) + (0x3f800000u - 0x3f3504f3u);
    const float f = pop_float_of((shifted & 0x7fffffu) + 0x3f3504f3u) - 1.0f, s = f / (f + 2.0f), z = s * s, half = f * f * 0.5f;
    const float tail = s * pop_own_fma(z, pop_own_sum(z, 0.6666666f, 0.40000972f, 0.28498787f, 0.24279079f), half);
    return pop_own_parts{(float)((int)(shifted >> 23) - 127 - (tiny ? 25 : 0)), f, half, tail};
}
// `out` where 0 < x < inf.
POP_FN float pop_own_logarithm(float x, float out) {
    return x == 0 ? -pop_inf_f() : x == pop_inf_f() ? x : x > 0 ? out : pop_nan_f();
}
POP_FN float pop_own_log(float x) {
    const pop_own_parts y = pop_own_split(x);
    return pop_own_logarithm(x, y.k * 0.6931381f - ((y.half - (y.tail + y.k * 9.058001e-06f)) - y.f));
}
// log(1 + f) in two parts, so that its product with log2 e loses nothing.
POP_FN float pop_own_log2(float x) {
    const pop_own_parts y = pop_own_split(x);
    const float high = pop_float_of(pop_bits(y.f - y.half) & ~0xfffu), low = y.f - high - y.half + y.tail;
    const float whole = pop_own_fma(high, 1.4428711f, y.k), error = pop_own_fma(high, 1.4428711f, y.k - whole);
    return pop_own_logarithm(x, whole + (error + (low * -0.00017605285f + (high * -0.00017605285f + low * 1.4428711f))));
}
// log(u) + c / u, where u + c = 1 + x exactly.
POP_FN float pop_own_log1p(float x) {
    const float u = x + 1.0f, c = pop_own_abs(x) < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x);
    const pop_own_parts y = pop_own_split(u);
    const float out = y.k * 0.6931381f - ((y.half - (y.tail + (y.k * 9.058001e-06f + c / u))) - y.f);
    return x == 0 ? x : pop_own_logarithm(u, out);
}

// --- error function -------------------------------------------------------------------------------------------------

// Near 0 an odd polynomial, else 1 less 2 to the power of that of log2 erfc.
POP_FN float pop_own_erf(float x) {
    const float a = pop_own_abs(x), t = x * x;
    const float odd = pop_own_sum(t, 0.12837917f, -0.37612343f, 0.11280317f, -0.026715055f, 0.004921762f, -0.000564806f);
    const float power = pop_own_sum(pop_own_between(a, 0.0f, 4.0f), -0.0038545695f, -1.6121227f, -0.94422835f, -0.12787192f, 0.021320287f,
                                    -0.0016597072f);
    return a < 1.0f ? pop_own_fma(x, odd, x) : pop_own_signed(1.0f - pop_own_exp2(power), x);
}
// max(x, 0) - e^(-u^2 / 2) P(u) / Q(u), where u = |x|; -u^2 = n 2 ln 2 + r with u^2 exact.
template <class P, class Q> POP_FN float pop_own_gelu(float x, P p, Q q) {
    const float u = pop_own_abs(pop_own_between(x, -14.8f, 6.0f)), square = u * u;
    const float shifted = pop_own_fma(square, -0.7213475f, POP_MAGIC), n = shifted - POP_MAGIC;
    const float r = pop_own_fma(-u, u, n * -1.3862915f) + n * -2.8572136e-06f;
    const float e = pop_own_sum(r, 1.0f, 0.5f, 0.125f, 0.02083322f, 0.0026041598f, 0.00026134934f, 2.1759663e-05f);
    const float tail = pop_own_scaled(e * (p(u, square) / q(u, square)), pop_own_integer(shifted));
    return (x > 0 ? x : x != x ? x : 0.0f) - (x < -14.8f ? 0.0f : tail);
}

#undef POP_MAGIC
