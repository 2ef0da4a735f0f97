"""The Hopper path on the emulator: barriers in memory, named barriers, the bulk copy engine, products of warpgroups."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from gpu_kernels import kinds, ran

from polyop.ir.errors import UnsupportedError
from polyop.ir.module import Boxes
from polyop.runtime import cxx, emulated
from polyop.runtime.findings import Report

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

EACH_WAY = pytest.mark.parametrize(("order", "completion"), [("forward", "late"), ("backward", "late"), ("shuffled", "late"),
                                                             ("forward", "early"), ("shuffled", "early")])


def changed(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


def f32(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32)


# --- barriers -------------------------------------------------------------------------------------------------------

HANDOVER = """
POP_SHARED_VIEW(X_s, float, 0, 64);
POP_SHARED_VIEW(full, pop_u64, 256, 2);
POP_SHARED_VIEW(empty, pop_u64, 272, 2);
float* X_s = (float*)(pop_shared + 0);
pop_u64* full = (pop_u64*)(pop_shared + 256);
pop_u64* empty = (pop_u64*)(pop_shared + 272);
if (t == 0) {
    for (int s = 0; s < 2; s++) { pop_mbarrier_init(full + s, 32); pop_mbarrier_init(empty + s, 32); }
    pop_mbarrier_fence();
}
pop_barrier();
for (int k = 0; k < 6; k++) {
    const int s = k % 2;
    const pop_u32 phase = k / 2 % 2;
    if (t < 32) {
        pop_mbarrier_wait(empty + s, phase ^ 1);
        X_s[32 * s + t] = X[32 * k + t];
        pop_mbarrier_arrive(full + s);
    } else {
        pop_mbarrier_wait(full + s, phase);
        Y[32 * k + t - 32] = X_s[32 * s + 63 - t];
        pop_mbarrier_arrive(empty + s);
    }
}
"""


def handed(*changes: tuple[str, str], order: str = "forward") -> tuple[Report, np.ndarray]:
    arrays = {"X": f32(192), "Y": np.zeros(192, np.float32)}
    report = ran(changed(HANDOVER, *changes), arrays, block=64, shared=288, order=order, target="cuda:sm_90a")
    return report, arrays["Y"]


@pytest.mark.parametrize("order", emulated.ORDERS)
def test_two_warps_hand_tiles_over_through_barriers_in_memory(order: str) -> None:
    report, y = handed(order=order)
    assert str(report) == "no fault found"
    np.testing.assert_array_equal(y.reshape(6, 32), f32(192).reshape(6, 32)[:, ::-1])


@pytest.mark.parametrize("order", emulated.ORDERS)
def test_who_does_not_wait_for_a_free_stage_races(order: str) -> None:
    report, _ = handed(("pop_mbarrier_wait(empty + s, phase ^ 1);", ""), order=order)
    assert kinds(report) & {"race", "divergent barrier"}


def test_who_does_not_wait_for_a_full_stage_races() -> None:
    report, _ = handed(("pop_mbarrier_wait(full + s, phase);", ""), order="backward")
    assert kinds(report) & {"race", "uninitialised read"}


def test_a_wrong_parity_is_a_deadlock_or_a_race() -> None:
    assert kinds(handed(("pop_mbarrier_wait(empty + s, phase ^ 1);", "pop_mbarrier_wait(empty + s, phase);"))[0]) == {"deadlock"}
    assert kinds(handed(("pop_mbarrier_wait(full + s, phase);", "pop_mbarrier_wait(full + s, phase ^ 1);"))[0])


def test_a_barrier_that_nobody_made_is_reported() -> None:
    report, _ = handed(("pop_mbarrier_init(full + s, 32);", ""))
    assert kinds(report) == {"uninitialised read"}
    assert report.findings[0].buffer == "full"


def test_a_barrier_that_is_used_before_all_know_of_it_races() -> None:
    report, _ = handed(("pop_barrier();", ""))
    assert kinds(report) & {"race", "uninitialised read"}


# --- registers ------------------------------------------------------------------------------------------------------


def moved(body: str, order: str = "forward") -> set[str]:
    arrays = {"X": f32(384), "Y": np.zeros(384, np.float32)}
    report = ran(body + "Y[t] = X[t];", arrays, block=384, shared=64, order=order, target="cuda:sm_90a")
    assert report.findings or (arrays["Y"] == arrays["X"]).all()
    return kinds(report)


@pytest.mark.parametrize("order", emulated.ORDERS)
def test_registers_that_some_warps_give_back_are_taken_by_others(order: str) -> None:
    assert moved("if (t < 128) pop_registers_less<40>(); else pop_registers_more<232>();", order) == set()


@pytest.mark.parametrize(("body", "found"), [
    ("if (t >= 128) pop_registers_more<232>();", {"deadlock"}),                                     # nobody gives any back
    ("if (t < 128) pop_registers_less<48>(); else pop_registers_more<232>();", {"deadlock"}),       # not enough
    ("if (t < 128) pop_registers_less<40>(); else pop_registers_more<240>();", {"deadlock"}),       # too many are asked for
    ("if (t < 64) pop_registers_less<40>();", {"divergent collective"})])                           # half of a warpgroup
def test_registers_that_nobody_has_are_waited_for_in_vain(body: str, found: set[str]) -> None:
    assert moved(body) == found


NAMED = """
POP_SHARED_VIEW(X_s, float, 0, 64);
float* X_s = (float*)(pop_shared + 0);
if (t < 64) {
    X_s[t] = X[t];
    ARRIVE
} else {
    pop_named_barrier(3, 96);
    Y[t - 64] = X_s[95 - t];
    Y[t - 32] = X_s[127 - t];
}
"""


@pytest.mark.parametrize("order", emulated.ORDERS)
@pytest.mark.parametrize("arrive", ["pop_named_arrive(3, 96);", "pop_named_barrier(3, 96);"])
def test_threads_of_some_warps_meet_at_a_barrier_by_number(arrive: str, order: str) -> None:
    arrays = {"X": f32(64), "Y": np.zeros(64, np.float32)}
    report = ran(NAMED.replace("ARRIVE", arrive), arrays, block=96, shared=256, order=order, target="cuda:sm_90a")
    assert str(report) == "no fault found"
    np.testing.assert_array_equal(arrays["Y"].reshape(2, 32), f32(64).reshape(2, 32)[:, ::-1])


@pytest.mark.parametrize(("arrive", "found"), [
    ("if (t < 32) pop_named_arrive(3, 96);", {"deadlock"}),
    ("pop_named_arrive(2, 96);", {"deadlock"}),
    ("pop_named_arrive(3, 64);", {"divergent barrier"}),
])
def test_a_barrier_by_number_that_not_all_come_to_is_reported(arrive: str, found: set[str]) -> None:
    arrays = {"X": f32(64), "Y": np.zeros(64, np.float32)}
    report = ran(NAMED.replace("ARRIVE", arrive), arrays, block=96, shared=256, order="backward", target="cuda:sm_90a")
    assert kinds(report) == found


# --- the bulk copy engine -------------------------------------------------------------------------------------------

# X is a matrix of 100 x 56 elements of 2 bytes, boxes are of 8 x 64
TILES = """
POP_SHARED_VIEW(X_s, pop_u16, 0, 1024);
POP_SHARED_VIEW(full, pop_u64, 2048, 2);
pop_u16* X_s = (pop_u16*)(pop_shared + 0);
pop_u64* full = (pop_u64*)(pop_shared + 2048);
if (t == 0) {
    for (int s = 0; s < 2; s++) pop_mbarrier_init(full + s, 1);
    pop_mbarrier_fence();
}
pop_barrier();
for (int k = 0; k < 2 && t == 0; k++) {
    pop_mbarrier_expect(full + k, 1024);
    pop_tile_load(X_s + 512 * k, X_map, 8, 8 * k + 90, full + k);
}
for (int k = 0; k < 4; k++) {
    const int s = k % 2;
    pop_mbarrier_wait(full + s, k / 2);
    for (int i = 0; i < 16; i++) {
        const int e = 32 * i + t;
        Y[512 * k + e] = X_s[512 * s + (SWIZZLE ? e ^ e / 64 % 8 * 8 : e)];
    }
    pop_barrier();
    if (k < 2 && t == 0) {
        pop_mbarrier_expect(full + s, 1024);
        pop_tile_load(X_s + 512 * s, X_map, -8, 8 * k - 4, full + s);
    }
}
"""


def tiled(*changes: tuple[str, str], order: str = "forward", completion: str = "late", swizzle: int = 128) -> tuple:
    x = np.arange(1, 5601, dtype=np.uint16).reshape(100, 56)
    arrays = {"X": x, "Y": np.zeros(2048, np.uint16)}
    text = changed(TILES, *changes).replace("SWIZZLE", str(swizzle))
    report = ran(text, arrays, shared=2064, order=order, completion=completion, target="cuda:sm_90a",
                 boxes=(Boxes("X", (1, 0), (64, 8), swizzle),))
    padded = np.pad(x, ((16, 16), (16, 64)))
    corners = [(90, 8), (98, 8), (-4, -8), (4, -8)]
    expected = [padded[r + 16 : r + 24, c + 16 : c + 80] for r, c in corners]
    return report, arrays["Y"].reshape(4, 8, 64), np.array(expected)


@EACH_WAY
@pytest.mark.parametrize("swizzle", [0, 128])
def test_boxes_come_to_shared_memory_with_zeros_outside_of_the_matrix(swizzle: int, order: str, completion: str) -> None:
    report, y, expected = tiled(order=order, completion=completion, swizzle=swizzle)
    assert str(report) == "no fault found"
    np.testing.assert_array_equal(y, expected)


@EACH_WAY
def test_what_the_engine_brings_is_not_read_before_its_barrier(order: str, completion: str) -> None:
    report, _, _ = tiled(("pop_mbarrier_wait(full + s, k / 2);", ""), order=order, completion=completion)
    assert kinds(report) & {"access in flight", "race", "uninitialised read"}


def test_a_load_into_a_stage_that_is_still_read_is_a_race() -> None:
    change = ("    pop_barrier();\n    if (k", "    if (k")
    assert "access in flight" in kinds(tiled(change)[0])
    report, _, _ = tiled(change, order="backward")
    assert any((f.what, f.buffer) == ("race", "X_s") and "pop_tile_load" in f.code for f in report.findings)


@pytest.mark.parametrize(("bytes_", "found"), [(2048, {"deadlock"}), (512, {"deadlock"})])
def test_a_wrong_number_of_bytes_waits_for_ever(bytes_: int, found: set[str]) -> None:
    assert kinds(tiled(("full + k, 1024", f"full + k, {bytes_}"))[0]) == found


def test_waiting_for_the_wrong_stage_is_seen() -> None:
    report, _, _ = tiled(("pop_mbarrier_wait(full + s, k / 2);", "pop_mbarrier_wait(full + 1 - s, k / 2);"))
    assert kinds(report) & {"access in flight", "race", "deadlock"}


def test_a_swizzled_tile_that_does_not_start_at_1024_bytes_is_reported() -> None:
    assert kinds(tiled(("X_s + 512 * k, X_map", "X_s + 512 * k + 64, X_map"))[0]) == {"misaligned access"}


@pytest.mark.parametrize("column", [10, -3])
def test_a_box_that_begins_between_16_bytes_is_reported(column: int) -> None:
    """A device calls it an illegal instruction."""
    assert kinds(tiled(("X_map, 8, 8 * k", f"X_map, {column}, 8 * k"))[0]) == {"misaligned access"}


def test_a_block_that_ends_before_its_loads_is_reported() -> None:
    report, _, _ = tiled(("for (int k = 0; k < 4; k++) {", "for (int k = 0; k < 1; k++) {"))
    assert kinds(report) == {"copy without a wait"}


STORE = """
POP_SHARED_VIEW(Y_s, float, 0, 256);
float* Y_s = (float*)(pop_shared + 0);
for (int k = 0; k < 2; k++) {
    if (t == 0) pop_tile_wait_read<0>();
    pop_barrier();
    for (int i = 0; i < 8; i++) Y_s[32 * i + t] = X[256 * k + 32 * i + t];
    pop_async_fence();
    pop_barrier();
    if (t == 0) {
        pop_tile_store(Y_map, 0, 8 * k, Y_s);
        pop_tile_commit();
    }
}
if (t == 0) pop_tile_wait<0>();
"""


def stored(*changes: tuple[str, str], order: str = "forward", completion: str = "late", blocks: int = 1) -> tuple:
    arrays = {"X": f32(512), "Y": np.full((12, 28), -1, np.float32)}
    report = ran(changed(STORE, *changes), arrays, shared=1024, order=order, completion=completion, target="cuda:sm_90a",
                 blocks=blocks, boxes=(Boxes("Y", (1, 0), (32, 8), 0),))
    return report, arrays["Y"]


@EACH_WAY
def test_boxes_go_to_global_memory_and_not_past_the_matrix(order: str, completion: str) -> None:
    report, y = stored(order=order, completion=completion)
    assert str(report) == "no fault found"
    np.testing.assert_array_equal(y, f32(512).reshape(16, 32)[:12, :28])


@EACH_WAY
def test_a_store_without_a_fence_is_reported(order: str, completion: str) -> None:
    report, _ = stored(("pop_async_fence();", ""), order=order, completion=completion)
    assert kinds(report) == {"missing fence"}
    assert report.findings[0].buffer == "Y_s" and "pop_tile_store" in report.findings[0].code


def test_a_fence_of_the_thread_that_stores_after_the_barrier_is_enough() -> None:
    change = ("    pop_async_fence();\n    pop_barrier();\n", "    pop_barrier();\n    pop_async_fence();\n")
    assert kinds(stored(change)[0]) == set()


@EACH_WAY
def test_writing_to_what_a_store_still_reads_is_reported(order: str, completion: str) -> None:
    report, _ = stored(("pop_tile_wait_read<0>()", "pop_tile_wait_read<1>()"), order=order, completion=completion)
    assert kinds(report) == {"access in flight"}
    assert "Y_s[32 * i + t] =" in report.findings[0].code


def test_a_store_that_is_never_waited_for_is_reported() -> None:
    assert kinds(stored(("if (t == 0) pop_tile_wait<0>();", ""))[0]) == {"copy without a wait"}


def test_two_blocks_that_store_one_box_race() -> None:
    assert kinds(stored(blocks=2)[0]) == {"race"}


# --- products -------------------------------------------------------------------------------------------------------

HALVES = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


def swizzled_tile(m: np.ndarray) -> np.ndarray:
    """Rows of 64 elements of 2 bytes, swizzled by 128 bytes, flat; a matrix that is wider is cut into such columns."""
    rows, columns = m.shape
    out = np.zeros((columns // 64, rows, 64), m.dtype)
    r, c = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    out[c // 64, r, (c % 64) ^ (r % 8 * 8)] = m
    return out.reshape(-1)


PRODUCT = """
POP_SHARED_VIEW(A_s, pop_u16, 0, A_COUNT);
POP_SHARED_VIEW(B_s, pop_u16, 2 * A_COUNT, B_COUNT);
pop_u16* A_s = (pop_u16*)(pop_shared + 0);
pop_u16* B_s = (pop_u16*)(pop_shared + 2 * A_COUNT);
for (int i = t; i < A_COUNT; i += 128) A_s[i] = A[i];
for (int i = t; i < B_COUNT; i += 128) B_s[i] = B[i];
pop_async_fence();
pop_barrier();
float d[HALF];
for (int i = 0; i < HALF; i++) d[i] = 7;
pop_wgmma_fence();
for (int k = 0; k < 4; k++)
    PRODUCT_OF(d, A_TILE, B_TILE, k > 0);
