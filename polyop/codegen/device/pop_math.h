// pop_math.h: functions of doubles made of + - * / fma and sqrt alone, for compilers that bring no library of their own.
//
// Within a few units in the last place, except: pow, up to 1e-13 relative; erfc between 0.5 and 2, up to 3e-14 relative.
// Floats for which pop_mathf.h has no function go through these too and are rounded once. Polynomials are Taylor series: on
// these ranges their next term is below 1e-17 of the sum. Nothing is divided by constants: a division takes ten instructions.
#pragma once

POP_FN double pop_own_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
POP_FN double pop_own_abs(double x) { return pop_double_of(pop_bits(x) & 0x7fffffffffffffffull); }
POP_FN double pop_own_signed(double size, double sign) {
    return pop_double_of((pop_bits(size) & 0x7fffffffffffffffull) | (pop_bits(sign) & 0x8000000000000000ull));
}

// 2^k for -1022 <= k <= 1023.
POP_FN double pop_own_power(pop_i64 k) { return pop_double_of((pop_u64)(k + 1023) << 52); }

// x * 2^k in two steps, so that the power itself stays in range.
POP_FN double pop_own_scale(double x, pop_i64 k) {
    const pop_i64 half = k / 2;
    return x * pop_own_power(half) * pop_own_power(k - half);
}

// (e^r - 1) / r for |r| < 0.35: the sum of r^n / (n+1)!.
POP_FN double pop_own_expm1_over(double r) {
    double sum = 1.0 / 15;
    for (int n = 14; n > 1; n--) sum = pop_own_fma(sum, r, 1.0) * (1.0 / n);
    return pop_own_fma(sum, r, 1.0);
}

POP_FN double pop_own_exp(double x) {
    if (x != x) return x;
    if (x > 709.79) return pop_inf();
    if (x < -745.2) return 0;
    const double k = __builtin_rint(x * 1.4426950408889634);
    double r = pop_own_fma(-k, 0.6931471805599453, x);
    r = pop_own_fma(-k, 2.3190468138462996e-17, r);
    return pop_own_scale(pop_own_fma(r, pop_own_expm1_over(r), 1.0), (pop_i64)k);
}
POP_FN double pop_own_exp2(double x) {
    if (x != x) return x;
    if (x >= 1024) return pop_inf();
    if (x < -1075) return 0;
    const double k = __builtin_rint(x), r = (x - k) * 0.6931471805599453;
    return pop_own_scale(pop_own_fma(r, pop_own_expm1_over(r), 1.0), (pop_i64)k);
}
POP_FN double pop_own_expm1(double x) {
    if (pop_own_abs(x) < 0.35) return x == 0 ? x : x * pop_own_expm1_over(x);
    return pop_own_exp(x) - 1;
}

// 2 artanh(s) = log((1 + s) / (1 - s)) for |s| < 0.18.
POP_FN double pop_own_log_ratio(double s) {
    const double z = s * s;
    double sum = 0;
    for (int n = 25; n > 1; n -= 2) sum = (sum + 1.0 / n) * z;
    return pop_own_fma(2 * s, sum, 2 * s);
}

// x = m * 2^k with m between sqrt(1/2) and sqrt(2).
POP_FN double pop_own_split(double x, double* k) {
    const bool tiny = x < 2.2250738585072014e-308;
    const pop_u64 u = pop_bits(tiny ? x * 18014398509481984.0 : x);  // 2^54
    pop_i64 e = (pop_i64)(u >> 52) - 1023;
    double m = pop_double_of((u & 0xfffffffffffffull) | 0x3ff0000000000000ull);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e += 1;
    }
    *k = (double)(e - (tiny ? 54 : 0));
    return m;
}
POP_FN double pop_own_log(double x) {
    if (!(x > 0) || x == pop_inf()) return x == 0 ? -pop_inf() : x < 0 ? pop_nan() : x;
    double k;
    const double m = pop_own_split(x, &k);
    return pop_own_fma(k, 0.6931471805599453, pop_own_fma(k, 2.3190468138462996e-17, pop_own_log_ratio((m - 1) / (m + 1))));
}
POP_FN double pop_own_log2(double x) {
    if (!(x > 0) || x == pop_inf()) return x == 0 ? -pop_inf() : x < 0 ? pop_nan() : x;
    double k;
    const double m = pop_own_split(x, &k);
    return pop_own_fma(pop_own_log_ratio((m - 1) / (m + 1)), 1.4426950408889634, k);
}
POP_FN double pop_own_log1p(double x) {
    return pop_own_abs(x) < 0.3 ? (x == 0 ? x : pop_own_log_ratio(x / (2 + x))) : pop_own_log(1 + x);
}

// --- trigonometry ---------------------------------------------------------------------------------------------------

