// pop_emu_overflow.h: sums and products that do not fit into their type, which the compiler reports to these hooks.
//
// Numbers of users wrap around in types without a sign (see pop_device.h), so what is left are indices. The hooks are those of
// -fsanitize=signed-integer-overflow; no sanitizer library takes part. The launch ends, since nobody knows where such an index leads.
#pragma once

#define POP_EMU_OVERFLOW(what) \
    EXPORT void __ubsan_handle_##what(void*, uint64_t, uint64_t) { \
        report(OVERFLOW, -1, "", 0, NOBODY, HERE); \
        stop(); \
    }

POP_EMU_OVERFLOW(add_overflow)
POP_EMU_OVERFLOW(sub_overflow)
POP_EMU_OVERFLOW(mul_overflow)
POP_EMU_OVERFLOW(negate_overflow)
POP_EMU_OVERFLOW(divrem_overflow)

// An index of registers, that is of an array of the thread's own, in none of them. Where such an array begins after its last
// element a compiler does not ask.
EXPORT void __ubsan_handle_out_of_bounds(void*, uint64_t index) {
    report(OUTSIDE, -1, "", (int64_t)index, NOBODY, HERE);
    stop();
}
