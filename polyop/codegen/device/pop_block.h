// pop_block.h: what the threads of a block do together: wait for each other, exchange values, share memory.
//
// A block is one row of threads, so `threadIdx.x` is the number of a thread in it. A warp is POP_WARP of them.
#pragma once

#if defined(POP_EMULATOR)
  #define POP_WARP pop_emu_warp
#elif defined(__HIP__)
  #if defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)
    #define POP_WARP 32u
  #else
    #define POP_WARP 64u
  #endif
#else
  #define POP_WARP 32u
#endif

POP_FN pop_u32 pop_thread() { return threadIdx.x; }
POP_FN pop_u32 pop_lane() { return pop_thread() % POP_WARP; }

// --- waiting --------------------------------------------------------------------------------------------------------

// pop_barrier: every thread of the block has come here, and sees what all of them wrote before. pop_shared_barrier: the same
// of shared memory alone, and what was asked of other memory may still be on its way. pop_warp_barrier: the same of a warp.
#if defined(POP_EMULATOR)
POP_FN void pop_barrier() { pop_emu_barrier(); }
POP_FN void pop_shared_barrier() { pop_emu_barrier(); }
POP_FN void pop_warp_barrier() { pop_emu_warp_barrier(); }
#elif defined(__HIP__)
POP_FN void pop_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
POP_FN void pop_shared_barrier() {
    __builtin_amdgcn_sched_barrier(0);  // products that stand before it begin before it: what is fetched meanwhile is waited for then
  #if __clang_major__ >= 20  // which can tell memories apart
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
  #else
    pop_barrier();
  #endif
}
POP_FN void pop_warp_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
#else
POP_FN void pop_barrier() { __syncthreads(); }
POP_FN void pop_shared_barrier() { __syncthreads(); }
POP_FN void pop_warp_barrier() { __syncwarp(); }
#endif

// --- shuffles -------------------------------------------------------------------------------------------------------

// The `x` of another lane of the warp, for types of 4 and 8 bytes: of lane `lane`, or of that whose number differs from
// this one's in the bits of `mask`. All lanes of the warp take part.
#if defined(POP_EMULATOR)
template <class T> POP_FN T pop_shuffle(T x, pop_u32 lane) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles take 4 or 8 bytes");
    pop_u64 bits = 0;
    T out;
    __builtin_memcpy(&bits, &x, sizeof(T));
    pop_emu_shuffle(&bits, lane % POP_WARP);
    __builtin_memcpy(&out, &bits, sizeof(T));
    return out;
}
template <class T> POP_FN T pop_shuffle_xor(T x, pop_u32 mask) { return pop_shuffle(x, pop_lane() ^ mask); }
#elif defined(__HIP__)
template <class T> POP_FN T pop_shuffle(T x, pop_u32 lane) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles take 4 or 8 bytes");
    int words[sizeof(T) / 4];
    T out;
    __builtin_memcpy(words, &x, sizeof(T));
    for (unsigned w = 0; w < sizeof(T) / 4; w++) words[w] = __builtin_amdgcn_ds_bpermute((int)(lane % POP_WARP * 4), words[w]);
    __builtin_memcpy(&out, words, sizeof(T));
    return out;
}
template <class T> POP_FN T pop_shuffle_xor(T x, pop_u32 mask) { return pop_shuffle(x, pop_lane() ^ mask); }
#else
template <class T> POP_FN T pop_shuffle(T x, pop_u32 lane) { return __shfl_sync(0xffffffffu, x, (int)lane); }
template <class T> POP_FN T pop_shuffle_xor(T x, pop_u32 mask) { return __shfl_xor_sync(0xffffffffu, x, (int)mask); }
#endif

// Lanes 2 i and 2 i + 1 have two pairs of 16 bits each: afterwards the first one has both first pairs, its neighbour both second ones.
template <class T> POP_FN void pop_pairs(T (&x)[4]) {
    static_assert(sizeof(T) == 2, "pairs are of 16 bits each");
    const pop_u32 first = (pop_u32)x[0] | (pop_u32)x[1] << 16, second = (pop_u32)x[2] | (pop_u32)x[3] << 16;
    const bool odd = pop_lane() % 2;
    const pop_u32 other = pop_shuffle_xor(odd ? first : second, 1), low = odd ? other : first, high = odd ? second : other;
    x[0] = (T)low, x[1] = (T)(low >> 16), x[2] = (T)high, x[3] = (T)(high >> 16);
}

// --- blocks ---------------------------------------------------------------------------------------------------------

