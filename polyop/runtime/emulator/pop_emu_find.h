// pop_emu_find.h: what was found, and where the threads are that run.
#pragma once

namespace {

enum What : int {
    RACE_WW = 1, RACE_RW, RACE_WR, OUTSIDE, UNINITIALISED, READ_ONLY, DIVERGENT, IN_FLIGHT, MISALIGNED, DIVERGENT_WARP, DEADLOCK,
    UNWAITED, MIXED_WARP, BEING_READ, ACCUMULATOR, UNFENCED, MIXED_BARRIER, OVERFLOW
};

// `buffer` counts those of pop_emu_buffer; -1: none; -2: shared memory, and `name` says which array.
struct Finding {
    int what, buffer;
    int64_t element;
    uint32_t block, thread, other_block, other_thread;
    uint64_t place, other_place;  // where the accesses return to, as offsets into the library's file; 0 if unknown
    char name[64];
};
extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start;  // the linker puts it where the file is loaded

const int MOST = 32;
Finding findings[MOST];
int found;

// Memory that takes room only where it is used; null if there is none.
void* reserve(size_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
}

// --- the running launch ---------------------------------------------------------------------------------------------

const uint32_t NOBODY = 0, MANY = 0xffffffffu;  // threads and blocks count from 1 in a shadow

pop_emu_options options;
bool running, stopped;
uint32_t threads, block_number, thread_number;  // threads in a block; numbers from 0
uint32_t earlier_blocks;  // of all launches before

// The number of the block among those of all launches, from 1.
uint32_t block_tag() { return earlier_blocks + block_number + 1; }

// The number of a thread in the launch; the one after the last of a block is its asynchronous copy engine.
uint32_t number_of(uint32_t thread) { return block_number * (threads + 1) + thread + 1; }
uint32_t me() { return number_of(thread_number); }

void name_it(Finding* f, const char* name) {
    size_t n = strlen(name);
    n = n < sizeof(f->name) ? n : sizeof(f->name) - 1;
    memcpy(f->name, name, n);
    f->name[n] = 0;
}

uint64_t offset_of(const void* place) { return place ? (const char*)place - &__ehdr_start : 0; }

// One of a kind is enough for each place.
void report(What what, int buffer, const char* name, int64_t element, uint32_t other, const void* place,
            const void* other_place = nullptr) {
    const uint64_t offset = offset_of(place);
    for (int i = 0; i < found; i++)
        if (findings[i].what == what && findings[i].place == offset) return;
    if (found == MOST) return;
    const uint32_t known = other == NOBODY || other == MANY ? 0 : other - 1;
    Finding* f = &findings[found++];
    *f = {what, buffer, element, block_number, thread_number, other == MANY ? MANY : known / (threads + 1),
          other == MANY ? MANY : known % (threads + 1), offset, offset_of(other_place), {}};
    name_it(f, name);
}

}  // namespace
