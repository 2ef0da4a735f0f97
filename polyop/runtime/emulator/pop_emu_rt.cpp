// pop_emu_rt.cpp: runs the threads of emulated kernels, and watches their memory.
//
// Threads of one launch run one after the other, each to its end or to its next barrier. Every access that the hooks
// report is compared with a shadow of its element: who wrote it last, who has read it since. Two accesses by different
// threads, one of them a write, are a race unless a barrier of their block lies between them. The first access outside
// of a buffer ends the launch before it happens.
//
// Written without the C++ library, so that any linker will do. Never compiled with a sanitizer itself.
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "pop_emu_abi.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" pop_emu_index pop_emu_thread, pop_emu_block, pop_emu_block_size, pop_emu_grid_size;
pop_emu_index pop_emu_thread, pop_emu_block, pop_emu_block_size, pop_emu_grid_size;

namespace {

// --- what was found -------------------------------------------------------------------------------------------------

enum What : int { RACE_WW = 1, RACE_RW, RACE_WR, OUTSIDE, UNINITIALISED, READ_ONLY, DIVERGENT };

struct Finding {
    int what, buffer;
    int64_t element;
    uint32_t block, thread, other_block, other_thread;
    uint64_t place;  // where the access returns to, as an offset into the library's file
};
extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start;  // the linker puts it where the file is loaded

const int MOST = 32;
Finding findings[MOST];
int found;

// --- memory ---------------------------------------------------------------------------------------------------------

const uint32_t NOBODY = 0, MANY = 0xffffffffu;  // threads and blocks count from 1 in a shadow
enum Flag : uint8_t { INITIALISED = 1, GAP = 2, ATOMIC = 4 };

struct Cell {
    uint32_t writer, writer_block, writer_epoch;
    uint32_t reader, reader_block, reader_epoch;
    uint8_t flags;
};

struct Region {
    unsigned char *begin, *end;
    unsigned element_bytes;
    bool read_only, shared;
    Cell* cells;
};

const int MOST_REGIONS = 512;
const size_t ARENA = size_t(1) << 34, DISTANCE = 1 << 20;  // untouched pages cost nothing
Region regions[MOST_REGIONS];
int region_count;
Region* recent;
unsigned char *arena, *arena_next;

// --- the running launch ---------------------------------------------------------------------------------------------

struct Fiber { ucontext_t context; bool finished, waiting; void* place; };

bool running;
uint32_t threads_per_block, block_number, thread_number, epoch;  // numbers from 0
jmp_buf stop_plain;
ucontext_t scheduler;
Fiber *fibers, *current;
unsigned char* stacks;
size_t stack_count;
bool stopped;
pop_emu_entry launch_entry;
void *launch_kernel, **launch_args;
uint64_t random_state;

const size_t STACK = 256 << 10;

size_t cell_count(const Region& r) { return (r.end - r.begin) / r.element_bytes; }

uint32_t me() { return block_number * threads_per_block + thread_number + 1; }

void report(What what, Region* r, int64_t element, uint32_t other, void* address) {
    const uint64_t place = (const char*)address - &__ehdr_start;
    for (int i = 0; i < found; i++)
        if (findings[i].what == what && findings[i].place == place) return;  // one of a kind is enough
    if (found == MOST) return;
    uint32_t known = other == NOBODY || other == MANY ? 0 : other - 1;
    findings[found++] = {what, r ? int(r - regions) : -1, element, block_number, thread_number,
                         other == MANY ? MANY : known / threads_per_block, other == MANY ? MANY : known % threads_per_block,
                         place};
}

[[noreturn]] void stop() {
    stopped = true;
    if (current) setcontext(&scheduler);
    longjmp(stop_plain, 1);
}

Region* region_of(const unsigned char* p) {
    if (recent && p >= recent->begin && p < recent->end) return recent;
    for (int i = 0; i < region_count; i++)
        if (p >= regions[i].begin && p < regions[i].end) return recent = &regions[i];
    return nullptr;
}

Region* nearest(const unsigned char* p) {
    Region* best = nullptr;
    size_t distance = ~size_t(0);
    for (int i = 0; i < region_count; i++) {
        size_t d = p < regions[i].begin ? regions[i].begin - p : p - regions[i].end;
        if (!regions[i].shared && d < distance) { distance = d; best = &regions[i]; }
    }
    return best;
}

// Whether what `other` did in its block at `then` surely came before what this thread does now.
bool before(uint32_t other, uint32_t other_block, uint32_t then) {
    return other == NOBODY || other == me() || (other_block == block_number + 1 && then < epoch);
}

void read_cell(Region* r, Cell& c, int64_t element, void* place) {
    if (!(c.flags & INITIALISED)) report(UNINITIALISED, r, element, NOBODY, place);
    if (!before(c.writer, c.writer_block, c.writer_epoch)) report(RACE_RW, r, element, c.writer, place);
    // readers of an earlier epoch of this block are ordered before whatever any thread of it does from now on
    bool fresh = c.reader == NOBODY || (c.reader_block == block_number + 1 && c.reader_epoch < epoch);
    c.reader = fresh || c.reader == me() ? me() : MANY;
    c.reader_block = fresh || c.reader_block == block_number + 1 ? block_number + 1 : MANY;
    c.reader_epoch = epoch;
}

void write_cell(Region* r, Cell& c, int64_t element, bool atomic, void* place) {
    if (!before(c.writer, c.writer_block, c.writer_epoch) && !(atomic && (c.flags & ATOMIC)))
        report(RACE_WW, r, element, c.writer, place);
    if (!before(c.reader, c.reader_block, c.reader_epoch)) report(RACE_WR, r, element, c.reader, place);
    c.writer = me();
    c.writer_block = block_number + 1;
    c.writer_epoch = epoch;
    c.reader = NOBODY;
    c.flags = uint8_t((c.flags & ~ATOMIC) | INITIALISED | (atomic ? ATOMIC : 0));
}

void touch(void* address, size_t bytes, bool write, bool atomic, void* place) {
    if (!running) return;
    auto p = (unsigned char*)address;
    Region* r = region_of(p);
    if (!r) {
        if (p < arena || p >= arena + ARENA) return;  // the thread's own stack, or constants
        if ((r = nearest(p))) report(OUTSIDE, r, (p - r->begin) / (int64_t)r->element_bytes - (p < r->begin), NOBODY, place);
        stop();
    }
    int64_t first = (p - r->begin) / r->element_bytes, last = (p - r->begin + bytes - 1) / r->element_bytes;
    for (int64_t i = first; i <= last; i++) {
        if (r->begin + i * r->element_bytes >= r->end || (r->cells[i].flags & GAP)) {
            report(OUTSIDE, r, i, NOBODY, place);
            stop();
        }
        if (!write) read_cell(r, r->cells[i], i, place);
        else if (r->read_only) report(READ_ONLY, r, i, NOBODY, place);
        else write_cell(r, r->cells[i], i, atomic, place);
    }
}

Region* add_region(unsigned char* begin, size_t bytes, unsigned element_bytes, bool read_only, bool shared) {
    if (region_count == MOST_REGIONS) return nullptr;
    Region* r = &regions[region_count++];
    *r = {begin, begin + bytes, element_bytes, read_only, shared, nullptr};
    r->cells = (Cell*)calloc(cell_count(*r) + 1, sizeof(Cell));
    return r;
}

// --- threads --------------------------------------------------------------------------------------------------------

uint64_t random_number() {  // xorshift64
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

void arrange(uint32_t* order, uint32_t n, int how) {
    for (uint32_t i = 0; i < n; i++) order[i] = how == 1 ? n - 1 - i : i;
    for (uint32_t i = n; how == 2 && i > 1; i--) {
        uint32_t j = random_number() % i, kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
}

void enter(uint32_t thread) {
    thread_number = thread;
    const auto& b = pop_emu_block_size;
    pop_emu_thread = {thread % b.x, thread / b.x % b.y, thread / (b.x * b.y)};
}

void fiber_main() {
    launch_entry(launch_kernel, launch_args);
    current->finished = true;
    setcontext(&scheduler);
}

void run_plain(const uint32_t* order) {
    for (uint32_t i = 0; i < threads_per_block; i++) {
        enter(order[i]);
        launch_entry(launch_kernel, launch_args);
    }
}

// All threads up to their next barrier, again and again; a barrier ends an epoch.
void run_fibers(const uint32_t* order) {
    const uint32_t n = threads_per_block;
    for (uint32_t i = 0; i < n; i++) {
        getcontext(&fibers[i].context);
        fibers[i].context.uc_stack = {stacks + i * STACK, 0, STACK};
        fibers[i].context.uc_link = nullptr;
        fibers[i].finished = fibers[i].waiting = false;
        makecontext(&fibers[i].context, fiber_main, 0);
    }
    for (;;) {
        uint32_t waiting = 0, alive = 0;
        void* place = nullptr;
        for (uint32_t i = 0; i < n && !stopped; i++) {
            current = &fibers[order[i]];
            if (current->finished) continue;
            enter(order[i]);
            current->waiting = false;
            swapcontext(&scheduler, &current->context);
            if (current->finished) continue;
            alive++;
            if (place && place != current->place) report(DIVERGENT, nullptr, 0, NOBODY, current->place);
            place = current->place;
            waiting++;
        }
        current = nullptr;
        if (stopped || !alive) return;
        if (waiting < n) report(DIVERGENT, nullptr, 0, NOBODY, place);  // the others have returned
        epoch++;
    }
}

}  // namespace

extern "C" void pop_emu_barrier() {
    if (!current) return;
    current->place = __builtin_return_address(0);
    current->waiting = true;
    swapcontext(&current->context, &scheduler);
}

extern "C" void pop_emu_compare_exchange(unsigned* at, unsigned expected, unsigned value) {
    touch(at, 4, true, true, __builtin_return_address(0));
    if (*at == expected) *at = value;
}

extern "C" int pop_emu_launch(pop_emu_entry entry, void* kernel, void** args, const pop_emu_options* o, unsigned char* shared_begin,
                              unsigned char* shared_end) {
    launch_entry = entry;
    launch_kernel = kernel;
    launch_args = args;
    pop_emu_grid_size = {o->grid[0], o->grid[1], o->grid[2]};
    pop_emu_block_size = {o->block[0], o->block[1], o->block[2]};
    threads_per_block = o->block[0] * o->block[1] * o->block[2];
    random_state = 0x9e3779b97f4a7c15ull ^ o->seed;
    stopped = false;
    recent = nullptr;
    for (int i = 0; i < region_count; i++)  // launches are ordered: only initialisation outlives one
        for (size_t k = 0; k < cell_count(regions[i]); k++)
            regions[i].cells[k] = Cell{0, 0, 0, 0, 0, 0, uint8_t(regions[i].cells[k].flags & ~ATOMIC)};
    const int kept_regions = region_count;
    Region* shared = shared_end > shared_begin ? add_region(shared_begin, shared_end - shared_begin, 1, false, true) : nullptr;
    if (o->fibers) {
        if (stack_count < threads_per_block) {
            if (stacks) munmap(stacks, stack_count * STACK);
            stack_count = threads_per_block;
            stacks = (unsigned char*)mmap(nullptr, stack_count * STACK, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        }
        fibers = (Fiber*)calloc(threads_per_block, sizeof(Fiber));
    }
    const uint32_t blocks = o->grid[0] * o->grid[1] * o->grid[2];
    auto block_order = (uint32_t*)malloc(blocks * sizeof(uint32_t) + 4);
    auto thread_order = (uint32_t*)malloc(threads_per_block * sizeof(uint32_t) + 4);
    arrange(block_order, blocks, o->order);
    running = true;
    for (volatile uint32_t i = 0; i < blocks && !stopped; i = i + 1) {
        block_number = block_order[i];
        pop_emu_block = {block_number % o->grid[0], block_number / o->grid[0] % o->grid[1], block_number / (o->grid[0] * o->grid[1])};
        arrange(thread_order, threads_per_block, o->order);
        epoch = 1;
        if (shared) {
            memset(shared_begin, 0xff, shared_end - shared_begin);
            memset(shared->cells, 0, cell_count(*shared) * sizeof(Cell));
        }
        if (o->fibers) run_fibers(thread_order);
        else if (!setjmp(stop_plain)) run_plain(thread_order);
    }
    running = false;
    free(block_order);
    free(thread_order);
    if (o->fibers) free(fibers);
    fibers = current = nullptr;
    if (shared) free(shared->cells);
    region_count = kept_regions;
    return stopped;
}

// --- for the host ---------------------------------------------------------------------------------------------------

EXPORT void pop_emu_reset() {
    for (int i = 0; i < region_count; i++) free(regions[i].cells);
    region_count = found = 0;
    recent = nullptr;
    if (arena) munmap(arena, ARENA);
    arena = (unsigned char*)mmap(nullptr, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == (unsigned char*)MAP_FAILED) arena = nullptr;
    arena_next = arena ? arena + DISTANCE : nullptr;
}

// `gaps`: for each element, whether it may not be touched; or null. Returns null if there is no more room.
EXPORT void* pop_emu_buffer(size_t bytes, unsigned element_bytes, int read_only, int initialised, const unsigned char* gaps) {
    if (!arena || arena_next + bytes + DISTANCE > arena + ARENA) return nullptr;
    unsigned char* begin = arena_next;
    Region* r = add_region(begin, bytes, element_bytes, read_only, false);
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

#define HERE __builtin_return_address(0)
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