// The number, row by row, of block `i` of a box of `rows` x `columns` and of boxes like it, if GROUP rows at a time are gone
// through column by column:
//     { [GROUP g + r, c] -> [GROUP g columns + h c + r] : 0 <= r < h = min(GROUP, rows - GROUP g) and 0 <= c < columns }
template <int GROUP> POP_FN pop_u32 pop_grouped(pop_u32 i, pop_u32 rows, pop_u32 columns) {
    const pop_u32 box = i / (rows * columns) * rows, at = i % (rows * columns), first = at / (GROUP * columns) * GROUP;
    const pop_u32 high = rows - first < GROUP ? rows - first : GROUP, inside = at - first * columns;
    return (box + first + inside % high) * columns + inside / high;
}

// --- registers ------------------------------------------------------------------------------------------------------

// What is known of numbers that a whole block has is forgotten: what is asked about them is asked here, and not ahead of a loop.
template <class T> POP_FN void pop_forget(T& x) {
#if defined(__HIP__) && !defined(POP_EMULATOR)
    if constexpr (sizeof(T) == 4) x = __builtin_amdgcn_readfirstlane(x);
    asm volatile("" : "+s"(x));
#else
    (void)x;
#endif
}
template <class... T> POP_FN void pop_anew(T&... numbers) { (pop_forget(numbers), ...); }

// The number of a thread, of which that is forgotten as well.
POP_FN pop_u32 pop_again(pop_u32 n) {
#if defined(__HIP__) && !defined(POP_EMULATOR)
    asm volatile("" : "+v"(n));
#endif
    return n;
}

// The `i`-th of COUNT values, `f(0)` to `f(COUNT - 1)`, in registers, which have no numbers that a thread computes.
template <int COUNT, class F> POP_FN auto pop_chosen(int i, F f) -> decltype(f(0)) {
    auto x = f(0);
    #pragma unroll
    for (int k = 1; k < COUNT; ++k) x = i == k ? f(k) : x;
    return x;
}

// Of COUNT slabs of SIZE registers each takes the place of the one before, and the first that of the last.
template <int COUNT, int SIZE, class T> POP_FN void pop_turn(T* slabs) {
    #pragma unroll
    for (int i = 0; i < SIZE; ++i) {
        const T first = slabs[i];
        #pragma unroll
        for (int k = 1; k < COUNT; ++k) slabs[(k - 1) * SIZE + i] = slabs[k * SIZE + i];
        slabs[(COUNT - 1) * SIZE + i] = first;
    }
}
// The same of tiles that matrix units hold.
template <int COUNT, int SIZE, int REGS, class T> POP_FN void pop_turn(T (*slabs)[REGS]) {
    #pragma unroll
    for (int r = 0; r < REGS; ++r) {
        #pragma unroll
        for (int i = 0; i < SIZE; ++i) {
            const T first = slabs[i][r];
            #pragma unroll
            for (int k = 1; k < COUNT; ++k) slabs[(k - 1) * SIZE + i][r] = slabs[k * SIZE + i][r];
            slabs[(COUNT - 1) * SIZE + i][r] = first;
        }
    }
}

// --- shared memory --------------------------------------------------------------------------------------------------

