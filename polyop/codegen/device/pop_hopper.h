// pop_hopper.h: what sm_90 and sm_90a have beyond sm_80: barriers in memory, the bulk copy engine, and matrix products of
// four warps that go on while their threads do.
#pragma once

#if defined(POP_EMULATOR) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900)

// --- barriers in shared memory --------------------------------------------------------------------------------------

// Eight bytes at a multiple of eight. A phase ends when `arrivals` threads have arrived and all bytes that were announced
// have come; phases count 0, 1, 0, 1, ... One thread initialises, then pop_mbarrier_fence(), then a barrier of the block.
//
// pop_mbarrier_arrive: what this thread did before is seen by who waits. pop_mbarrier_expect: the same, and so many bytes
// will come in this phase. pop_mbarrier_wait: until the phase of this parity has ended; true at once for parity 1 before
// any has.
#if defined(POP_EMULATOR)
POP_FN void pop_mbarrier_init(pop_u64* bar, pop_u32 arrivals) { pop_emu_mbarrier_init(bar, arrivals); }
POP_FN void pop_mbarrier_fence() { pop_emu_mbarrier_fence(); }
POP_FN void pop_mbarrier_arrive(pop_u64* bar) { pop_emu_mbarrier_arrive(bar, 0); }
POP_FN void pop_mbarrier_expect(pop_u64* bar, pop_u32 bytes) { pop_emu_mbarrier_arrive(bar, bytes); }
POP_FN void pop_mbarrier_wait(pop_u64* bar, pop_u32 parity) { pop_emu_mbarrier_wait(bar, parity); }
#else
POP_FN void pop_mbarrier_init(pop_u64* bar, pop_u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(pop_shared_address(bar)), "r"(arrivals) : "memory");
}
POP_FN void pop_mbarrier_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
POP_FN void pop_mbarrier_arrive(pop_u64* bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(pop_shared_address(bar)) : "memory");
}
POP_FN void pop_mbarrier_expect(pop_u64* bar, pop_u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(pop_shared_address(bar)), "r"(bytes) : "memory");
}
POP_FN void pop_mbarrier_wait(pop_u64* bar, pop_u32 parity) {
    pop_u32 done = 0;
    while (!done)
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(pop_shared_address(bar)), "r"(parity) : "memory");
}
#endif

// --- barriers by number ---------------------------------------------------------------------------------------------

// `count` threads, whole warps of them, meet at barrier `id` (1 to 15); who only arrives does not wait.
#if defined(POP_EMULATOR)
POP_FN void pop_named_barrier(pop_u32 id, pop_u32 count) { pop_emu_named_barrier(id, count, 1); }
POP_FN void pop_named_arrive(pop_u32 id, pop_u32 count) { pop_emu_named_barrier(id, count, 0); }
#else
POP_FN void pop_named_barrier(pop_u32 id, pop_u32 count) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory"); }
POP_FN void pop_named_arrive(pop_u32 id, pop_u32 count) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(count) : "memory"); }
#endif

// --- the bulk copy engine -------------------------------------------------------------------------------------------

// What the engine knows of a matrix in global memory: the host makes it, and a kernel takes it by value, as
// `const __grid_constant__ pop_tensor_map`. Boxes of it are copied; what of a box is outside of the matrix is read as zeros
// and not written.
//
// Swizzled by 128 bytes, a row of a box takes 128 bytes, boxes start at multiples of 1024, and
//     { [row, byte] -> [128 row + (byte xor 16 (row mod 8))] }
struct alignas(64) pop_tensor_map { pop_u64 words[16]; };

