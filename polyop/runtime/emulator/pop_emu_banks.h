// pop_emu_banks.h: how often accesses of a warp to shared memory meet in a bank.
//
// Shared memory has 32 banks of 4 bytes. The lanes of a warp that carry out one access go through it in phases, 128 bytes at
// a time: 32 lanes with up to 4 bytes each, 16 with 8, 8 with 16. A phase takes as many cycles as the bank with the most
// different words. The lanes of a phase are neighbours, but where warps of 64 lanes read 16 bytes each: there four lanes go
// with those four that are 20 or 12 further on (https://github.com/triton-lang/triton/pull/11365, for CDNA 3).
//
// What lanes do at a place of the text in one turn of the loops around it is one access of the warp, whichever lanes have
// left out turns before: lanes part at a test and meet again behind it. So accesses are written down with the turns
// (`pop_emu_turn`), and counted when the block meets at a barrier or ends.
#pragma once

namespace {

// All accesses at one place. phases: what they would take without conflicts.
struct Traffic { uint64_t place, write, accesses, cycles, phases; };

struct Together { uint64_t lanes; const unsigned char* at[64]; };

// What one lane did. when: how much all lanes had done before. nth: how often it had been at this place in this turn.
struct Access { const void* place; uint64_t turns, when; const unsigned char* at; uint32_t thread, bytes, write, nth; };

const uint32_t MOST_TRAFFIC = 256;
Access* accesses;
size_t access_count, access_room;
Traffic traffic[MOST_TRAFFIC];
uint32_t traffic_count;

// The most words in one bank of the lanes that have places `from` up to `to` in the order of phases.
uint32_t ways(const Together& t, uint32_t from, uint32_t to, uint32_t bytes, bool crossed) {
    uint64_t words[64];
    uint32_t count = 0, used[32] = {}, most = 0;
    for (uint32_t place = from; place < to; place++) {
        const uint32_t l = crossed ? place ^ (place >> 2 & 1) << 4 : place;
        for (uint32_t b = 0; t.lanes >> l & 1 && b < bytes; b += 4) {
            const uint64_t word = (uint64_t)(t.at[l] - shared_room + b) / 4;
            bool known = false;
            for (uint32_t i = 0; i < count; i++) known = known || words[i] == word;
            if (known) continue;
            words[count++] = word;
            const uint32_t n = ++used[word % 32];
            most = n > most ? n : most;
        }
    }
    return most;
}

void count_access(const Access& s, const Together& t) {
    const uint64_t place = offset_of(s.place);
    uint32_t i = 0;
    while (i < traffic_count && (traffic[i].place != place || traffic[i].write != s.write)) i++;
    if (i == MOST_TRAFFIC) return;
    if (i == traffic_count) traffic[traffic_count++] = {place, s.write, 0, 0, 0};
    traffic[i].accesses++;
    const uint32_t lanes = s.bytes <= 4 ? 32 : 128 / s.bytes;
    for (uint32_t l = 0; l < pop_emu_warp; l += lanes) {
        const uint32_t most = ways(t, l, l + lanes, s.bytes, pop_emu_warp == 64 && s.bytes == 16 && !s.write);
        traffic[i].cycles += most;
        traffic[i].phases += most > 0;
    }
}

template <class T> int sign(T a, T b) { return a < b ? -1 : a > b; }

// Less than 0, 0 or more: accesses of one warp, at one place and of one size and in one turn, stand together.
int apart(const Access& a, const Access& b) {
    int s = sign(a.thread / pop_emu_warp, b.thread / pop_emu_warp);
    if (!s) s = sign(a.place, b.place);
    if (!s) s = sign(a.write << 8 | a.bytes, b.write << 8 | b.bytes);
    return s ? s : sign(a.turns, b.turns);
}

int in_order(const void* a, const void* b) {
    const auto &x = *(const Access*)a, &y = *(const Access*)b;
    int s = apart(x, y);
    if (!s) s = sign(x.thread, y.thread);
    return s ? s : sign(x.when, y.when);
}

void note_banks(const unsigned char* p, size_t bytes, bool write, const void* place) {
    if (!options.banks || !in_shared(p) || bytes > 16) return;
    if (access_count == access_room) {
        access_room = access_room ? 2 * access_room : 4096;
        accesses = (Access*)realloc(accesses, access_room * sizeof(Access));
    }
    accesses[access_count] = {place, turns_of[thread_number], access_count, p, thread_number, (uint32_t)bytes, write, 0};
    access_count++;
}

// What stands together, from `first` to `end`: the lanes' first accesses are one of the warp, then their second ones, ..
void count_together(Access* first, Access* end) {
    uint32_t most = 0;
    for (Access* a = first + 1; a < end; a++) {
        a->nth = a->thread == a[-1].thread ? a[-1].nth + 1 : 0;
        most = a->nth > most ? a->nth : most;
    }
    for (uint32_t n = 0; n <= most; n++) {
        Together t = {};
        for (Access* a = first; a < end; a++) {
            if (a->nth != n) continue;
            t.lanes |= uint64_t(1) << a->thread % pop_emu_warp;
            t.at[a->thread % pop_emu_warp] = a->at;
        }
        count_access(*first, t);
    }
}

// The block has met, or ended: nobody is on the way between two accesses of one turn.
void count_banks() {
    qsort(accesses, access_count, sizeof(Access), in_order);
    for (size_t i = 0, end; i < access_count; i = end) {
        for (end = i + 1; end < access_count && !apart(accesses[i], accesses[end]);) end++;
        count_together(accesses + i, accesses + end);
    }
    access_count = 0;
}

void free_banks() {
    free(accesses);
    accesses = nullptr;
    access_count = access_room = 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int pop_emu_traffic(const Traffic** first) {
    *first = traffic;
    return traffic_count;
}
