// pop_emu_wgmma.h: products of a warpgroup that go on while its threads do.
//
// Accumulators are poison until the wait that ends their last product, and belong to nobody; the tiles are read until then,
// at once or at the end as the run was asked.
#pragma once

namespace {

// The accumulators of all threads of a warpgroup; `values` are theirs, thread by thread, while products are unfinished.
struct Accumulators {
    float *d[GROUP], *values;
    uint32_t count, open;
};

struct Product {
    uint32_t n, group, accumulators;
    bool bf16, add, done, in_registers, a_across, b_across;
    uint64_t a, b;
    uint32_t registers[GROUP][4];  // of a, when it is there
    void* place;
};

struct Unit {
    Product* products;
    uint32_t count, room, closed, landed;
    Accumulators held[8];
    bool fenced;
};
Unit* units;

// What a lane gives: its part of a product.
struct Share {
    float* d;
    uint32_t n;
    bool bf16, add, a_across, b_across;
    const uint32_t* registers;
    uint64_t a, b;
};

// The address of element (along, k) of a tile, where `along` counts m or n.
unsigned char* tile_element(uint64_t tile, bool across, uint32_t along, uint32_t k) {
    const uint64_t start = (tile & 0xffff) << 4, leading = (tile >> 16 & 0x3fff) << 4, stride = (tile >> 32 & 0x3fff) << 4;
    const uint64_t offset = across ? along / 64 * leading + k / 8 * stride + k % 8 * 128 + along % 64 * 2
                                   : along / 8 * stride + along % 8 * 128 + k * 2;
    return swizzled(shared_room + start + offset, 128);
}

// f(address) for the pieces of 16 bytes of a tile of `rows` x 16.
template <class F> void each_piece(uint64_t tile, bool across, uint32_t rows, F f) {
    if (across)
        for (uint32_t k = 0; k < 16; k++)
            for (uint32_t i = 0; i < rows; i += 8) f(tile_element(tile, true, i, k));
    else
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t k = 0; k < 16; k += 8) f(tile_element(tile, false, i, k));
}

template <class F> void each_operand(const Product& p, F f) {
    if (!p.in_registers) each_piece(p.a, p.a_across, 64, f);
    each_piece(p.b, p.b_across, p.n, f);
}

double stored(const unsigned char* at, bool bf16) {
    uint16_t h;
    memcpy(&h, at, 2);
    return bf16 ? of_bf16(h) : of_f16(h);
}

void compute(Unit& u, const Product& p) {
    static double a[64][16], b[16][256];
    for (uint32_t t = 0; t < GROUP && p.in_registers; t++)
        for (uint32_t e = 0; e < 8; e++)  // as mma.m16n8k16, 16 rows for each warp
            a[t / 32 * 16 + t % 32 / 4 + 8 * (e / 2 % 2)][t % 4 * 2 + e % 2 + 8 * (e / 4)] =
                element(p.registers[t], e, 2, p.bf16 ? of_bf16 : of_f16);
    for (uint32_t k = 0; k < 16; k++) {
        for (uint32_t i = 0; i < 64 && !p.in_registers; i++) a[i][k] = stored(tile_element(p.a, p.a_across, i, k), p.bf16);
        for (uint32_t j = 0; j < p.n; j++) b[k][j] = stored(tile_element(p.b, p.b_across, j, k), p.bf16);
    }
    Accumulators& acc = u.held[p.accumulators];
    for (uint32_t i = 0; i < 64; i++)
        for (uint32_t j = 0; j < p.n; j++) {
            const uint32_t thread = i / 16 * 32 + i % 8 * 4 + j % 8 / 2, reg = 4 * (j / 8) + 2 * (i % 16 / 8) + j % 2;
            float& d = acc.values[thread * acc.count + reg];
            double sum = p.add ? d : 0;
            for (uint32_t k = 0; k < 16; k++) sum += a[i][k] * b[k][j];
            d = (float)sum;
        }
}

uint32_t hold(Unit& u, const Gathering& g, uint32_t count) {
    uint32_t at = 8;
    for (uint32_t i = 0; i < 8; i++) {
        if (u.held[i].open && u.held[i].d[0] == ((Share*)g.frames[0])->d) return i;
        if (!u.held[i].open) at = i;
    }
    if (at == 8) {
        report(OUTSIDE, -1, "", 0, NOBODY, g.place);
        stop();
    }
    Accumulators& acc = u.held[at];
    acc.count = count;
    acc.values = (float*)malloc(GROUP * count * 4);
    for (uint32_t t = 0; t < GROUP; t++) {
        acc.d[t] = ((Share*)g.frames[t])->d;
        memcpy(acc.values + t * count, acc.d[t], count * 4);
    }
    return at;
}

void give_back(Accumulators& acc) {
    for (uint32_t t = 0; t < GROUP; t++) memcpy(acc.d[t], acc.values + t * acc.count, acc.count * 4);
    free(acc.values);
    acc.values = nullptr;
}