// pop_tile_load: one thread starts the copy of the box at (column, row) to shared memory; the bytes count for `bar`.
// pop_tile_store: the other way; pop_tile_commit() closes a group of this thread's stores, pop_tile_wait<N>() waits for all
// but its N newest groups, pop_tile_wait_read<N>() only until they have read shared memory.
// pop_async_fence: what this thread wrote to shared memory before, the engine and the matrix units may read.
#if defined(POP_EMULATOR)
POP_FN void pop_tile_load(void* to, const pop_tensor_map& map, int column, int row, pop_u64* bar) {
    pop_emu_tile_load(to, map.words, column, row, bar);
}
POP_FN void pop_tile_store(const pop_tensor_map& map, int column, int row, const void* from) {
    pop_emu_tile_store(map.words, column, row, from);
}
POP_FN void pop_tile_commit() { pop_emu_tile_commit(); }
template <int N> POP_FN void pop_tile_wait() { pop_emu_tile_wait(N, 0); }
template <int N> POP_FN void pop_tile_wait_read() { pop_emu_tile_wait(N, 1); }
POP_FN void pop_async_fence() { pop_emu_async_fence(); }
#else
POP_FN void pop_tile_load(void* to, const pop_tensor_map& map, int column, int row, pop_u64* bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                 ::"r"(pop_shared_address(to)), "l"(&map), "r"(pop_shared_address(bar)), "r"(column), "r"(row) : "memory");
}
POP_FN void pop_tile_store(const pop_tensor_map& map, int column, int row, const void* from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
                 ::"l"(&map), "r"(pop_shared_address(from)), "r"(column), "r"(row) : "memory");
}
POP_FN void pop_tile_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> POP_FN void pop_tile_wait() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory"); }
template <int N> POP_FN void pop_tile_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
POP_FN void pop_async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#endif

// pop_box_load: the same for a box of a tensor of 2 to 5 dimensions: its planes follow each other as its rows do.
#if defined(POP_EMULATOR)
template <class... At> POP_FN void pop_box_load(void* to, const pop_tensor_map& map, pop_u64* bar, At... at) {
    const int corner[5] = {at...};
    pop_emu_box_load(to, map.words, corner, bar);
}
#else
#define POP_BOX(dims, places, ...) \
    asm volatile("cp.async.bulk.tensor." #dims "d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {" places "}], [%2];" \
                 ::"r"(pop_shared_address(to)), "l"(&map), "r"(pop_shared_address(bar)), __VA_ARGS__ : "memory")
POP_FN void pop_box_load(void* to, const pop_tensor_map& map, pop_u64* bar, int a, int b) {
    POP_BOX(2, "%3, %4", "r"(a), "r"(b));
}
POP_FN void pop_box_load(void* to, const pop_tensor_map& map, pop_u64* bar, int a, int b, int c) {
    POP_BOX(3, "%3, %4, %5", "r"(a), "r"(b), "r"(c));
}
POP_FN void pop_box_load(void* to, const pop_tensor_map& map, pop_u64* bar, int a, int b, int c, int d) {
    POP_BOX(4, "%3, %4, %5, %6", "r"(a), "r"(b), "r"(c), "r"(d));
}
POP_FN void pop_box_load(void* to, const pop_tensor_map& map, pop_u64* bar, int a, int b, int c, int d, int e) {
    POP_BOX(5, "%3, %4, %5, %6, %7", "r"(a), "r"(b), "r"(c), "r"(d), "r"(e));
}
#undef POP_BOX
#endif

// --- boxes in groups ------------------------------------------------------------------------------------------------

// R barriers in shared memory: the boxes that thread 0 asks for between two barriers of the block arrive on one of them, those
// of the next group on the next one. `group` counts the groups that were closed, `bytes` those asked for since. `alone`: nothing
// is in shared memory but what boxes bring.
template <int R> struct pop_ring {
    pop_u64* full;
    pop_u32 group, bytes;
    bool alone;
};

template <int R> POP_FN void pop_ring_start(const pop_ring<R>& ring) {
    if (pop_thread() == 0) {
        for (int i = 0; i < R; ++i) pop_mbarrier_init(ring.full + i, 1);
        pop_mbarrier_fence();
    }
    pop_barrier();
}

template <int R, class... At> POP_FN void pop_ring_load(pop_ring<R>& ring, void* to, const pop_tensor_map& map, pop_u32 bytes, At... at) {
    ring.bytes += bytes;
    pop_box_load(to, map, ring.full + ring.group % R, at...);
}

// Closes a group, and waits until all but the N newest have arrived; N < R. The barrier before may have left R - 1.
template <int N, int R> POP_FN void pop_ring_close(pop_ring<R>& ring) {
    static_assert(N < R, "a barrier of a ring is used again when its group has arrived");
    if (pop_thread() == 0) pop_mbarrier_expect(ring.full + ring.group % R, ring.bytes);
    ring.bytes = 0;
    for (int left = R - 1; left >= N; --left)
        if (ring.group + 1 > left) pop_mbarrier_wait(ring.full + (ring.group - left) % R, (ring.group - left) / R % 2);
    ring.group++;
}

