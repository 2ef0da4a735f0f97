// pop_matrix.h: the matrix units, d += a * b for a small tile that a warp holds in its registers.
//
// Which element of which matrix a lane's register is: polyop/ir/atoms.py, one row for each function here. Registers of 32
// bits hold two 16-bit or four 8-bit elements, the first one lowest. All lanes of the warp take part.
#pragma once

// Whether some lane of a warp says so. The assembler knows of this answer that the warp does not part.
template <unsigned WARP> POP_FN bool pop_some(bool mine) {
#if defined(__CUDA_ARCH__) && !defined(POP_EMULATOR)
    return __any_sync(0xffffffffu, mine);
#else
    return pop_fold_lanes<WARP, 1>((pop_u32)mine, [](pop_u32 a, pop_u32 b) { return a | b; });
#endif
}

// Whether all elements of a tile that the WARP lanes of a warp hold are finite: 0 times others is NaN.
template <unsigned WARP, int COUNT> POP_FN bool pop_all_finite(const float (&d)[COUNT]) {
    float zero[4] = {0.0f, 0.0f, 0.0f, 0.0f};  // side by side
#pragma unroll
    for (int i = 0; i < COUNT; i++) zero[i % 4] = pop_fma(d[i], 0.0f, zero[i % 4]);
    return !pop_some<WARP>(zero[0] + zero[1] + (zero[2] + zero[3]) != 0.0f);
}

// The same of COUNT numbers of 16 bits in shared memory, whose EXPONENT has all these bits where they are infinite or NaN. The whole
// warp asks.
template <int COUNT, pop_u32 EXPONENT> POP_FN bool pop_tile_is_finite(const unsigned short* tile) {
    constexpr pop_u32 both = EXPONENT << 16 | EXPONENT, last = both & ~(both << 1);
    static_assert(COUNT % 8 == 0, "16 bytes for each lane");
    pop_u32 odd = 0;
#pragma unroll 4
    for (int i = 8 * (int)pop_lane(); i < COUNT; i += 8 * (int)POP_WARP) {
        alignas(16) pop_u32 words[4];
        pop_move<16>(words, tile + i);
#pragma unroll
        for (int k = 0; k < 4; k++) odd |= (words[k] & both) + last;  // carries into a sign
    }
    return !pop_some<32>(odd & 0x80008000u);
}

// --- rows of 16 bytes, shared memory to registers -------------------------------------------------------------------

// Squares of 8 x 8 elements of 16 bits: lane 8 s + i says where row i of square s lies; lane l gets elements 2 (l % 4) and
// 2 (l % 4) + 1 of row l / 4 of each square. `_trans`: those rows and columns exchanged. NVIDIA only.
#if defined(POP_EMULATOR)
POP_FN void pop_ldmatrix_x4(pop_u32 (&r)[4], const void* row) { pop_emu_ldmatrix(r, row, 4, 0); }
POP_FN void pop_ldmatrix_x4_trans(pop_u32 (&r)[4], const void* row) { pop_emu_ldmatrix(r, row, 4, 1); }
POP_FN void pop_ldmatrix_x2(pop_u32 (&r)[2], const void* row) { pop_emu_ldmatrix(r, row, 2, 0); }
POP_FN void pop_ldmatrix_x2_trans(pop_u32 (&r)[2], const void* row) { pop_emu_ldmatrix(r, row, 2, 1); }
#elif !defined(__HIP__)
POP_FN void pop_ldmatrix_x4(pop_u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(pop_shared_address(row)) : "memory");
}
POP_FN void pop_ldmatrix_x4_trans(pop_u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(pop_shared_address(row)) : "memory");
}
POP_FN void pop_ldmatrix_x2(pop_u32 (&r)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(pop_shared_address(row)) : "memory");
}
POP_FN void pop_ldmatrix_x2_trans(pop_u32 (&r)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(pop_shared_address(row)) : "memory");
}
#endif

// --- operands that lose bits ----------------------------------------------------------------------------------------

// The word of `x` with 10 of its 23 bits, ties away from zero, as units for tf32 take it. NVIDIA only.
#if defined(POP_EMULATOR)
POP_FN pop_u32 pop_tf32(float x) {
    const pop_u32 u = pop_bits(x);
    if ((u & 0x7f800000u) == 0x7f800000u) return u & 0x7fffffu ? u | 0x400000u : u;
    return (u + 0x1000u) & 0xffffe000u;
}
#elif !defined(__HIP__)
POP_FN pop_u32 pop_tf32(float x) {
    pop_u32 u;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(u) : "f"(x));
    return u;
}
#endif

