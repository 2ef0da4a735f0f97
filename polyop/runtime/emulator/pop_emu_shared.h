// pop_emu_shared.h: dynamic shared memory. Arrays that overlap lie together as on a device; between others there are gaps.
#pragma once

namespace {

int first_shared, shared_count;  // among the regions

// A part of shared memory, [begin, end) as the kernel counts.
void add_part(size_t begin, size_t end, unsigned granule) {
    if (begin >= end) return;
    unsigned char* next = shared_room + 4 * SHARED_TILE;
    if (shared_count) next = regions[first_shared + shared_count - 1].end + SHARED_TILE;
    // the last bits of addresses stay what they are: swizzles and alignment depend on them
    next += (SHARED_TILE - (next - shared_room) % SHARED_TILE) % SHARED_TILE + begin % SHARED_TILE;
    if (next + (end - begin) + SHARED_TILE > shared_room + SHARED_ROOM) return;
    Region* r = add_region(next, end - begin, granule, false, -2);
    if (!r) return;
    r->offset = begin;
    shared_count++;
}

void lay_out_shared(const pop_emu_kernel* kernel) {
    if (!shared_room)
        shared_room = (unsigned char*)reserve(SHARED_ROOM);
    first_shared = region_count;
    shared_count = view_count = 0;
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
void poison_shared() {
    for (int i = first_shared; i < region_count; i++) {
        memset(regions[i].begin, 0xff, regions[i].end - regions[i].begin);
        memset(regions[i].cells, 0, cell_count(regions[i]) * sizeof(Cell));
    }
}

void free_shared() {
    for (int i = first_shared; i < region_count; i++) free(regions[i].cells);
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
