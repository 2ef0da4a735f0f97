// pop_emu_abi.h: what an emulated kernel and the emulator's runtime share.
#pragma once
#include <stddef.h>
#include <stdint.h>

// the functions of pop_matrix.h
#define POP_EMU_ATOMS(X) \
    X(mma_m16n8k16_f16) X(mma_m16n8k16_bf16) X(mma_m16n8k8_tf32) X(mma_m16n8k32_s8) X(mma_m16n8k32_s8u8) X(mma_m16n8k32_u8s8) \
    X(mma_m16n8k32_u8) X(mma_m8n8k4_f64) X(mfma_f32_16x16x16_f16) X(mfma_f32_16x16x16_bf16) X(mfma_f32_16x16x4_f32) \
    X(mfma_f64_16x16x4_f64) X(mfma_i32_16x16x16_i8) X(mfma_i32_16x16x32_i8) X(wmma_f32_16x16x16_f16) X(wmma_f32_16x16x16_bf16) \
    X(wmma_i32_16x16x16_i8) X(wmma_i32_16x16x16_i8u8) X(wmma_i32_16x16x16_u8i8) X(wmma_i32_16x16x16_u8)
#define POP_EMU_NUMBERED(name) POP_EMU_##name,
enum pop_emu_atoms : int { POP_EMU_ATOMS(POP_EMU_NUMBERED) };

// A call at which threads meet: a compiler must not make two places of one.
#if defined(__clang__)
#define POP_EMU_MEET __attribute__((convergent))
#else
#define POP_EMU_MEET
#endif

extern "C" {
struct pop_emu_index { unsigned x, y, z; };
extern pop_emu_index pop_emu_thread, pop_emu_block, pop_emu_block_size, pop_emu_grid_size;
extern unsigned pop_emu_warp;

// An array in the shared memory of a kernel: `count` elements of `bytes` each from `offset` on.
struct pop_emu_view { const char *kernel, *name; unsigned offset, count, bytes, unused; };

// order: 0 forward, 1 backward, 2 shuffled by `seed`. fibers: threads can wait for each other. shared: bytes of dynamic
// shared memory. completion: asynchronous work ends 0 as late or 1 as early as it may; 2: there is none, copies are plain.
// watched: accesses are compared with the shadow. banks: those of shared memory are counted.
struct pop_emu_options {
    unsigned grid[3], block[3];
    int order;
    unsigned seed;
    int fibers;
    unsigned shared, warp;
    int completion, watched, banks;
};

// shared_begin .. shared_end: static shared arrays. views: of all kernels of the library.
typedef void (*pop_emu_entry)(void* kernel, void** args);
struct pop_emu_kernel {
    pop_emu_entry entry;
    void* kernel;
    const char* name;
    unsigned char *shared_begin, *shared_end;
    const pop_emu_view *views_begin, *views_end;
};

int pop_emu_launch(const pop_emu_kernel* kernel, void** args, const pop_emu_options* options);
unsigned char* pop_emu_shared(unsigned bytes);
unsigned char* pop_emu_shared_at(size_t offset);
void* pop_emu_shared_array(const void* key, unsigned bytes, unsigned granule);
unsigned long long pop_emu_turn_begins(long long turn);
void pop_emu_turn_ends(unsigned long long around);
void pop_emu_poison_bytes(void* to, size_t bytes);
void pop_emu_aligned(const void* p, unsigned bytes);
POP_EMU_MEET void pop_emu_barrier();
POP_EMU_MEET void pop_emu_warp_barrier();
POP_EMU_MEET void pop_emu_shuffle(unsigned long long* bits, unsigned lane);
void pop_emu_copy(void* to, const void* from, unsigned bytes, int inside);
void pop_emu_copy_commit();
void pop_emu_copy_wait(unsigned groups);
POP_EMU_MEET void pop_emu_ldmatrix(unsigned* registers, const void* row, int squares, int transposed);
POP_EMU_MEET void pop_emu_atom(int atom, void* d, const void* a, const void* b);
void pop_emu_mbarrier_init(void* bar, unsigned arrivals);
void pop_emu_mbarrier_fence();
void pop_emu_mbarrier_arrive(void* bar, unsigned bytes);
void pop_emu_mbarrier_wait(void* bar, unsigned parity);
void pop_emu_named_barrier(unsigned id, unsigned count, int waits);
POP_EMU_MEET void pop_emu_registers(unsigned count);
void pop_emu_tile_load(void* to, const unsigned long long* map, int column, int row, void* bar);
void pop_emu_box_load(void* to, const unsigned long long* map, const int* corner, void* bar);
void pop_emu_tile_store(const unsigned long long* map, int column, int row, const void* from);
void pop_emu_tile_commit();
void pop_emu_tile_wait(unsigned groups, int only_read);
void pop_emu_async_fence();
unsigned long long pop_emu_wgmma_tile(const void* tile, unsigned stride, unsigned leading);
POP_EMU_MEET void pop_emu_wgmma_fence();
POP_EMU_MEET void pop_emu_wgmma(float* d, unsigned n, int bf16, const unsigned* registers, unsigned long long a,
                                unsigned long long b, int a_across, int b_across, int add);
POP_EMU_MEET void pop_emu_wgmma_commit();
POP_EMU_MEET void pop_emu_wgmma_wait(unsigned keep);
void pop_emu_atomic_add(void* at, const void* x, unsigned bytes, int is_float);
void pop_emu_atomic_read(void* at, void* to, unsigned bytes);
void pop_emu_atomic_write(void* at, const void* from, unsigned bytes);
void pop_emu_compare_exchange(unsigned* at, unsigned expected, unsigned value);
}
