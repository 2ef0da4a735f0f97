// pop_emu_atoms.h: the matrix units. What a lane holds is written out here as the vendors' documents have it, and compared
// with the rows of polyop/ir/atoms.py by the tests.
//
// Sums are carried out in double and rounded once: devices differ in the order, and truncate between.
#pragma once

namespace {

float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

double of_f16(uint32_t h) {
    const uint32_t sign = (h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31) return float_of(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) return (sign ? -1.0 : 1.0) * fraction / 16777216.0;
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}
double of_bf16(uint32_t h) { return float_of(h << 16); }
double of_f32(uint32_t word) { return float_of(word); }
double of_tf32(uint32_t word) { return float_of(word & 0xffffe000u); }
double of_s8(uint32_t byte) { return (int8_t)byte; }
double of_u8(uint32_t byte) { return byte; }
typedef double (*Decode)(uint32_t);

float rounded(float, double x) { return (float)x; }
int32_t rounded(int32_t, double x) { return (int32_t)(uint32_t)(int64_t)x; }

struct Operands { void* d; const void *a, *b; };

const uint32_t* words(const void* p) { return (const uint32_t*)p; }

// Element `e` of the lane's elements, `pack` to a register.
double element(const void* registers, uint32_t e, uint32_t pack, Decode decode) {
    const uint32_t bits = 32 / pack, word = words(registers)[e / pack] >> e % pack * bits;
    return decode(pack == 1 ? word : word & ((1u << bits) - 1));
}

// mma.m16n8kK: a and b in squares of 8 rows and 4 registers, K = 8 pack.
template <class D> void mma(void* const* frames, uint32_t pack, Decode decode_a, Decode decode_b) {
    static double a[16][32], b[32][8];
    for (uint32_t l = 0; l < 32; l++) {
        auto x = (Operands*)frames[l];
        const uint32_t g = l / 4, t = l % 4;
        for (uint32_t e = 0; e < 4 * pack; e++) {
            const uint32_t r = e / pack;
            a[g + 8 * (r & 1)][t * pack + e % pack + 4 * pack * (r >> 1)] = element(x->a, e, pack, decode_a);
        }
        for (uint32_t e = 0; e < 2 * pack; e++)
            b[t * pack + e % pack + 4 * pack * (e / pack)][g] = element(x->b, e, pack, decode_b);
    }
    for (uint32_t l = 0; l < 32; l++)
        for (uint32_t r = 0; r < 4; r++) {
            const uint32_t i = l / 4 + 8 * (r >> 1), j = 2 * (l % 4) + (r & 1);
            D* d = (D*)((Operands*)frames[l])->d + r;
            double sum = *d;
            for (uint32_t k = 0; k < 8 * pack; k++) sum += a[i][k] * b[k][j];
            *d = rounded(*d, sum);
        }
}

void mma_f64(void* const* frames) {
    for (uint32_t l = 0; l < 32; l++) {
        auto d = (double*)((Operands*)frames[l])->d;
        for (uint32_t r = 0; r < 2; r++)
            for (uint32_t k = 0; k < 4; k++) {
                const double a = *(const double*)((Operands*)frames[l / 4 * 4 + k])->a;
                const double b = *(const double*)((Operands*)frames[(2 * (l % 4) + r) * 4 + k])->b;
                d[r] = __builtin_fma(a, b, d[r]);
            }
    }
}

// MFMA 16x16: lane l has row l % 16 of a and column l % 16 of b, and `per` neighbouring k from per (l / 16) on.
template <class D> void mfma(void* const* frames, uint32_t per, uint32_t pack, Decode decode) {
    static double a[16][32], b[32][16];
    for (uint32_t l = 0; l < 64; l++)
        for (uint32_t e = 0; e < per; e++) {
            auto x = (Operands*)frames[l];
            a[l % 16][per * (l / 16) + e] = element(x->a, e, pack, decode);
            b[per * (l / 16) + e][l % 16] = element(x->b, e, pack, decode);
        }
    for (uint32_t l = 0; l < 64; l++)
        for (uint32_t r = 0; r < 4; r++) {
            D* d = (D*)((Operands*)frames[l])->d + r;
            double sum = *d;
            for (uint32_t k = 0; k < 4 * per; k++) sum += a[4 * (l / 16) + r][k] * b[k][l % 16];
            *d = rounded(*d, sum);
        }
}

void mfma_f64(void* const* frames) {
    for (uint32_t l = 0; l < 64; l++)
        for (uint32_t r = 0; r < 4; r++) {
            double* d = (double*)((Operands*)frames[l])->d + r;
            for (uint32_t k = 0; k < 4; k++) {
                const double a = *(const double*)((Operands*)frames[16 * k + 4 * r + l / 16])->a;
                const double b = *(const double*)((Operands*)frames[16 * k + l % 16])->b;
                *d = __builtin_fma(a, b, *d);
            }
        }
}

// WMMA of RDNA 3: lanes l and l + 16 have the same row of a and column of b; odd rows of d are in the upper half.
template <class D> void wmma(void* const* frames, uint32_t pack, Decode decode_a, Decode decode_b) {
    for (uint32_t l = 0; l < 32; l++)
        for (uint32_t r = 0; r < 8; r++) {
            const uint32_t half = l / 16, i = 2 * r + half;
            const void *a = ((Operands*)frames[16 * half + i])->a, *b = ((Operands*)frames[l])->b;
            D* d = (D*)((Operands*)frames[l])->d + r;
            double sum = *d;
            for (uint32_t k = 0; k < 16; k++) sum += element(a, k, pack, decode_a) * element(b, k, pack, decode_b);
            *d = rounded(*d, sum);
        }
}

template <int ATOM> void multiply(const Gathering& g) {
    void* const* frames = g.frames;
    const uint32_t warp = ATOM >= POP_EMU_mfma_f32_16x16x16_f16 && ATOM <= POP_EMU_mfma_i32_16x16x32_i8 ? 64 : 32;
    if (g.size != warp) {
        report(DIVERGENT_WARP, -1, "", 0, MANY, g.place);
        return;
    }
    switch (ATOM) {
        case POP_EMU_mma_m16n8k16_f16: return mma<float>(frames, 2, of_f16, of_f16);
        case POP_EMU_mma_m16n8k16_bf16: return mma<float>(frames, 2, of_bf16, of_bf16);
        case POP_EMU_mma_m16n8k8_tf32: return mma<float>(frames, 1, of_tf32, of_tf32);
        case POP_EMU_mma_m16n8k32_s8: return mma<int32_t>(frames, 4, of_s8, of_s8);
        case POP_EMU_mma_m16n8k32_s8u8: return mma<int32_t>(frames, 4, of_s8, of_u8);
        case POP_EMU_mma_m16n8k32_u8s8: return mma<int32_t>(frames, 4, of_u8, of_s8);
        case POP_EMU_mma_m16n8k32_u8: return mma<int32_t>(frames, 4, of_u8, of_u8);
        case POP_EMU_mma_m8n8k4_f64: return mma_f64(frames);
        case POP_EMU_mfma_f32_16x16x16_f16: return mfma<float>(frames, 4, 2, of_f16);
        case POP_EMU_mfma_f32_16x16x16_bf16: return mfma<float>(frames, 4, 2, of_bf16);
        case POP_EMU_mfma_f32_16x16x4_f32: return mfma<float>(frames, 1, 1, of_f32);
        case POP_EMU_mfma_f64_16x16x4_f64: return mfma_f64(frames);
        case POP_EMU_mfma_i32_16x16x16_i8: return mfma<int32_t>(frames, 4, 4, of_s8);
        case POP_EMU_mfma_i32_16x16x32_i8: return mfma<int32_t>(frames, 8, 4, of_s8);
        case POP_EMU_wmma_f32_16x16x16_f16: return wmma<float>(frames, 2, of_f16, of_f16);
        case POP_EMU_wmma_f32_16x16x16_bf16: return wmma<float>(frames, 2, of_bf16, of_bf16);
        case POP_EMU_wmma_i32_16x16x16_i8: return wmma<int32_t>(frames, 4, of_s8, of_s8);
        case POP_EMU_wmma_i32_16x16x16_i8u8: return wmma<int32_t>(frames, 4, of_s8, of_u8);
        case POP_EMU_wmma_i32_16x16x16_u8i8: return wmma<int32_t>(frames, 4, of_u8, of_s8);
        case POP_EMU_wmma_i32_16x16x16_u8: return wmma<int32_t>(frames, 4, of_u8, of_u8);
    }
}

#define POP_EMU_MULTIPLY(name) multiply<POP_EMU_##name>,
const Collective by_atom[] = {POP_EMU_ATOMS(POP_EMU_MULTIPLY)};

// --- ldmatrix -------------------------------------------------------------------------------------------------------

struct Rows { uint32_t* registers; const void* row; };

template <int SQUARES, bool TRANSPOSED> void load_squares(const Gathering& g) {
    uint16_t elements[SQUARES][8][8];
    for (uint32_t l = 0; l < 8 * SQUARES; l++) {
        const void* row = ((Rows*)g.frames[l])->row;
        enter(g.begin + l);
        if ((uintptr_t)row % 16) report(MISALIGNED, -1, "", 0, NOBODY, g.place);
        touch(row, 16, false, false, g.place);
        memcpy(elements[l / 8][l % 8], row, 16);
    }
    for (uint32_t l = 0; l < g.size; l++)
        for (uint32_t s = 0; s < SQUARES; s++) {
            const uint32_t i = l / 4, j = 2 * (l % 4);
            const uint16_t low = TRANSPOSED ? elements[s][j][i] : elements[s][i][j];
            const uint16_t high = TRANSPOSED ? elements[s][j + 1][i] : elements[s][i][j + 1];
            ((Rows*)g.frames[l])->registers[s] = low | (uint32_t)high << 16;
        }
}

}  // namespace

extern "C" void pop_emu_atom(int atom, void* d, const void* a, const void* b) {
    Operands x = {d, a, b};
    of_warp(&x, by_atom[atom], true, HERE);
}

extern "C" void pop_emu_ldmatrix(unsigned* registers, const void* row, int squares, int transposed) {
    Rows x = {registers, row};
    const Collective two = transposed ? load_squares<2, true> : load_squares<2, false>;
    const Collective four = transposed ? load_squares<4, true> : load_squares<4, false>;
    of_warp(&x, squares == 2 ? two : four, true, HERE);
}
