// pop_emu_clock.h: which accesses surely came before which.
//
// Every thread has a clock; a row of numbers says up to which time of every other thread it has seen what that did. A
// barrier of the block makes all rows equal, so rows are kept only from one to the next. Source: Flanagan and Freund,
// "FastTrack: efficient and precise dynamic race detection", 2009.
#pragma once

namespace {

uint32_t interval;       // counts the barriers of all blocks of a launch
uint32_t *clocks;        // of each thread of the block, and of the copy engine
uint32_t *seen_by_all;   // at the last barrier of the block
uint32_t *rows, *row_interval;
uint32_t *joined;        // scratch

uint32_t width() { return threads + 1; }

void make_clocks() {
    clocks = (uint32_t*)calloc(width(), 4);
    seen_by_all = (uint32_t*)calloc(width(), 4);
    joined = (uint32_t*)calloc(width(), 4);
    row_interval = (uint32_t*)calloc(width(), 4);
    rows = (uint32_t*)malloc(size_t(width()) * width() * 4);
}

void free_clocks() {
    free(clocks);
    free(seen_by_all);
    free(joined);
    free(row_interval);
    free(rows);
}

void start_clocks() {
    interval++;
    for (uint32_t t = 0; t < width(); t++) {
        clocks[t] = 1;
        seen_by_all[t] = 0;
    }
}

uint32_t* row_of(uint32_t thread) {
    uint32_t* row = rows + size_t(thread) * width();
    if (row_interval[thread] != interval) {
        memcpy(row, seen_by_all, width() * 4);
        row_interval[thread] = interval;
    }
    return row;
}

// Up to which time of thread `other` the running one has seen it.
uint32_t seen(uint32_t other) {
    return row_interval[thread_number] == interval ? rows[size_t(thread_number) * width() + other] : seen_by_all[other];
}

void join(uint32_t* into, const uint32_t* from) {
    for (uint32_t i = 0; i < width(); i++) into[i] = into[i] > from[i] ? into[i] : from[i];
}

// The threads of a list have met: each has seen what any has seen or done. A clock goes on when others may know its time.
void meet(const uint32_t* list, uint32_t count) {
    if (!options.watched) return;
    memset(joined, 0, width() * 4);
    for (uint32_t i = 0; i < count; i++) join(joined, row_of(list[i]));
    for (uint32_t i = 0; i < count; i++) joined[list[i]] = clocks[list[i]];
    for (uint32_t i = 0; i < count; i++) {
        memcpy(row_of(list[i]), joined, width() * 4);
        clocks[list[i]]++;
    }
}

// The thread has seen what the clocks `from` say.
void learn(uint32_t thread, const uint32_t* from) {
    if (options.watched) join(row_of(thread), from);
}

// What the thread has seen and done goes into the clocks `into`.
void tell(uint32_t thread, uint32_t* into) {
    if (!options.watched) return;
    join(into, row_of(thread));
    into[thread] = clocks[thread]++;
}

// The threads of the block have met; what the copy engine did is known to all if one of them knew it.
void meet_all() {
    if (options.watched) {
        uint32_t engine = seen_by_all[threads];
        for (uint32_t t = 0; t < threads; t++) {
            const uint32_t known = row_interval[t] == interval ? rows[size_t(t) * width() + threads] : 0;
            engine = known > engine ? known : engine;
        }
        for (uint32_t t = 0; t < threads; t++) seen_by_all[t] = clocks[t]++;
        seen_by_all[threads] = engine;
    }
    interval++;
}

}  // namespace