// The first 1216 bits of 2/pi after 64 zeros.
static __device__ const pop_u64 pop_own_two_over_pi[20] = {
    0x0000000000000000ull, 0xa2f9836e4e441529ull, 0xfc2757d1f534ddc0ull, 0xdb6295993c439041ull, 0xfe5163abdebbc561ull,
    0xb7246e3a424dd2e0ull, 0x06492eea09d1921cull, 0xfe1deb1cb129a73eull, 0xe88235f52ebb4484ull, 0xe99c7026b45f7e41ull,
    0x3991d639835339f4ull, 0x9c845f8bbdf9283bull, 0x1ff897ffde05980full, 0xef2f118b5a0a6d1full, 0x6d367ecf27cb09b7ull,
    0x4f463f669e5fea2dull, 0x7527bac7ebe5f17bull, 0x3d0739f78a5292eaull, 0x6bfb5fb11f8d5d08ull, 0x56033046fc7b6babull};

POP_FN pop_u64 pop_own_high(pop_u64 a, pop_u64 b) { return (pop_u64)(((unsigned __int128)a * b) >> 64); }

// x = quadrant * pi/2 + r with |r| <= pi/4, quadrant modulo 4; x >= 0 and finite.
//
// For large x = m * 2^e, whole multiples of 4 quadrants are left out of the product m * 2/pi: those are the bits of
// 2/pi above 2^(2-e). The 192 bits from there on hold the quadrant and 190 bits of its fraction.
// Source: Payne and Hanek, "Radian reduction for trigonometric functions", 1983.
POP_FN double pop_own_quadrant(double x, int* quadrant) {
    if (x < 1073741824.0) {
        const double k = __builtin_rint(x * 0.6366197723675814);
        double r = pop_own_fma(-k, 1.5707963267948966, x);
        r = pop_own_fma(-k, 6.123233995736766e-17, r);
        *quadrant = (int)((pop_i64)k & 3);
        return pop_own_fma(k, 1.4973849048591698e-33, r);
    }
    const pop_u64 u = pop_bits(x), m = (u & 0xfffffffffffffull) | 0x10000000000000ull;
    const int start = (int)(u >> 52) - 1075 + 62, word = start / 64, shift = start % 64;
    pop_u64 w[3];
    for (int i = 0; i < 3; i++) {
        const pop_u64 next = shift ? pop_own_two_over_pi[word + i + 1] >> (64 - shift) : 0;
        w[i] = pop_own_two_over_pi[word + i] << shift | next;
    }
    const pop_u64 low = m * w[2], carry = pop_own_high(m, w[2]), part = m * w[1], middle = part + carry;
    const pop_u64 high = m * w[0] + pop_own_high(m, w[1]) + (middle < part);
    pop_u64 fraction = high << 2 | middle >> 62;
    const pop_u64 rest = middle << 2 | low >> 62;
    const bool up = fraction >> 63;
    *quadrant = (int)((high >> 62) + up) & 3;
    const double turns = ((double)(pop_i64)fraction + (double)rest * 5.421010862427522e-20) * 5.421010862427522e-20;  // 2^-64
    return turns * 1.5707963267948966;
}
POP_FN double pop_own_sin_near(double r) {
    const double z = r * r;
    double sum = 0;
    for (int n = 18; n > 0; n -= 2) sum = (1 + sum) * -z * (1.0 / (n * (n + 1)));
    return pop_own_fma(r, sum, r);
}
POP_FN double pop_own_cos_near(double r) {
    const double z = r * r;
    double sum = 0;
    for (int n = 17; n > 2; n -= 2) sum = (1 + sum) * -z * (1.0 / (n * (n + 1)));
    return 1 - z * 0.5 * (1 + sum);
}
POP_FN double pop_own_turned(double x, int by) {
    if (x - x != 0) return pop_nan();
    int quadrant;
    const double r = pop_own_quadrant(pop_own_abs(x), &quadrant);
    quadrant = (quadrant + by) & 3;
    const double size = quadrant & 1 ? pop_own_cos_near(r) : pop_own_sin_near(r);
    return quadrant & 2 ? -size : size;
}
POP_FN double pop_own_sin(double x) { return x == 0 ? x : x < 0 ? -pop_own_turned(x, 0) : pop_own_turned(x, 0); }
POP_FN double pop_own_cos(double x) { return pop_own_turned(x, 1); }
POP_FN double pop_own_tan(double x) { return x == 0 ? x : pop_own_sin(x) / pop_own_cos(x); }

// x >= 0: above 1 by the inverse, above tan(pi/8) by the angle less pi/4, then half the angle once more.
POP_FN double pop_own_atan_positive(double x) {
    if (x < 1e-9) return x;
    const bool steep = x > 1;
    double t = steep ? 1 / x : x;
    const bool middle = t > 0.4142135623730951;
    if (middle) t = (t - 1) / (t + 1);
    const double s = t / (1 + __builtin_sqrt(pop_own_fma(t, t, 1.0))), z = s * s;
    double sum = 0;
    for (int n = 27; n > 1; n -= 2) sum = (1.0 / n + sum) * -z;
    double out = pop_own_fma(2 * s, sum, 2 * s);
    if (middle) out += 0.7853981633974483;
    return steep ? 1.5707963267948966 - out : out;
}
POP_FN double pop_own_atan(double x) { return x != x || x == 0 ? x : pop_own_signed(pop_own_atan_positive(pop_own_abs(x)), x); }
POP_FN double pop_own_atan2(double y, double x) {
    if (x != x || y != y) return x + y;
    const double ax = pop_own_abs(x), ay = pop_own_abs(y);
    const double angle = ay == 0 ? 0 : ax == ay ? 0.7853981633974483 : pop_own_atan_positive(ay / ax);
    return pop_own_signed(pop_bits(x) >> 63 ? 3.141592653589793 - angle : angle, y);
}
POP_FN double pop_own_asin(double x) { return x == 0 ? x : pop_own_atan2(x, __builtin_sqrt((1 - x) * (1 + x))); }
POP_FN double pop_own_acos(double x) { return pop_own_atan2(__builtin_sqrt((1 - x) * (1 + x)), x); }