// Closes the last group and waits for it and all others, of which the last barrier left N on their way.
template <int N, int R> POP_FN void pop_ring_drain(const pop_ring<R>& ring) {
    pop_mbarrier_expect(ring.full + ring.group % R, ring.bytes);
    for (pop_u32 i = ring.group + 1 > N ? ring.group - N : 0; i <= ring.group; ++i) pop_mbarrier_wait(ring.full + i % R, i / R % 2);
}

// Who asked for the groups waits for them.
template <int N, int R> POP_FN void pop_ring_end(const pop_ring<R>& ring) {
    if (pop_thread() == 0) pop_ring_drain<N>(ring);
}

// --- threads that copy beside threads that use the copies --------------------------------------------------------------

// A ring whose groups one producer fills, a thread that asks for boxes or a warpgroup that copies itself, and as many barriers to
// which warps of consumers come. At its n-th barrier the producer closes group n and waits for the consumers to come to theirs; these
// wait for all groups but the N newest. No barrier is used again before both sides have seen its last phase: R > N + 1.
template <int R> struct pop_pipe : pop_ring<R> {
    pop_u64* empty;
    bool came;
};

template <int R> POP_FN pop_pipe<R> pop_pipe_start(pop_u64* barriers, pop_u32 producers, pop_u32 consumers) {
    pop_pipe<R> pipe = {{barriers, 0, 0}, barriers + R, false};
    if (pop_thread() == 0) {
        for (int i = 0; i < R; ++i) {
            pop_mbarrier_init(pipe.full + i, producers);
            pop_mbarrier_init(pipe.empty + i, consumers);
        }
        pop_mbarrier_fence();
    }
    pop_barrier();
    return pipe;
}

// A warp comes to the consumers' next barrier, maybe long before it needs what arrives there.
template <int R> POP_FN void pop_consumer_release(pop_pipe<R>& pipe) {
    pop_warp_barrier();
    if (pop_thread() % 32 == 0) pop_mbarrier_arrive(pipe.empty + pipe.group % R);
    pipe.came = true;
}

template <int N, int R> POP_FN void pop_consumer_barrier(pop_pipe<R>& pipe) {
    static_assert(N + 1 < R, "a barrier of a pipe is used again when both sides have seen its phase");
    if (!pipe.came) pop_consumer_release(pipe);
    pipe.came = false;
    if (pipe.group + 1 > N) pop_mbarrier_wait(pipe.full + (pipe.group - N) % R, (pipe.group - N) / R % 2);
    pipe.group++;
}

// `boxed`: one thread asks for boxes; else threads copy.
template <int N, int R> POP_FN void pop_producer_barrier(pop_pipe<R>& pipe, bool boxed) {
    static_assert(N + 1 < R, "a barrier of a pipe is used again when both sides have seen its phase");
    if (boxed) {
        pop_mbarrier_expect(pipe.full + pipe.group % R, pipe.bytes);
        pipe.bytes = 0;
    } else {
        pop_copy_commit();
        pop_copy_wait<N>();
        pop_async_fence();
        if (pipe.group + 1 > N) pop_mbarrier_arrive(pipe.full + (pipe.group - N) % R);
    }
    pop_mbarrier_wait(pipe.empty + pipe.group % R, pipe.group / R % 2);
    pipe.group++;
}

// Waits for all groups, of which the last barrier left N on their way.
template <int N, int R> POP_FN void pop_producer_end(const pop_pipe<R>& pipe, bool boxed) {
    if (boxed) pop_ring_drain<N>(pipe);
    else pop_copies_end();
}

#endif

#if defined(POP_EMULATOR) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// --- barriers before units that read shared memory ------------------------------------------------------------------

// pop_copies_barrier, behind which the matrix units may read, too, what all threads wrote and what arrived of their copies.
template <int N> POP_FN void pop_units_barrier() {
    pop_copy_commit();
    pop_copy_wait<N>();
    pop_async_fence();
    pop_barrier();
}

