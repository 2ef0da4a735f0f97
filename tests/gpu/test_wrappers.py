"""What kernels call, on the emulator: shuffles, moves, shared memory, asynchronous copies, rows of matrices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpu_kernels import kinds, module, ran

from polyop.ir.dtypes import F16, I32
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import affine
from polyop.ir.loops import Buffer, Space
from polyop.ir.module import Launch, Module, Signature
from polyop.runtime import cxx, emulated

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)


def f32(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32)


# --- shuffles -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("order", emulated.ORDERS)
@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx90a", "hip:gfx1100"])
def test_a_shuffle_exchanges_values_across_the_warp_of_the_target(target: str, order: str, dtype: type) -> None:
    warp = 64 if target == "hip:gfx90a" else 32
    x = np.arange(128).astype(dtype) * 3
    arrays = {"X": x, "Y": np.zeros(128, dtype), "Z": np.zeros(128, dtype)}
    body = f"Y[t] = pop_shuffle_xor(X[t], {warp // 2 + 1}); Z[t] = pop_shuffle(X[t], 5);"
    report = ran(body, arrays, block=128, order=order, target=target, writes=("Y", "Z"))
    assert str(report) == "no fault found"
    lanes = np.arange(128)
    np.testing.assert_array_equal(arrays["Y"], x[lanes ^ (warp // 2 + 1)])
    np.testing.assert_array_equal(arrays["Z"], x[lanes // warp * warp + 5])


@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx90a"])
def test_neighbours_exchange_pairs(target: str) -> None:
    x = np.arange(512, dtype=np.uint16)
    arrays = {"X": x, "Y": np.zeros(512, np.uint16)}
    each = "for (int k = 0; k < 4; ++k)"
    body = f"pop_u16 x[4]; {each} x[k] = X[4 * t + k]; pop_pairs(x); {each} Y[4 * t + k] = x[k];"
    assert str(ran(body, arrays, block=128, target=target)) == "no fault found"
    lanes = x.reshape(64, 2, 2, 2)  # two lanes, two pairs of each
    np.testing.assert_array_equal(arrays["Y"].reshape(64, 2, 2, 2), lanes.transpose(0, 2, 1, 3))


def test_a_sum_over_the_warp_takes_five_shuffles() -> None:
    arrays = {"X": f32(64), "Y": np.zeros(64, np.float32)}
    body = "float x = X[t]; for (unsigned m = 16; m; m /= 2) x += pop_shuffle_xor(x, m); Y[t] = x;"
    assert str(ran(body, arrays, block=64)) == "no fault found"
    np.testing.assert_array_equal(arrays["Y"], np.repeat([496.0, 1520.0], 32).astype(np.float32))


def test_lanes_that_have_ended_need_not_come_to_a_shuffle_but_cannot_be_read() -> None:
    arrays = {"X": f32(32), "Y": np.zeros(32, np.float32)}
    assert kinds(ran("if (t >= 16) return; Y[t] = pop_shuffle_xor(X[t], 1);", arrays)) == set()
    np.testing.assert_array_equal(arrays["Y"][:16], f32(32)[np.arange(16) ^ 1])
    assert kinds(ran("if (t >= 16) return; Y[t] = pop_shuffle_xor(X[t], 16);", arrays)) == {"divergent collective"}


@pytest.mark.parametrize("order", emulated.ORDERS)
def test_a_shuffle_that_half_of_a_warp_leaves_out_is_reported(order: str) -> None:
    body = "float x = X[t]; if (t % 2) x = pop_shuffle_xor(x, 1); pop_barrier(); Y[t] = x;"
    report = ran(body, {"X": f32(32), "Y": np.zeros(32, np.float32)}, order=order)
    assert [f.what for f in report.findings] == ["deadlock"]


# --- scans ----------------------------------------------------------------------------------------------------------

SPREADS = ((2, 1, 64), (32, 1, 128), (64, 1, 64), (128, 1, 128), (8, 32, 256), (8, 64, 512), (16, 4, 128), (64, 4, 256))
"""Threads that scan, how far apart they are, and threads of the block."""


def scanned(x: np.ndarray, over: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """What is before each thread, and all of its group."""
    y = x.reshape(-1, over, step)
    sums = np.cumsum(y, 1, dtype=x.dtype)
    return (sums - y).reshape(-1).astype(x.dtype), np.broadcast_to(sums[:, -1:], y.shape).reshape(-1)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int8, np.float64])
@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx90a", "hip:gfx1100"])
def test_a_scan_leaves_each_thread_what_is_before_it_and_all_of_them_the_total(target: str, dtype: type) -> None:
    name = {np.float32: "float", np.int32: "int", np.int8: "pop_i8", np.float64: "double"}[dtype]
    for k, (over, step, block) in enumerate(SPREADS):
        if over * step > block or block % (64 if target == "hip:gfx90a" else 32):
            continue
        x = np.random.default_rng(k).integers(-2, 3, block).astype(dtype)
        arrays = {"X": x, "Y": np.zeros_like(x), "Z": np.zeros_like(x)}
        body = (f"{name} before; Z[t] = pop_scan<{over}, {step}, {block}>(X[t], ({name})0, &before, "
                f"[](const {name} a, const {name} b) {{ return ({name})(a + b); }}); Y[t] = before;")
        report = ran(body, arrays, block=block, target=target, order=emulated.ORDERS[k % 3], writes=("Y", "Z"))
        before, total = scanned(x, over, step)
        assert str(report) == "no fault found", (over, step, block)
        np.testing.assert_array_equal(arrays["Y"], before)
        np.testing.assert_array_equal(arrays["Z"], total)


@pytest.mark.parametrize("order", emulated.ORDERS)
def test_steps_that_do_not_commute_are_joined_in_the_order_of_the_threads(order: str) -> None:
    g = np.random.default_rng(5)
    a, b = g.integers(-1, 2, 128).astype(np.float32), g.integers(-3, 4, 128).astype(np.float32)
    arrays = {"A": a, "B": b, "Y": np.zeros(128, np.float32), "Z": np.zeros(128, np.float32)}
    body = ("typedef pop_linear<float> step; step before; const step all = pop_scan<128, 1, 128>(step{A[t], B[t]}, step{1, 0}, "
            "&before, [](const step x, const step y) { return pop_then(x, y); }); Y[t] = before.a * 2 + before.b; "
            "Z[t] = all.a * 2 + all.b;")
    assert str(ran(body, arrays, block=128, order=order, writes=("Y", "Z"))) == "no fault found"
    known = [2.0]
    for x, y in zip(a, b, strict=True):
        known.append(float(x) * known[-1] + float(y))
    np.testing.assert_array_equal(arrays["Y"], np.float32(known[:-1]))
    np.testing.assert_array_equal(arrays["Z"], np.full(128, known[-1], np.float32))


# --- shared memory --------------------------------------------------------------------------------------------------

TURN = """
POP_SHARED_VIEW(A_s, float, 0, 64);
POP_SHARED_VIEW(B_s, pop_u16, 256, 64);
float* A_s = (float*)(pop_shared + 0);
pop_u16* B_s = (pop_u16*)(pop_shared + 256);
A_s[t] = X[t];
B_s[t] = (pop_u16)t;
BARRIER
Y[t] = A_s[READ] + (float)B_s[t];
"""


def turned(barrier: str = "pop_barrier();", read: str = "63 - t", shared: int = 384, order: str = "forward") -> tuple:
    arrays = {"X": f32(64), "Y": np.zeros(64, np.float32)}
    report = ran(TURN.replace("BARRIER", barrier).replace("READ", read), arrays, block=64, shared=shared, order=order)
    return report, arrays["Y"]


@pytest.mark.parametrize("order", emulated.ORDERS)
def test_dynamic_shared_memory_is_shared_by_the_block(order: str) -> None:
    report, y = turned(order=order)
    assert str(report) == "no fault found"
    np.testing.assert_array_equal(y, np.full(64, 63, np.float32))


@pytest.mark.parametrize("order", emulated.ORDERS)
def test_a_missing_barrier_names_the_array_and_the_line(order: str) -> None:
    report, _ = turned(barrier="", order=order)
    races = [f for f in report.findings if f.what in ("race", "uninitialised read")]
    assert {f.buffer for f in races} == {"A_s"}
    assert {f.line for f in races} & {12, 14}
    assert any("A_s[" in f.code for f in races)


def test_a_barrier_of_the_warp_does_not_order_another_warp() -> None:
    report, _ = turned(barrier="pop_warp_barrier();")
    assert "race" in kinds(report) or "uninitialised read" in kinds(report)
    assert kinds(turned(barrier="pop_warp_barrier();", read="t / 32 * 32 + 31 - t % 32")[0]) == set()


def test_one_past_an_array_is_out_of_bounds_although_another_one_follows() -> None:
    report, _ = turned(read="t + 1")
    assert [(f.what, f.buffer, f.index) for f in report.findings] == [("out of bounds", "A_s", (64,))]


def test_one_before_an_array_is_out_of_bounds() -> None:
    report, _ = turned(read="(int)t - 1")
    assert [(f.what, f.buffer, f.index) for f in report.findings] == [("out of bounds", "A_s", (-1,))]


def test_a_launch_with_too_little_shared_memory_is_reported() -> None:
    text = TURN.replace("BARRIER", "pop_barrier();").replace("READ", "t")
    report = ran("POP_SHARED(400);" + text, {"X": f32(64), "Y": np.zeros(64, np.float32)}, block=64)
    assert [(f.what, f.buffer, f.index) for f in report.findings] == [("out of bounds", "pop_shared", (0,))]


def test_what_nobody_wrote_in_shared_memory_must_not_be_read() -> None:
    body = TURN.replace("A_s[t] = X[t];", "if (t < 63) A_s[t] = X[t];").replace("BARRIER", "pop_barrier();").replace("READ", "t")
    report = ran(body, {"X": f32(64), "Y": np.zeros(64, np.float32)}, block=64, shared=384)
    assert [(f.what, f.buffer, f.index) for f in report.findings] == [("uninitialised read", "A_s", (63,))]


def test_arrays_that_overlap_on_purpose_share_their_bytes() -> None:
    body = """
    POP_SHARED_VIEW(A_s, float, 0, 32);
    POP_SHARED_VIEW(C_s, pop_u16, 64, 32);
    float* A_s = (float*)(pop_shared + 0);
    pop_u16* C_s = (pop_u16*)(pop_shared + 64);
    A_s[t] = X[t];
    pop_barrier();
    C_s[t] = (pop_u16)t;
    pop_barrier();
    Y[t] = t < 16 ? A_s[t] : (float)C_s[t];
    """
    arrays = {"X": f32(32), "Y": np.zeros(32, np.float32)}
    assert str(ran(body, arrays, shared=128)) == "no fault found"
    np.testing.assert_array_equal(arrays["Y"], f32(32))
    report = ran(body.replace("pop_barrier();", "", 1), arrays, shared=128)
    assert [(f.what, f.buffer) for f in report.findings] == [("race", "A_s/C_s")]


@pytest.mark.parametrize("order", emulated.ORDERS)
def test_blocks_that_write_one_tile_twice_race(order: str) -> None:
    arrays = {"Y": np.zeros(96, np.float32)}
    report = ran("Y[blockIdx.x * 31 + t] = (float)blockIdx.x;", arrays, blocks=3, order=order)
    assert [(f.what, f.buffer) for f in report.findings] == [("race", "Y")]
    assert "of block" in report.findings[0].who


# --- moves ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("bytes_", [4, 8, 16])
def test_a_move_takes_all_its_bytes_at_once(bytes_: int) -> None:
    n = bytes_ // 4
    arrays = {"X": f32(32 * n), "Y": np.zeros(32 * n, np.float32)}
    assert str(ran(f"pop_move<{bytes_}>(Y + {n} * t, X + {n} * t);", arrays)) == "no fault found"
    np.testing.assert_array_equal(arrays["Y"], arrays["X"])


def test_a_move_between_addresses_that_are_not_aligned_is_reported() -> None:
    arrays = {"X": f32(129), "Y": np.zeros(128, np.float32)}
    report = ran("pop_move<16>(Y + 4 * t, X + 4 * t + 1);", arrays)
    assert [(f.what, f.buffer, f.index) for f in report.findings] == [("misaligned access", "X", (1,))]


def test_a_move_over_the_end_is_out_of_bounds() -> None:
    arrays = {"X": f32(126), "Y": np.zeros(128, np.float32)}
    assert kinds(ran("pop_move<16>(Y + 4 * t, X + 4 * t);", arrays)) == {"out of bounds"}


@pytest.mark.emulators
@pytest.mark.parametrize("columns", [5, 8, 16])
def test_rows_of_tensors_are_aligned_in_some_orders_and_not_in_others(columns: int) -> None:
    arrays = {"X": np.zeros((8, columns), np.float16), "Y": np.zeros(8, np.int32)}
    text = """#include "pop_device.h"
