// pop_emu_threads.h: the threads of a block, each on a stack of its own, and where they wait for each other.
#pragma once

namespace {

const size_t STACK = 256 << 10;
const uint32_t MOST_LANES = 128;  // of a warpgroup

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

enum State : uint8_t { READY, AT_BARRIER, AT_WARP, AT_PHASE, AT_NAMED, AT_REGISTERS, DONE };

struct Phase;

struct Fiber {
    Context context;
    State state;
    void* place;          // where it waits
    const Phase* phase;  // what for
};

// `size` threads from `begin` on that do something together, of which some have come.
struct Gathering;
typedef void (*Collective)(const Gathering& g);
struct Gathering {
    uint32_t begin, size, arrived, alive, first;
    void *place, *frames[MOST_LANES];
    Collective carry_out;
    bool whole;
};

Context scheduler;
Fiber *fibers, *current;
Gathering *warps, *groups;
const uint32_t GROUP = 128;
unsigned char* stacks;
size_t stack_count;
jmp_buf stop_plain;
const pop_emu_kernel* launched;
void** launch_args;
uint64_t random_state;

void leave_asynchronous();
void count_banks();
bool land_one();

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

// --- turns ----------------------------------------------------------------------------------------------------------

// In which turns of the loops around it each thread is, as one number.
uint64_t* turns_of;

void make_turns() { turns_of = (uint64_t*)calloc(threads, sizeof(uint64_t)); }
void start_turns() { memset(turns_of, 0, threads * sizeof(uint64_t)); }
void free_turns() { free(turns_of); }

}  // namespace

extern "C" unsigned long long pop_emu_turn_begins(long long turn) {
    const uint64_t around = turns_of[thread_number];
    turns_of[thread_number] = (around ^ (uint64_t)(turn + 1)) * 0x9e3779b97f4a7c15ull + 1;
    return around;
}
extern "C" void pop_emu_turn_ends(unsigned long long around) { turns_of[thread_number] = around; }

namespace {

// --- warps ----------------------------------------------------------------------------------------------------------

// All living lanes have come: what they do together is done, and they go on.
void finish_collective(Gathering& g) {
    const uint32_t self = thread_number;
    if (g.whole && g.arrived < g.size) report(DIVERGENT_WARP, -1, "", 0, NOBODY, g.place);
    else g.carry_out(g);
    enter(self);
    for (uint32_t l = 0; l < g.size && g.begin + l < threads; l++)
        if (g.frames[l] && fibers[g.begin + l].state == AT_WARP) fibers[g.begin + l].state = READY;
    g.arrived = 0;
}

// The lanes give a frame each; the last to come carries out the rest for all. `whole`: none may be missing.
void collective(Gathering* all, uint32_t size, void* frame, Collective carry_out, bool whole, void* place) {
    need_fibers();
    Gathering& g = all[thread_number / size];
    if (!g.arrived) {
        memset(g.frames, 0, sizeof(g.frames));
        g.carry_out = carry_out;
        g.whole = whole;
        g.place = place;
        g.first = thread_number;
    } else if (g.carry_out != carry_out) {
        report(MIXED_WARP, -1, "", 0, number_of(g.first), place, g.place);
        stop();
    } else if (options.watched && g.place != place)
        report(DIVERGENT_WARP, -1, "", 0, number_of(g.first), place, g.place);
    g.frames[thread_number % size] = frame;
    if (++g.arrived == g.alive) finish_collective(g);
    else wait_as(AT_WARP, place);
}

void of_warp(void* frame, Collective carry_out, bool whole, void* place) {
    collective(warps, pop_emu_warp, frame, carry_out, whole, place);
}

void start_gatherings(Gathering* all, uint32_t size) {
    for (uint32_t w = 0; w * size < threads; w++) {
        all[w].begin = w * size;
        all[w].size = size;
        all[w].arrived = 0;
        all[w].alive = threads - w * size < size ? threads - w * size : size;
    }
}

void leave(Gathering& g) {
    if (--g.alive && g.arrived == g.alive) finish_collective(g);
}

void fiber_main() {
    launched->entry(launched->kernel, launch_args);
    leave_asynchronous();
    current->state = DONE;
    leave(warps[thread_number / pop_emu_warp]);
    leave(groups[thread_number / GROUP]);
    Context never;
    change(&never, &scheduler);
}

// --- blocks ---------------------------------------------------------------------------------------------------------

void run_plain(const uint32_t* order) {
    for (uint32_t i = 0; i < threads; i++) {
        enter(order[i]);
        launched->entry(launched->kernel, launch_args);
        leave_asynchronous();
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
        if (options.watched && first->place != fibers[t].place)
            report(DIVERGENT, -1, "", 0, number_of(first - fibers), fibers[t].place, first->place);
    }
    if (!waiting || waiting + done < threads) return false;
    if (done) report(DIVERGENT, -1, "", 0, MANY, first->place);  // the others have returned
    meet_all();
    count_banks();
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
    start_gatherings(warps, pop_emu_warp);
    start_gatherings(groups, GROUP);
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
        if (moved || open_barrier() || land_one()) continue;
        tell_deadlock();
        stopped = true;
        return;
    }
}

void make_threads() {
    if (stack_count < threads) {
        if (stacks) munmap(stacks, stack_count * STACK);
        stack_count = threads;
        stacks = (unsigned char*)reserve(stack_count * STACK);
    }
    fibers = (Fiber*)calloc(threads, sizeof(Fiber));
    warps = (Gathering*)calloc(threads / pop_emu_warp + 1, sizeof(Gathering));
    groups = (Gathering*)calloc(threads / GROUP + 1, sizeof(Gathering));
}

void free_threads() {
    free(fibers);
    free(warps);
    free(groups);
    fibers = current = nullptr;
    warps = groups = nullptr;
}

}  // namespace