// The same for groups that have boxes, too. Of boxes alone who waited for them sees all that arrived, and so do the units.
template <int N, int R> POP_FN void pop_units_barrier(pop_ring<R>& ring) {
    pop_ring_close<N>(ring);
    if (ring.alone)
        pop_barrier();
    else
        pop_units_barrier<N>();
}

// --- registers ------------------------------------------------------------------------------------------------------

// A warpgroup (four warps from a multiple of four on) asks for N registers a thread, more or less than it has; N is a
// multiple of 8 from 24 to 256.
#if defined(POP_EMULATOR)
template <int N> POP_FN void pop_registers_more() {
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "24, 32, .. 256");
    pop_emu_registers(N);
}
template <int N> POP_FN void pop_registers_less() { pop_registers_more<N>(); }
#else
template <int N> POP_FN void pop_registers_more() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> POP_FN void pop_registers_less() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
#endif

// --- products of a warpgroup ----------------------------------------------------------------------------------------

// d += a * b, or d = a * b if not `add`, of 64 x N x 16. b, and a unless it is in registers, lie in shared memory in tiles
// swizzled by 128 bytes, which a descriptor names:
//     rows along k   (the default)  rows of 64 k's;           `stride` bytes from 8 rows to the next 8
//     rows across k  (ACROSS = 1)   rows of 64 m's or n's;    `stride` bytes from 8 k's to the next 8, `leading` to the next 64
// The tile starts at a multiple of 1024 bytes; the descriptor may point inside: 32 bytes on for the next 16 k's along k. What lies
// `beyond` what a descriptor points at has the same but for a sum.
//
// pop_wgmma_fence() comes before the first product after d was touched; pop_wgmma_commit() closes a group;
// pop_wgmma_wait<N>() waits for all but the N newest. Until then d is nobody's and the tiles stay as they are. Then
// pop_wgmma_hold(d), so that the compiler uses d no earlier.
#if defined(POP_EMULATOR)
POP_FN pop_u64 pop_wgmma_tile(const void* tile, pop_u32 stride, pop_u32 leading, pop_u32 beyond = 0) {
    return pop_emu_wgmma_tile(tile, stride, leading) + (beyond >> 4);
}
POP_FN void pop_wgmma_fence() { pop_emu_wgmma_fence(); }
POP_FN void pop_wgmma_commit() { pop_emu_wgmma_commit(); }
template <int N> POP_FN void pop_wgmma_wait() { pop_emu_wgmma_wait(N); }
template <int COUNT> POP_FN void pop_wgmma_hold(float (&)[COUNT]) {}
#else
POP_FN pop_u64 pop_wgmma_tile(const void* tile, pop_u32 stride, pop_u32 leading, pop_u32 beyond = 0) {
    const pop_u32 at = (pop_shared_address(tile) & 0x3ffff) >> 4 | (leading >> 4) << 16, swizzled = 1u << 30;
    return (pop_u64)(stride >> 4 | swizzled) << 32 | at + (beyond >> 4);
}
POP_FN void pop_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
POP_FN void pop_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> POP_FN void pop_wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
template <int COUNT> POP_FN void pop_wgmma_hold(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}
#endif

#if defined(POP_EMULATOR)
  #define POP_WGMMA(n, half) \
      POP_WGMMA_OF(n, f16, half) \
      POP_WGMMA_OF(n, bf16, half)
  #define POP_WGMMA_OF(n, type, half) \
      template <int A_ACROSS = 0, int B_ACROSS = 0> \
      POP_FN void pop_wgmma_m64n##n##k16_##type(float (&d)[half], pop_u64 a, pop_u64 b, bool add) { \
          pop_emu_wgmma(d, n, #type[0] == 'b', nullptr, a, b, A_ACROSS, B_ACROSS, add); \
      } \
      template <int B_ACROSS = 0> \
      POP_FN void pop_wgmma_m64n##n##k16_##type##_a(float (&d)[half], const pop_u32 (&a)[4], pop_u64 b, bool add) { \
          pop_emu_wgmma(d, n, #type[0] == 'b', a, 0, b, 0, B_ACROSS, add); \
      }
