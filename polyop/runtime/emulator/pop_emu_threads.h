// pop_emu_threads.h: the threads of a block, each on a stack of its own, and where they wait for each other.
#pragma once

namespace {

const size_t STACK = 256 << 10;
const uint32_t MOST_LANES = 64;

#if defined(__x86_64__)
struct Context { void* top; };
extern "C" __attribute__((visibility("hidden"))) void pop_emu_switch(void** from, void* to);
asm(R"(.text
.globl pop_emu_switch
.hidden pop_emu_switch
.type pop_emu_switch, @function
pop_emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size pop_emu_switch, .-pop_emu_switch
)");
void change(Context* from, Context* to) { pop_emu_switch(&from->top, to->top); }
void prepare(Context* c, unsigned char* stack, void (*run)()) {
    auto top = (void**)(stack + STACK);
    *--top = nullptr;  // as if `run` had been called
    *--top = (void*)run;
    c->top = top - 6;
}
#else
struct Context { ucontext_t all; };
void change(Context* from, Context* to) { swapcontext(&from->all, &to->all); }
void prepare(Context* c, unsigned char* stack, void (*run)()) {
    getcontext(&c->all);
    c->all.uc_stack.ss_sp = stack;
    c->all.uc_stack.ss_size = STACK;
    c->all.uc_link = nullptr;
    makecontext(&c->all, run, 0);
}
#endif

enum State : uint8_t { READY, AT_BARRIER, AT_WARP, DONE };

struct Fiber {
    Context context;
    State state;
    void* place;  // where it waits
};

// A collective of a warp that is gathering its lanes.
typedef void (*Collective)(void** frames, uint32_t lanes);
struct Warp {
    uint32_t arrived, alive, first;
    void *place, *frames[MOST_LANES];
    Collective carry_out;
    bool whole;
};

Context scheduler;
Fiber *fibers, *current;
Warp* warps;
unsigned char* stacks;
size_t stack_count;
jmp_buf stop_plain;
const pop_emu_kernel* launched;
void** launch_args;
uint64_t random_state;

void leave_copies();

[[noreturn]] void stop() {
    stopped = true;
    if (current) {
        Context never;
        change(&never, &scheduler);
    }
    longjmp(stop_plain, 1);
}

uint64_t random_number() {  // xorshift64
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

void arrange(uint32_t* order, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) order[i] = options.order == 1 ? n - 1 - i : i;
    for (uint32_t i = n; options.order == 2 && i > 1; i--) {
        const uint32_t j = random_number() % i, kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
}

void enter(uint32_t thread) {
    thread_number = thread;
    const auto& b = pop_emu_block_size;
    pop_emu_thread = {thread % b.x, thread / b.x % b.y, thread / (b.x * b.y)};
}

// A kernel whose text names no function that waits must not wait.
void need_fibers() {
    if (current) return;
    report(DEADLOCK, -1, "", 0, NOBODY, nullptr);
    stop();
}

void wait_as(State state, void* place) {
    Fiber* f = current;
    f->state = state;
    f->place = place;
    change(&f->context, &scheduler);
}

// --- warps ----------------------------------------------------------------------------------------------------------

// All living lanes have come: what they do together is done, and they go on.
void finish_collective(uint32_t warp) {
    Warp& w = warps[warp];
    const uint32_t first = warp * pop_emu_warp, self = thread_number;
    if (w.whole && w.arrived < pop_emu_warp) report(DIVERGENT_WARP, -1, "", 0, NOBODY, w.place);
    else w.carry_out(w.frames, pop_emu_warp);
    enter(self);
    for (uint32_t l = 0; l < pop_emu_warp && first + l < threads; l++)
        if (w.frames[l] && fibers[first + l].state == AT_WARP) fibers[first + l].state = READY;
    w.arrived = 0;
}

// The lanes of a warp give a frame each; the last to come carries out the rest for all. `whole`: none may be missing.
void collective(void* frame, Collective carry_out, bool whole, void* place) {
    need_fibers();
    const uint32_t warp = thread_number / pop_emu_warp;
    Warp& w = warps[warp];
    if (!w.arrived) {
        memset(w.frames, 0, sizeof(w.frames));
        w.carry_out = carry_out;
        w.whole = whole;
        w.place = place;
        w.first = thread_number;
    } else if (w.carry_out != carry_out) {
        report(MIXED_WARP, -1, "", 0, number_of(w.first), place, w.place);
        stop();
    } else if (w.place != place)
        report(DIVERGENT_WARP, -1, "", 0, number_of(w.first), place, w.place);
    w.frames[thread_number % pop_emu_warp] = frame;
    if (++w.arrived == w.alive) finish_collective(warp);
    else wait_as(AT_WARP, place);
}

void fiber_main() {
    launched->entry(launched->kernel, launch_args);
    leave_copies();
    current->state = DONE;
    const uint32_t warp = thread_number / pop_emu_warp;
    if (--warps[warp].alive && warps[warp].arrived == warps[warp].alive) finish_collective(warp);
    Context never;
    change(&never, &scheduler);
}

// --- blocks ---------------------------------------------------------------------------------------------------------

void run_plain(const uint32_t* order) {
    for (uint32_t i = 0; i < threads; i++) {
        enter(order[i]);
        launched->entry(launched->kernel, launch_args);
        leave_copies();
    }
}

// Nobody can go on: if all who live are at a barrier, it opens.
bool open_barrier() {
    const Fiber* first = nullptr;
    uint32_t waiting = 0, done = 0;
    for (uint32_t t = 0; t < threads; t++) {
        if (fibers[t].state == DONE) done++;
        if (fibers[t].state != AT_BARRIER) continue;
        waiting++;
        if (!first) first = &fibers[t];
        thread_number = t;
        if (first->place != fibers[t].place)
            report(DIVERGENT, -1, "", 0, number_of(first - fibers), fibers[t].place, first->place);
    }
    if (!waiting || waiting + done < threads) return false;
    if (done) report(DIVERGENT, -1, "", 0, MANY, first->place);  // the others have returned
    meet_all();
    for (uint32_t t = 0; t < threads; t++)
        if (fibers[t].state == AT_BARRIER) fibers[t].state = READY;
    return true;
}

// Some wait for others who wait for something else: two of them are named.
void tell_deadlock() {
    uint32_t one = threads, other = threads;
    for (uint32_t t = 0; t < threads; t++) {
        if (fibers[t].state == DONE) continue;
        if (one == threads) one = t;
        else if (fibers[t].place != fibers[one].place) {
            other = t;
            break;
        }
    }
    if (one == threads) return;
    thread_number = one;
    report(DEADLOCK, -1, "", 0, other < threads ? number_of(other) : NOBODY, fibers[one].place,
           other < threads ? fibers[other].place : nullptr);
}

// Warp by warp, each as far as it comes; shuffled, it may be left before.
void run_fibers() {
    const uint32_t count = (threads + pop_emu_warp - 1) / pop_emu_warp;
    uint32_t warp_order[1024], lane_order[MOST_LANES];
    arrange(warp_order, count);
    arrange(lane_order, pop_emu_warp);
    for (uint32_t t = 0; t < threads; t++) {
        prepare(&fibers[t].context, stacks + t * STACK, fiber_main);
        fibers[t].state = READY;
    }
    for (uint32_t w = 0; w < count; w++) {
        warps[w].arrived = 0;
        warps[w].alive = threads - w * pop_emu_warp < pop_emu_warp ? threads - w * pop_emu_warp : pop_emu_warp;
    }
    for (;;) {
        bool moved = false;
        for (uint32_t i = 0; i < count && !stopped; i++) {
            for (bool more = true; more && !stopped;) {
                more = false;
                for (uint32_t l = 0; l < pop_emu_warp && !stopped; l++) {
                    const uint32_t t = warp_order[i] * pop_emu_warp + lane_order[l];
                    if (t >= threads || fibers[t].state != READY) continue;
                    more = moved = true;
                    current = &fibers[t];
                    enter(t);
                    change(&scheduler, &current->context);
                }
                if (options.order == 2 && random_number() % 4 == 0) break;
            }
        }
        current = nullptr;
        if (stopped) return;
        uint32_t done = 0;
        for (uint32_t t = 0; t < threads; t++) done += fibers[t].state == DONE;
        if (done == threads) return;
        if (moved || open_barrier()) continue;
        tell_deadlock();
        stopped = true;
        return;
    }
}

void make_threads() {
    if (stack_count < threads) {
        if (stacks) munmap(stacks, stack_count * STACK);
        stack_count = threads;
        stacks = (unsigned char*)mmap(nullptr, stack_count * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                      -1, 0);
    }
    fibers = (Fiber*)calloc(threads, sizeof(Fiber));
    warps = (Warp*)calloc(threads / pop_emu_warp + 1, sizeof(Warp));
}

void free_threads() {
    free(fibers);
    free(warps);
    fibers = current = nullptr;
    warps = nullptr;
}

}  // namespace

// --- what kernels call ----------------------------------------------------------------------------------------------

#define HERE __builtin_return_address(0)

extern "C" void pop_emu_barrier() {
    need_fibers();
    wait_as(AT_BARRIER, HERE);
}

namespace {

void meet_lanes(void** frames, uint32_t lanes) {
    uint32_t list[MOST_LANES], n = 0;
    const uint32_t first = thread_number / pop_emu_warp * pop_emu_warp;
    for (uint32_t l = 0; l < lanes; l++)
        if (frames[l]) list[n++] = first + l;
    meet(list, n);
}

struct Exchange { unsigned long long* bits; uint32_t lane; };

void exchange(void** frames, uint32_t lanes) {
    uint64_t bits[MOST_LANES];
    const uint32_t first = thread_number / pop_emu_warp * pop_emu_warp;
    for (uint32_t l = 0; l < lanes; l++)
        if (frames[l]) bits[l] = *((Exchange*)frames[l])->bits;
    for (uint32_t l = 0; l < lanes; l++) {
        if (!frames[l]) continue;
        auto e = (Exchange*)frames[l];
        if (frames[e->lane]) *e->bits = bits[e->lane];
        else {  // a lane that is not there
            enter(first + l);
            report(DIVERGENT_WARP, -1, "", 0, number_of(first + e->lane), warps[first / pop_emu_warp].place);
        }
    }
}

}  // namespace

extern "C" void pop_emu_warp_barrier() {
    char nothing;
    collective(&nothing, meet_lanes, false, HERE);
}

extern "C" void pop_emu_shuffle(unsigned long long* bits, unsigned lane) {
    Exchange e = {bits, lane};
    collective(&e, exchange, false, HERE);
}

extern "C" void pop_emu_aligned(const void* p, unsigned bytes) {
    if ((uintptr_t)p % bytes == 0 || !options.watched) return;
    auto at = (unsigned char*)p;
    Region* r = region_of(at);
    if (r) report_at(MISALIGNED, r, at - r->begin, NOBODY, HERE);
    else report(MISALIGNED, -1, "", 0, NOBODY, HERE);
}

extern "C" void pop_emu_compare_exchange(unsigned* at, unsigned expected, unsigned value) {
    touch(at, 4, true, true, HERE);
    if (*at == expected) *at = value;
}