extern "C" __global__ void __launch_bounds__(8) k(const pop_u16* X, pop_i64 X_s0, pop_i64, int* Y, pop_i64) {
    Y[threadIdx.x] = (pop_u64)(X + X_s0 * threadIdx.x) % 16 == 0;
}
"""
    tensors = (Buffer("X", F16, ((affine(8), 1), (affine(columns), 1)), Space.TENSOR, 1),
               Buffer("Y", I32, ((affine(8), 1),), Space.TENSOR, 0))
    launch = Launch("k", (affine(8),), 8, ("X", "Y"), ("Y",))
    m = Module("k", "cuda:sm_80", text, Signature("k", (), (), tensors, ()), (launch,))
    aligned = {}
    for order in emulated.ORDERS:
        assert str(emulated.run(m, {}, {}, arrays, order=order)) == "no fault found"
        aligned[order] = int(arrays["Y"].sum())
    assert aligned == {"forward": 2 if columns == 5 else 1, "backward": 8, "shuffled": 8}


# --- asynchronous copies --------------------------------------------------------------------------------------------

PIPE = """
POP_SHARED_VIEW(X_s, float, 0, 256);
float* X_s = (float*)(pop_shared + 0);
for (int k = 0; k < 2; k++) {
    pop_copy_async<16>(X_s + 128 * k + 4 * t, X + 128 * k + 4 * t, INSIDE);
    pop_copy_commit();
}
float sum = 0;
for (int k = 0; k < 6; k++) {
    if (k < 5) pop_copy_wait<1>(); else pop_copy_wait<0>();
    pop_barrier();
    for (int i = 0; i < 4; i++) sum += X_s[128 * (k % 2) + 4 * (31 - t) + i];
    pop_barrier();
    if (k < 4) pop_copy_async<16>(X_s + 128 * (k % 2) + 4 * t, X + 128 * (k + 2) + 4 * t, true);
    pop_copy_commit();
}
Y[t] = sum;
"""


def piped(*changes: tuple[str, str], order: str = "forward", completion: str = "late", target: str = "cuda:sm_80",
          watched: bool = True) -> tuple:
    text = PIPE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    arrays = {"X": f32(768), "Y": np.zeros(32, np.float32)}
    report = ran(text.replace("INSIDE", "true"), arrays, shared=1024, order=order, completion=completion, target=target,
                 watched=watched)
    return report, arrays["Y"], arrays["X"].reshape(6, 32, 4)[:, ::-1].sum((0, 2))


@pytest.mark.parametrize("completion", emulated.COMPLETIONS)
@pytest.mark.parametrize("order", emulated.ORDERS)
@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx942"])
def test_a_pipeline_of_two_stages_is_right_in_every_order(target: str, order: str, completion: str) -> None:
    # one warp of 32 on either machine: the lanes that are missing have no part in a copy
    report, y, expected = piped(order=order, completion=completion, target=target)
    assert str(report) == "no fault found"
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("completion", emulated.COMPLETIONS)
@pytest.mark.parametrize("order", emulated.ORDERS)
def test_a_wait_that_leaves_one_group_too_many_is_an_access_in_flight(order: str, completion: str) -> None:
    report, _, _ = piped(("pop_copy_wait<1>()", "pop_copy_wait<2>()"), order=order, completion=completion)
    assert "access in flight" in kinds(report)
    fault = next(f for f in report.findings if f.what == "access in flight")
    assert fault.buffer == "X_s" and "sum += X_s[" in fault.code


def test_without_being_watched_a_wrong_wait_shows_as_poison_where_copies_come_late() -> None:
    change = ("pop_copy_wait<1>()", "pop_copy_wait<2>()")
    assert np.isnan(piped(change, watched=False)[1]).all()
    early, expected = piped(change, watched=False, completion="early")[1:]
    np.testing.assert_array_equal(early, expected)


def test_a_copy_into_a_stage_that_others_still_read_is_a_race() -> None:
    report, _, _ = piped(("    pop_barrier();\n    if (k < 4)", "    if (k < 4)"))
    assert kinds(report) & {"race", "access in flight"}


def test_what_a_copy_brought_is_seen_by_others_only_after_a_barrier() -> None:
    report, _, _ = piped(("    pop_barrier();\n    for (int i", "    for (int i"))
    assert kinds(report) & {"race", "access in flight"}


@pytest.mark.parametrize("completion", emulated.COMPLETIONS)
def test_a_copy_from_outside_brings_zeros_and_looks_at_nothing(completion: str) -> None:
    body = """
    POP_SHARED_VIEW(X_s, float, 0, 64);
    float* X_s = (float*)(pop_shared + 0);
    pop_copy_async<8>(X_s + 2 * t, X + 2 * t, t < 10);
    pop_copy_commit();
    pop_copy_wait<0>();
    Y[2 * t] = X_s[2 * t];
    Y[2 * t + 1] = X_s[2 * t + 1];
    """
    arrays = {"X": f32(20) + 1, "Y": np.full(64, 7, np.float32)}
    assert str(ran(body, arrays, shared=256, completion=completion)) == "no fault found"
    np.testing.assert_array_equal(arrays["Y"], np.pad(f32(20) + 1, (0, 44)))


def test_a_halo_that_is_one_too_wide_is_out_of_bounds() -> None:
    body = """
    POP_SHARED_VIEW(X_s, float, 0, 34);
    float* X_s = (float*)(pop_shared + 0);
    for (int i = (int)t; i < 34; i += 32) pop_copy_async<4>(X_s + i, X + i - 1, EDGE);
    pop_copy_commit();
    pop_copy_wait<0>();
    pop_barrier();
    Y[t] = X_s[t] + X_s[t + 1] + X_s[t + 2];
    """
    arrays = {"X": f32(32), "Y": np.zeros(32, np.float32)}
    assert str(ran(body.replace("EDGE", "i >= 1 && i <= 32"), arrays, shared=136)) == "no fault found"
    padded = np.pad(f32(32), 1)
    np.testing.assert_array_equal(arrays["Y"], padded[:-2] + padded[1:-1] + padded[2:])
    report = ran(body.replace("EDGE", "i >= 1"), arrays, shared=136)
    assert [(f.what, f.buffer, f.index) for f in report.findings] == [("out of bounds", "X", (32,))]


def test_a_thread_that_ends_before_its_copies_is_reported() -> None:
    body = "float* X_s = (float*)(pop_shared + 0); pop_copy_async<4>(X_s + t, X + t, true); pop_copy_commit(); Y[t] = 0;"
    report = ran(body, {"X": f32(32), "Y": np.zeros(32, np.float32)}, shared=128)
    assert kinds(report) == {"copy without a wait"}
    assert "pop_copy_async<4>" in report.findings[0].code


# --- rows of matrices -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("squares", [2, 4])
@pytest.mark.parametrize("order", emulated.ORDERS)
def test_ldmatrix_gives_each_lane_two_elements_of_a_row_of_each_square(order: str, squares: int, transposed: bool) -> None:
    x = np.random.default_rng(3).integers(0, 1 << 16, 8 * 8 * squares).astype(np.uint16)
    body = f"""
    POP_SHARED_VIEW(X_s, pop_u16, 0, {x.size});
    pop_u16* X_s = (pop_u16*)(pop_shared + 0);
    for (int i = 0; i < {x.size // 32}; i++) X_s[32 * i + t] = X[32 * i + t];
    pop_warp_barrier();
    pop_u32 r[{squares}];
    pop_ldmatrix_x{squares}{'_trans' * transposed}(r, X_s + 8 * (t % {8 * squares}));
    for (int s = 0; s < {squares}; s++) Y[{squares} * t + s] = r[s];
    """
    arrays = {"X": x, "Y": np.zeros(32 * squares, np.uint32)}
    assert str(ran(body, arrays, shared=2 * x.size, order=order)) == "no fault found"
    m = x.reshape(squares, 8, 8).astype(np.uint32)
    m = m.transpose(0, 2, 1) if transposed else m
    pairs = (m[:, :, 0::2] | m[:, :, 1::2] << 16).reshape(squares, 32)
    np.testing.assert_array_equal(arrays["Y"].reshape(32, squares), pairs.T)


def test_ldmatrix_of_what_another_warp_just_wrote_is_a_race() -> None:
    body = """
    POP_SHARED_VIEW(X_s, pop_u16, 0, 512);
    pop_u16* X_s = (pop_u16*)(pop_shared + 0);
    for (int i = 0; i < 8; i++) X_s[8 * t + i] = 0;
    WAIT
    pop_u32 r[4];
    pop_ldmatrix_x4(r, X_s + 8 * (t ^ FAR));
    Y[t] = r[0];
    """
    arrays = {"Y": np.zeros(64, np.uint32)}

    def found(wait: str, far: int) -> set[str]:
        return kinds(ran(body.replace("WAIT", wait).replace("FAR", str(far)), arrays, block=64, shared=1024))

    assert found("pop_barrier();", 32) == set()
    assert found("pop_warp_barrier();", 1) == set()
    assert found("", 1) == {"race"}
    assert found("pop_warp_barrier();", 32) & {"race", "uninitialised read"}


def test_a_row_that_is_not_aligned_is_reported() -> None:
    body = """
    pop_u16* X_s = (pop_u16*)(pop_shared + 0);
    for (int i = 0; i < 16; i++) X_s[16 * t + i] = 0;
    pop_barrier();
    pop_u32 r[4];
    pop_ldmatrix_x4(r, X_s + 8 * t + 1);
    Y[t] = r[0];
    """
    assert kinds(ran(body, {"Y": np.zeros(32, np.uint32)}, shared=1024)) == {"misaligned access"}


# --- atomic sums ----------------------------------------------------------------------------------------------------

def then(first: Module, second: Module) -> Module:
    """Both kernels, one launch after the other, on the arrays of the second."""
    text = first.text.replace(" k(", " j(") + second.text.split("\n", 1)[1]
    return replace(second, text=text, launch=(replace(first.launch[0], kernel="j"), *second.launch))


@pytest.mark.parametrize("order", emulated.ORDERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint32, np.int64, np.uint64])
def test_threads_of_all_blocks_add_to_one_element(dtype: type, order: str) -> None:
    x = np.arange(128).astype(dtype) - np.asarray(50).astype(dtype)
    arrays = {"X": x, "Y": np.zeros(3, dtype)}
    clear = module("if (t < 3) Y[t] = 0;", {"Y": arrays["Y"]})
    add = module("pop_atomic_add(Y + t % 3, X[blockIdx.x * 32 + t]);", arrays, blocks=4)
    assert str(emulated.run(then(clear, add), {}, {}, arrays, order=order)) == "no fault found"
    np.testing.assert_array_equal(arrays["Y"], [x.reshape(4, 32)[:, k::3].sum(dtype=dtype) for k in range(3)])


def test_an_atomic_sum_needs_a_start_and_does_not_mix_with_plain_stores() -> None:
    arrays = {"Y": np.zeros(1, np.float32)}
    assert kinds(ran("pop_atomic_add(Y, 1.0f);", arrays)) == {"uninitialised read"}
    clear = module("if (t == 0) Y[0] = 0;", arrays)
    assert kinds(emulated.run(then(clear, module("Y[0] += 1.0f;", arrays)), {}, {}, arrays)) == {"race"}
    mixed = module("if (t) pop_atomic_add(Y, 1.0f); else Y[0] = 1;", arrays)
    assert kinds(emulated.run(then(clear, mixed), {}, {}, arrays)) == {"race"}


# --- barriers -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("order", emulated.ORDERS)
def test_barriers_at_two_places_do_not_meet(order: str) -> None:
    body = "if (t < 32) {\n pop_barrier();\n Y[t] = 1;\n} else {\n Y[t] = 0;\n pop_barrier();\n Y[t] += 3;\n}"
    report = ran(body, {"Y": np.zeros(64, np.float32)}, block=64, order=order)
    assert kinds(report) == {"divergent barrier"}
    assert "and by thread" in report.findings[0].who


def test_a_barrier_of_the_block_and_one_of_a_warp_wait_for_ever() -> None:
    report = ran("if (t < 16)\n pop_barrier();\nelse\n pop_warp_barrier();\nY[t] = 0;", {"Y": np.zeros(32, np.float32)})
    assert kinds(report) == {"deadlock"}


def test_a_barrier_in_a_loop_meets_itself_however_the_compiler_copies_it() -> None:
    body = "float x = 0; for (unsigned i = 0; i < 3 + t / 64; i++) { if (i % 2 == 0) x += X[t]; pop_barrier(); } Y[t] = x;"
    assert str(ran(body, {"X": f32(64), "Y": np.zeros(64, np.float32)}, block=64)) == "no fault found"


def test_a_fault_of_one_launch_is_told_once_though_a_place_was_copied_in_an_earlier_one() -> None:
    """The compiler may make two barriers of the first kernel's one; that is no fault, and must not be counted as one."""
    first = "if (t == 0) Y[0] = 1; pop_barrier(); if (t == 0) Y[1] = 2;"
    arrays = {"Y": np.zeros(64, np.float32)}
    both = then(module(first, arrays, block=64), module("Y[0] = (float)t;", arrays, block=64))
    report = emulated.run(both, {}, {}, arrays)
    assert [(f.what, f.kernel) for f in report.findings] == [("race", "k")]


def test_launches_are_ordered_and_blocks_of_one_are_not() -> None:
    arrays = {"Y": np.zeros(1, np.float32), "Z": np.zeros(128, np.float32)}
    clear = "if (item == 0) Y[0] = 1;"
    read = "Z[item] = Y[0];"
    write = "if (item == 127) Y[0] = 2;"

    def found(*bodies: str) -> set[str]:
        made = [module(f"const int item = blockIdx.x * 32 + t; {b}", arrays, blocks=4, writes=("Y", "Z")) for b in bodies]
        parts = [m.text.split("\n", 1)[1].replace(" k(", f" k{i}(") for i, m in enumerate(made)]
        text = '#include "pop_device.h"\n' + "".join(parts)
        launches = tuple(replace(m.launch[0], kernel=f"k{i}") for i, m in enumerate(made))
        return kinds(emulated.run(replace(made[0], text=text, launch=launches), {}, {}, arrays))

    assert found(clear, read, write, read) == set()
    assert found(clear, read + write) == {"race"}
