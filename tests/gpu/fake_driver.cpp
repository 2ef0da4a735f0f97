// A driver of CUDA and of HIP without a device: device memory is host memory, and kernels run on the emulator at once.
//
// The "machine code" of a module is the text `fake:PATH` of an emulated kernel library. Streams are numbers that are only
// written down. Whatever a real driver forbids while a thread captures a graph is forbidden here too.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pop_emu_abi.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, CONFIGURATION = 9, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200, NO_CONTEXT = 201, INVALID_HANDLE = 400,
       NOT_FOUND = 500, CAPTURED = 900 };
const size_t MANY = 4096;

int devices = 1, major_ = 9, minor_ = 0, most_shared = 232448;
char gfx[64] = "gfx942:sramecc+:xnack-";
thread_local int64_t context = 0;   // CUDA: 1000 + number of the device; HIP: the number
thread_local int mode = 0;          // 0 global, 2 relaxed
uint64_t capturing = 0;             // a stream that captures; 0 is none

struct Count { char name[48]; int calls, fails; };
Count counts[64];
int count_size = 0;

struct Block { void* at; int device; };
Block blocks[MANY];
int live = 0;

struct Loaded { void* library; int64_t context; };
Loaded modules[MANY];
int module_size = 0;
struct Function { int (*entry)(void**, const pop_emu_options*); int shared; const unsigned* bytes; int64_t context; };
Function functions[MANY];
int function_size = 0;

struct Launched { uint64_t stream; int64_t context; unsigned grid, block, shared, warp; Function* function; int args; uint64_t values[160]; uint64_t maps[8][16]; };
Launched launched[MANY];
int launched_size = 0;
struct Order { uint64_t later, earlier; };
Order orders[MANY];
int order_size = 0;
uint64_t events[MANY];
int event_size = 0;

Count& counted(const char* name) {
    for (int i = 0; i < count_size; i++)
        if (!strcmp(counts[i].name, name)) return counts[i];
    snprintf(counts[count_size].name, sizeof counts[0].name, "%s", name);
    return counts[count_size++];
}

int enter(const char* name, bool unsafe) {
    Count& c = counted(name);
    c.calls++;
    if (c.fails) return c.fails;
    return unsafe && capturing && mode != 2 ? int(CAPTURED) : int(OK);
}

int load(void** module, const void* image) {
    const char* text = (const char*)image;
    if (strncmp(text, "fake:", 5)) return INVALID_IMAGE;
    void* library = dlopen(text + 5, RTLD_NOW | RTLD_LOCAL);
    if (!library) return INVALID_IMAGE;
    modules[module_size] = Loaded{library, context};
    *module = &modules[module_size++];
    return OK;
}

int function(void** out, void* loaded, const char* name) {
    char symbol[512];
    void* module = ((Loaded*)loaded)->library;
    snprintf(symbol, sizeof symbol, "%s__launch", name);
    void* entry = dlsym(module, symbol);
    if (!entry) return NOT_FOUND;
    Function& f = functions[function_size++];
    f.entry = (int (*)(void**, const pop_emu_options*))entry;
    f.shared = 48 << 10;
    f.context = ((Loaded*)loaded)->context;
    snprintf(symbol, sizeof symbol, "%s__bytes", name);
    f.bytes = ((const unsigned* (*)())dlsym(module, symbol))();
    *out = &f;
    return OK;
}

void start(Launched& l) {
    void* args[160];
    for (int i = 0, map = 0; i < l.args; i++) args[i] = l.function->bytes[i] > 8 ? (void*)l.maps[map++] : &l.values[i];
    pop_emu_options o{};
    o.grid[0] = l.grid, o.block[0] = l.block;
    o.grid[1] = o.grid[2] = o.block[1] = o.block[2] = 1;
    o.seed = 1, o.fibers = 1, o.shared = l.shared, o.warp = l.warp, o.completion = 1;
    l.function->entry(args, &o);
}

