// pop_copy.h: copies from global to shared memory that go on while the thread does.
//
// A copy belongs to the group that the thread's next pop_copy_commit() closes; pop_copy_wait<N>() returns when all groups
// of this thread but its N newest have arrived. Other threads may read what arrived after a barrier. Until then nobody may
// touch the destination. On AMD, whose copies arrive at once, groups mean nothing.
#pragma once

#if defined(__CUDACC__) && !defined(POP_EMULATOR)
POP_FN pop_u32 pop_shared_address(const void* p) { return (pop_u32)__cvta_generic_to_shared(p); }
#endif

// Copies BYTES (4, 8 or 16) to shared memory, or zeros if not `inside`, and `from` is not looked at then; both addresses
// are multiples of BYTES.
template <int BYTES> POP_FN void pop_copy_async(void* to, const void* from, bool inside) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "asynchronous copies take 4, 8 or 16 bytes");
#if defined(POP_EMULATOR)
    pop_emu_copy(to, from, BYTES, inside);
#elif defined(__HIP__)
    typedef typename pop_chunk<BYTES>::type chunk;
    chunk x = {};
    if (inside) x = *(const chunk*)from;
    *(chunk*)to = x;
#else
    const pop_u32 at = pop_shared_address(to), taken = inside ? BYTES : 0;  // the rest is filled with zeros
    if constexpr (BYTES == 16)  // past the first cache, which smaller copies cannot
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(taken) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from), "n"(BYTES), "r"(taken) : "memory");
#endif
}

POP_FN void pop_copy_commit() {
#if defined(POP_EMULATOR)
    pop_emu_copy_commit();
#elif !defined(__HIP__)
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int N> POP_FN void pop_copy_wait() {
#if defined(POP_EMULATOR)
    pop_emu_copy_wait(N);
#elif !defined(__HIP__)
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// Copies N neighbours of which the first `count` are inside, and zeros for the others; `from` is not looked at beyond them.
// They go at once where `from` lies at a multiple of their size; `to` does. Else by halves, or words, where it lies at a
// multiple of these. They belong to the group that the next pop_copies_barrier closes.
template <int N, class T> POP_FN void pop_copy_run(T* to, const T* from, pop_i64 count) {
    constexpr int bytes = N * (int)sizeof(T);
    if ((count >= N && (pop_u64)from % bytes == 0) || count <= 0) {
        pop_copy_async<bytes>(to, from, count > 0);
        return;
    }
    if constexpr (sizeof(T) < 4) {  // no copy of so little goes on by itself
        if constexpr (bytes == 16) {
            if (count >= N && (pop_u64)from % 8 == 0) {
                pop_copy_async<8>(to, from, true);
                pop_copy_async<8>(to + N / 2, from + N / 2, true);
                return;
            }
        }
        if constexpr (bytes > 4) {
            constexpr int word = 4 / (int)sizeof(T);
            const int left = count < N ? (int)count : N;
            if ((pop_u64)from % 4 == 0 && left % word == 0) {
#pragma unroll
                for (int i = 0; i < N; i += word) pop_copy_async<4>(to + i, from + i, i < left);
                return;
            }
        }
        alignas(bytes) T each[N];
#pragma unroll
        for (int i = 0; i < N; ++i) each[i] = i < count ? from[i] : (T)0;
        pop_move<bytes>(to, each);
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) pop_copy_async<(int)sizeof(T)>(to + i, from + i, i < count);
    }
}

// The same into registers, and from there to shared memory: all of them at once. `to` lies at a multiple of their size.
template <int N, class T> POP_FN void pop_take_run(T* to, const T* from, pop_i64 count) {
    constexpr int bytes = N * (int)sizeof(T);
    if (count >= N && pop_is_wide<bytes>(from)) {
        pop_move<bytes>(to, from);
        return;
    }
    alignas(bytes) T each[N];
#pragma unroll
    for (int i = 0; i < N; ++i) each[i] = i < count ? from[i] : (T)0;
    pop_move<bytes>(to, each);
}
template <int N, class T> POP_FN void pop_put_run(T* to, const T* from) { pop_move<N * (int)sizeof(T)>(to, from); }

// A column of a square of registers, whose rows are STEP elements long.
template <int N, int STEP, class T> POP_FN void pop_put_column(T* to, const T* from) {
    alignas(N * sizeof(T)) T each[N];
#pragma unroll
    for (int i = 0; i < N; ++i) each[i] = from[STEP * i];
    pop_move<N * (int)sizeof(T)>(to, each);
}

// A barrier that closes a group and first waits for all groups of this thread but the N newest, so that behind it those of
// all threads have arrived.
template <int N> POP_FN void pop_copies_barrier() {
    pop_copy_commit();
    pop_copy_wait<N>();
    pop_barrier();
}

// Waits for all copies of this thread: its block does not end before they have arrived.
POP_FN void pop_copies_end() {
    pop_copy_commit();
    pop_copy_wait<0>();
}
