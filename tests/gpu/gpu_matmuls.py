"""Matrix products as an expert writes them, one for each kind of matrix unit, by hand: pipelines, swizzles and edges together.

Each multiplies `A` of M x K by `B` of K x N, row by row, 16-bit floats, to `C` in f32; M, N and K are known to the text.
"""

from __future__ import annotations

from polyop.ir.module import Boxes

# 64 x 64 x 32 by four warps, three stages of asynchronous copies, tiles swizzled in pieces of 16 bytes
AMPERE = """
POP_SHARED_VIEW(A_s, pop_u16, 0, 3 * 2048);
POP_SHARED_VIEW(B_s, pop_u16, 12288, 3 * 2048);
pop_u16* A_s = (pop_u16*)(pop_shared + 0);
pop_u16* B_s = (pop_u16*)(pop_shared + 12288);
const int warp = t / 32, lane = t % 32, m_b = blockIdx.x / ((N + 63) / 64) * 64, n_b = blockIdx.x % ((N + 63) / 64) * 64;
const int m_w = warp / 2 * 32, n_w = warp % 2 * 32, steps = (K + 31) / 32;
auto copy = [&](int step) {
    const int stage = step % 3 * 2048;
    for (int i = 0; i < 2; i++) {
        const int piece = 128 * i + t;
        const int m = piece / 4, k = piece % 4;
        pop_copy_async<16>(A_s + stage + 32 * m + 8 * (k ^ m / 2 % 4), A + (m_b + m) * K + 32 * step + 8 * k,
                           m_b + m < M && 32 * step + 8 * k < K);
        const int r = piece / 8, n = piece % 8;
        pop_copy_async<16>(B_s + stage + 64 * r + 8 * (n ^ r % 8), B + (32 * step + r) * N + n_b + 8 * n,
                           32 * step + r < K && n_b + 8 * n < N);
    }
};
float d[2][4][4] = {};
for (int step = 0; step < 2; step++) {
    if (step < steps) copy(step);
    pop_copy_commit();
}
for (int step = 0; step < steps; step++) {
    pop_copy_wait<1>();
    pop_barrier();  // all of this stage is there, and nobody reads the one before
    if (step + 2 < steps) copy(step + 2);
    pop_copy_commit();
    const int stage = step % 3 * 2048;
    for (int k = 0; k < 2; k++) {
        pop_u32 a[2][4], b[2][4];
        for (int i = 0; i < 2; i++) {
            const int m = m_w + 16 * i + lane % 16, c = 2 * k + lane / 16;
            pop_ldmatrix_x4(a[i], A_s + stage + 32 * m + 8 * (c ^ m / 2 % 4));
            const int r = 16 * k + lane % 16, n = n_w / 8 + 2 * i + lane / 16;
            pop_ldmatrix_x4_trans(b[i], B_s + stage + 64 * r + 8 * (n ^ r % 8));
        }
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 4; j++) {
                const pop_u32 half[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
                pop_mma_m16n8k16_bf16(d[i][j], a[i], half);
            }
    }
}
for (int i = 0; i < 2; i++)
    for (int j = 0; j < 4; j++)
        for (int r = 0; r < 4; r++) {
            const int m = m_b + m_w + 16 * i + lane / 4 + r / 2 * 8, n = n_b + n_w + 8 * j + lane % 4 * 2 + r % 2;
            if (m < M && n < N) C[m * N + n] = d[i][j][r];
        }
"""
AMPERE_SHARED = 24576

