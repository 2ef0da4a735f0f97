// pop_emu_memory.h: buffers and shared memory, and a shadow that says of each element who wrote and who read it.
#pragma once

namespace {

enum Flag : uint8_t { INITIALISED = 1, GAP = 2, ATOMIC = 4, ARRIVING = 8 };

// What was done in earlier launches counts as not done: launches are ordered.
// `reader` of an interval: one, or MANY, and then a row of clocks may tell which; in EVERY interval: of many blocks.
// `reading`: how often asynchronous work that is not done reads it.
struct Cell {
    uint32_t writer, writer_block, writer_clock;
    uint32_t reader, reader_block, reader_clock, reader_interval;
    uint16_t reading;
    uint8_t flags;
};
const uint32_t EVERY = 0xffffffffu;

const size_t BESIDE = size_t(1) << 40;

// buffer: its number, or -2 for shared memory, of which `offset` says where this part begins: BESIDE all of it, an array that a
// function has for itself.
struct Region {
    unsigned char *begin, *end;
    unsigned granule;  // bytes of a cell
    bool read_only;
    int buffer;
    size_t offset;
    Cell* cells;
    uint32_t* readers;  // for each cell a row of clocks; null: only that there are many is known
    bool shared() const { return buffer == -2; }
    bool beside() const { return offset == BESIDE; }
};

const int MOST_REGIONS = 512, MOST_VIEWS = 64;
const size_t ARENA = size_t(1) << 34, DISTANCE = 1 << 20;  // untouched pages cost nothing
const size_t SHARED_ROOM = 1 << 20, SHARED_TILE = 1024;
Region regions[MOST_REGIONS];
int region_count;
Region* recent;
unsigned char *arena, *arena_next;
unsigned char* shared_room;
pop_emu_view views[MOST_VIEWS];  // of the running kernel
int view_count;
uint32_t* reader_room;
size_t reader_room_bytes;

size_t cell_count(const Region& r) { return (r.end - r.begin + r.granule - 1) / r.granule; }

bool in_arena(const unsigned char* p) { return p >= arena && p < arena + ARENA; }
bool in_shared(const unsigned char* p) { return shared_room && p >= shared_room && p < shared_room + SHARED_ROOM; }

Region* region_of(const unsigned char* p) {
    if (recent && p >= recent->begin && p < recent->end) return recent;
    for (int i = 0; i < region_count; i++)
        if (p >= regions[i].begin && p < regions[i].end) return recent = &regions[i];
    return nullptr;
}

// The region of the same kind of memory that is nearest to an address in none.
Region* nearest(const unsigned char* p) {
    Region* best = nullptr;
    size_t distance = ~size_t(0);
    for (int i = 0; i < region_count; i++) {
        const size_t d = p < regions[i].begin ? regions[i].begin - p : p - regions[i].end;
        if (in_shared(regions[i].begin) == in_shared(p) && d < distance) {
            distance = d;
            best = &regions[i];
        }
    }
    return best;
}

[[noreturn]] void stop();
void note_banks(const unsigned char* p, size_t bytes, bool write, const void* place);
void touch_stack(const unsigned char* p, size_t bytes, const void* place);

int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

// `byte` counts from the start of the region, before which it may be.
void report_at(What what, Region* r, int64_t byte, uint32_t other, const void* place) {
    if (!r->shared()) {
        report(what, r->buffer, "", floor_div(byte, r->granule), other, place);
        return;
    }
    const int64_t at = (int64_t)r->offset + byte;
    const pop_emu_view* best = nullptr;
    int64_t distance = INT64_MAX;
    char name[64] = "";
    size_t used = 0;
    for (int i = 0; i < view_count && in_shared(r->begin); i++) {
        const pop_emu_view* v = &views[i];
        if (v->offset < r->offset || v->offset >= r->offset + (r->end - r->begin)) continue;
        const int64_t end = v->offset + (int64_t)v->count * v->bytes;
        const int64_t d = at < v->offset ? v->offset - at : at >= end ? at - end + 1 : 0;
        if (d && best) {  // only an array that has the element itself is named beside another
            if (d < distance) best = v, distance = d, used = 0;
            else continue;
        } else if (d < distance) best = v, distance = d, used = 0;
        else if (d > distance) continue;
        const size_t n = strlen(v->name);
        if (used + n + 2 < sizeof(name)) {
            if (used) name[used++] = '/';
            memcpy(name + used, v->name, n + 1);
            used += n;
        }
    }
    if (!best) {
        const bool parts = in_shared(r->begin) && !r->beside();
        report(what, -2, parts ? "pop_shared" : "shared memory", r->beside() ? floor_div(byte, r->granule) : at, other, place);
        return;
    }
    const int64_t from = at - best->offset;
    report(what, -2, name, floor_div(from, best->bytes), other, place);
}

// --- one element ----------------------------------------------------------------------------------------------------

// Whether what `other` did in its block at its time `then` surely came before what this thread does now.
bool before(uint32_t other, uint32_t other_block, uint32_t then) {
    if (other == NOBODY || other == me() || other_block <= earlier_blocks) return true;
    return other_block == block_tag() && then <= seen((other - 1) % width());
}

// A row: 64 bits that say which groups of 32 threads have clocks in it, and the clocks.
const uint32_t MASK = 2;
uint32_t row_words() { return MASK + width(); }
uint32_t* readers_of(Region* r, Cell& c) { return r->readers + (&c - r->cells) * size_t(row_words()); }
bool is_valid(const uint32_t* row, uint32_t group) { return row[group / 32] >> group % 32 & 1; }

void set_reader(uint32_t* row, uint32_t thread, uint32_t clock) {
    const uint32_t g = thread / 32, first = g * 32, last = first + 32 < width() ? first + 32 : width();
    if (!is_valid(row, g)) memset(row + MASK + first, 0, (last - first) * 4);
    row[g / 32] |= 1u << g % 32;
    row[MASK + thread] = clock;
}

void note_reader(Region* r, Cell& c, uint32_t thread) {
    if (c.reader != NOBODY && c.reader_block > earlier_blocks && c.reader_block != block_tag()) {  // blocks are never ordered
        c.reader = MANY;
        c.reader_block = block_tag();
        c.reader_interval = EVERY;
    }
    if (c.reader_block == block_tag() && c.reader_interval == EVERY) return;
    if (c.reader == NOBODY || c.reader_block != block_tag() || c.reader == number_of(thread) || c.reader_interval != interval) {
        c.reader = number_of(thread);
        c.reader_block = block_tag();
        c.reader_clock = clocks[thread];
        c.reader_interval = interval;
        return;
    }
    if (r->readers) {
        uint32_t* row = readers_of(r, c);
        if (c.reader != MANY) {
            row[0] = row[1] = 0;
            set_reader(row, (c.reader - 1) % width(), c.reader_clock);
        }
        set_reader(row, thread, clocks[thread]);
    }
    c.reader = MANY;
}

// One who read the element and is not surely done; NOBODY if there is none.
uint32_t open_reader(Region* r, Cell& c) {
    if (c.reader == NOBODY || c.reader_block <= earlier_blocks) return NOBODY;
    if (c.reader_block != block_tag() || c.reader_interval == EVERY) return c.reader;
    if (c.reader_interval != interval) return NOBODY;
    if (c.reader != MANY) return before(c.reader, c.reader_block, c.reader_clock) ? NOBODY : c.reader;
    if (!r->readers) return MANY;
    const uint32_t* row = readers_of(r, c);
    for (uint32_t g = 0; g * 32 < width(); g++)
        for (uint32_t t = g * 32; is_valid(row, g) && t < g * 32 + 32 && t < width(); t++)
            if (row[MASK + t] && t != thread_number && row[MASK + t] > seen(t)) return number_of(t);
    return NOBODY;
}

void read_cell(Region* r, Cell& c, int64_t byte, const void* place) {
    if (c.flags & ARRIVING) {
        report_at(IN_FLIGHT, r, byte, c.writer, place);
        return;
    }
    if (!(c.flags & INITIALISED)) report_at(UNINITIALISED, r, byte, NOBODY, place);
    if (!before(c.writer, c.writer_block, c.writer_clock)) report_at(RACE_RW, r, byte, c.writer, place);
    if (!r->read_only) note_reader(r, c, thread_number);
}

void set_writer(Cell& c, uint32_t thread, uint8_t flags) {
    c.writer = number_of(thread);
    c.writer_block = block_tag();
    c.writer_clock = clocks[thread];
    c.reader = NOBODY;
    c.flags = flags;
}

void write_cell(Region* r, Cell& c, int64_t byte, bool atomic, const void* place) {
    if (c.flags & ARRIVING) {
        report_at(IN_FLIGHT, r, byte, c.writer, place);
        return;
    }
    if (c.reading) {
        report_at(BEING_READ, r, byte, NOBODY, place);
        return;
    }
    if (atomic && !(c.flags & INITIALISED)) report_at(UNINITIALISED, r, byte, NOBODY, place);
    if (!before(c.writer, c.writer_block, c.writer_clock) && !(atomic && (c.flags & ATOMIC)))
        report_at(RACE_WW, r, byte, c.writer, place);
    const uint32_t reader = open_reader(r, c);
    if (reader != NOBODY) report_at(RACE_WR, r, byte, reader, place);
    set_writer(c, thread_number, uint8_t((c.flags & ~ATOMIC) | INITIALISED | (atomic ? ATOMIC : 0)));
}

// --- an access ------------------------------------------------------------------------------------------------------

void touch(const void* address, size_t bytes, bool write, bool atomic, const void* place) {
    if (!running || !options.watched) return;
    auto p = (unsigned char*)address;
    Region* r = region_of(p);
    if (!r) {
        if (!in_arena(p) && !in_shared(p)) return touch_stack(p, bytes, place);  // the thread's own, or constants
        if ((r = nearest(p))) report_at(OUTSIDE, r, p - r->begin, NOBODY, place);
        stop();
    }
    if (r->shared()) note_banks(p, bytes, write, place);
    const int64_t first = (p - r->begin) / r->granule, last = (p - r->begin + bytes - 1) / r->granule;
    for (int64_t i = first; i <= last; i++) {
        const int64_t byte = i * r->granule;
        if (r->begin + byte >= r->end || (r->cells[i].flags & GAP)) {
            report_at(OUTSIDE, r, byte, NOBODY, place);
            stop();
        }
        if (!write) read_cell(r, r->cells[i], byte, place);
        else if (r->read_only) report_at(READ_ONLY, r, byte, NOBODY, place);
        else write_cell(r, r->cells[i], byte, atomic, place);
    }
}

// Calls f(cell) for each cell that the bytes touch, if they lie in a buffer.
template <class F> void each_cell(const void* address, size_t bytes, F f) {
    auto p = (const unsigned char*)address;
    Region* r = options.watched ? region_of(p) : nullptr;
    if (!r) return;
    const size_t last = (p - r->begin + bytes - 1) / r->granule, end = cell_count(*r);
    for (size_t i = (p - r->begin) / r->granule; i <= last && i < end; i++) f(r->cells[i]);
}

Region* add_region(unsigned char* begin, size_t bytes, unsigned granule, bool read_only, int buffer) {
    if (region_count == MOST_REGIONS) return nullptr;
    Region* r = &regions[region_count++];
    *r = {begin, begin + bytes, granule, read_only, buffer, 0, nullptr, nullptr};
    r->cells = (Cell*)calloc(cell_count(*r) + 1, sizeof(Cell));
    return r;
}

}  // namespace
