// pop_emu_tiles.h: the engine that copies boxes of matrices, and what it may read.
//
// A load ends at once, or when nobody can go on without it; then its bytes count for its barrier. The engine and the
// matrix units see what a thread wrote to shared memory only after a fence of that thread or of the one who starts them.
#pragma once

namespace {

// The words of a pop_tensor_map on the emulator: addresses, row_bytes, element and swizzle (0, 32, 64 or 128) count bytes. Of a
// tensor of more dimensions: how many elements there are in those, bytes from one to the next, and how many a box has of each, in 16
// bits; 0 for 1. So are the steps from one of them to the next, that of rows first.
struct Matrix {
    uint64_t base, columns, rows, row_bytes, box_columns, box_rows, element, swizzle, others[3], other_bytes[3], thick, steps;
};

struct Box {
    Matrix matrix;
    int column, row;
    int64_t others[3];
    unsigned char* shared;
    Phase* phase;  // of a load
    uint32_t thread, group;
    bool landed, was_read;
    unsigned char* taken;  // of a store
    void* place;
};

Box *loads, *stores;
uint32_t load_count, load_room, store_count, store_room;
uint32_t* store_groups;  // of each thread, how many it has closed
uint32_t* fences;        // of each thread, what it had seen and done at its last fence
bool any_fence;

uint64_t row_pitch(const Matrix& m) { return m.box_columns * m.element; }
uint64_t thickness(const Matrix& m, int d) { return (m.thick >> 16 * d & 0xffff) ? (m.thick >> 16 * d & 0xffff) : 1; }
int64_t step_of(const Matrix& m, int d) { return (m.steps >> 16 * d & 0xffff) ? (m.steps >> 16 * d & 0xffff) : 1; }
uint64_t box_planes(const Matrix& m) { return thickness(m, 0) * thickness(m, 1) * thickness(m, 2); }
uint64_t box_bytes(const Matrix& m) { return box_planes(m) * m.box_rows * row_pitch(m); }

unsigned char* swizzled(unsigned char* p, uint64_t swizzle) {
    const uintptr_t a = (uintptr_t)p, mask = swizzle / 16 ? swizzle / 16 - 1 : 0;
    return (unsigned char*)(a ^ ((a >> 7 & mask) << 4));
}

// f(shared, global) for each element; global is null outside of the matrix.
template <class F> void each_element(const Box& b, F f) {
    const Matrix& m = b.matrix;
    for (uint64_t plane = 0; plane < box_planes(m); plane++) {
        bool there = true;
        int64_t shift = 0;
        uint64_t left = plane;
        for (int d = 0; d < 3; d++) {
            const int64_t at = b.others[d] + (int64_t)(left % thickness(m, d)) * step_of(m, d + 1);
            left /= thickness(m, d);
            there = there && (!m.others[d] || (at >= 0 && at < (int64_t)m.others[d]));
            shift += at * (int64_t)m.other_bytes[d];
        }
        for (uint64_t r = 0; r < m.box_rows; r++)
            for (uint64_t c = 0; c < m.box_columns; c++) {
                const int64_t i = b.row + (int64_t)r * step_of(m, 0), j = b.column + (int64_t)c;
                const bool inside = there && i >= 0 && j >= 0 && i < (int64_t)m.rows && j < (int64_t)m.columns;
                f(swizzled(b.shared + (plane * m.box_rows + r) * row_pitch(m) + c * m.element, m.swizzle),
                  inside ? (unsigned char*)m.base + shift + i * m.row_bytes + j * m.element : nullptr);
            }
    }
}

// --- what is not a thread reads -------------------------------------------------------------------------------------

// The running thread starts something that reads these bytes until `done_reading`.
void start_reading(const void* from, size_t bytes, void* place) {
    if (!options.watched) return;
    auto p = (unsigned char*)from;
    Region* r = region_of(p);
    if (!r || p + bytes > r->end) {
        if ((r = r ? r : nearest(p))) report_at(OUTSIDE, r, p - r->begin, NOBODY, place);
        stop();
    }
    for (size_t i = (p - r->begin) / r->granule; i <= (p - r->begin + bytes - 1) / r->granule; i++) {
        Cell& c = r->cells[i];
        const int64_t byte = i * r->granule;
        c.reading++;
        if (c.flags & ARRIVING) report_at(IN_FLIGHT, r, byte, c.writer, place);
        else if (!(c.flags & INITIALISED)) report_at(UNINITIALISED, r, byte, NOBODY, place);
        else if (!before(c.writer, c.writer_block, c.writer_clock)) report_at(RACE_RW, r, byte, c.writer, place);
        else if (c.writer != NOBODY && c.writer_block == block_tag()) {
            const uint32_t w = (c.writer - 1) % width();
            const bool fenced = w == threads || fences[size_t(w) * width() + w] >= c.writer_clock ||
                                fences[size_t(thread_number) * width() + w] >= c.writer_clock;
            if (!fenced) report_at(UNFENCED, r, byte, c.writer, place);
        }
    }
}

// It was read at the engine's present time.
void done_reading(const void* from, size_t bytes) {
    Region* r = options.watched ? region_of((const unsigned char*)from) : nullptr;
    if (!r) return;
    each_cell(from, bytes, [r](Cell& c) {
        c.reading--;
        if (!r->read_only) note_reader(r, c, threads);
    });
}

// Who knows that the engine has come so far: `thread`. Then its time goes on.
void engine_known(uint32_t thread) {
    if (options.watched) row_of(thread)[threads] = clocks[threads];
}

// --- loads ----------------------------------------------------------------------------------------------------------

void land_load(Box& b) {
    const uint32_t self = thread_number;
    thread_number = b.thread;
    each_element(b, [&](unsigned char* shared, unsigned char* global) {
        if (global) touch(global, b.matrix.element, false, false, b.place);
        if (global) memcpy(shared, global, b.matrix.element);
        else memset(shared, 0, b.matrix.element);
    });
    each_cell(b.shared, box_bytes(b.matrix), [](Cell& c) { set_writer(c, threads, INITIALISED); });
    thread_number = self;
    b.landed = true;
    b.phase->gathered[threads] = clocks[threads]++;
    b.phase->bytes -= box_bytes(b.matrix);
    advance(b.phase);
}

// Nobody can go on: the oldest load that somebody waits for comes. False if there is none.
bool land_one() {
    for (uint32_t i = 0; i < load_count; i++) {
        if (loads[i].landed) continue;
        for (uint32_t t = 0; t < threads; t++)
            if (fibers[t].state == AT_PHASE && fibers[t].phase == loads[i].phase) {
                land_load(loads[i]);
                return true;
            }
    }
    return false;
}

// --- stores ---------------------------------------------------------------------------------------------------------

void read_store(Box& b) {
    if (b.was_read) return;
    b.was_read = true;
    if (!b.taken) {
        b.taken = (unsigned char*)malloc(box_bytes(b.matrix));
        memcpy(b.taken, b.shared, box_bytes(b.matrix));
    }
    done_reading(b.shared, box_bytes(b.matrix));
    engine_known(b.thread);
    clocks[threads]++;
}

void land_store(Box& b) {
    read_store(b);
    if (b.landed) return;
    b.landed = true;
    each_element(b, [&](unsigned char* shared, unsigned char* global) {
        if (!global) return;
        touch(global, b.matrix.element, true, false, b.place);
        memcpy(global, b.taken + (shared - b.shared), b.matrix.element);
    });
}

void end_stores(uint32_t keep, bool only_read) {
    for (uint32_t i = 0; i < store_count; i++) {
        Box& b = stores[i];
        if (b.thread != thread_number || b.group + keep >= store_groups[thread_number]) continue;
        if (only_read) read_store(b);
        else land_store(b);
    }
}

// A thread may end before its stores are written, but not before they are read.
void leave_stores() {
    for (uint32_t i = 0; i < store_count; i++) {
        Box& b = stores[i];
        if (b.thread != thread_number) continue;
        if (!b.was_read) report(UNWAITED, -1, "", 0, NOBODY, b.place);
        land_store(b);
    }
}

void make_tiles() {
    store_groups = (uint32_t*)calloc(threads, 4);
    fences = (uint32_t*)calloc(size_t(threads) * width(), 4);
}

void start_tiles() {
    for (uint32_t i = 0; i < store_count; i++) free(stores[i].taken);
    load_count = store_count = 0;
    memset(store_groups, 0, threads * 4);
    if (any_fence) memset(fences, 0, size_t(threads) * width() * 4);
    any_fence = false;
}

// A block ends: all that was started must have been waited for.
void leave_loads() {
    for (uint32_t i = 0; i < load_count && !stopped; i++)
        if (!loads[i].landed) report(UNWAITED, -1, "", 0, NOBODY, loads[i].place);
}

void free_tiles() {
    start_tiles();
    free(store_groups);
    free(fences);
}

Box box_of(const unsigned long long* map, int column, int row, const void* shared, void* place) {
    Box b = {};
    memcpy(&b.matrix, map, sizeof(b.matrix));
    b.column = column;
    b.row = row;
    b.shared = (unsigned char*)shared;
    b.thread = thread_number;
    b.place = place;
    const uint64_t grain = b.matrix.swizzle ? 8 * b.matrix.swizzle : 128;
    Region* r = region_of(b.shared);
    // a corner between 16 bytes is an illegal instruction to the engine, outside of the tensor, too
    if ((uintptr_t)shared % grain || (int64_t)column * (int64_t)b.matrix.element % 16) {
        if (r) report_at(MISALIGNED, r, b.shared - r->begin, NOBODY, place);
        else report(MISALIGNED, -1, "", 0, NOBODY, place);
        stop();
    }
    return b;
}

}  // namespace

