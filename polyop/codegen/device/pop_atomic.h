// pop_atomic.h: updates of one element that several threads may make at once, of which none is lost.
#pragma once

#if defined(POP_EMULATOR) || defined(__HIP__)
  #define pop_copy_bits __builtin_memcpy
#else
  #define pop_copy_bits memcpy
#endif

// *at = f(*at), in one piece: by comparing and exchanging the word around it, until nobody came between.
template <class T, class F> POP_FN void pop_atomic(T* at, F f) {
#if defined(POP_EMULATOR)
    unsigned char bytes[sizeof(T)];
    T x;
    pop_emu_atomic_read(at, bytes, sizeof(T));
    __builtin_memcpy(&x, bytes, sizeof(T));
    x = f(x);
    __builtin_memcpy(bytes, &x, sizeof(T));
    pop_emu_atomic_write(at, bytes, sizeof(T));
#else
    if (sizeof(T) == 8) {
        pop_u64* const word = (pop_u64*)at;
        pop_u64 old = *(volatile pop_u64*)word;
        for (;;) {
            T x;
            pop_copy_bits(&x, &old, sizeof(T));
            x = f(x);
            pop_u64 now = 0, seen = old;
            pop_copy_bits(&now, &x, sizeof(T));
            if (now == old) return;
  #if defined(__HIP__)
            __hip_atomic_compare_exchange_strong(word, &seen, now, __ATOMIC_RELAXED, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  #else
            seen = atomicCAS((unsigned long long*)word, old, now);
  #endif
            if (seen == old) return;
            old = seen;
        }
    }
    pop_u32* const word = (pop_u32*)((pop_u64)at & ~3ull);
    const pop_u32 shift = sizeof(T) == 4 ? 0 : ((pop_u64)at & 3) * 8, mask = sizeof(T) >= 4 ? ~0u : (1u << sizeof(T) * 8 % 32) - 1;
    pop_u32 old = *(volatile pop_u32*)word;
    for (;;) {
        const pop_u32 bits = old >> shift & mask;
        T x;
        pop_copy_bits(&x, &bits, sizeof(T) < 4 ? sizeof(T) : 4);
        x = f(x);
        pop_u32 now = 0, seen = old;
        pop_copy_bits(&now, &x, sizeof(T) < 4 ? sizeof(T) : 4);
        now = (old & ~(mask << shift)) | now << shift;
        if (now == old) return;
  #if defined(__HIP__)
        __hip_atomic_compare_exchange_strong(word, &seen, now, __ATOMIC_RELAXED, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  #else
        seen = atomicCAS(word, old, now);
  #endif
        if (seen == old) return;
        old = seen;
    }
#endif
}

// What the hardware does by itself, for integers of 4 and 8 bytes; sums are in pop_block.h.
#if defined(POP_EMULATOR)
template <class T> POP_FN void pop_atomic_max(T* at, T x) { pop_atomic(at, [x](T a) { return a > x ? a : x; }); }
template <class T> POP_FN void pop_atomic_min(T* at, T x) { pop_atomic(at, [x](T a) { return a < x ? a : x; }); }
#elif defined(__HIP__)
template <class T> POP_FN void pop_atomic_max(T* at, T x) { __hip_atomic_fetch_max(at, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
template <class T> POP_FN void pop_atomic_min(T* at, T x) { __hip_atomic_fetch_min(at, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
#else
template <class T> POP_FN void pop_atomic_max(T* at, T x) { atomicMax(at, x); }
template <class T> POP_FN void pop_atomic_min(T* at, T x) { atomicMin(at, x); }
#endif