POP_WGMMA(8, 4)
POP_WGMMA(16, 8)
POP_WGMMA(32, 16)
POP_WGMMA(64, 32)
POP_WGMMA(96, 48)
POP_WGMMA(128, 64)
POP_WGMMA(192, 96)
POP_WGMMA(256, 128)
  #undef POP_WGMMA
  #undef POP_WGMMA_OF
#else
  // POP_L.. names the registers of d in PTX, POP_D.. in C; `at0` .. are the numbers of the operands after them
  #define POP_WGMMA(n, half, at0, at1, at2, at3, at4, at5, at6) \
      POP_WGMMA_OF(n, f16, half, at0, at1, at2, at3, at4, at5, at6) \
      POP_WGMMA_OF(n, bf16, half, at0, at1, at2, at3, at4, at5, at6)
  #define POP_WGMMA_OF(n, type, half, at0, at1, at2, at3, at4, at5, at6) \
      template <int A_ACROSS = 0, int B_ACROSS = 0> \
      POP_FN void pop_wgmma_m64n##n##k16_##type(float (&d)[half], pop_u64 a, pop_u64 b, bool add) { \
          asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" at2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." \
                       #type "." #type " {" POP_L##half "}, %" at0 ", %" at1 ", p, 1, 1, %" at3 ", %" at4 ";\n}" \
                       : POP_D##half : "l"(a), "l"(b), "r"((pop_u32)add), "n"(A_ACROSS), "n"(B_ACROSS) : "memory"); \
      } \
      template <int B_ACROSS = 0> \
      POP_FN void pop_wgmma_m64n##n##k16_##type##_a(float (&d)[half], const pop_u32 (&a)[4], pop_u64 b, bool add) { \
          asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" at5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." \
                       #type "." #type " {" POP_L##half "}, {%" at0 ", %" at1 ", %" at2 ", %" at3 "}, %" at4 ", p, 1, 1, %" at6 \
                       ";\n}" \
                       : POP_D##half \
                       : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((pop_u32)add), "n"(B_ACROSS) : "memory"); \
      }
  #define POP_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
  #define POP_F16(i) POP_F4(i), POP_F4(i + 4), POP_F4(i + 8), POP_F4(i + 12)
  #define POP_L4 "%0, %1, %2, %3"
  #define POP_L8 POP_L4 ", " "%4, %5, %6, %7"
  #define POP_L16 POP_L8 ", " "%8, %9, %10, %11, %12, %13, %14, %15"
  #define POP_L32 POP_L16 ", " "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
  #define POP_L48 POP_L32 ", " "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
  #define POP_L64 POP_L48 ", " "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
  #define POP_L80 POP_L64 ", " "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
  #define POP_L96 POP_L80 ", " "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
  #define POP_L112 POP_L96 ", " "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
  #define POP_L128 POP_L112 ", " "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
  #define POP_D4 POP_F4(0)
  #define POP_D8 POP_F4(0), POP_F4(4)
  #define POP_D16 POP_F16(0)
  #define POP_D32 POP_F16(0), POP_F16(16)
  #define POP_D48 POP_F16(0), POP_F16(16), POP_F16(32)
  #define POP_D64 POP_F16(0), POP_F16(16), POP_F16(32), POP_F16(48)
  #define POP_D96 POP_F16(0), POP_F16(16), POP_F16(32), POP_F16(48), POP_F16(64), POP_F16(80)
  #define POP_D128 \
      POP_F16(0), POP_F16(16), POP_F16(32), POP_F16(48), POP_F16(64), POP_F16(80), POP_F16(96), POP_F16(112)
POP_WGMMA(8, 4, "4", "5", "6", "7", "8", "9", "10")
POP_WGMMA(16, 8, "8", "9", "10", "11", "12", "13", "14")
POP_WGMMA(32, 16, "16", "17", "18", "19", "20", "21", "22")
POP_WGMMA(64, 32, "32", "33", "34", "35", "36", "37", "38")
POP_WGMMA(96, 48, "48", "49", "50", "51", "52", "53", "54")
POP_WGMMA(128, 64, "64", "65", "66", "67", "68", "69", "70")
POP_WGMMA(192, 96, "96", "97", "98", "99", "100", "101", "102")
POP_WGMMA(256, 128, "128", "129", "130", "131", "132", "133", "134")
  #undef POP_WGMMA
  #undef POP_WGMMA_OF
#endif

#endif
