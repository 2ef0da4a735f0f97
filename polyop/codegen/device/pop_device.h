// pop_device.h: everything a kernel of polyop calls, with a body for CUDA, for HIP and for the emulator.
//
// No other header is needed by NVRTC, nor by clang's amdgcn when POP_BARE is defined. 16-bit floats are `unsigned short`
// in memory and `float` in an expression. What each function means is said in polyop/ir/scalars.py.
#pragma once

#if defined(POP_EMULATOR)
  // pop_emu.h came first
#elif defined(__HIP__) && defined(POP_BARE)
  #define __global__ __attribute__((global))
  #define __device__ __attribute__((device))
  #define __shared__ __attribute__((shared))
  #define __forceinline__ inline __attribute__((always_inline))
  #define __launch_bounds__(n, ...) __attribute__((amdgpu_flat_work_group_size(1, n)))
  struct pop_thread_index { struct { __device__ operator unsigned() const { return __builtin_amdgcn_workitem_id_x(); } } x; };
  struct pop_block_index { struct { __device__ operator unsigned() const { return __builtin_amdgcn_workgroup_id_x(); } } x; };
  struct pop_block_size { struct { __device__ operator unsigned() const { return __builtin_amdgcn_workgroup_size_x(); } } x; };
  #define threadIdx (pop_thread_index{})
  #define blockIdx (pop_block_index{})
  #define blockDim (pop_block_size{})
  #define POP_OWN_MATH 1
#elif defined(__HIP__) && !defined(__HIPCC_RTC__)
  #include <hip/hip_runtime.h>
#endif

#define POP_FN static __device__ __forceinline__

typedef signed char pop_i8;
typedef short pop_i16;
typedef int pop_i32;
typedef long long pop_i64;
typedef unsigned char pop_u8;
typedef unsigned short pop_u16;
typedef unsigned int pop_u32;
typedef unsigned long long pop_u64;
typedef unsigned short pop_f16;
typedef unsigned short pop_bf16;

// --- bits -----------------------------------------------------------------------------------------------------------

#if defined(__CUDACC__) && !defined(POP_EMULATOR)
POP_FN pop_u32 pop_bits(float x) { return __float_as_uint(x); }
POP_FN float pop_float_of(pop_u32 u) { return __uint_as_float(u); }
POP_FN pop_u64 pop_bits(double x) { return (pop_u64)__double_as_longlong(x); }
POP_FN double pop_double_of(pop_u64 u) { return __longlong_as_double((pop_i64)u); }
#else
POP_FN pop_u32 pop_bits(float x) { pop_u32 u; __builtin_memcpy(&u, &x, 4); return u; }
POP_FN float pop_float_of(pop_u32 u) { float x; __builtin_memcpy(&x, &u, 4); return x; }
POP_FN pop_u64 pop_bits(double x) { pop_u64 u; __builtin_memcpy(&u, &x, 8); return u; }
POP_FN double pop_double_of(pop_u64 u) { double x; __builtin_memcpy(&x, &u, 8); return x; }
#endif

POP_FN float pop_inf_f() { return pop_float_of(0x7f800000u); }
POP_FN float pop_nan_f() { return pop_float_of(0x7fc00000u); }
POP_FN double pop_inf() { return pop_double_of(0x7ff0000000000000ull); }
POP_FN double pop_nan() { return pop_double_of(0x7ff8000000000000ull); }

// --- 16-bit floats --------------------------------------------------------------------------------------------------