int launch(void* f, unsigned grid, unsigned block, unsigned shared, void* stream, void** args, bool bounded) {
    Function* found = (Function*)f;
    if (!found || !grid || !block || block > 1024 || grid > 0x7fffffffu) return INVALID;
    if (bounded && (int)shared > found->shared) return INVALID;
    if (found->context != context) return INVALID_HANDLE;  // code is a context's own
    Launched& l = launched[__atomic_fetch_add(&launched_size, 1, __ATOMIC_SEQ_CST) % MANY];  // threads may meet here
    l.stream = (uint64_t)stream, l.context = context, l.grid = grid, l.block = block, l.shared = shared, l.warp = bounded ? 32 : 64, l.function = found;
    l.args = 0;
    for (int map = 0; args[l.args]; l.args++) {  // polyop's lists of arguments end with 0
        memcpy(&l.values[l.args], args[l.args], 8);
        if (found->bytes[l.args] > 8) memcpy(l.maps[map++], args[l.args], 128);  // of the 8 that a launch keeps
    }
    if (!capturing || capturing != l.stream) start(l);
    return OK;
}

int allocate(void** out, size_t bytes, int device) {
    for (size_t i = 0; i < MANY; i++)
        if (!blocks[i].at) {
            *out = blocks[i].at = aligned_alloc(256, (bytes + 255) / 256 * 256);
            memset(*out, 0xff, bytes);
            blocks[i].device = device;
            live++;
            return OK;
        }
    return OUT_OF_MEMORY;
}

int release(void* at) {
    for (size_t i = 0; i < MANY; i++)
        if (blocks[i].at == at) {
            free(at);
            blocks[i].at = nullptr;
            live--;
            return OK;
        }
    return INVALID;
}

int owner(void* at, int* out) {
    for (size_t i = 0; i < MANY; i++)
        if (blocks[i].at == at) {
            *out = blocks[i].device;
            return OK;
        }
    return INVALID;
}
}  // namespace

// --- what the tests ask and set ---------------------------------------------------------------------------------------

EXPORT void fake_reset(int count, int capability_major, int capability_minor, const char* architecture) {
    devices = count, major_ = capability_major, minor_ = capability_minor;
    snprintf(gfx, sizeof gfx, "%s", architecture);
    context = 0, mode = 0, capturing = 0, count_size = launched_size = order_size = event_size = 0;
    memset(counts, 0, sizeof counts);
}
EXPORT void fake_fail(const char* symbol, int code) { counted(symbol).fails = code; }
EXPORT int fake_calls(const char* symbol) { return counted(symbol).calls; }
EXPORT int fake_live() { return live; }
EXPORT int fake_launches() { return launched_size; }
EXPORT const Launched* fake_launched(int k) { return &launched[k]; }
EXPORT int fake_orders(int k, uint64_t* out) {
    if (k < order_size) out[0] = orders[k].later, out[1] = orders[k].earlier;
    return order_size;
}
EXPORT void fake_capture(uint64_t stream) { capturing = stream; }
EXPORT void fake_replay(int first, int last) {
    for (int i = first; i < last; i++) start(launched[i]);
}
EXPORT int64_t fake_context(int64_t value) {
    int64_t before = context;
    if (value >= 0) context = value;
    return before;
}
EXPORT void fake_place(void* at, int device) {
    for (size_t i = 0; i < MANY; i++)
        if (!blocks[i].at || blocks[i].at == at) {
            blocks[i].at = at, blocks[i].device = device;
            return;
        }
}

// --- CUDA ---------------------------------------------------------------------------------------------------------------

#define TRY(name, unsafe) if (int code = enter(name, unsafe)) return code
#define IN_CONTEXT() if (!context) return NO_CONTEXT
#define DEVICE int(context - 1000)