# 64 x 64 x 16 by four waves of 32 x 32; the next tile comes to registers while this one is multiplied; rows of 4 k's
CDNA = """
POP_SHARED_VIEW(A_s, pop_u16, 0, 64 * 20);
POP_SHARED_VIEW(B_s, pop_u16, 2560, 64 * 20);
pop_u16* A_s = (pop_u16*)(pop_shared + 0);
pop_u16* B_s = (pop_u16*)(pop_shared + 2560);
const int wave = t / 64, lane = t % 64, m_b = blockIdx.x / ((N + 63) / 64) * 64, n_b = blockIdx.x % ((N + 63) / 64) * 64;
const int m_w = wave / 2 * 32, n_w = wave % 2 * 32, steps = (K + 15) / 16;
alignas(8) pop_u16 a_next[4], b_next[4];
auto fetch = [&](int step) {
    const int m = m_b + t / 4, k = 16 * step + t % 4 * 4, n = n_b + t % 64, r = 16 * step + t / 64 * 4;
    for (int i = 0; i < 4; i++) {
        a_next[i] = m < M && k + i < K ? A[m * K + k + i] : (pop_u16)0;
        b_next[i] = r + i < K && n < N ? B[(r + i) * N + n] : (pop_u16)0;
    }
};
float d[2][2][4] = {};
fetch(0);
for (int step = 0; step < steps; step++) {
    pop_move<8>(A_s + 20 * (t / 4) + t % 4 * 4, a_next);
    pop_move<8>(B_s + 20 * (t % 64) + t / 64 * 4, b_next);
    pop_barrier();
    if (step + 1 < steps) fetch(step + 1);
    alignas(8) pop_u32 a[2][2], b[2][2];
    for (int i = 0; i < 2; i++) {
        pop_move<8>(a[i], A_s + 20 * (m_w + 16 * i + lane % 16) + 4 * (lane / 16));
        pop_move<8>(b[i], B_s + 20 * (n_w + 16 * i + lane % 16) + 4 * (lane / 16));
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) pop_mfma_f32_16x16x16_bf16(d[i][j], a[i], b[j]);
    pop_barrier();
}
for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++)
        for (int r = 0; r < 4; r++) {
            const int m = m_b + m_w + 16 * i + lane / 16 * 4 + r, n = n_b + n_w + 16 * j + lane % 16;
            if (m < M && n < N) C[m * N + n] = d[i][j][r];
        }
"""
CDNA_SHARED = 5120

# 32 x 32 x 16 by two waves of 32 x 16; both halves of a wave hold all of a and b
RDNA = """
POP_SHARED_VIEW(A_s, pop_u16, 0, 32 * 24);
POP_SHARED_VIEW(B_s, pop_u16, 1536, 32 * 24);
pop_u16* A_s = (pop_u16*)(pop_shared + 0);
pop_u16* B_s = (pop_u16*)(pop_shared + 1536);
const int wave = t / 32, lane = t % 32, m_b = blockIdx.x / ((N + 31) / 32) * 32, n_b = blockIdx.x % ((N + 31) / 32) * 32;
float d[2][8] = {};
for (int step = 0; step < (K + 15) / 16; step++) {
    for (int i = 0; i < 8; i++) {
        const int m = m_b + t / 2, n = n_b + t / 2, k = 16 * step + t % 2 * 8 + i;
        A_s[24 * (t / 2) + t % 2 * 8 + i] = m < M && k < K ? A[m * K + k] : (pop_u16)0;
        B_s[24 * (t / 2) + t % 2 * 8 + i] = n < N && k < K ? B[k * N + n] : (pop_u16)0;
    }
    pop_barrier();
    alignas(16) pop_u32 a[2][8], b[8];
    for (int h = 0; h < 2; h++) {
        for (int i = 0; i < 2; i++) pop_move<16>(a[i] + 4 * h, A_s + 24 * (16 * i + lane % 16) + 8 * h);
        pop_move<16>(b + 4 * h, B_s + 24 * (16 * wave + lane % 16) + 8 * h);
    }
    for (int i = 0; i < 2; i++) pop_wmma_f32_16x16x16_bf16(d[i], a[i], b);
    pop_barrier();
}
for (int i = 0; i < 2; i++)
    for (int r = 0; r < 8; r++) {
        const int m = m_b + 16 * i + 2 * r + lane / 16, n = n_b + 16 * wave + lane % 16;
        if (m < M && n < N) C[m * N + n] = d[i][r];
    }
"""
RDNA_SHARED = 3072

