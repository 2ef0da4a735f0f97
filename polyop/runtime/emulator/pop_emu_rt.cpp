// pop_emu_rt.cpp: runs the threads of emulated kernels, and watches their memory.
//
// Threads of one launch run one after the other, each to its end or to where it waits for others. Every access that the
// hooks report is compared with a shadow of its element: who wrote it last, who has read it since. Two accesses by
// different threads, one of them a write, are a race unless something orders them. The first access outside of a buffer
// ends the launch before it happens.
//
// Written without the C++ library, so that any linker will do. Never compiled with a sanitizer itself.
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include "pop_emu_abi.h"

#define HERE __builtin_return_address(0)
#define EXPORT extern "C" __attribute__((visibility("default")))

pop_emu_index pop_emu_thread, pop_emu_block, pop_emu_block_size, pop_emu_grid_size;
unsigned pop_emu_warp = 32;

#include "pop_emu_find.h"
#include "pop_emu_clock.h"
#include "pop_emu_memory.h"
#include "pop_emu_shared.h"
#include "pop_emu_threads.h"
#include "pop_emu_meet.h"
#include "pop_emu_copies.h"
#include "pop_emu_atoms.h"
#include "pop_emu_phases.h"
#include "pop_emu_registers.h"
#include "pop_emu_tiles.h"
#include "pop_emu_wgmma.h"
#include "pop_emu_banks.h"
#include "pop_emu_overflow.h"

namespace {

// What a thread started must not outlive it.
void leave_asynchronous() {
    leave_copies();
    if (current) leave_stores();
    if (current) leave_products();
}

void make_block() {
    make_clocks();
    make_copies();
    make_tiles();
    make_units();
    make_turns();
    make_registers();
}

void start_block() {
    start_clocks();
    start_copies();
    start_phases();
    start_tiles();
    start_units();
    start_turns();
    start_registers();
    poison_shared();
}

void free_block() {
    start_phases();
    free_copies();
    free_tiles();
    free_units();
    free_banks();
    free_turns();
    free_registers();
    free_clocks();
}

}  // namespace

// --- a launch -------------------------------------------------------------------------------------------------------

extern "C" int pop_emu_launch(const pop_emu_kernel* kernel, void** args, const pop_emu_options* o) {
    options = *o;
    launched = kernel;
    launch_args = args;
    pop_emu_grid_size = {o->grid[0], o->grid[1], o->grid[2]};
    pop_emu_block_size = {o->block[0], o->block[1], o->block[2]};
    pop_emu_warp = o->warp;
    threads = o->block[0] * o->block[1] * o->block[2];
    random_state = 0x9e3779b97f4a7c15ull ^ o->seed;
    stopped = false;
    recent = nullptr;
    make_block();
    lay_out_shared(kernel);
    if (o->fibers) make_threads();
    const uint32_t blocks = o->grid[0] * o->grid[1] * o->grid[2];
    auto block_order = (uint32_t*)malloc(blocks * sizeof(uint32_t) + 4);
    auto thread_order = (uint32_t*)malloc(threads * sizeof(uint32_t) + 4);
    arrange(block_order, blocks);
    running = true;
    for (volatile uint32_t i = 0; i < blocks && !stopped; i = i + 1) {
        block_number = block_order[i];
        const unsigned row = block_number / o->grid[0];
        pop_emu_block = {block_number % o->grid[0], row % o->grid[1], row / o->grid[1]};
        start_block();
        if (o->fibers) run_fibers();
        else {
            arrange(thread_order, threads);
            if (!setjmp(stop_plain)) run_plain(thread_order);
        }
        leave_loads();
        count_banks();
    }
    running = false;
    earlier_blocks += blocks;
    free(block_order);
    free(thread_order);
    free_block();
    free_shared();
    free_threads();
    return stopped;
}

extern "C" void pop_emu_poison_bytes(void* to, size_t bytes) { memset(to, 0xff, bytes); }

// --- for the host ---------------------------------------------------------------------------------------------------

EXPORT void pop_emu_reset() {
    for (int i = 0; i < region_count; i++) free(regions[i].cells);
    region_count = found = traffic_count = 0;
    earlier_blocks = 0;
    recent = nullptr;
    if (arena) munmap(arena, ARENA);
    arena = (unsigned char*)reserve(ARENA);
    arena_next = arena ? arena + DISTANCE : nullptr;
}

// `gaps`: for each element, whether it may not be touched; or null. Returns null if there is no more room.
EXPORT void* pop_emu_buffer(size_t bytes, unsigned element_bytes, int read_only, int initialised, const unsigned char* gaps) {
    if (!arena || arena_next + bytes + DISTANCE > arena + ARENA) return nullptr;
    unsigned char* begin = arena_next;
    Region* r = add_region(begin, bytes, element_bytes, read_only, region_count);
    if (!r) return nullptr;
    arena_next += (bytes + 255) / 256 * 256 + DISTANCE;
    memset(begin, 0xff, bytes);  // NaN, or the highest integer
    for (size_t i = 0; i < cell_count(*r); i++)
        r->cells[i].flags = uint8_t((initialised ? INITIALISED : 0) | (gaps && gaps[i] ? GAP : 0));
    return begin;
}

EXPORT int pop_emu_findings(const Finding** first) {
    *first = findings;
    return found;
}

// --- the hooks that -fsanitize=thread calls -------------------------------------------------------------------------

#define HOOK extern "C" __attribute__((visibility("hidden"))) void
HOOK __tsan_init() {}
HOOK __tsan_func_entry(void*) {}
HOOK __tsan_func_exit() {}
HOOK __tsan_vptr_update(void**, void*) {}
#define HOOKS(n) \
    HOOK __tsan_read##n(void* p) { touch(p, n, false, false, HERE); } \
    HOOK __tsan_write##n(void* p) { touch(p, n, true, false, HERE); } \
    HOOK __tsan_unaligned_read##n(void* p) { touch(p, n, false, false, HERE); } \
    HOOK __tsan_unaligned_write##n(void* p) { touch(p, n, true, false, HERE); } \
    HOOK __tsan_volatile_read##n(void* p) { touch(p, n, false, false, HERE); } \
    HOOK __tsan_volatile_write##n(void* p) { touch(p, n, true, false, HERE); } \
    HOOK __tsan_read_write##n(void* p) { touch(p, n, false, false, HERE); touch(p, n, true, false, HERE); } \
    HOOK __tsan_unaligned_read_write##n(void* p) { touch(p, n, false, false, HERE); touch(p, n, true, false, HERE); }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
HOOK __tsan_read_range(void* p, size_t n) { touch(p, n, false, false, HERE); }
HOOK __tsan_write_range(void* p, size_t n) { touch(p, n, true, false, HERE); }
extern "C" __attribute__((visibility("hidden"))) void* __tsan_memcpy(void* to, const void* from, size_t n) {
    touch((void*)from, n, false, false, HERE);
    touch(to, n, true, false, HERE);
    return memcpy(to, from, n);
}
extern "C" __attribute__((visibility("hidden"))) void* __tsan_memset(void* to, int value, size_t n) {
    touch(to, n, true, false, HERE);
    return memset(to, value, n);
}
extern "C" __attribute__((visibility("hidden"))) void* __tsan_memmove(void* to, const void* from, size_t n) {
    touch((void*)from, n, false, false, HERE);
    touch(to, n, true, false, HERE);
    return memmove(to, from, n);
}