EXPORT int cuInit(unsigned) { TRY("cuInit", false); return devices ? OK : NO_DEVICE; }
EXPORT int cuDriverGetVersion(int* out) { *out = 12040; return OK; }
EXPORT int cuDeviceGetCount(int* out) { TRY("cuDeviceGetCount", false); *out = devices; return OK; }
EXPORT int cuDeviceGet(int* out, int k) { TRY("cuDeviceGet", false); *out = k; return k < devices ? OK : INVALID_DEVICE; }
EXPORT int cuDeviceGetAttribute(int* out, int attribute, int) {
    TRY("cuDeviceGetAttribute", false);
    *out = attribute == 75 ? major_ : attribute == 76 ? minor_ : attribute == 97 ? most_shared : 132;
    return OK;
}
EXPORT int cuDevicePrimaryCtxRetain(void** out, int k) {
    TRY("cuDevicePrimaryCtxRetain", false);
    *out = (void*)(int64_t)(1000 + k);
    return OK;
}
EXPORT int cuCtxGetCurrent(void** out) { TRY("cuCtxGetCurrent", false); *out = (void*)context; return OK; }
EXPORT int cuCtxSetCurrent(void* c) { TRY("cuCtxSetCurrent", false); context = (int64_t)c; return OK; }
EXPORT int cuCtxSynchronize() { TRY("cuCtxSynchronize", false); IN_CONTEXT(); return capturing ? CAPTURED : OK; }
EXPORT int cuModuleLoadData(void** out, const void* image) { TRY("cuModuleLoadData", true); IN_CONTEXT(); return load(out, image); }
EXPORT int cuModuleGetFunction(void** out, void* module, const char* name) {
    TRY("cuModuleGetFunction", true);
    IN_CONTEXT();
    return function(out, module, name);
}
EXPORT int cuFuncSetAttribute(void* f, int attribute, int value) {
    TRY("cuFuncSetAttribute", false);
    if (attribute != 8 || value > most_shared) return INVALID;
    ((Function*)f)->shared = value;
    return OK;
}
EXPORT int cuLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                          void* stream, void** args, void**) {
    TRY("cuLaunchKernel", false);
    IN_CONTEXT();
    return gy * gz * by * bz != 1 ? INVALID : launch(f, gx, bx, shared, stream, args, true);
}
// What the emulator's engine reads, if the real driver would take it; see pop_emu_tiles.h.
EXPORT int cuTensorMapEncodeTiled(uint64_t* map, int type, unsigned rank, void* at, const uint64_t* shape, const uint64_t* strides,
                                  const unsigned* box, const unsigned* steps, int interleave, int swizzle, int, int fill) {
    TRY("cuTensorMapEncodeTiled", false);
    if ((uint64_t)map % 64 || (uint64_t)at % 16 || type < 0 || type > 4 || rank < 2 || rank > 5 || interleave || fill) return INVALID;
    for (unsigned i = 0; i < rank; i++)
        if (!shape[i] || shape[i] >> 32 || !box[i] || box[i] > 256 || !steps[i] || steps[i] > 8 || box[i] % steps[i]) return INVALID;
    for (unsigned i = 0; i + 1 < rank; i++)
        if (!strides[i] || strides[i] % 16 || strides[i] >> 40) return INVALID;
    const uint64_t element = type == 0 ? 1 : type == 1 ? 2 : type == 2 ? 4 : 8, lines = swizzle ? 16u << swizzle : 0;
    if (box[0] * element % 16 || (lines && box[0] * element > lines)) return INVALID;
    if (steps[0] != 1) return INVALID;
    const uint64_t head[8] = {(uint64_t)at, shape[0], shape[1], strides[0], box[0], box[1] / steps[1], element, lines};
    memset(map, 0, 128);
    memcpy(map, head, sizeof head);
    for (unsigned i = 2; i < rank; i++) map[6 + i] = shape[i], map[9 + i] = strides[i - 1], map[14] |= (uint64_t)(box[i] / steps[i]) << 16 * (i - 2);
    for (unsigned i = 1; i < rank; i++) map[15] |= (uint64_t)steps[i] << 16 * (i - 1);
    return OK;
}
EXPORT int cuMemAllocAsync(void** out, size_t bytes, void*) { TRY("cuMemAllocAsync", false); IN_CONTEXT(); return allocate(out, bytes, DEVICE); }
EXPORT int cuMemFreeAsync(void* at, void*) { TRY("cuMemFreeAsync", false); IN_CONTEXT(); return release(at); }
EXPORT int cuMemHostAlloc(void** out, size_t bytes, unsigned) { TRY("cuMemHostAlloc", true); IN_CONTEXT(); *out = aligned_alloc(4096, bytes); return OK; }
EXPORT int cuMemHostGetDevicePointer_v2(void** out, void* at, unsigned) { TRY("cuMemHostGetDevicePointer_v2", false); IN_CONTEXT(); *out = at; return OK; }
EXPORT int cuMemcpyHtoDAsync_v2(void* to, const void* from, size_t n, void*) { TRY("cuMemcpyHtoDAsync_v2", false); IN_CONTEXT(); memcpy(to, from, n); return OK; }
EXPORT int cuMemcpyDtoHAsync_v2(void* to, const void* from, size_t n, void*) { TRY("cuMemcpyDtoHAsync_v2", false); IN_CONTEXT(); memcpy(to, from, n); return OK; }
EXPORT int cuMemcpyDtoDAsync_v2(void* to, const void* from, size_t n, void*) { TRY("cuMemcpyDtoDAsync_v2", false); IN_CONTEXT(); memcpy(to, from, n); return OK; }
EXPORT int cuMemsetD8Async(uint8_t* to, uint8_t v, size_t n, void*) { TRY("cuMemsetD8Async", false); IN_CONTEXT(); for (size_t i = 0; i < n; i++) to[i] = v; return OK; }
EXPORT int cuMemsetD16Async(uint16_t* to, uint16_t v, size_t n, void*) { TRY("cuMemsetD16Async", false); IN_CONTEXT(); for (size_t i = 0; i < n; i++) to[i] = v; return OK; }
EXPORT int cuMemsetD32Async(uint32_t* to, uint32_t v, size_t n, void*) { TRY("cuMemsetD32Async", false); IN_CONTEXT(); for (size_t i = 0; i < n; i++) to[i] = v; return OK; }
EXPORT int cuStreamSynchronize(void*) { TRY("cuStreamSynchronize", false); IN_CONTEXT(); return capturing ? CAPTURED : OK; }
EXPORT int cuEventCreate(void** out, unsigned) { TRY("cuEventCreate", false); IN_CONTEXT(); *out = &events[event_size++]; return OK; }
EXPORT int cuEventRecord(void* e, void* stream) { TRY("cuEventRecord", false); IN_CONTEXT(); *(uint64_t*)e = (uint64_t)stream; return OK; }
EXPORT int cuStreamWaitEvent(void* stream, void* e, unsigned) {
    TRY("cuStreamWaitEvent", false);
    IN_CONTEXT();
    orders[order_size++] = Order{(uint64_t)stream, *(uint64_t*)e};
    return OK;
}
EXPORT int cuEventDestroy_v2(void*) { TRY("cuEventDestroy_v2", false); return OK; }
EXPORT int cuThreadExchangeStreamCaptureMode(int* m) { TRY("cuThreadExchangeStreamCaptureMode", false); int old = mode; mode = *m; *m = old; return OK; }
EXPORT int cuGetErrorName(int code, const char** out) {
    *out = code == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
         : code == CAPTURED ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" : "CUDA_ERROR_OTHER";
    return OK;
}
EXPORT int cuPointerGetAttribute(void* out, int attribute, void* at) { TRY("cuPointerGetAttribute", false); return attribute == 9 ? owner(at, (int*)out) : INVALID; }