// --- operands made of results ---------------------------------------------------------------------------------------

// Two elements of 16 bits in one register, the first one lowest. Of two that are rounded just before one instruction makes both.
#if defined(__CUDACC__) && !defined(POP_EMULATOR)
POP_FN pop_u32 pop_pair(pop_u16 first, pop_u16 second) {
    pop_u32 both;
    asm("mov.b32 %0, {%1, %2};" : "=r"(both) : "h"(first), "h"(second));
    return both;
}
#else
POP_FN pop_u32 pop_pair(pop_u16 first, pop_u16 second) { return (pop_u32)first | (pop_u32)second << 16; }
#endif

// --- products -------------------------------------------------------------------------------------------------------

#if defined(POP_EMULATOR)
  #define POP_ATOM(name, D, d_count, A, a_count, B, b_count) \
      POP_FN void pop_##name(D (&d)[d_count], const A (&a)[a_count], const B (&b)[b_count]) { \
          pop_emu_atom(POP_EMU_##name, d, a, b); \
      }
  #define POP_ATOM_OF_ONE(name, D, d_count, T) \
      POP_FN void pop_##name(D (&d)[d_count], T a, T b) { pop_emu_atom(POP_EMU_##name, d, &a, &b); }
POP_ATOM(mma_m16n8k16_f16, float, 4, pop_u32, 4, pop_u32, 2)
POP_ATOM(mma_m16n8k16_bf16, float, 4, pop_u32, 4, pop_u32, 2)
POP_ATOM(mma_m16n8k8_tf32, float, 4, pop_u32, 4, pop_u32, 2)
POP_ATOM(mma_m16n8k32_s8, int, 4, pop_u32, 4, pop_u32, 2)
POP_ATOM(mma_m16n8k32_s8u8, int, 4, pop_u32, 4, pop_u32, 2)
POP_ATOM(mma_m16n8k32_u8s8, int, 4, pop_u32, 4, pop_u32, 2)
POP_ATOM(mma_m16n8k32_u8, int, 4, pop_u32, 4, pop_u32, 2)
POP_ATOM_OF_ONE(mma_m8n8k4_f64, double, 2, double)
POP_ATOM(mfma_f32_16x16x16_f16, float, 4, pop_u32, 2, pop_u32, 2)
POP_ATOM(mfma_f32_16x16x16_bf16, float, 4, pop_u32, 2, pop_u32, 2)
POP_ATOM_OF_ONE(mfma_f32_16x16x4_f32, float, 4, float)
POP_ATOM_OF_ONE(mfma_f64_16x16x4_f64, double, 4, double)
POP_ATOM(mfma_i32_16x16x16_i8, int, 4, pop_u32, 1, pop_u32, 1)
POP_ATOM(mfma_i32_16x16x32_i8, int, 4, pop_u32, 2, pop_u32, 2)
POP_ATOM(wmma_f32_16x16x16_f16, float, 8, pop_u32, 8, pop_u32, 8)
POP_ATOM(wmma_f32_16x16x16_bf16, float, 8, pop_u32, 8, pop_u32, 8)
POP_ATOM(wmma_i32_16x16x16_i8, int, 8, pop_u32, 4, pop_u32, 4)
POP_ATOM(wmma_i32_16x16x16_i8u8, int, 8, pop_u32, 4, pop_u32, 4)
POP_ATOM(wmma_i32_16x16x16_u8i8, int, 8, pop_u32, 4, pop_u32, 4)
POP_ATOM(wmma_i32_16x16x16_u8, int, 8, pop_u32, 4, pop_u32, 4)