void start_product(const Gathering& g) {
    const Share& s = *(Share*)g.frames[0];
    Unit& u = units[g.begin / GROUP];
    enter(g.begin);
    for (uint32_t t = 1; t < GROUP; t++) {
        const Share& o = *(Share*)g.frames[t];
        if (o.n != s.n || o.a != s.a || o.b != s.b || o.add != s.add || o.a_across != s.a_across || o.b_across != s.b_across)
            report(DIVERGENT_WARP, -1, "", 0, number_of(g.begin + t), g.place);
    }
    if (!u.fenced) report(UNFENCED, -1, "", 0, number_of(g.begin), g.place);
    grow(u.products, u.count, u.room);
    Product& p = u.products[u.count++];
    p = Product{};
    p.n = s.n;
    p.group = u.closed;
    p.bf16 = s.bf16;
    p.add = s.add;
    p.in_registers = s.registers;
    p.a_across = s.a_across;
    p.b_across = s.b_across;
    p.a = s.a;
    p.b = s.b;
    p.place = g.place;
    for (uint32_t t = 0; t < GROUP && p.in_registers; t++) memcpy(p.registers[t], ((Share*)g.frames[t])->registers, 16);
    p.accumulators = hold(u, g, s.n / 2);
    Accumulators& acc = u.held[p.accumulators];
    acc.open++;
    each_operand(p, [&](unsigned char* piece) { start_reading(piece, 16, g.place); });
    if (options.completion == 1) {
        compute(u, p);
        p.done = true;
    }
    for (uint32_t t = 0; t < GROUP; t++) {
        if (p.done) memcpy(acc.d[t], acc.values + t * acc.count, acc.count * 4);
        else memset(acc.d[t], 0xff, acc.count * 4);
    }
}

void fence_registers(const Gathering& g) { units[g.begin / GROUP].fenced = true; }
void close_products(const Gathering& g) { units[g.begin / GROUP].closed++; }

// All but the `keep` newest groups are finished; all threads of the warpgroup know it.
void end_products(Unit& u, uint32_t first, uint32_t keep) {
    for (; u.landed < u.count && u.products[u.landed].group + keep < u.closed; u.landed++) {
        Product& p = u.products[u.landed];
        if (!p.done) compute(u, p);
        each_operand(p, [](unsigned char* piece) { done_reading(piece, 16); });
        Accumulators& acc = u.held[p.accumulators];
        if (--acc.open) continue;
        give_back(acc);
        u.fenced = false;
    }
    for (uint32_t t = first; t < first + GROUP && t < threads; t++) engine_known(t);
    clocks[threads]++;
}

void wait_products(const Gathering& g) { end_products(units[g.begin / GROUP], g.begin, *(uint32_t*)g.frames[0]); }

// Whether bytes of the stack are accumulators that a product still works on.
void touch_stack(const unsigned char* p, size_t bytes, const void* place) {
    Unit* u = units && current ? &units[thread_number / GROUP] : nullptr;
    if (!u || u->landed == u->count) return;
    for (const Accumulators& acc : u->held) {
        if (!acc.open) continue;
        const auto d = (const unsigned char*)acc.d[thread_number % GROUP];
        if (p + bytes > d && p < d + acc.count * 4) report(ACCUMULATOR, -1, "", 0, NOBODY, place);
    }
}

void leave_products() {
    Unit& u = units[thread_number / GROUP];
    if (u.landed == u.count) return;
    report(UNWAITED, -1, "", 0, NOBODY, u.products[u.landed].place);
    stop();
}

void make_units() { units = (Unit*)calloc(threads / GROUP + 1, sizeof(Unit)); }

void start_units() {
    for (uint32_t i = 0; i <= threads / GROUP; i++) {
        Unit& u = units[i];
        for (Accumulators& acc : u.held) free(acc.values);
        Product* kept = u.products;
        const uint32_t room = u.room;
        u = Unit{};
        u.products = kept;
        u.room = room;
    }
}

void free_units() {
    start_units();
    for (uint32_t i = 0; i <= threads / GROUP; i++) free(units[i].products);
    free(units);
    units = nullptr;
}

void of_group(void* frame, Collective carry_out, void* place) { collective(groups, GROUP, frame, carry_out, true, place); }

}  // namespace

extern "C" unsigned long long pop_emu_wgmma_tile(const void* tile, unsigned stride, unsigned leading) {
    const uint64_t start = (const unsigned char*)tile - shared_room;
    return (start & (SHARED_ROOM - 1)) >> 4 | uint64_t(leading >> 4) << 16 | uint64_t(stride >> 4) << 32 | uint64_t(1) << 62;
}

extern "C" void pop_emu_wgmma_fence() {
    char nothing;
    of_group(&nothing, fence_registers, HERE);
}

extern "C" void pop_emu_wgmma(float* d, unsigned n, int bf16, const unsigned* registers, unsigned long long a,
                              unsigned long long b, int a_across, int b_across, int add) {
    Share s = {d, n, bf16 != 0, add != 0, a_across != 0, b_across != 0, registers, a, b};
    of_group(&s, start_product, HERE);
}

extern "C" void pop_emu_wgmma_commit() {
    char nothing;
    of_group(&nothing, close_products, HERE);
}

extern "C" void pop_emu_wgmma_wait(unsigned keep) { of_group(&keep, wait_products, HERE); }
