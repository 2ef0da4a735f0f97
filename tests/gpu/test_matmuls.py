"""Whole matrix products for each kind of matrix unit: right in every order, silent when right, and loud when not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import gpu_matmuls
import ml_dtypes
import numpy as np
import pytest
from gpu_kernels import kinds, module, ran

from polyop.ir.errors import UnsupportedError
from polyop.ir.module import Boxes, Module
from polyop.runtime import amdgcn, cxx, nvrtc
from polyop.runtime.findings import Report
from polyop.runtime.usage import usage

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)


@dataclass(frozen=True)
class Matmul:
    """`tile` is what a block computes, in both directions."""

    text: str
    target: str
    block: int
    shared: int
    tile: int
    boxes: tuple[Boxes, ...] = ()


ALL = {"ampere": Matmul(gpu_matmuls.AMPERE, "cuda:sm_80", 128, gpu_matmuls.AMPERE_SHARED, 64),
       "cdna": Matmul(gpu_matmuls.CDNA, "hip:gfx90a", 256, gpu_matmuls.CDNA_SHARED, 64),
       "rdna": Matmul(gpu_matmuls.RDNA, "hip:gfx1100", 64, gpu_matmuls.RDNA_SHARED, 32),
       "hopper": Matmul(gpu_matmuls.HOPPER, "cuda:sm_90a", 384, gpu_matmuls.HOPPER_SHARED, 128, gpu_matmuls.HOPPER_BOXES)}
SIZES = {"ampere": (72, 104, 88), "cdna": (70, 65, 37), "rdna": (33, 40, 20), "hopper": (136, 136, 200)}


def multiplied(name: str, *changes: tuple[str, str], order: str = "forward", completion: str = "late", watched: bool = True,
               sizes: tuple[int, int, int] | None = None, banks: bool = False) -> tuple[Report, np.ndarray, np.ndarray]:
    """What is found, the product, and what it should be."""
    x = ALL[name]
    text = x.text
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    m, n, k = sizes or SIZES[name]
    g = np.random.default_rng(5)
    a, b = (g.uniform(-1, 1, s).astype(ml_dtypes.bfloat16) for s in ((m, k), (k, n)))
    arrays = {"A": a, "B": b, "C": np.full((m, n), np.nan, np.float32)}
    if not x.boxes:
        arrays = {name: array.reshape(-1) for name, array in arrays.items()}
    blocks = -(-m // x.tile) * -(-n // x.tile)
    report = ran(f"const int M = {m}, N = {n}, K = {k};\n{text}", arrays, block=x.block, blocks=blocks, shared=x.shared,
                 writes=("C",), target=x.target, order=order, completion=completion, watched=watched, banks=banks,
                 boxes=x.boxes)
    return report, arrays["C"].reshape(m, n), a.astype(np.float64) @ b.astype(np.float64)


WAYS = [("forward", "late"), ("backward", "late"), ("shuffled", "late"), ("forward", "early"), ("shuffled", "early")]


@pytest.mark.parametrize(("order", "completion"), WAYS)
@pytest.mark.parametrize("name", ALL)
def test_a_whole_product_is_right_and_without_fault(name: str, order: str, completion: str) -> None:
    report, c, expected = multiplied(name, order=order, completion=completion)
    assert str(report) == "no fault found"
    np.testing.assert_allclose(c, expected, atol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_it_is_right_when_nobody_watches(name: str) -> None:
    report, c, expected = multiplied(name, watched=False, order="shuffled")
    assert str(report) == "no fault found"
    np.testing.assert_allclose(c, expected, atol=1e-4)


def conflicts(name: str, *changes: tuple[str, str]) -> dict[str, float]:
    """Of each line of the inner loop that reads shared memory, cycles for each phase."""
    report = multiplied(name, *changes, banks=True)[0]
    return {x.code: x.cycles / x.phases for x in report.traffic if not x.write}


def test_swizzled_tiles_are_read_without_a_conflict_and_plain_ones_are_not() -> None:
    assert set(conflicts("ampere").values()) == {1.0}
    plain = conflicts("ampere", ("pop_ldmatrix_x4(a[i], A_s + stage + 32 * m + 8 * (c ^ m / 2 % 4));",
                                 "pop_ldmatrix_x4(a[i], A_s + stage + 32 * m + 8 * c);"))
    assert max(plain.values()) == 4.0


FOUND = [  # the kernel, what is wrong with it, and the faults of which at least one is named
    ("ampere", "a barrier is missing", ("    pop_barrier();  // all", "    // all"), {"race", "access in flight"}),
    ("ampere", "a wait leaves one group too many", ("pop_copy_wait<1>()", "pop_copy_wait<2>()"), {"access in flight"}),
    ("ampere", "a stage is refilled one step too early", ("copy(step + 2);", "copy(step + 3);"),
     {"race", "access in flight", "uninitialised read", "copy without a wait"}),
    ("ampere", "tiles overlap", ("const int m_w = warp / 2 * 32", "const int m_w = warp / 2 * 24"), {"race"}),
    ("ampere", "the last rows are not cut off", ("if (m < M && n < N) C", "if (n < N) C"), {"out of bounds"}),
    ("ampere", "a halo is one row too high", ("m_b + m < M && 32", "m_b + m <= M && 32"), {"out of bounds"}),
    ("ampere", "a commit is missing", ("pop_copy_commit();\n    const int stage", "const int stage"), {"access in flight"}),
    ("ampere", "rows of ldmatrix are not where copies went", ("8 * (c ^ m / 2 % 4)", "8 * (c + m / 2 % 4)"), {"out of bounds"}),
    ("cdna", "the first barrier is missing", ("pop_barrier();\n    if (step", "if (step"), {"race", "uninitialised read"}),
    ("cdna", "the second barrier is missing", ("b[j]);\n    pop_barrier();", "b[j]);"), {"race"}),
    ("cdna", "tiles overlap", ("n_w = wave % 2 * 32", "n_w = wave % 2 * 16"), {"race"}),
    ("cdna", "reads past the columns", ("r + i < K && n < N", "r + i < K"), {"out of bounds"}),
    ("rdna", "a barrier is missing", ("    pop_barrier();\n    alignas", "    alignas"), {"race", "uninitialised read"}),
    ("rdna", "a move is not aligned", ("A_s + 24 * (16 * i + lane % 16) + 8 * h", "A_s + 24 * (16 * i + lane % 16) + 4 * h"),
     {"misaligned access"}),
    ("hopper", "nobody waits for a full stage", ("        pop_mbarrier_wait(full + s, step / 2 % 2);\n", ""),
     {"access in flight", "race", "uninitialised read"}),
    ("hopper", "nobody waits for an empty stage", ("        pop_mbarrier_wait(empty + s, step / 2 % 2 ^ 1);\n", ""),
     {"access in flight", "race", "divergent barrier", "deadlock"}),
    ("hopper", "accumulators are not waited for", ("pop_wgmma_wait<0>();\n", ""), {"access in flight", "copy without a wait"}),
    ("hopper", "a stage is given back before its product", (
        "        pop_wgmma_wait<0>();\n        pop_wgmma_hold(d);\n        if (u == 0) pop_mbarrier_arrive(empty + s);\n",
        "        if (u == 0) pop_mbarrier_arrive(empty + s);\n        pop_wgmma_wait<0>();\n        pop_wgmma_hold(d);\n"),
     {"access in flight", "race"}),
    ("hopper", "one consumer alone frees a stage", ("pop_mbarrier_init(empty + s, 2)", "pop_mbarrier_init(empty + s, 1)"),
     {"access in flight", "race", "divergent barrier", "deadlock"}),
    ("hopper", "too few bytes are announced", ("pop_mbarrier_expect(full + s, 32768)", "pop_mbarrier_expect(full + s, 16384)"),
     {"access in flight", "race", "deadlock"}),
    ("hopper", "no fence before the copy engine reads", ("    pop_async_fence();\n", ""), {"missing fence"}),
    ("hopper", "no barrier before the copy engine reads", ("    pop_named_barrier(1 + group, 128);\n", ""),
     {"race", "missing fence", "uninitialised read"}),
    ("hopper", "no fence before a product", ("        pop_wgmma_fence();\n", ""), {"missing fence"}),
    ("hopper", "tiles of two blocks overlap", ("% ((N + 127) / 128) * 128, steps", "% ((N + 127) / 128) * 64, steps"), {"race"}),
]


@pytest.mark.parametrize(("name", "what", "change", "found"), FOUND, ids=[f"{n}: {w}" for n, w, _, _ in FOUND])
def test_a_fault_is_named_in_every_order(name: str, what: str, change: tuple[str, str], found: set[str]) -> None:
    for order, completion in WAYS[:4]:
        report, _, _ = multiplied(name, change, order=order, completion=completion)
        assert kinds(report) & found, f"{order}, {completion}: {report}"
        assert all(f.line for f in report.findings), report


WRONG = [  # faults that break no rule of memory
    ("ampere", "halves of b are exchanged", ("j % 2 * 2], b[j / 2][j % 2 * 2 + 1]}", "j % 2 * 2 + 1], b[j / 2][j % 2 * 2]}")),
    ("ampere", "not transposed", ("pop_ldmatrix_x4_trans", "pop_ldmatrix_x4")),
    ("cdna", "d as f64 has it", ("lane / 16 * 4 + r, n", "lane / 16 + 4 * r, n")),
    ("rdna", "d as RDNA 4 has it", ("2 * r + lane / 16, n", "r + lane / 16 * 8, n")),
    ("hopper", "a tile is read unswizzled", ("(n % 32 ^ m % 8 * 4)", "n % 32")),
    ("hopper", "k steps along where they go across", ("8192 * s + 1024 * k, 1024, 8192", "8192 * s + 16 * k, 1024, 8192")),
]


@pytest.mark.parametrize(("name", "what", "change"), WRONG, ids=[f"{n}: {w}" for n, w, _ in WRONG])
def test_a_wrong_lane_map_shows_in_the_values(name: str, what: str, change: tuple[str, str]) -> None:
    _, c, expected = multiplied(name, change)
    assert not np.allclose(c, expected, atol=1e-2)


# --- the same texts through the vendors' compilers ------------------------------------------------------------------

def whole(name: str, target: str) -> Module:
    x = ALL[name]
    m, n, k = (1024, 1024, 1024)
    dtypes = {"A": ml_dtypes.bfloat16, "B": ml_dtypes.bfloat16, "C": np.float32}
    arrays = {name: np.zeros((1, 1), dtype) for name, dtype in dtypes.items()}
    made = module(f"const int M = {m}, N = {n}, K = {k};\n{x.text}", arrays, block=x.block, shared=x.shared, writes=("C",),
                  target=target, boxes=x.boxes)
    return replace(made, text=made.text.replace("__launch_bounds__(384)", "__launch_bounds__(384, 1)"))


@pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable())
@pytest.mark.parametrize(("name", "target"), [("ampere", "cuda:sm_80"), ("ampere", "cuda:sm_90a"), ("hopper", "cuda:sm_90a")])
def test_a_whole_product_for_nvidia_spills_nothing(name: str, target: str) -> None:
    (taken,) = usage(nvrtc.assemble(whole(name, target)))
    assert taken.local == 0


@pytest.mark.skipif(bool(amdgcn.unavailable()), reason=amdgcn.unavailable())
@pytest.mark.parametrize(("name", "target"), [("cdna", "hip:gfx90a"), ("cdna", "hip:gfx942"), ("rdna", "hip:gfx1100")])
def test_a_whole_product_for_amd_spills_nothing(name: str, target: str) -> None:
    (taken,) = usage(amdgcn.assemble(whole(name, target)))
    assert taken.local == 0