#if defined(__CUDACC__) && !defined(POP_EMULATOR)
POP_FN float pop_from_f16(pop_f16 h) { float x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h)); return x; }
POP_FN pop_f16 pop_to_f16(float x) { pop_f16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h; }
#elif defined(__HIP__) && !defined(POP_EMULATOR)
POP_FN float pop_from_f16(pop_f16 h) { return (float)__builtin_bit_cast(_Float16, h); }
POP_FN pop_f16 pop_to_f16(float x) { return __builtin_bit_cast(pop_f16, (_Float16)x); }
#else
POP_FN float pop_from_f16(pop_f16 h) {
    const pop_u32 sign = (pop_u32)(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
    if (exponent == 31) return pop_float_of(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) return pop_float_of(sign | pop_bits((float)fraction * pop_float_of(0x33800000u)));  // times 2^-24
    return pop_float_of(sign | (exponent + 112) << 23 | fraction << 13);
}
POP_FN pop_f16 pop_to_f16(float x) {
    const pop_u32 u = pop_bits(x), sign = (u >> 16) & 0x8000, size = u & 0x7fffffffu;
    if (size > 0x7f800000u) return (pop_f16)(sign | 0x7e00);
    if (size >= 0x477ff000u) return (pop_f16)(sign | 0x7c00);  // 65520 and more
    // below 2^-14 a step is 2^-24, which is the last bit of a float just above 0.5
    if (size < 0x38800000u) return (pop_f16)(sign | (pop_bits(pop_float_of(size) + 0.5f) - 0x3f000000u));
    return (pop_f16)(sign | (size + 0xfff + ((size >> 13) & 1) - 0x38000000u) >> 13);
}
#endif

POP_FN float pop_from_bf16(pop_bf16 h) { return pop_float_of((pop_u32)h << 16); }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800  // one instruction; two that are packed are one, too
POP_FN pop_bf16 pop_to_bf16(float x) { pop_bf16 h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h; }
#else
POP_FN pop_bf16 pop_to_bf16(float x) {
    const pop_u32 u = pop_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (pop_bf16)(u >> 16 | 0x40);
    return (pop_bf16)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
#endif

// Round to odd keeps enough of a double that a second rounding is the only one that counts.
POP_FN float pop_odd(double x) {
    const float near = (float)x;
    if ((double)near == x || x != x) return near;
    pop_u32 u = pop_bits(near);
    if ((x < 0 ? -(double)near : (double)near) > (x < 0 ? -x : x)) u -= 1;
    return pop_float_of(u | 1);
}
POP_FN pop_f16 pop_to_f16(double x) { return pop_to_f16(pop_odd(x)); }
POP_FN pop_bf16 pop_to_bf16(double x) { return pop_to_bf16(pop_odd(x)); }
template <class T> POP_FN float pop_round_f16(T x) { return pop_from_f16(pop_to_f16(x)); }
template <class T> POP_FN float pop_round_bf16(T x) { return pop_from_bf16(pop_to_bf16(x)); }

// --- numbers --------------------------------------------------------------------------------------------------------

// Indices: of 32 bits, of 64, or one of each.
template <class A, class B> POP_FN auto pop_index_div(A a, B b) -> decltype(a + b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
template <class A, class B> POP_FN auto pop_index_mod(A a, B b) -> decltype(a + b) { return a - pop_index_div(a, b) * b; }
template <class A, class B> POP_FN auto pop_index_min(A a, B b) -> decltype(a + b) { return a < b ? a : b; }
template <class A, class B> POP_FN auto pop_index_max(A a, B b) -> decltype(a + b) { return a > b ? a : b; }

template <class T> POP_FN T pop_add(T a, T b) { return (T)((pop_u64)a + (pop_u64)b); }
template <class T> POP_FN T pop_sub(T a, T b) { return (T)((pop_u64)a - (pop_u64)b); }
template <class T> POP_FN T pop_mul(T a, T b) { return (T)((pop_u64)a * (pop_u64)b); }
template <class T> POP_FN T pop_neg(T a) { return (T)(0 - (pop_u64)a); }
template <class T> POP_FN bool pop_below_0(T a) {  // not asked of natural numbers, as compilers warn of it
    if constexpr ((T)-1 < (T)0) return a < 0;
    return false;
}
template <class T> POP_FN T pop_div(T a, T b) {
    if (b == 0) return 0;
    if ((T)-1 < (T)0 && b == (T)-1) return pop_neg(a);
    return (T)(a / b - (a % b != 0 && pop_below_0(a) != pop_below_0(b)));
}
template <class T> POP_FN T pop_mod(T a, T b) {
    if (b == 0 || ((T)-1 < (T)0 && b == (T)-1)) return 0;
    const T r = (T)(a % b);
    return r != 0 && pop_below_0(r) != pop_below_0(b) ? (T)(r + b) : r;
}
template <class T> POP_FN T pop_max(T a, T b) { return a >= b || a != a ? a : b; }
template <class T> POP_FN T pop_min(T a, T b) { return a <= b || a != a ? a : b; }
#if defined(__CUDACC__) && !defined(POP_EMULATOR)  // one instruction; else they are three
POP_FN float pop_max(float a, float b) { float r; asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
POP_FN float pop_min(float a, float b) { float r; asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
#endif
template <class T> POP_FN T pop_relu(T a) { return pop_max(a, (T)0); }
template <class T> POP_FN T pop_abs(T a) { return pop_below_0(a) ? pop_neg(a) : a; }
template <class T> POP_FN T pop_sign(T a) { return a != a ? a : (T)((a > 0) - pop_below_0(a)); }
template <class T> POP_FN T pop_floor(T a) { return a; }
template <class T> POP_FN T pop_ceil(T a) { return a; }
template <class T> POP_FN T pop_round(T a) { return a; }
template <class T> POP_FN T pop_trunc(T a) { return a; }
template <class T> POP_FN bool pop_isnan(T a) { return a != a; }
template <class T> POP_FN bool pop_isfinite(T a) { return a - a == a - a; }
template <class T> POP_FN bool pop_isinf(T a) { return a == a && !pop_isfinite(a); }
template <class T> POP_FN T pop_bitand(T a, T b) { return (T)(a & b); }
template <class T> POP_FN T pop_bitor(T a, T b) { return (T)(a | b); }
template <class T> POP_FN T pop_bitxor(T a, T b) { return (T)(a ^ b); }
template <class T> POP_FN T pop_invert(T a) { return (T)~a; }
POP_FN bool pop_invert(bool a) { return !a; }
template <class T> POP_FN T pop_shl(T a, T b) {
    const pop_i64 n = (pop_i64)b;
    return n < 0 || n >= 8 * (pop_i64)sizeof(T) ? (T)0 : (T)((pop_u64)a << n);
}
template <class T> POP_FN T pop_shr(T a, T b) {
    const pop_i64 n = (pop_i64)b, bits = 8 * (pop_i64)sizeof(T);
    const bool inside = n >= 0 && n < bits;
    return inside || (T)-1 < (T)0 ? (T)(a >> (inside ? n : bits - 1)) : (T)0;
}
template <class T> POP_FN T pop_fma(T a, T b, T c) { return pop_add(pop_mul(a, b), c); }

// `x` truncated and saturated; NaN gives 0. `end` is 2^bits, or half of it for a signed type.
template <class T> POP_FN T pop_saturate(double x, double end, T least, T greatest) {
    return x != x ? (T)0 : x <= (double)least ? least : x >= end ? greatest : (T)x;
}
POP_FN pop_i8 pop_to_i8(double x) { return pop_saturate<pop_i8>(x, 128.0, -128, 127); }
POP_FN pop_i16 pop_to_i16(double x) { return pop_saturate<pop_i16>(x, 32768.0, -32768, 32767); }
POP_FN pop_i32 pop_to_i32(double x) { return pop_saturate<pop_i32>(x, 2147483648.0, -2147483647 - 1, 2147483647); }
POP_FN pop_i64 pop_to_i64(double x) {
    return pop_saturate<pop_i64>(x, 9223372036854775808.0, -9223372036854775807ll - 1, 9223372036854775807ll);
}
POP_FN pop_u8 pop_to_u8(double x) { return pop_saturate<pop_u8>(x, 256.0, 0, 255); }
POP_FN pop_u16 pop_to_u16(double x) { return pop_saturate<pop_u16>(x, 65536.0, 0, 65535); }
POP_FN pop_u32 pop_to_u32(double x) { return pop_saturate<pop_u32>(x, 4294967296.0, 0, 4294967295u); }
POP_FN pop_u64 pop_to_u64(double x) { return pop_saturate<pop_u64>(x, 18446744073709551616.0, 0, 18446744073709551615ull); }

// --- functions of floats --------------------------------------------------------------------------------------------

#if defined(POP_OWN_MATH)
  #include "pop_math.h"
  #include "pop_mathf.h"
  #define POP_MATH(name, c_name) \
    POP_FN float pop_##name(float x) { return (float)pop_own_##name(x); } \
    POP_FN double pop_##name(double x) { return pop_own_##name(x); }
  #define POP_MATH2(name, c_name) \
    POP_FN float pop_##name(float x, float y) { return (float)pop_own_##name((double)x, (double)y); } \
    POP_FN double pop_##name(double x, double y) { return pop_own_##name(x, y); }
  #define POP_PLAIN(name) __builtin_##name
#else
  #define POP_MATH(name, c_name) \
    POP_FN float pop_##name(float x) { return c_name##f(x); } \
    POP_FN double pop_##name(double x) { return c_name(x); }
  #define POP_MATH2(name, c_name) \
    POP_FN float pop_##name(float x, float y) { return c_name##f(x, y); } \
    POP_FN double pop_##name(double x, double y) { return c_name(x, y); }
  #define POP_PLAIN(name) name
#endif

POP_MATH(exp, exp)
POP_MATH(exp2, exp2)
POP_MATH(expm1, expm1)
POP_MATH(log, log)
POP_MATH(log2, log2)
POP_MATH(log1p, log1p)
POP_MATH(sin, sin)
POP_MATH(cos, cos)
POP_MATH(tan, tan)
POP_MATH(asin, asin)
POP_MATH(acos, acos)
POP_MATH(atan, atan)
POP_MATH(sinh, sinh)
POP_MATH(cosh, cosh)
POP_MATH(tanh, tanh)
POP_MATH(erf, erf)
POP_MATH(erfc, erfc)
POP_MATH2(pow, pow)
POP_MATH2(atan2, atan2)

// 2^x, 0 where that is denormal, and 1 / x for 2^-126 <= |x| <= 2^126, each by one instruction.
#if defined(__CUDACC__) && !defined(POP_EMULATOR)
POP_FN float pop_fast_exp2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
POP_FN float pop_fast_inverse(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
#elif defined(__HIP__) && !defined(POP_EMULATOR)
POP_FN float pop_fast_exp2(float x) { return __builtin_amdgcn_exp2f(x); }
POP_FN float pop_fast_inverse(float x) { return __builtin_amdgcn_rcpf(x); }
#else
POP_FN float pop_fast_exp2(float x) { return pop_exp2(x); }
POP_FN float pop_fast_inverse(float x) { return 1.0f / x; }
#endif

// e^x for x <= 0, and 2^x, in a sum that 1 is in, which may be 0 below `least`: the instruction's own 2^x. What x / ln 2 is rounded
// by makes it wrong by x e^x 2^-24 and so by less than a step of the 1.
#if !defined(POP_EMULATOR) && (defined(__CUDACC__) || defined(__HIP__))
POP_FN float pop_exp2(float x, float, float) { return pop_fast_exp2(x); }
POP_FN float pop_exp(float x, float, float) { return pop_fast_exp2(x * 1.442695041f); }
#else
POP_FN float pop_exp2(float x, float, float least) { return x < least ? 0.0f : pop_exp2(x); }
POP_FN float pop_exp(float x, float, float least) { return x < least ? 0.0f : pop_exp(x); }
#endif
template <class T> POP_FN T pop_exp2(T x, T, T) { return pop_exp2(x); }
template <class T> POP_FN T pop_exp(T x, T, T) { return pop_exp(x); }

POP_FN float pop_sqrt(float x) { return POP_PLAIN(sqrtf)(x); }
POP_FN double pop_sqrt(double x) { return POP_PLAIN(sqrt)(x); }
POP_FN float pop_floor(float x) { return POP_PLAIN(floorf)(x); }
POP_FN double pop_floor(double x) { return POP_PLAIN(floor)(x); }
POP_FN float pop_ceil(float x) { return POP_PLAIN(ceilf)(x); }
POP_FN double pop_ceil(double x) { return POP_PLAIN(ceil)(x); }
POP_FN float pop_round(float x) { return POP_PLAIN(rintf)(x); }
POP_FN double pop_round(double x) { return POP_PLAIN(rint)(x); }
POP_FN float pop_trunc(float x) { return POP_PLAIN(truncf)(x); }
POP_FN double pop_trunc(double x) { return POP_PLAIN(trunc)(x); }
POP_FN float pop_abs(float x) { return POP_PLAIN(fabsf)(x); }
POP_FN double pop_abs(double x) { return POP_PLAIN(fabs)(x); }
POP_FN float pop_fma(float x, float y, float z) { return POP_PLAIN(fmaf)(x, y, z); }
POP_FN double pop_fma(double x, double y, double z) { return POP_PLAIN(fma)(x, y, z); }

POP_FN double pop_rsqrt(double x) { return 1.0 / pop_sqrt(x); }
#if defined(__CUDACC__) && !defined(POP_EMULATOR)  // to two units in the last place, without a branch
POP_FN float pop_rsqrt(float x) { float y; asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
#else
POP_FN float pop_rsqrt(float x) { return 1.0f / pop_sqrt(x); }
#endif
// 2^x and 1 / x to two units in the last place; of 1 / x for 2^-126 <= |x| <= 2^126. One instruction, and of 2^x two more, where
// results may be denormal. The latter is of no branch: a division has one for the rare.
#if defined(__CUDACC__) && !defined(POP_EMULATOR)
POP_FN float pop_near_exp2(float x) { float y; asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
POP_FN float pop_near_inverse(float x) { return pop_fast_inverse(x); }
#else
POP_FN float pop_near_exp2(float x) { return pop_exp2(x); }
POP_FN float pop_near_inverse(float x) { return 1.0f / x; }
#endif
POP_FN double pop_near_inverse(double x) { return 1.0 / x; }

template <class T> POP_FN T pop_sigmoid(T x) {  // one exponential, which does not overflow, and no branch
    const T e = pop_exp(-pop_abs(x));
    return (x >= 0 ? (T)1 : e) * pop_near_inverse(1 + e);
}
template <class T> POP_FN T pop_silu(T x) { return x * pop_sigmoid(x); }
// x/2 erfc(y) at y = -x/sqrt(2). Far out, erfc turns the rounding of y into 2 y^2 times as much; `lost` is what y lacks.
POP_FN double pop_gelu(double x) {
    if (pop_isinf(x)) return pop_max(x, 0.0);
    const double c = -0.70710678118654752440, y = x * c, lost = pop_fma(x, c, -y) + x * 4.8336466567264567e-17;
    return x * 0.5 * (pop_erfc(y) * (y > 1 ? 1 - 2 * y * lost : 1.0));
}
// max(x, 0) - e^(-u^2 / 2) P(u) / Q(u) for u = |x|, whose quotient is that of x86's kernels (codegen/vecmath).
POP_FN float pop_gelu_p(float u, float square) {
    return pop_fma(u, pop_fma(square, pop_fma(square, 0.0047242013f, 0.20946498f), 0.56974435f),
                   square * pop_fma(square, 0.04652755f, 0.5003355f));
}
POP_FN float pop_gelu_q(float u, float square) {
    return pop_fma(u, pop_fma(square, pop_fma(square, 0.011841687f, 0.53672713f), 1.9098519f),
                   pop_fma(square, pop_fma(square, 0.11663432f, 1.3730214f), 1.1394887f));
}
#if defined(POP_OWN_MATH)
POP_FN float pop_gelu(float x) { return pop_own_gelu(x, pop_gelu_p, pop_gelu_q); }
#else
// e^(-u^2 / 2) = 2^y (1 + lost ln 2) where y + lost = -u^2 / (2 ln 2), which far out would lose a hundred units by its rounding.
POP_FN float pop_gelu(float x) {
    const float u = pop_abs(pop_min(pop_max(x, -14.8f), 6.0f)), square = u * u, y = square * -0.7213475f;
    const float least = pop_fma(square, -9.629815e-09f, pop_fma(square, -0.7213475f, -y));
    const float lost = pop_fma(pop_fma(u, u, -square), -0.7213475f, least), e = pop_near_exp2(y);
    const float ratio = pop_gelu_p(u, square) * pop_near_inverse(pop_gelu_q(u, square));
    return pop_max(x, 0.0f) - pop_fma(e, lost * 0.6931472f, e) * ratio;
}
#endif

// What is rounded to 16 bits at once needs less: to 2^-14 of itself, and maybe 0 for what is below 2^-119.
POP_FN float pop_near_sigmoid(float x) { return pop_fast_inverse(1.0f + pop_fast_exp2(x * -1.442695f)); }
POP_FN float pop_near_silu(float x) { return x * pop_near_sigmoid(x); }
// max(x, 0) - 2^(24 - u^2 / (2 ln 2)) P(u) / Q(u) for u = |x|, where P / u is of 2^-24; beyond 14.8 the power is 0.
POP_FN float pop_near_gelu(float x) {
    const float u = pop_min(pop_abs(x), 14.8f), power = pop_fast_exp2(pop_fma(u * u, -0.7213475f, 24.0f));
    const float p = pop_fma(u, pop_fma(u, 3.75668e-09f, 1.6655934e-08f), 2.9803104e-08f);
    const float q = pop_fma(u, pop_fma(u, pop_fma(u, 0.1578193f, 0.7053399f), 1.3575565f), 1.0f);
    return pop_fma(-(power * u * p), pop_fast_inverse(q), pop_max(x, 0.0f));
}

template <class T> POP_FN T pop_softplus(T x) { return pop_max(x, (T)0) + pop_log1p(pop_exp(-pop_abs(x))); }

#if defined(POP_OWN_MATH)
POP_FN float pop_mod(float a, float b) { return (float)pop_own_mod((double)a, (double)b); }
POP_FN double pop_mod(double a, double b) { return pop_own_mod(a, b); }
#else
POP_FN double pop_mod(double a, double b) {
    const double r = fmod(a, b);
    return r == 0 ? copysign(0.0, b) : (r < 0) != (b < 0) ? r + b : r;
}
POP_FN float pop_mod(float a, float b) {
    const float r = fmodf(a, b);
    return r == 0 ? copysignf(0.0f, b) : (r < 0) != (b < 0) ? r + b : r;
}
#endif

// The next float from x towards y: one step of the bits, which order floats of one sign by size.
POP_FN float pop_nextafter(float x, float y) {
    if (x != x || y != y) return x + y;
    if (x == y) return y;
    if (x == 0) return pop_float_of(1u | (y < 0 ? 0x80000000u : 0u));
    return pop_float_of((x < y) == (x > 0) ? pop_bits(x) + 1 : pop_bits(x) - 1);
}
POP_FN double pop_nextafter(double x, double y) {
    if (x != x || y != y) return x + y;
    if (x == y) return y;
    if (x == 0) return pop_double_of(1ull | (y < 0 ? 0x8000000000000000ull : 0ull));
    return pop_double_of((x < y) == (x > 0) ? pop_bits(x) + 1 : pop_bits(x) - 1);
}

// --- computed positions ---------------------------------------------------------------------------------------------

#define POP_OUTSIDE (-(1ll << 58))  // far below any offset; a sum of offsets stays there

// The first site that fails stays in `status`.
POP_FN void pop_fail(pop_u32* status, pop_u32 site) {
#if defined(POP_EMULATOR)
    pop_emu_compare_exchange(status, 0, site);
#elif defined(__HIP__)
    pop_u32 none = 0;
    __hip_atomic_compare_exchange_strong(status, &none, site, __ATOMIC_RELAXED, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
    atomicCAS(status, 0u, site);
#endif
}

POP_FN pop_i64 pop_position(pop_i64 at, pop_i64 extent, pop_i64 stride, pop_u32* status, pop_u32 site) {
    if (at >= 0 && at < extent) return at * stride;
    pop_fail(status, site);
    return POP_OUTSIDE;
}
POP_FN pop_i64 pop_position(pop_i64 at, pop_i64 extent, pop_i64 stride) {  // of what may not be needed: nothing is told
    return at >= 0 && at < extent ? at * stride : POP_OUTSIDE;
}
POP_FN bool pop_is_inside(pop_i64 at) { return at > POP_OUTSIDE / 2; }
template <class T> POP_FN T pop_read(const T* from, pop_i64 at) { return pop_is_inside(at) ? from[at] : (T)0; }

#include "pop_block.h"
#include "pop_atomic.h"
#include "pop_copy.h"
#include "pop_matrix.h"
#include "pop_hopper.h"