namespace {

void start_load(void* to, const unsigned long long* map, const int* corner, int rank, void* bar, void* place) {
    need_fibers();
    touch(bar, 8, false, false, place);
    Box b = box_of(map, corner[0], corner[1], to, place);
    for (int d = 2; d < rank; d++) b.others[d - 2] = corner[d];
    b.phase = phase_at(bar, place);
    if (b.phase->initialised != NOBODY) {
        Region* of = region_of((unsigned char*)bar);
        if (of) report_at(UNFENCED, of, (unsigned char*)bar - of->begin, b.phase->initialised, place);
        else report(UNFENCED, -1, "", 0, b.phase->initialised, place);
    }
    touch(to, box_bytes(b.matrix), true, false, place);
    if (options.completion == 1) {
        land_load(b);
        return;
    }
    each_cell(to, box_bytes(b.matrix), [](Cell& c) { c.flags |= ARRIVING; });
    memset(to, 0xff, box_bytes(b.matrix));
    grow(loads, load_count, load_room);
    loads[load_count++] = b;
}

}  // namespace

extern "C" void pop_emu_tile_load(void* to, const unsigned long long* map, int column, int row, void* bar) {
    const int corner[2] = {column, row};
    start_load(to, map, corner, 2, bar, HERE);
}
extern "C" void pop_emu_box_load(void* to, const unsigned long long* map, const int* corner, void* bar) {
    start_load(to, map, corner, 5, bar, HERE);
}

extern "C" void pop_emu_tile_store(const unsigned long long* map, int column, int row, const void* from) {
    Box b = box_of(map, column, row, from, HERE);
    b.group = store_groups[thread_number];
    start_reading(from, box_bytes(b.matrix), HERE);
    grow(stores, store_count, store_room);
    Box& kept = stores[store_count++] = b;
    if (options.completion == 1) {
        kept.taken = (unsigned char*)malloc(box_bytes(b.matrix));
        memcpy(kept.taken, from, box_bytes(b.matrix));
    }
}

extern "C" void pop_emu_tile_commit() { store_groups[thread_number]++; }
extern "C" void pop_emu_tile_wait(unsigned groups, int only_read) { end_stores(groups, only_read); }

extern "C" void pop_emu_async_fence() {
    if (!options.watched) return;
    any_fence = true;
    uint32_t* mine = fences + size_t(thread_number) * width();
    memcpy(mine, row_of(thread_number), width() * 4);
    mine[thread_number] = clocks[thread_number]++;
}