#elif defined(__HIP__)
typedef _Float16 pop_f16x4 __attribute__((ext_vector_type(4)));
typedef short pop_i16x4 __attribute__((ext_vector_type(4)));
typedef _Float16 pop_f16x16 __attribute__((ext_vector_type(16)));
typedef short pop_i16x16 __attribute__((ext_vector_type(16)));
typedef float pop_f32x4 __attribute__((ext_vector_type(4)));
typedef float pop_f32x8 __attribute__((ext_vector_type(8)));
typedef double pop_f64x4 __attribute__((ext_vector_type(4)));
typedef int pop_i32x4 __attribute__((ext_vector_type(4)));
typedef int pop_i32x8 __attribute__((ext_vector_type(8)));

  // `call` is an expression of x, y and z, which have a's, b's and d's registers
  #define POP_ATOM(name, D, d_count, d_vector, a_count, a_vector, call) \
      POP_FN void pop_##name(D (&d)[d_count], const pop_u32 (&a)[a_count], const pop_u32 (&b)[a_count]) { \
          a_vector x, y; \
          d_vector z; \
          __builtin_memcpy(&x, a, sizeof(x)); \
          __builtin_memcpy(&y, b, sizeof(y)); \
          for (int i = 0; i < d_count; i++) z[i] = d[i]; \
          z = call; \
          for (int i = 0; i < d_count; i++) d[i] = z[i]; \
      }
  #define POP_ATOM_OF_ONE(name, D, d_count, d_vector, T, call) \
      POP_FN void pop_##name(D (&d)[d_count], T x, T y) { \
          d_vector z; \
          for (int i = 0; i < d_count; i++) z[i] = d[i]; \
          z = call; \
          for (int i = 0; i < d_count; i++) d[i] = z[i]; \
      }
  #if defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)
POP_ATOM(mfma_f32_16x16x16_f16, float, 4, pop_f32x4, 2, pop_f16x4, __builtin_amdgcn_mfma_f32_16x16x16f16(x, y, z, 0, 0, 0))
POP_ATOM(mfma_f32_16x16x16_bf16, float, 4, pop_f32x4, 2, pop_i16x4, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x, y, z, 0, 0, 0))
POP_ATOM_OF_ONE(mfma_f32_16x16x4_f32, float, 4, pop_f32x4, float, __builtin_amdgcn_mfma_f32_16x16x4f32(x, y, z, 0, 0, 0))
POP_ATOM_OF_ONE(mfma_f64_16x16x4_f64, double, 4, pop_f64x4, double, __builtin_amdgcn_mfma_f64_16x16x4f64(x, y, z, 0, 0, 0))
  #endif
  #if defined(__gfx90a__)
POP_ATOM(mfma_i32_16x16x16_i8, int, 4, pop_i32x4, 1, int, __builtin_amdgcn_mfma_i32_16x16x16i8(x, y, z, 0, 0, 0))
  #endif
  #if defined(__gfx942__) || defined(__gfx950__)
POP_ATOM(mfma_i32_16x16x32_i8, int, 4, pop_i32x4, 2, long, __builtin_amdgcn_mfma_i32_16x16x32_i8(x, y, z, 0, 0, 0))
  #endif
  #if defined(__GFX11__)
POP_ATOM(wmma_f32_16x16x16_f16, float, 8, pop_f32x8, 8, pop_f16x16, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(x, y, z))
POP_ATOM(wmma_f32_16x16x16_bf16, float, 8, pop_f32x8, 8, pop_i16x16, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(x, y, z))
// whether a, and whether b, have signs
POP_ATOM(wmma_i32_16x16x16_i8, int, 8, pop_i32x8, 4, pop_i32x4, __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(1, x, 1, y, z, 0))
POP_ATOM(wmma_i32_16x16x16_i8u8, int, 8, pop_i32x8, 4, pop_i32x4, __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(1, x, 0, y, z, 0))
POP_ATOM(wmma_i32_16x16x16_u8i8, int, 8, pop_i32x8, 4, pop_i32x4, __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(0, x, 1, y, z, 0))
POP_ATOM(wmma_i32_16x16x16_u8, int, 8, pop_i32x8, 4, pop_i32x4, __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(0, x, 0, y, z, 0))
  #endif

#else
  #define POP_ATOM(name, ptx, D, letter) \
      POP_FN void pop_mma_##name(D (&d)[4], const pop_u32 (&a)[4], const pop_u32 (&b)[2]) { \
          asm volatile("mma.sync.aligned." ptx " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                       : "+" letter(d[0]), "+" letter(d[1]), "+" letter(d[2]), "+" letter(d[3]) \
                       : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
      }
