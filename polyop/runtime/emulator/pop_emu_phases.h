// pop_emu_phases.h: barriers that lie in shared memory and count phases, and barriers by number.
#pragma once

namespace {

// A barrier in memory. gathered: what those who arrived in this phase had seen; ended: the same of the phase before.
// initialised: by whom, until that thread has fenced it.
struct Phase {
    const void* at;
    uint32_t initialised;
    uint32_t arrivals, pending, parity;
    int64_t bytes;  // announced and not come yet
    uint32_t *gathered, *ended;
};

struct Named {
    uint32_t count, arrived, waiting;
    void* place;
    uint32_t* gathered;
};

const uint32_t MOST_PHASES = 128, MOST_NAMED = 16;
Phase phases[MOST_PHASES];
uint32_t phase_count;
Named named[MOST_NAMED];

void start_phases() {
    for (uint32_t i = 0; i < phase_count; i++) {
        free(phases[i].gathered);
        free(phases[i].ended);
    }
    phase_count = 0;
    for (Named& n : named) {
        free(n.gathered);
        n = Named{};
    }
}

Phase* phase_at(const void* at, const void* place) {
    for (uint32_t i = 0; i < phase_count; i++)
        if (phases[i].at == at) return &phases[i];
    report(UNINITIALISED, -1, "", 0, NOBODY, place);
    stop();
}

// If nothing is missing, the phase is over and the next one begins.
void advance(Phase* p) {
    if (p->pending || p->bytes) return;
    uint32_t* over = p->ended;
    p->ended = p->gathered;
    p->gathered = over;
    memset(p->gathered, 0, width() * 4);
    p->parity ^= 1;
    p->pending = p->arrivals;
    for (uint32_t t = 0; t < threads; t++)
        if (fibers[t].state == AT_PHASE && fibers[t].phase == p) fibers[t].state = READY;
}

}  // namespace

extern "C" void pop_emu_mbarrier_init(void* bar, unsigned arrivals) {
    pop_emu_aligned(bar, 8);
    touch(bar, 8, true, false, HERE);
    Phase* p = nullptr;
    for (uint32_t i = 0; i < phase_count; i++)
        if (phases[i].at == bar) p = &phases[i];
    if (!p) {
        if (phase_count == MOST_PHASES) {
            report(OUTSIDE, -1, "", 0, NOBODY, HERE);
            stop();
        }
        p = &phases[phase_count++];
        *p = {bar, NOBODY, 0, 0, 0, 0, (uint32_t*)calloc(width(), 4), (uint32_t*)calloc(width(), 4)};
    }
    p->initialised = me();
    p->arrivals = p->pending = arrivals;
    p->parity = 0;
    p->bytes = 0;
    memset(p->gathered, 0, width() * 4);
    memset(p->ended, 0, width() * 4);
}

extern "C" void pop_emu_mbarrier_fence() {
    for (uint32_t i = 0; i < phase_count; i++)
        if (phases[i].initialised == me()) phases[i].initialised = NOBODY;
}

extern "C" void pop_emu_mbarrier_arrive(void* bar, unsigned bytes) {
    need_fibers();
    touch(bar, 8, false, false, HERE);
    Phase* p = phase_at(bar, HERE);
    if (!p->pending) {  // one more than the phase takes
        report(DIVERGENT, -1, "", 0, MANY, HERE);
        stop();
    }
    p->bytes += bytes;
    tell(thread_number, p->gathered);
    p->pending--;
    advance(p);
}

extern "C" void pop_emu_mbarrier_wait(void* bar, unsigned parity) {
    need_fibers();
    touch(bar, 8, false, false, HERE);
    Phase* p = phase_at(bar, HERE);
    while (p->parity == (parity & 1)) {
        current->phase = p;
        wait_as(AT_PHASE, HERE);
    }
    learn(thread_number, p->ended);
}

extern "C" void pop_emu_named_barrier(unsigned id, unsigned count, int waits) {
    need_fibers();
    Named& n = named[id % MOST_NAMED];
    if (!id || id >= MOST_NAMED || !count || count % pop_emu_warp || (n.arrived && n.count != count)) {
        report(MIXED_BARRIER, -1, "", 0, MANY, HERE, n.arrived ? n.place : nullptr);
        stop();
    }
    if (!n.gathered) n.gathered = (uint32_t*)calloc(width(), 4);
    n.count = count;
    n.place = HERE;
    tell(thread_number, n.gathered);
    if (++n.arrived < count) {
        if (!waits) return;
        current->phase = (const Phase*)&n;
        wait_as(AT_NAMED, HERE);
        return;
    }
    for (uint32_t t = 0; t < threads; t++)
        if (fibers[t].state == AT_NAMED && fibers[t].phase == (const Phase*)&n) {
            learn(t, n.gathered);
            fibers[t].state = READY;
        }
    if (waits) learn(thread_number, n.gathered);
    memset(n.gathered, 0, width() * 4);
    n.arrived = 0;
}