// --- HIP: the same, where devices are numbers ---------------------------------------------------------------------------

EXPORT int hipInit(unsigned) { TRY("hipInit", false); return devices ? OK : NO_DEVICE; }
EXPORT int hipDriverGetVersion(int* out) { *out = 60342131; return OK; }
EXPORT int hipGetDeviceCount(int* out) { TRY("hipGetDeviceCount", false); *out = devices; return OK; }
EXPORT int hipGetDevice(int* out) { TRY("hipGetDevice", false); *out = (int)context; return OK; }
EXPORT int hipSetDevice(int k) { TRY("hipSetDevice", false); context = k; return k < devices ? OK : INVALID_DEVICE; }
EXPORT int hipGetDevicePropertiesR0600(char* out, int) {
    TRY("hipGetDevicePropertiesR0600", false);
    memset(out, 0, 1472);
    strcpy(out, "AMD gfx-like name");
    strcpy(out + 1160, gfx);
    return OK;
}
EXPORT int hipDeviceSynchronize() { TRY("hipDeviceSynchronize", false); return capturing ? CAPTURED : OK; }
EXPORT int hipModuleLoadData(void** out, const void* image) { TRY("hipModuleLoadData", true); return load(out, image); }
EXPORT int hipModuleGetFunction(void** out, void* module, const char* name) { TRY("hipModuleGetFunction", true); return function(out, module, name); }
EXPORT int hipModuleLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                 void* stream, void** args, void**) {
    TRY("hipModuleLaunchKernel", false);
    if ((uint64_t)gx * bx >> 32) return CONFIGURATION;  // threads are counted in 32 bits
    return gy * gz * by * bz != 1 ? INVALID : launch(f, gx, bx, shared, stream, args, false);
}
EXPORT int hipMallocAsync(void** out, size_t bytes, void*) { TRY("hipMallocAsync", false); return allocate(out, bytes, (int)context); }
EXPORT int hipFreeAsync(void* at, void*) { TRY("hipFreeAsync", false); return release(at); }
EXPORT int hipHostMalloc(void** out, size_t bytes, unsigned) { TRY("hipHostMalloc", true); *out = aligned_alloc(4096, bytes); return OK; }
EXPORT int hipHostGetDevicePointer(void** out, void* at, unsigned) { TRY("hipHostGetDevicePointer", false); *out = at; return OK; }
EXPORT int hipMemcpyHtoDAsync(void* to, const void* from, size_t n, void*) { TRY("hipMemcpyHtoDAsync", false); memcpy(to, from, n); return OK; }
EXPORT int hipMemcpyDtoHAsync(void* to, const void* from, size_t n, void*) { TRY("hipMemcpyDtoHAsync", false); memcpy(to, from, n); return OK; }
EXPORT int hipMemcpyDtoDAsync(void* to, const void* from, size_t n, void*) { TRY("hipMemcpyDtoDAsync", false); memcpy(to, from, n); return OK; }
EXPORT int hipMemsetD8Async(uint8_t* to, uint8_t v, size_t n, void*) { TRY("hipMemsetD8Async", false); for (size_t i = 0; i < n; i++) to[i] = v; return OK; }
EXPORT int hipMemsetD16Async(uint16_t* to, uint16_t v, size_t n, void*) { TRY("hipMemsetD16Async", false); for (size_t i = 0; i < n; i++) to[i] = v; return OK; }
EXPORT int hipMemsetD32Async(uint32_t* to, int v, size_t n, void*) { TRY("hipMemsetD32Async", false); for (size_t i = 0; i < n; i++) to[i] = v; return OK; }
EXPORT int hipStreamSynchronize(void*) { TRY("hipStreamSynchronize", false); return capturing ? CAPTURED : OK; }
EXPORT int hipEventCreateWithFlags(void** out, unsigned) { TRY("hipEventCreateWithFlags", false); *out = &events[event_size++]; return OK; }
EXPORT int hipEventRecord(void* e, void* stream) { TRY("hipEventRecord", false); *(uint64_t*)e = (uint64_t)stream; return OK; }
EXPORT int hipStreamWaitEvent(void* stream, void* e, unsigned) {
    TRY("hipStreamWaitEvent", false);
    orders[order_size++] = Order{(uint64_t)stream, *(uint64_t*)e};
    return OK;
}
EXPORT int hipEventDestroy(void*) { TRY("hipEventDestroy", false); return OK; }
EXPORT int hipThreadExchangeStreamCaptureMode(int* m) { TRY("hipThreadExchangeStreamCaptureMode", false); int old = mode; mode = *m; *m = old; return OK; }
EXPORT const char* hipGetErrorName(int code) { return code == NO_DEVICE ? "hipErrorNoDevice" : code == OUT_OF_MEMORY ? "hipErrorOutOfMemory" : "hipErrorOther"; }
EXPORT int hipPointerGetAttribute(void* out, int attribute, void* at) { TRY("hipPointerGetAttribute", false); return attribute == 9 ? owner(at, (int*)out) : INVALID; }