POP_ATOM(m16n8k16_f16, "m16n8k16.row.col.f32.f16.f16.f32", float, "f")
POP_ATOM(m16n8k16_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32", float, "f")
POP_ATOM(m16n8k8_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32", float, "f")
POP_ATOM(m16n8k32_s8, "m16n8k32.row.col.s32.s8.s8.s32", int, "r")
POP_ATOM(m16n8k32_s8u8, "m16n8k32.row.col.s32.s8.u8.s32", int, "r")
POP_ATOM(m16n8k32_u8s8, "m16n8k32.row.col.s32.u8.s8.s32", int, "r")
POP_ATOM(m16n8k32_u8, "m16n8k32.row.col.s32.u8.u8.s32", int, "r")
POP_FN void pop_mma_m8n8k4_f64(double (&d)[2], double a, double b) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(d[0]), "+d"(d[1]) : "d"(a), "d"(b));
}
#endif
#undef POP_ATOM
#undef POP_ATOM_OF_ONE

#if defined(POP_EMULATOR) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)
// Two steps at once: a lane's elements 0 to 3 of a and b are one step's, 4 to 7 the next one's.
  #define POP_TWICE(t) \
      POP_FN void pop_mfma_f32_16x16x32_##t(float (&d)[4], const pop_u32 (&a)[4], const pop_u32 (&b)[4]) { \
          const pop_u32 a0[2] = {a[0], a[1]}, b0[2] = {b[0], b[1]}, a1[2] = {a[2], a[3]}, b1[2] = {b[2], b[3]}; \
          pop_mfma_f32_16x16x16_##t(d, a0, b0); \
          pop_mfma_f32_16x16x16_##t(d, a1, b1); \
      }
POP_TWICE(f16)
POP_TWICE(bf16)
  #undef POP_TWICE
// The same where a step takes one element of each lane.
POP_FN void pop_mfma_f32_16x16x16_f32(float (&d)[4], const pop_u32 (&a)[4], const pop_u32 (&b)[4]) {
    for (int i = 0; i < 4; i++) pop_mfma_f32_16x16x4_f32(d, pop_float_of(a[i]), pop_float_of(b[i]));
}
POP_FN void pop_mfma_f64_16x16x8_f64(double (&d)[4], const double (&a)[2], const double (&b)[2]) {
    for (int i = 0; i < 2; i++) pop_mfma_f64_16x16x4_f64(d, a[i], b[i]);
}
#endif
#if defined(POP_EMULATOR) || defined(__gfx90a__)
POP_FN void pop_mfma_i32_16x16x64_i8_in_4(int (&d)[4], const pop_u32 (&a)[4], const pop_u32 (&b)[4]) {
    for (int i = 0; i < 4; i++) {
        const pop_u32 x[1] = {a[i]}, y[1] = {b[i]};
        pop_mfma_i32_16x16x16_i8(d, x, y);
    }
}
#endif
#if defined(POP_EMULATOR) || defined(__gfx942__) || defined(__gfx950__)
POP_FN void pop_mfma_i32_16x16x64_i8_in_2(int (&d)[4], const pop_u32 (&a)[4], const pop_u32 (&b)[4]) {
    for (int i = 0; i < 4; i += 2) {
        const pop_u32 x[2] = {a[i], a[i + 1]}, y[2] = {b[i], b[i + 1]};
        pop_mfma_i32_16x16x32_i8(d, x, y);
    }
}
#endif

// --- order ----------------------------------------------------------------------------------------------------------

// What stands before it in the same straight line of text are STEPS steps, each of READS reads of 16 bytes of shared memory
// and PRODUCTS products of what was read, PRODUCTS >= READS: all reads but those of the first step stand between the products
// of the step before. On AMD alone, and a hint: it changes the order of instructions and not what they do.
template <int STEPS, int READS, int PRODUCTS> POP_FN void pop_interleave() {
#if defined(__HIP__) && !defined(POP_EMULATOR)
    const int product = 0x8, read = 0x100;  // kinds of instructions
    __builtin_amdgcn_sched_group_barrier(read, READS, 0);
#pragma unroll
    for (int step = 1; step < STEPS; step++) {
#pragma unroll
        for (int i = 0; i < READS; i++) {
            __builtin_amdgcn_sched_group_barrier(product, PRODUCTS / READS, 0);
            __builtin_amdgcn_sched_group_barrier(read, 1, 0);
        }
        if constexpr (PRODUCTS % READS > 0) __builtin_amdgcn_sched_group_barrier(product, PRODUCTS % READS, 0);
    }
    __builtin_amdgcn_sched_group_barrier(product, PRODUCTS, 0);
#endif
}
