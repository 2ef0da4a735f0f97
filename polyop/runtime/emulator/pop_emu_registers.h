// pop_emu_registers.h: registers that the warps of a block hand on.
//
// A block starts with all registers of a multiprocessor, as many for each thread: so its kernel is the only one there. Who asks
// for more waits until others have given back so many.
#pragma once

namespace {

const uint32_t ALL_REGISTERS = 65536, MOST_REGISTERS = 255;  // of a multiprocessor; of a thread
uint32_t* holds;  // of each thread
uint32_t spare;

void make_registers() { holds = (uint32_t*)calloc(threads, sizeof(uint32_t)); }
void free_registers() { free(holds); }
void start_registers() {
    const uint32_t each = ALL_REGISTERS / threads / 8 * 8;
    for (uint32_t t = 0; t < threads; t++) holds[t] = each < MOST_REGISTERS ? each : MOST_REGISTERS;
    spare = 0;
}

void ask_for_registers(const Gathering& g) {
    for (uint32_t t = 1; t < g.size; t++)
        if (*(uint32_t*)g.frames[t] != *(uint32_t*)g.frames[0]) report(DIVERGENT_WARP, -1, "", 0, number_of(g.begin + t), g.place);
}

}  // namespace

extern "C" void pop_emu_registers(unsigned count) {
    collective(groups, GROUP, &count, ask_for_registers, true, HERE);
    const uint32_t mine = thread_number, had = holds[mine];
    while (count > had && spare < count - had) wait_as(AT_REGISTERS, HERE);
    spare -= count - had;  // or more, where fewer are held
    holds[mine] = count;
    for (uint32_t t = 0; t < threads && count < had; t++)
        if (fibers[t].state == AT_REGISTERS) fibers[t].state = READY;
}
