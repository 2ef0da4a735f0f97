// pop_emu_copies.h: copies to shared memory that a thread starts, groups, and waits for.
//
// From the start of a copy to the wait that ends it nobody may touch where it goes. The bytes arrive at once or at the
// wait, as the run was asked; before, the place holds poison.
#pragma once

namespace {

struct Copy {
    unsigned char* to;
    const unsigned char* from;  // null: zeros
    uint32_t bytes;
    void* place;
};

// The copies of a thread, oldest first; `ends` has, for each group that was closed, how many copies were started till then.
struct Copies {
    Copy* all;
    uint32_t *ends;
    uint32_t count, room, landed, groups, group_room, waited;
};
Copies* copies;

template <class T> void grow(T*& list, uint32_t count, uint32_t& room) {
    if (count < room) return;
    room = room ? 2 * room : 16;
    list = (T*)realloc(list, room * sizeof(T));
}

void bring(const Copy& c) {
    if (c.from) memcpy(c.to, c.from, c.bytes);
    else memset(c.to, 0, c.bytes);
}

void land(const Copy& c) {
    if (options.completion == 0) {
        if (c.from) touch(c.from, c.bytes, false, false, c.place);
        bring(c);
    }
    const uint32_t t = thread_number;
    each_cell(c.to, c.bytes, [t](Cell& cell) { set_writer(cell, t, INITIALISED); });
}

void start_copies() {
    for (uint32_t t = 0; t < threads; t++) {
        Copies& c = copies[t];
        c.count = c.landed = c.groups = c.waited = 0;
    }
}

// A thread that ends waits for nothing any more.
void leave_copies() {
    Copies& c = copies[thread_number];
    if (c.landed < c.count) report(UNWAITED, -1, "", 0, NOBODY, c.all[c.landed].place);
    while (c.landed < c.count) land(c.all[c.landed++]);
}

void make_copies() { copies = (Copies*)calloc(threads, sizeof(Copies)); }

void free_copies() {
    for (uint32_t t = 0; t < threads; t++) {
        free(copies[t].all);
        free(copies[t].ends);
    }
    free(copies);
    copies = nullptr;
}

}  // namespace

extern "C" void pop_emu_copy(void* to, const void* from, unsigned bytes, int inside) {
    auto target = (unsigned char*)to;
    Region* r = options.watched ? region_of(target) : nullptr;
    if ((uintptr_t)to % bytes || (inside && (uintptr_t)from % bytes)) {
        if (r) report_at(MISALIGNED, r, target - r->begin, NOBODY, HERE);
        else report(MISALIGNED, -1, "", 0, NOBODY, HERE);
    }
    if (inside) touch(from, bytes, false, false, HERE);
    touch(to, bytes, true, false, HERE);
    const Copy c = {target, inside ? (const unsigned char*)from : nullptr, bytes, HERE};
    if (options.completion != 0) bring(c);
    else memset(to, 0xff, bytes);
    if (options.completion == 2) return;
    each_cell(to, bytes, [](Cell& cell) { cell.flags |= ARRIVING; });
    Copies& mine = copies[thread_number];
    grow(mine.all, mine.count, mine.room);
    mine.all[mine.count++] = c;
}

extern "C" void pop_emu_copy_commit() {
    Copies& mine = copies[thread_number];
    grow(mine.ends, mine.groups, mine.group_room);
    mine.ends[mine.groups++] = mine.count;
}

extern "C" void pop_emu_copy_wait(unsigned groups) {
    Copies& mine = copies[thread_number];
    for (; mine.waited + groups < mine.groups; mine.waited++)
        while (mine.landed < mine.ends[mine.waited]) land(mine.all[mine.landed++]);
}