// --- hyperbolic functions -------------------------------------------------------------------------------------------

POP_FN double pop_own_sinh(double x) {
    const double a = pop_own_abs(x);
    if (x == 0 || x != x) return x;
    const double e = pop_own_expm1(a < 22 ? a : 0), half = pop_own_exp(a / 2);
    return pop_own_signed(a < 22 ? (e + e / (e + 1)) / 2 : half / 2 * half, x);
}
POP_FN double pop_own_cosh(double x) {
    const double half = pop_own_exp(pop_own_abs(x) / 2), e = half * half;
    return e < 1e10 ? (pop_own_exp(x) + pop_own_exp(-x)) / 2 : half / 2 * half;
}
POP_FN double pop_own_tanh(double x) {
    if (x == 0 || x != x) return x;
    const double a = pop_own_abs(x), e = pop_own_expm1(a < 22 ? 2 * a : 0);
    return pop_own_signed(a < 22 ? e / (e + 2) : 1.0, x);
}

// --- error function -------------------------------------------------------------------------------------------------

// 0 <= x < 2: exp(-x^2) 2/sqrt(pi) times the sum of x (2 x^2)^n / (1 3 5 .. (2n+1)), all terms positive.
POP_FN double pop_own_erf_series(double x) {
    double term = x, sum = x;
    for (int n = 1; n < 50 && term > sum * 1e-18; n++) {
        term *= 2 * x * x / (2 * n + 1);
        sum += term;
    }
    return sum * 1.1283791670955126 * pop_own_exp(-x * x);
}
// x >= 2: exp(-x^2) / sqrt(pi) over the continued fraction x + (1/2) / (x + 1 / (x + (3/2) / (x + ..))).
POP_FN double pop_own_erfc_fraction(double x) {
    double f = x;
    for (int n = 60; n > 0; n--) f = x + n * 0.5 / f;
    const double square = x * x, error = pop_own_fma(x, x, -square);
    return pop_own_exp(-square) * (1 - error) * 0.5641895835477563 / f;
}
POP_FN double pop_own_erf(double x) {
    if (x == 0 || x != x) return x;
    const double a = pop_own_abs(x);
    return pop_own_signed(a < 2 ? pop_own_erf_series(a) : a < 6 ? 1 - pop_own_erfc_fraction(a) : 1.0, x);
}
POP_FN double pop_own_erfc(double x) {
    if (x != x) return x;
    if (x < 0) return 1 + pop_own_erf(-x);
    return x < 2 ? 1 - pop_own_erf(x) : x < 28 ? pop_own_erfc_fraction(x) : 0;
}

// --- two arguments --------------------------------------------------------------------------------------------------

POP_FN double pop_own_pow(double x, double y) {
    if (y == 0 || x == 1) return 1;
    if (x != x || y != y) return x + y;
    const double a = pop_own_abs(x);
    const bool whole = pop_own_abs(y) >= 4503599627370496.0 || __builtin_floor(y) == y;
    const bool odd = pop_own_abs(y) < 9007199254740992.0 && whole && __builtin_floor(y / 2) * 2 != y;
    if (x < 0 && !whole && a != pop_inf()) return pop_nan();
    const double size = a == 1 ? 1 : pop_own_exp(y * pop_own_log(a));
    return odd && pop_bits(x) >> 63 ? -size : size;
}

// The remainder with the sign of b, exactly: b is doubled up to a, and taken off on the way down.
POP_FN double pop_own_mod(double a, double b) {
    if (a != a || b != b || a - a != 0 || b == 0) return pop_nan();
    double r = pop_own_abs(a);
    const double d = pop_own_abs(b);
    if (d != pop_inf())
        while (r >= d) {
            double t = d;
            const pop_i64 steps = (pop_i64)(pop_bits(r) >> 52) - (pop_i64)(pop_bits(d) >> 52);
            if (steps > 0) t = pop_own_scale(d, steps);
            while (t > r) t *= 0.5;
            while (t <= r - t) t += t;  // the exponent of a subnormal d says nothing about its size
            r -= t;
        }
    r = pop_own_signed(r, a);
    return r == 0 ? pop_own_signed(0.0, b) : (r < 0) != (b < 0) ? r + b : r;
}
