// pop_emu.h: the words of a GPU kernel in plain C++17, so that its text runs on a CPU.
//
// Include it before the kernel, with POP_EMULATOR defined. The kernel may be compiled with -fsanitize=thread: the
// compiler then reports every load and store to hooks, which pop_emu_rt.cpp defines; no sanitizer library takes part.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <utility>

#include "pop_emu_abi.h"

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

// The address of dynamic shared memory. Its arrays lie farther apart here than on a device, so offsets are looked up.
struct pop_emu_shared_memory {
    explicit pop_emu_shared_memory(unsigned bytes) : base(pop_emu_shared(bytes)) {}
    unsigned char* operator+(size_t offset) const { return pop_emu_shared_at(offset); }
    unsigned char& operator[](size_t offset) const { return *pop_emu_shared_at(offset); }
    operator unsigned char*() const { return base; }
    unsigned char* base;
};

namespace pop_emu {
template <class... A, size_t... I> void call(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
    kernel(*static_cast<A*>(args[I])...);
}
template <class... A> void unpack(void* kernel, void** args) {
    call(reinterpret_cast<void (*)(A...)>(kernel), args, std::index_sequence_for<A...>{});
}
template <class... A> pop_emu_entry entry_of(void (*)(A...)) { return &unpack<A...>; }
}

// `args` holds the address of each argument, as for cuLaunchKernel.
#define POP_EMU_EXPORT(function) \
    extern "C" __attribute__((visibility("default"))) int function##__launch(void** args, const pop_emu_options* options) { \
        const pop_emu_kernel kernel = {pop_emu::entry_of(function), reinterpret_cast<void*>(function), #function, \
                                       __start_pop_shared, __stop_pop_shared, __start_pop_views, __stop_pop_views}; \
        return pop_emu_launch(&kernel, args, options); \
    }
