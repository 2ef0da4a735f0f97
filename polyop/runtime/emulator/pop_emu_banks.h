// pop_emu_banks.h: how often accesses of a warp to shared memory meet in a bank.
//
// Shared memory has 32 banks of 4 bytes. The lanes of a warp that carry out one access go through it in phases, 128 bytes at
// a time: 32 lanes with up to 4 bytes each, 16 with 8, 8 with 16. A phase takes as many cycles as the bank with the most
// different words. The lanes of a phase are neighbours, but where warps of 64 lanes read 16 bytes each: there four lanes go
// with those four that are 20 or 12 further on (https://github.com/triton-lang/triton/pull/11365, for CDNA 3). The n-th
// access of each lane at a place of the text is taken as one access of the warp.
#pragma once

namespace {

// All accesses at one place. phases: what they would take without conflicts.
struct Traffic { uint64_t place, write, accesses, cycles, phases; };

struct Together { uint64_t lanes; const unsigned char* at[64]; };

// Accesses of a warp at a place that not all of its lanes have carried out yet, oldest first.
struct Site {
    const void* place;
    uint32_t warp, bytes, write, first, count, room;
    uint32_t done[64];  // by each lane
    Together* open;
};

const uint32_t MOST_SITES = 1 << 14, MOST_TRAFFIC = 256;
Site* sites;
uint32_t site_count;
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

void count_access(const Site& s, const Together& t) {
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

Site* site_of(const void* place, uint32_t warp, uint32_t bytes, bool write) {
    uint32_t at = uint32_t(((uint64_t)place * 0x9e3779b97f4a7c15ull >> 40) + warp * 97 + bytes) % MOST_SITES;
    for (uint32_t n = 0; n < MOST_SITES; n++, at = (at + 1) % MOST_SITES) {
        Site& s = sites[at];
        if (!s.place) {
            if (site_count++ > MOST_SITES / 2) return nullptr;
            s.place = place;
            s.warp = warp;
            s.bytes = bytes;
            s.write = write;
        }
        if (s.place == place && s.warp == warp && s.bytes == bytes && s.write == write) return &s;
    }
    return nullptr;
}

void note_banks(const unsigned char* p, size_t bytes, bool write, const void* place) {
    if (!options.banks || !sites || !in_shared(p) || bytes > 16) return;
    const uint32_t lane = thread_number % pop_emu_warp;
    Site* s = site_of(place, thread_number / pop_emu_warp, bytes, write);
    if (!s) return;
    const uint32_t index = s->done[lane]++ - s->first;
    while (index >= s->count) {
        if (s->count == s->room) {
            s->room = s->room ? 2 * s->room : 4;
            s->open = (Together*)realloc(s->open, s->room * sizeof(Together));
        }
        s->open[s->count++].lanes = 0;
    }
    s->open[index].lanes |= uint64_t(1) << lane;
    s->open[index].at[lane] = p;
    const uint64_t all = pop_emu_warp == 64 ? ~uint64_t(0) : (uint64_t(1) << pop_emu_warp) - 1;
    uint32_t full = 0;
    while (full < s->count && s->open[full].lanes == all) count_access(*s, s->open[full++]);
    if (!full) return;
    memmove(s->open, s->open + full, (s->count - full) * sizeof(Together));
    s->count -= full;
    s->first += full;
}

void make_banks() {
    if (options.banks) sites = (Site*)calloc(MOST_SITES, sizeof(Site));
    site_count = 0;
}

// The block ends: what some lanes left out is counted without them.
void end_banks() {
    for (uint32_t i = 0; sites && i < MOST_SITES; i++) {
        for (uint32_t k = 0; k < sites[i].count; k++) count_access(sites[i], sites[i].open[k]);
        free(sites[i].open);
    }
    if (sites) memset(sites, 0, MOST_SITES * sizeof(Site));
    site_count = 0;
}

void free_banks() {
    end_banks();
    free(sites);
    sites = nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int pop_emu_traffic(const Traffic** first) {
    *first = traffic;
    return traffic_count;
}
