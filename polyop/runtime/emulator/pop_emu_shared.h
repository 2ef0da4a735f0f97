// pop_emu_shared.h: dynamic shared memory. Arrays that overlap lie together as on a device; between others there are gaps.
#pragma once

namespace {

int first_shared, shared_count;  // among the regions
unsigned char* shared_next;      // where the next part may lie

// An array that a function of the kernel has for itself, by an address that stands for it.
struct Own { const void* key; Region* region; };
const int MOST_OWN = 64;
Own own_arrays[MOST_OWN];
int own_count;

// Where a part of shared memory may lie that begins at an address like `offset`; null if there is no room.
unsigned char* shared_place(size_t offset, size_t bytes) {
    unsigned char* next = shared_next;
    // the last bits of addresses stay what they are: swizzles and alignment depend on them
    next += (SHARED_TILE - (next - shared_room) % SHARED_TILE) % SHARED_TILE + offset % SHARED_TILE;
    if (next + bytes + SHARED_TILE > shared_room + SHARED_ROOM) return nullptr;
    shared_next = next + bytes + SHARED_TILE;
    return next;
}

// A part of shared memory, [begin, end) as the kernel counts.
void add_part(size_t begin, size_t end, unsigned granule) {
    if (begin >= end) return;
    unsigned char* next = shared_place(begin, end - begin);
    Region* r = next ? add_region(next, end - begin, granule, false, -2) : nullptr;
    if (!r) return;
    r->offset = begin;
    shared_count++;
}

void lay_out_shared(const pop_emu_kernel* kernel) {
    if (!shared_room)
        shared_room = (unsigned char*)reserve(SHARED_ROOM);
    first_shared = region_count;
    shared_next = shared_room + 4 * SHARED_TILE;
    shared_count = view_count = own_count = 0;
    for (const pop_emu_view* v = kernel->views_begin; v < kernel->views_end; v++) {
        if (strcmp(v->kernel, kernel->name) || !v->count || view_count == MOST_VIEWS) continue;
        int at = view_count++;  // by offset, whatever order the compiler put them in
        for (; at && views[at - 1].offset > v->offset; at--) views[at] = views[at - 1];
        views[at] = *v;
    }
    if (!view_count) add_part(0, options.shared, 1);
    for (int i = 0; i < view_count;) {
        const size_t begin = views[i].offset;
        size_t end = begin;
        unsigned granule = 16;
        for (; i < view_count && (end == begin || views[i].offset < end); i++) {
            const size_t last = views[i].offset + size_t(views[i].count) * views[i].bytes;
            end = last > end ? last : end;
            granule = views[i].bytes < granule ? views[i].bytes : granule;
        }
        while (begin % granule) granule /= 2;
        add_part(begin, end < options.shared ? end : options.shared, granule);
    }
    if (kernel->shared_end > kernel->shared_begin)
        if (add_region(kernel->shared_begin, kernel->shared_end - kernel->shared_begin, 1, false, -2)) shared_count++;
    size_t bytes = 0;
    for (int i = first_shared; i < region_count; i++) bytes += cell_count(regions[i]) * row_words() * 4;
    if (!bytes || !options.watched) return;
    reader_room = (uint32_t*)reserve(bytes);
    if (!reader_room) return;
    reader_room_bytes = bytes;
    uint32_t* next = reader_room;
    for (int i = first_shared; i < region_count; i++) {
        regions[i].readers = next;
        next += cell_count(regions[i]) * row_words();
    }
}

// What a block finds in shared memory is nobody's.
void poison(const Region& r) {
    memset(r.begin, 0xff, r.end - r.begin);
    memset(r.cells, 0, cell_count(r) * sizeof(Cell));
}

void poison_shared() {
    for (int i = first_shared; i < region_count; i++) poison(regions[i]);
}

void free_shared() {
    for (int i = first_shared; i < region_count; i++) free(regions[i].cells);
    for (int i = 0; i < own_count; i++) free(own_arrays[i].region->readers);
    region_count = first_shared;
    recent = nullptr;
    if (reader_room) munmap(reader_room, reader_room_bytes);
    reader_room = nullptr;
}

}  // namespace

extern "C" unsigned char* pop_emu_shared(unsigned bytes) {
    if (bytes > options.shared) {
        report(OUTSIDE, -2, "pop_shared", options.shared, NOBODY, __builtin_return_address(0));
        stop();
    }
    return pop_emu_shared_at(0);
}

// An offset in no array is an address in a gap.
extern "C" unsigned char* pop_emu_shared_at(size_t offset) {
    Region* last = nullptr;
    for (int i = first_shared; i < first_shared + shared_count; i++) {
        Region* r = &regions[i];
        if (!in_shared(r->begin) || r->offset > offset) continue;
        if (offset < r->offset + (r->end - r->begin)) return r->begin + (offset - r->offset);
        last = r;
    }
    return last ? last->end + SHARED_TILE / 2 : shared_room;
}

// What is asked for first in a launch is kept for all of its blocks.
extern "C" void* pop_emu_shared_array(const void* key, unsigned bytes, unsigned granule) {
    for (int i = 0; i < own_count; i++)
        if (own_arrays[i].key == key) return own_arrays[i].region->begin;
    unsigned char* at = own_count < MOST_OWN ? shared_place(0, bytes) : nullptr;
    Region* r = at ? add_region(at, bytes, granule, false, -2) : nullptr;
    if (!r) {
        report(OUTSIDE, -2, "shared memory", bytes, NOBODY, __builtin_return_address(0));
        stop();
    }
    r->offset = BESIDE;
    if (options.watched) r->readers = (uint32_t*)calloc(cell_count(*r) * row_words(), 4);
    own_arrays[own_count++] = {key, r};
    poison(*r);
    return at;
}
