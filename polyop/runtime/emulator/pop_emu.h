// pop_emu.h: the words of a GPU kernel in plain C++17, so that its text runs on a CPU.
//
// Include it before the kernel, with POP_EMULATOR defined. The kernel may be compiled with -fsanitize=thread: the
// compiler then reports every load and store to hooks, which pop_emu_rt.cpp defines; no sanitizer library takes part.
//
// Headers of the C++ library are left out: reading <math.h> and <utility> would take longer than compiling most kernels.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "pop_emu_abi.h"

// Functions that a GPU's compiler knows without a header.
#define POP_EMU_MATH(name) extern "C" double name(double); extern "C" float name##f(float);
#define POP_EMU_MATH2(name) extern "C" double name(double, double); extern "C" float name##f(float, float);
POP_EMU_MATH(exp) POP_EMU_MATH(exp2) POP_EMU_MATH(expm1) POP_EMU_MATH(log) POP_EMU_MATH(log2) POP_EMU_MATH(log1p)
POP_EMU_MATH(sin) POP_EMU_MATH(cos) POP_EMU_MATH(tan) POP_EMU_MATH(asin) POP_EMU_MATH(acos) POP_EMU_MATH(atan)
POP_EMU_MATH(sinh) POP_EMU_MATH(cosh) POP_EMU_MATH(tanh) POP_EMU_MATH(erf) POP_EMU_MATH(erfc) POP_EMU_MATH(sqrt)
POP_EMU_MATH(floor) POP_EMU_MATH(ceil) POP_EMU_MATH(rint) POP_EMU_MATH(trunc) POP_EMU_MATH(fabs)
POP_EMU_MATH2(pow) POP_EMU_MATH2(atan2) POP_EMU_MATH2(fmod) POP_EMU_MATH2(copysign)
extern "C" double fma(double, double, double);
extern "C" float fmaf(float, float, float);

#define threadIdx pop_emu_thread
#define blockIdx pop_emu_block
#define blockDim pop_emu_block_size
#define gridDim pop_emu_grid_size
#define __global__ __attribute__((visibility("default"), noinline))
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
// one section holds all shared arrays, so the runtime knows where they are
#define __shared__ static __attribute__((section("pop_shared"), used))
#define __syncthreads() pop_emu_barrier()

extern "C" unsigned char __start_pop_shared[] __attribute__((weak, visibility("hidden")));
extern "C" unsigned char __stop_pop_shared[] __attribute__((weak, visibility("hidden")));
// another one holds what kernels say of their dynamic shared memory
extern "C" pop_emu_view __start_pop_views[] __attribute__((weak, visibility("hidden")));
extern "C" pop_emu_view __stop_pop_views[] __attribute__((weak, visibility("hidden")));

// One turn of a loop, the `turn`th or so far from its beginning: lanes are in it together, whichever of them skip turns.
struct pop_emu_turn {
    unsigned long long around;
    explicit pop_emu_turn(long long turn) : around(pop_emu_turn_begins(turn)) {}
    ~pop_emu_turn() { pop_emu_turn_ends(around); }
};

// Registers that were declared hold nothing yet: NaN, or the highest integer.
template <class T> __forceinline__ void pop_emu_poison(T& x) {
    T poison;
    __builtin_memset(&poison, 0xff, sizeof(T));
    x = poison;
}
template <class T, size_t N> void pop_emu_poison(T (&x)[N]) { pop_emu_poison_bytes(x, sizeof(x)); }

// The address of dynamic shared memory. Its arrays lie farther apart here than on a device, so offsets are looked up.
struct pop_emu_shared_memory {
    explicit pop_emu_shared_memory(unsigned bytes) : base(pop_emu_shared(bytes)) {}
    unsigned char* operator+(size_t offset) const { return pop_emu_shared_at(offset); }
    unsigned char& operator[](size_t offset) const { return *pop_emu_shared_at(offset); }
    operator unsigned char*() const { return base; }
    unsigned char* base;
};

namespace pop_emu {
template <size_t... I> struct places {};
template <size_t N, size_t... I> struct first : first<N - 1, N - 1, I...> {};  // 0, 1, .. N - 1
template <size_t... I> struct first<0, I...> { typedef places<I...> type; };
template <class T> T taken(const void* from) {  // which a host aligns as it likes
    T x;
    __builtin_memcpy(&x, from, sizeof(T));
    return x;
}
template <class... A, size_t... I> void call(void (*kernel)(A...), void** args, places<I...>) {
    kernel(taken<A>(args[I])...);
}
template <class... A> void unpack(void* kernel, void** args) {
    call(reinterpret_cast<void (*)(A...)>(kernel), args, typename first<sizeof...(A)>::type{});
}
template <class... A> pop_emu_entry entry_of(void (*)(A...)) { return &unpack<A...>; }
template <class... A> const unsigned* bytes_of(void (*)(A...)) {
    static const unsigned bytes[] = {sizeof(A)..., 0};
    return bytes;
}
}

// `args` holds the address of each argument, as for cuLaunchKernel; `bytes` tells how many each takes, and 0 behind the last.
#define POP_EMU_EXPORT(function) \
    extern "C" __attribute__((visibility("default"))) int function##__launch(void** args, const pop_emu_options* options) { \
        const pop_emu_kernel kernel = {pop_emu::entry_of(function), reinterpret_cast<void*>(function), #function, \
                                       __start_pop_shared, __stop_pop_shared, __start_pop_views, __stop_pop_views}; \
        return pop_emu_launch(&kernel, args, options); \
    } \
    extern "C" __attribute__((visibility("default"))) const unsigned* function##__bytes() { return pop_emu::bytes_of(function); }
