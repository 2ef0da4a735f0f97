// pop_emu_meet.h: what threads do together, or to one element: barriers, shuffles, atomic operations.
#pragma once

extern "C" void pop_emu_barrier() {
    need_fibers();
    wait_as(AT_BARRIER, HERE);
}

namespace {

void meet_lanes(const Gathering& g) {
    uint32_t list[MOST_LANES], n = 0;
    for (uint32_t l = 0; l < g.size; l++)
        if (g.frames[l]) list[n++] = g.begin + l;
    meet(list, n);
}

struct Exchange { unsigned long long* bits; uint32_t lane; };

void exchange(const Gathering& g) {
    uint64_t bits[MOST_LANES];
    for (uint32_t l = 0; l < g.size; l++)
        if (g.frames[l]) bits[l] = *((Exchange*)g.frames[l])->bits;
    for (uint32_t l = 0; l < g.size; l++) {
        if (!g.frames[l]) continue;
        auto e = (Exchange*)g.frames[l];
        if (g.frames[e->lane]) *e->bits = bits[e->lane];
        else {  // a lane that is not there
            enter(g.begin + l);
            report(DIVERGENT_WARP, -1, "", 0, number_of(g.begin + e->lane), g.place);
        }
    }
}

}  // namespace

extern "C" void pop_emu_warp_barrier() {
    char nothing;
    of_warp(&nothing, meet_lanes, false, HERE);
}

extern "C" void pop_emu_shuffle(unsigned long long* bits, unsigned lane) {
    Exchange e = {bits, lane};
    of_warp(&e, exchange, false, HERE);
}

extern "C" void pop_emu_aligned(const void* p, unsigned bytes) {
    if ((uintptr_t)p % bytes == 0 || !options.watched) return;
    auto at = (unsigned char*)p;
    Region* r = region_of(at);
    if (r) report_at(MISALIGNED, r, at - r->begin, NOBODY, HERE);
    else report(MISALIGNED, -1, "", 0, NOBODY, HERE);
}

// --- atomic operations ----------------------------------------------------------------------------------------------

extern "C" void pop_emu_compare_exchange(unsigned* at, unsigned expected, unsigned value) {
    touch(at, 4, true, true, HERE);
    if (*at == expected) *at = value;
}

namespace {

template <class T> void add_to(void* at, const void* x) {
    T sum, more;
    memcpy(&sum, at, sizeof(T));
    memcpy(&more, x, sizeof(T));
    sum += more;
    memcpy(at, &sum, sizeof(T));
}

}  // namespace

// `bytes`: 4 or 8; a sum of integers is one of unsigned ones.
extern "C" void pop_emu_atomic_add(void* at, const void* x, unsigned bytes, int is_float) {
    pop_emu_aligned(at, bytes);
    touch(at, bytes, true, true, HERE);
    if (bytes == 4) is_float ? add_to<float>(at, x) : add_to<uint32_t>(at, x);
    else is_float ? add_to<double>(at, x) : add_to<uint64_t>(at, x);
}

// Any other update in one piece: nobody runs between its read and its write.
extern "C" void pop_emu_atomic_read(void* at, void* to, unsigned bytes) {
    touch(at, bytes, true, true, HERE);
    memcpy(to, at, bytes);
}
extern "C" void pop_emu_atomic_write(void* at, const void* from, unsigned bytes) { memcpy(at, from, bytes); }
