// pop_emu_abi.h: what an emulated kernel and the emulator's runtime share.
#pragma once
#include <stddef.h>
#include <stdint.h>

extern "C" {
struct pop_emu_index { unsigned x, y, z; };
extern pop_emu_index pop_emu_thread, pop_emu_block, pop_emu_block_size, pop_emu_grid_size;

// order: 0 forward, 1 backward, 2 shuffled by `seed`. fibers: threads can wait for each other (needed for barriers).
// shared: bytes of dynamic shared memory, as cuLaunchKernel takes them.
struct pop_emu_options { unsigned grid[3], block[3]; int order; unsigned seed; int fibers; unsigned shared; };

typedef void (*pop_emu_entry)(void* kernel, void** args);
int pop_emu_launch(pop_emu_entry entry, void* kernel, void** args, const pop_emu_options* options, unsigned char* shared_begin,
                   unsigned char* shared_end);
void pop_emu_barrier();
void pop_emu_compare_exchange(unsigned* at, unsigned expected, unsigned value);
}