# 128 x 128 x 64: one warpgroup loads two stages, two multiply 64 rows each and store them through shared memory; b comes
# across k, as B lies; needs maps A_map (boxes of 128 x 64), B_map (64 x 64) and C_map (64 x 32 of f32)
HOPPER = """
POP_SHARED_VIEW(A_s, pop_u16, 0, 2 * 8192);
POP_SHARED_VIEW(B_s, pop_u16, 32768, 2 * 8192);
POP_SHARED_VIEW(C_s, float, 65536, 2 * 8192);
POP_SHARED_VIEW(full, pop_u64, 131072, 2);
POP_SHARED_VIEW(empty, pop_u64, 131088, 2);
pop_u16* A_s = (pop_u16*)(pop_shared + 0);
pop_u16* B_s = (pop_u16*)(pop_shared + 32768);
float* C_s = (float*)(pop_shared + 65536);
pop_u64* full = (pop_u64*)(pop_shared + 131072);
pop_u64* empty = (pop_u64*)(pop_shared + 131088);
const int m_b = blockIdx.x / ((N + 127) / 128) * 128, n_b = blockIdx.x % ((N + 127) / 128) * 128, steps = (K + 63) / 64;
if (t == 0) {
    for (int s = 0; s < 2; s++) {
        pop_mbarrier_init(full + s, 1);
        pop_mbarrier_init(empty + s, 2);
    }
    pop_mbarrier_fence();
}
pop_barrier();
if (t < 128) {
    pop_registers_less<40>();
    for (int step = 0; step < steps && t == 0; step++) {
        const int s = step % 2;
        pop_mbarrier_wait(empty + s, step / 2 % 2 ^ 1);
        pop_mbarrier_expect(full + s, 32768);
        pop_tile_load(A_s + 8192 * s, A_map, 64 * step, m_b, full + s);
        for (int h = 0; h < 2; h++) pop_tile_load(B_s + 8192 * s + 4096 * h, B_map, n_b + 64 * h, 64 * step, full + s);
    }
} else {
    pop_registers_more<232>();
    const int group = t / 128 - 1, u = t % 128;
    float d[64];
    for (int step = 0; step < steps; step++) {
        const int s = step % 2;
        pop_mbarrier_wait(full + s, step / 2 % 2);
        pop_wgmma_fence();
        for (int k = 0; k < 4; k++)
            pop_wgmma_m64n128k16_bf16<0, 1>(d, pop_wgmma_tile(A_s + 8192 * s + 4096 * group + 16 * k, 1024, 0),
                                            pop_wgmma_tile(B_s + 8192 * s + 1024 * k, 1024, 8192), step + k > 0);
        pop_wgmma_commit();
        pop_wgmma_wait<0>();
        pop_wgmma_hold(d);
        if (u == 0) pop_mbarrier_arrive(empty + s);
    }
    for (int r = 0; r < 64; r++) {
        const int m = u / 32 * 16 + u % 32 / 4 + r / 2 % 2 * 8, n = r / 4 * 8 + u % 4 * 2 + r % 2;
        C_s[8192 * group + 2048 * (n / 32) + 32 * m + (n % 32 ^ m % 8 * 4)] = d[r];
    }
    pop_async_fence();
    pop_named_barrier(1 + group, 128);
    if (u == 0) {
        for (int c = 0; c < 4; c++) pop_tile_store(C_map, n_b + 32 * c, m_b + 64 * group, C_s + 8192 * group + 2048 * c);
        pop_tile_commit();
        pop_tile_wait<0>();
    }
}
"""
HOPPER_SHARED = 131104
HOPPER_BOXES = tuple(Boxes(name, (1, 0), box, 128) for name, box in (("A", (64, 128)), ("B", (64, 64)), ("C", (32, 64))))