// POP_SHARED(bytes), at the head of a kernel, declares `pop_shared`: so many bytes that the threads of a block share. The
// launch says the same number. POP_SHARED_VIEW(name, type, offset, count) tells the emulator what lies where in them.
// POP_SHARED_ARRAY(type, name, count), in a function, declares an array that the threads of a block share beside them: of
// templates compilers do not leave it to a section where it lies.
#if defined(POP_EMULATOR)
  #define POP_SHARED_ARRAY(type, name, count) \
      static char pop_key_##name; \
      type* const name = (type*)pop_emu_shared_array(&pop_key_##name, (count) * sizeof(type), sizeof(type))
  #define POP_SHARED(bytes) const pop_emu_shared_memory pop_shared(bytes)
  #define POP_SHARED_VIEW(name, type, offset, count) \
      static pop_emu_view pop_view_##name __attribute__((section("pop_views"), used, aligned(32))) = \
          {__func__, #name, (offset), (count), sizeof(type), 0}; \
      static_assert((offset) % sizeof(type) == 0, "a view of shared memory starts at a multiple of its elements' size")
#else
  #define POP_SHARED_ARRAY(type, name, count) __shared__ type name[count]
  #if defined(__HIP__)
    #define POP_SHARED(bytes) extern __shared__ __attribute__((aligned(16))) unsigned char pop_shared[]
  #else
    // tiles of the bulk copy engine start at multiples of 1024 bytes
    #define POP_SHARED(bytes) extern __shared__ __align__(1024) unsigned char pop_shared[]
  #endif
  #define POP_SHARED_VIEW(name, type, offset, count) \
      static_assert((offset) % sizeof(type) == 0, "a view of shared memory starts at a multiple of its elements' size")
#endif

// Where element [y, x] of a swizzled tile lies, which has ROWS rows; lines are of LINE elements and go panel by panel:
//     { [y, x] -> [LINE (ROWS floor(x / LINE) + y) + ((x mod LINE) xor (LINE / 8) (y mod 8))] }
template <int ROWS, int LINE> POP_FN int pop_swizzled(int y, int x) {
    const unsigned row = y, column = x;
    return (int)(LINE * (ROWS * (column / LINE) + row) + (column % LINE ^ LINE / 8 * (row % 8)));
}

// The same, by both low digits of a row's number: (y xor floor(y / 8)) mod 8 instead of y mod 8.
template <int ROWS, int LINE> POP_FN int pop_folded(int y, int x) {
    const unsigned row = y, column = x;
    return (int)(LINE * (ROWS * (column / LINE) + row) + (column % LINE ^ LINE / 8 * ((row ^ row / 8) % 8)));
}

// The same, by twice that number in GF(8), modulo z^3 + z^2 + 1: neighbouring rows are two or more apart.
template <int ROWS, int LINE> POP_FN int pop_doubled(int y, int x) {
    const unsigned row = y, column = x, digit = (row ^ row / 8) % 8;
    return (int)(LINE * (ROWS * (column / LINE) + row) + (column % LINE ^ LINE / 8 * ((2 * digit ^ digit / 4 * 5) % 8)));
}

// Where a row lies of a buffer in which each 8 or 4 rows change places: 4 c + 2 b + a where 4 a + 2 b + c would, 2 c + a where 2 a + c;
// or the neighbours of four rows out of eight.
template <int OF> POP_FN int pop_turned(int y) {
    return OF == 2 ? y ^ (y >> 2 & 1) : (y & ~(OF / 2 + 1)) | (y & 1) << OF / 4 | (y >> OF / 4 & 1);
}

// --- moves ----------------------------------------------------------------------------------------------------------

template <int BYTES> struct pop_chunk;
#if defined(POP_EMULATOR)  // at any address: a wrong one is reported, and no reason to end
template <> struct pop_chunk<4> { typedef pop_u32 __attribute__((may_alias, aligned(1))) type; };
template <> struct pop_chunk<8> { typedef pop_u32 __attribute__((vector_size(8), may_alias, aligned(1))) type; };
template <> struct pop_chunk<16> { typedef pop_u32 __attribute__((vector_size(16), may_alias, aligned(1))) type; };
#elif defined(__HIP__)
template <> struct pop_chunk<4> { typedef pop_u32 __attribute__((may_alias)) type; };
template <> struct pop_chunk<8> { typedef pop_u32 __attribute__((vector_size(8), may_alias)) type; };
template <> struct pop_chunk<16> { typedef pop_u32 __attribute__((vector_size(16), may_alias)) type; };
#else
template <> struct pop_chunk<4> { typedef uint1 type; };
template <> struct pop_chunk<8> { typedef uint2 type; };
template <> struct pop_chunk<16> { typedef uint4 type; };
#endif

// Copies 4, 8 or 16 bytes at once; both addresses are multiples of BYTES.
template <int BYTES> POP_FN void pop_move(void* to, const void* from) {
    typedef typename pop_chunk<BYTES>::type chunk;
#if defined(POP_EMULATOR)
    pop_emu_aligned(from, BYTES);
    pop_emu_aligned(to, BYTES);
#endif
    *(chunk*)to = *(const chunk*)from;
}

// Whether an address is a multiple of BYTES; and N elements at once, from and to such addresses.
template <int BYTES, class T> POP_FN bool pop_is_wide(const T* at) { return (pop_u64)at % BYTES == 0; }
template <int N, class T> POP_FN void pop_wide(T* to, const T* from) {
    const int bytes = N * (int)sizeof(T), step = bytes < 16 ? bytes : 16;
    #pragma unroll
    for (int k = 0; k < bytes; k += step) pop_move<step>((char*)to + k, (const char*)from + k);
}

// --- folds ----------------------------------------------------------------------------------------------------------

// pop_shuffle_xor, for small integers too.
template <bool WIDE> struct pop_exchange {
    template <class T> POP_FN T with(T x, pop_u32 mask) { return pop_shuffle_xor(x, mask); }
};
template <> struct pop_exchange<false> {
    template <class T> POP_FN T with(T x, pop_u32 mask) { return (T)pop_shuffle_xor((int)x, mask); }
};

// `x` of OVER lanes of a warp whose numbers differ by multiples of STEP, joined by `f`, for all of them; powers of 2.
template <unsigned OVER, unsigned STEP, class T, class F> POP_FN T pop_fold_lanes(T x, F f) {
    for (pop_u32 s = STEP; s < OVER * STEP; s *= 2) x = f(x, pop_exchange<(sizeof(T) >= 4)>::with(x, s));
    return x;
}

// `x` of OVER threads of a block of BLOCK, whose numbers differ by multiples of STEP, joined by `f`, for all of them: by shuffles
// inside a warp, then through shared memory. OVER and STEP are powers of 2; all threads of the block call this together.
template <unsigned OVER, unsigned STEP, unsigned BLOCK, class T, class F> POP_FN T pop_fold(T x, F f) {
    for (pop_u32 s = STEP; s < OVER * STEP && s < POP_WARP; s *= 2) x = f(x, pop_exchange<(sizeof(T) >= 4)>::with(x, s));
    if (OVER * STEP > POP_WARP) {
        // one of each group that has been joined, and each of those that lie side by side below STEP
        const pop_u32 stride = STEP > POP_WARP ? STEP : POP_WARP, beside = STEP < POP_WARP ? STEP : stride;
        POP_SHARED_ARRAY(T, parts, (STEP < 32 ? (BLOCK + 31) / 32 * STEP : BLOCK));
        const pop_u32 n = pop_thread(), low = n % stride;
        if (low < beside) parts[n / stride * beside + low] = x;
        pop_barrier();
        const pop_u32 first = n / (OVER * STEP) * (OVER * STEP / stride) * beside + n % beside;
        x = parts[first];
        for (pop_u32 s = 1; s * stride < OVER * STEP; ++s) x = f(x, parts[first + s * beside]);
        pop_barrier();  // the next fold writes there
    }
    return x;
}

// --- scans ----------------------------------------------------------------------------------------------------------

// The step x -> a x + b, and two of them, of which `first` comes first.
template <class T> struct pop_linear { T a, b; };
template <class T> POP_FN pop_linear<T> pop_then(pop_linear<T> first, pop_linear<T> second) {
    return pop_linear<T>{first.a * second.a, second.a * first.b + second.b};
}

// `x` of another lane, for small integers and steps too.
template <class T> POP_FN T pop_from(T x, pop_u32 lane) {
    if constexpr (sizeof(T) >= 4) return pop_shuffle(x, lane);
    else return (T)pop_shuffle((int)x, lane);
}
template <class T> POP_FN pop_linear<T> pop_from(pop_linear<T> x, pop_u32 lane) {
    return pop_linear<T>{pop_from(x.a, lane), pop_from(x.b, lane)};
}

// The `x` of OVER threads of a block of BLOCK, whose numbers differ by multiples of STEP, joined by `f` in the order of these
// numbers; `before`: those of the threads with smaller ones alone, of which the first has `nothing`. OVER and STEP are powers of 2;
// all threads of the block call this together.
template <unsigned OVER, unsigned STEP, unsigned BLOCK, class T, class F> POP_FN T pop_scan(T x, T nothing, T* before, F f) {
    const pop_u32 n = pop_thread(), lane = pop_lane(), size = OVER * STEP < POP_WARP ? OVER * STEP : POP_WARP;
    for (pop_u32 s = STEP; s < size; s *= 2) {
        const T y = pop_from(x, lane - s);
        if (lane % size >= s) x = f(y, x);
    }
    T left = nothing, all = x;
    if (STEP < POP_WARP) {
        const T y = pop_from(x, lane - STEP);
        if (lane % size >= STEP) left = y;
        all = pop_from(x, lane / size * size + size - STEP + lane % STEP);
    }
    if (OVER * STEP > POP_WARP) {
        // the last one of each group that has been joined, and each of those that lie side by side below STEP
        const pop_u32 stride = STEP > POP_WARP ? STEP : POP_WARP, beside = STEP < POP_WARP ? STEP : stride;
        POP_SHARED_ARRAY(T, parts, (STEP < 32 ? (BLOCK + 31) / 32 * STEP : BLOCK));
        const pop_u32 low = n % stride;
        if (low < beside) parts[n / stride * beside + low] = all;
        pop_barrier();
        const pop_u32 first = n / (OVER * STEP) * (OVER * STEP / stride) * beside + n % beside, mine = n % (OVER * STEP) / stride;
        T sum = nothing;
        for (pop_u32 s = 0; s < OVER * STEP / stride; ++s) {
            if (s == mine) left = f(sum, left);
            sum = f(sum, parts[first + s * beside]);
        }
        all = sum;
        pop_barrier();  // the next scan writes there
    }
    *before = left;
    return all;
}

// --- atomic sums ----------------------------------------------------------------------------------------------------

// Adds `x` to an element of 4 or 8 bytes that threads of all blocks add to. Sums of floats depend on the order.
template <class T> POP_FN void pop_atomic_add(T* at, T x) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "atomic sums take 4 or 8 bytes");
#if defined(POP_EMULATOR)
    pop_emu_atomic_add(at, &x, sizeof(T), (T)0.5 != (T)0);
#elif defined(__HIP__)
    (void)__hip_atomic_fetch_add(at, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
    if constexpr (sizeof(T) == 8 && (T)0.5 == (T)0) atomicAdd((pop_u64*)at, (pop_u64)x);
    else atomicAdd(at, x);
#endif
}