pop_wgmma_commit();
pop_wgmma_wait<0>();
pop_wgmma_hold(d);
for (int i = 0; i < HALF; i++) Y[t * HALF + i] = d[i];
"""


def multiplied(n: int, kind: str, a_across: int, b_across: int, *changes: tuple[str, str], order: str = "forward",
               completion: str = "late", registers: bool = False, watched: bool = True) -> tuple:
    """The report, c and a * b, of 64 x n x 64."""
    g = np.random.default_rng(n)
    a, b = (g.uniform(-1, 1, s).astype(HALVES[kind]) for s in ((64, 64), (64, n)))
    tile_a = swizzled_tile(a.T if a_across else a)
    tile_b = swizzled_tile(np.pad(b, ((0, 0), (0, -n % 64))) if b_across else b.T)
    step = {0: "32 * k", 1: "2048 * k"}
    a_tile = f"pop_wgmma_tile((char*)A_s + {step[a_across]}, 1024, 8192)"
    b_tile = f"pop_wgmma_tile((char*)B_s + {step[b_across]}, 1024, 8192)"
    name = f"pop_wgmma_m64n{n}k16_{kind}"
    if registers:
        fill = "const int i = t / 32 * 16 + t % 32 / 4 + r % 2 * 8, j = 16 * k + t % 4 * 2 + r / 2 * 8;"
        load = f"pop_u32 x[4]; for (int r = 0; r < 4; r++) {{ {fill} x[r] = A[64 * i + j] | (pop_u32)A[64 * i + j + 1] << 16; }}"
        product = f"{{ {load} {name}_a<{b_across}>(d, x, {b_tile}, k > 0); }}"
    else:
        product = f"{name}<{a_across}, {b_across}>(d, {a_tile}, {b_tile}, k > 0);"
    text = changed(PRODUCT, *changes).replace("PRODUCT_OF(d, A_TILE, B_TILE, k > 0);", product).replace("HALF", str(n // 2))
    text = text.replace("A_COUNT", str(tile_a.size)).replace("B_COUNT", str(tile_b.size))
    arrays = {"A": (a.reshape(-1) if registers else tile_a).view(np.uint16), "B": tile_b.view(np.uint16),
              "Y": np.zeros(64 * n, np.float32)}
    report = ran(text, arrays, block=128, shared=2 * (tile_a.size + tile_b.size), order=order, completion=completion,
                 target="cuda:sm_90a", watched=watched)
    c = np.zeros((64, n), np.float32)
    lane, reg = np.meshgrid(np.arange(128), np.arange(n // 2), indexing="ij")
    row, column = lane // 32 * 16 + lane % 32 // 4 + reg // 2 % 2 * 8, reg // 4 * 8 + lane % 4 * 2 + reg % 2
    c[row, column] = arrays["Y"].reshape(128, n // 2)
    return report, c, a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize(("n", "kind", "a_across", "b_across"), [
    (8, "f16", 0, 0), (64, "bf16", 0, 0), (96, "f16", 0, 0), (256, "bf16", 0, 0), (64, "f16", 0, 1), (128, "bf16", 0, 1),
    (128, "f16", 1, 1), (32, "bf16", 1, 0),
])
def test_a_warpgroup_multiplies_tiles_along_and_across(n: int, kind: str, a_across: int, b_across: int) -> None:
    report, c, expected = multiplied(n, kind, a_across, b_across)
    assert str(report) == "no fault found"
    np.testing.assert_allclose(c, expected, atol=2e-5)


@EACH_WAY
@pytest.mark.parametrize("registers", [False, True])
def test_a_product_is_the_same_early_and_late_and_in_every_order(registers: bool, order: str, completion: str) -> None:
    report, c, expected = multiplied(64, "bf16", 0, 0, order=order, completion=completion, registers=registers)
    assert str(report) == "no fault found"
    np.testing.assert_allclose(c, expected, atol=2e-5)


@EACH_WAY
def test_accumulators_that_are_used_before_the_wait_are_reported(order: str, completion: str) -> None:
    report, _, _ = multiplied(64, "f16", 0, 0, ("pop_wgmma_wait<0>();", "pop_wgmma_wait<1>();"),
                              ("d[i];\n", "d[i];\npop_wgmma_wait<0>();\n"), order=order, completion=completion)
    assert kinds(report) == {"access in flight"}
    assert "Y[t * 32 + i] = d[i];" in report.findings[0].code


def test_accumulators_that_are_used_before_the_wait_are_poison_if_nobody_watches() -> None:
    changes = (("pop_wgmma_wait<0>();", ""), ("d[i];\n", "d[i];\npop_wgmma_wait<0>();\n"))
    assert np.isnan(multiplied(64, "f16", 0, 0, *changes, watched=False)[1]).all()


def test_a_product_that_is_never_waited_for_is_reported() -> None:
    report, _, _ = multiplied(64, "f16", 0, 0, ("pop_wgmma_wait<0>();", ""), ("Y[t * HALF + i] = d[i];", "Y[t * HALF + i] = 0;"))
    assert kinds(report) == {"copy without a wait"}


@EACH_WAY
def test_tiles_that_are_written_while_a_product_reads_them_are_reported(order: str, completion: str) -> None:
    report, _, _ = multiplied(64, "f16", 0, 0, ("pop_wgmma_wait<0>();", "B_s[t] = 0;\npop_wgmma_wait<0>();"), order=order,
                              completion=completion)
    assert kinds(report) == {"access in flight"}
    assert (report.findings[0].buffer, report.findings[0].code) == ("B_s", "B_s[t] = 0;")


@pytest.mark.parametrize("fence", ["pop_async_fence();", "pop_wgmma_fence();"])
def test_a_missing_fence_before_a_product_is_reported(fence: str) -> None:
    assert kinds(multiplied(64, "bf16", 0, 0, (fence, ""))[0]) == {"missing fence"}


def test_a_missing_barrier_before_a_product_is_a_race() -> None:
    report, _, _ = multiplied(64, "bf16", 0, 0, ("pop_barrier();", ""))
    assert kinds(report) & {"race", "uninitialised read", "missing fence"}


def test_a_product_that_one_warp_leaves_out_is_reported() -> None:
    report, _, _ = multiplied(64, "bf16", 0, 0, ("pop_wgmma_commit();", "if (t >= 32) pop_wgmma_commit();"))
    assert kinds(report) == {"divergent collective"}
