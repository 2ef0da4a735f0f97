"""Blocks of threads as text: what contractions look like, and that each line left out is found by the emulator."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from test_instructions import amd

import polyop
from polyop.compiler import Compiled, compile_op
from polyop.ir.dtypes import DTYPES
from polyop.ir.errors import UnsupportedError
from polyop.ir.module import Module, launches
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import amdgcn, cxx, emulated, nvrtc
from polyop.runtime.layout import contiguous
from polyop.runtime.usage import usage

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

CASTS = {"f32": "{}", "f64": "{}", "f16": "f32({})", "bf16": "f32({})", "i8": "i32({})"}
SUMS = {"f32": "f32", "f64": "f64", "f16": "f32", "bf16": "f32", "i8": "i32"}
UNITS = {
    ("cuda:sm_80", "f32"): "", ("cuda:sm_80", "f16"): "pop_mma_m16n8k16_f16", ("cuda:sm_80", "bf16"): "pop_mma_m16n8k16_bf16",
    ("cuda:sm_80", "f64"): "pop_mma_m8n8k4_f64", ("cuda:sm_80", "i8"): "pop_mma_m16n8k32_s8",
    ("hip:gfx942", "f32"): "pop_mfma_f32_16x16x16_f32", ("hip:gfx942", "f16"): "pop_mfma_f32_16x16x32_f16",
    ("hip:gfx942", "f64"): "pop_mfma_f64_16x16x8_f64", ("hip:gfx1100", "f16"): "pop_wmma_f32_16x16x16_f16",
    ("hip:gfx1100", "f32"): "",
}
SIZES = ((1, 1, 1), (5, 3, 7), (129, 33, 65), (16, 16, 8), (70, 64, 130))


@cache
def product(where: str, dtype: str, order: str = "nn", tile: tuple[int, ...] = ()) -> Compiled:
    a = {"n": "A[m,k]", "t": "A[k,m]"}[order[0]]
    b = {"n": "B[k,n]", "t": "B[n,k]"}[order[1]]
    rows = {"n": "M, K", "t": "K, M"}[order[0]]
    columns = {"n": "K, N", "t": "N, K"}[order[1]]
    cast = CASTS[dtype]
    text = (f"op mm(A: {dtype}[{rows}], B: {dtype}[{columns}]) -> (C: {SUMS[dtype]}[M, N]) "
            f"{{ C[m,n] += {cast.format(a)} * {cast.format(b)} }}")
    operator = polyop.op(text)
    op = operator._op(operator.choice())
    return compile_op(op, contiguous(op), target(where), Options(tile=tile))


def arrays(dtype: str, order: str, sizes: tuple[int, int, int]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    m, k, n = sizes
    g = np.random.default_rng(m + k + n)
    numpy = DTYPES[dtype].numpy
    a, b = (g.integers(-3, 4, s).astype(numpy) for s in ((m, k), (k, n)))
    want = a.astype(np.float64) @ b.astype(np.float64)
    given = {"A": np.ascontiguousarray(a.T) if order[0] == "t" else a, "B": np.ascontiguousarray(b.T) if order[1] == "t" else b}
    return given | {"C": np.zeros((m, n), {"f32": "f4", "f64": "f8", "i32": "i4"}[SUMS[dtype]])}, want


def run(module: Module, dtype: str, lies: str, sizes: tuple[int, int, int], **how: str) -> tuple[str, bool]:
    """What the emulator saw, and whether the values are right."""
    given, want = arrays(dtype, lies, sizes)
    report = emulated.run(module, dict(zip("MKN", sizes, strict=True)), {}, given, **how)
    return str(report), bool(np.array_equal(given["C"], want))


@pytest.mark.parametrize(("where", "dtype"), UNITS)
def test_a_product_is_right_at_boundary_sizes_and_its_threads_are_in_order(where: str, dtype: str) -> None:
    made = product(where, dtype)
    assert made.rung == "tuned" and made.module is not None and all(p.holds for p in made.proofs)
    assert (UNITS[where, dtype] or "+=") in made.module.text
    for k, sizes in enumerate(SIZES):
        assert run(made.module, dtype, "nn", sizes, order=emulated.ORDERS[k % 3]) == ("no fault found", True)


@pytest.mark.parametrize("order", ["nt", "tn", "tt"])
@pytest.mark.parametrize(("where", "dtype"), [("cuda:sm_80", "f16"), ("cuda:sm_80", "f32"), ("hip:gfx942", "f16")])
def test_operands_may_lie_either_way(where: str, dtype: str, order: str) -> None:
    made = product(where, dtype, order)
    assert made.rung == "tuned" and made.module is not None
    assert run(made.module, dtype, order, (40, 35, 21)) == ("no fault found", True)


@pytest.mark.emulators
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_without_its_barrier_a_product_races(dtype: str) -> None:
    module = product("cuda:sm_80", dtype).module
    assert module is not None
    lines = [x for x in module.text.splitlines() if "pop_copies_barrier" in x]
    assert len(lines) == 2
    for line in lines:
        report, _ = run(replace(module, text=module.text.replace(line, "")), dtype, "nn", (64, 70, 64))
        assert "race" in report or "copy" in report or "uninitialised" in report or "in flight" in report


@pytest.mark.parametrize(("where", "dtype", "deep", "left"), [("cuda:sm_80", "f16", 32, 2), ("cuda:sm_80", "f32", 16, 2),
                                                              ("cuda:sm_90a", "f16", 64, 1)])
def test_a_sum_of_any_number_of_turns_finds_its_tiles(where: str, dtype: str, deep: int, left: int) -> None:
    module = product(where, dtype).module
    assert module is not None and f"barrier<{left}>(" in module.text, "there are four slots"
    for turns in range(1, 7):
        for k in (deep * (turns - 1) + 1, deep * turns):
            for completion in emulated.COMPLETIONS:
                found = run(module, dtype, "nn", (17, k, 40), order=emulated.ORDERS[turns % 3], completion=completion)
                assert found == ("no fault found", True), (turns, k)


@pytest.mark.emulators
@pytest.mark.parametrize(("where", "dtype", "k"), [("cuda:sm_80", "f16", 32), ("cuda:sm_80", "f32", 200),
                                                   ("cuda:sm_90a", "f16", 320)])
def test_a_barrier_that_leaves_a_group_too_many_shows(where: str, dtype: str, k: int) -> None:
    module = product(where, dtype).module
    assert module is not None
    wrong = replace(module, text=re.sub(r"barrier<(\d)>", lambda m: f"barrier<{int(m[1]) + 1}>", module.text))
    report, _ = run(wrong, dtype, "nn", (17, k, 40))
    assert "flight" in report or "uninitialised" in report or "race" in report


PLANTED = (
    (r"pop_copies_barrier<.*?>\(\)", "pop_barrier()"),                  # nobody waits for the copies
    (r"\+ 3\) % 4", "+ 0) % 4"),                                          # the next tile goes to the slot in use
    (r"pop_lane\(\) / 16 \* 8", "pop_lane() / 16 * 4"),               # a lane map that is off
    (r"pop_copy_run<8>\((.*), (.*)\);", r"pop_copy_run<8>(\1, 8);"),    # zeros beyond the end forgotten
    (r"const int n_w = 64 \* \(int\)\(pop_n / 32 % 2\)", "const int n_w = 32 * (int)(pop_n / 32 % 2)"),  # overlapping tiles
)


@pytest.mark.emulators
@pytest.mark.parametrize(("right", "wrong"), PLANTED)
def test_a_planted_bug_in_a_generated_kernel_shows(right: str, wrong: str) -> None:
    module = product("cuda:sm_80", "f16").module
    assert module is not None
    text, count = re.subn(right, wrong, module.text)
    assert count
    seen = [run(replace(module, text=text), "f16", "nn", (130, 170, 130), completion=c) for c in emulated.COMPLETIONS]
    assert any(report != "no fault found" or not right_values for report, right_values in seen)


@pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable())
@pytest.mark.parametrize("where", ["cuda:sm_80", "cuda:sm_90a"])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_a_product_spills_nothing_on_nvidia(where: str, dtype: str) -> None:
    module = product(where, dtype).module
    assert module is not None
    (taken,) = usage(nvrtc.assemble(module))
    assert taken.local == 0 and taken.registers <= 255
    assert launches(module.launch)[0].shared > 30_000


@pytest.mark.skipif(bool(amdgcn.unavailable()), reason=amdgcn.unavailable())
@pytest.mark.parametrize(("where", "dtype"), [("hip:gfx90a", "f16"), ("hip:gfx942", "f16"), ("hip:gfx1100", "f16"),
                                              ("hip:gfx1100", "i8"), ("hip:gfx1100", "f64")])
def test_a_product_spills_nothing_on_amd(where: str, dtype: str) -> None:
    module = product(where, dtype).module
    assert module is not None
    (taken,) = usage(amdgcn.assemble(module))
    assert taken.local == 0


def test_the_text_says_why_each_barrier_is_there() -> None:
    text = product("cuda:sm_80", "f16").module.text  # type: ignore[union-attr]
    barriers = [x.strip() for x in text.splitlines() if "barrier" in x and "(" in x and not x.startswith("//")]
    assert barriers and all(" // " in x and ("other threads" in x or "are a group" in x) for x in barriers)


@pytest.mark.parametrize(("dtype", "lies"), [("f16", "nn"), ("f16", "nt"), ("bf16", "tn"), ("f64", "nn"), ("i8", "nt")])
def test_what_matrix_units_read_meets_in_no_bank(dtype: str, lies: str) -> None:
    module = product("cuda:sm_80", dtype, lies).module
    assert module is not None
    sizes = (128, 64, 128)
    given, _ = arrays(dtype, lies, sizes)
    report = emulated.run(module, dict(zip("MKN", sizes, strict=True)), {}, given, banks=True)
    reads = [t for t in report.traffic if not t.write]
    assert reads and [t.code for t in reads if t.conflicts] == []


@pytest.mark.parametrize(("dtype", "lies", "tile"), [
    ("f16", "nt", (32, 32)), ("f16", "nt", (128, 128)), ("f16", "nn", (32, 64)), ("f16", "tn", (16, 32)), ("f16", "tn", (32, 32)),
    ("f64", "nt", (32, 32)), ("f64", "nn", (128, 128))])
def test_copies_of_16_bytes_meet_in_no_bank_whatever_the_tile(dtype: str, lies: str, tile: tuple[int, int]) -> None:
    """Lines of 80 bytes, and of 96, of which four lanes copy 64."""
    module = product("cuda:sm_80", dtype, lies, tile).module
    assert module is not None
    sizes = (2 * tile[0], 96, tile[1])
    given, want = arrays(dtype, lies, sizes)
    known = dict(zip("MKN", sizes, strict=True))
    report = emulated.run(module, known, {}, given, order="backward", banks=True)  # in which rows are aligned
    assert np.array_equal(given["C"], want) and {t.write for t in report.traffic} == {False, True}
    assert [str(t) for t in report.traffic if t.conflicts] == []


def test_rows_of_ten_bytes_are_copied_element_by_element_and_written_16_bytes_at_once() -> None:
    module = product("cuda:sm_80", "f16", "nn", (128, 16)).module
    assert module is not None
    given, want = arrays("f16", "nn", (144, 96, 5))
    report = emulated.run(module, {"M": 144, "K": 96, "N": 5}, {}, given, order="backward", banks=True)
    assert np.array_equal(given["C"], want) and report.traffic
    assert [str(t) for t in report.traffic if t.conflicts] == []


@pytest.mark.parametrize(("dtype", "lies", "tile", "way"), [
    ("f32", "nn", (128, 128), "pop_copy_async<4>("), ("f32", "nt", (64, 64), "pop_copy_async<4>("),
    ("i8", "nn", (128, 128), "pop_put_column<16, 4>("), ("i8", "tn", (64, 128), "pop_put_column<8, 4>(")])
def test_copies_of_numbers_that_lie_across_a_tile_meet_in_no_bank(
        dtype: str, lies: str, tile: tuple[int, int], way: str) -> None:
    """Of f32 eight lanes have 32 bytes of a row, and four rows: 16 of two rows met two ways. Bytes go through registers, 16 or 8
    at once: one by one 32 of a row met four ways.
    """
    module = product("cuda:sm_80", dtype, lies, tile).module
    assert module is not None and way in module.text
    sizes = (144, 96, 144)
    given, want = arrays(dtype, lies, sizes)
    report = emulated.run(module, dict(zip("MKN", sizes, strict=True)), {}, given, order="backward", banks=True)
    assert np.array_equal(given["C"], want) and not report.findings
    assert [str(t) for t in report.traffic if t.conflicts] == []


@pytest.mark.parametrize(("where", "lies"), [("hip:gfx942", "nn"), ("hip:gfx942", "tn"), ("hip:gfx1100", "tt")])
def test_bytes_that_lie_across_a_tile_of_amd_meet_in_no_bank_and_leave_none_out(where: str, lies: str) -> None:
    module = product(where, "i8", lies).module
    assert module is not None and "pop_put_column<8, 4>(" in module.text
    for sizes in ((1, 1, 1), (5, 3, 7), (129, 131, 65), (144, 128, 144)):
        given, want = arrays("i8", lies, sizes)
        report = emulated.run(module, dict(zip("MKN", sizes, strict=True)), {}, given, order="backward", banks=True)
        assert np.array_equal(given["C"], want) and not report.findings
        assert [str(t) for t in report.traffic if t.conflicts] == []


@pytest.mark.parametrize(("where", "dtype", "fact"), [
    ("cuda:sm_80", "f64", "K <= 1"), ("cuda:sm_90a", "f16", "0 <= K < 2"), ("hip:gfx942", "f32", "K == 1")])
def test_a_sum_that_facts_leave_one_term_needs_no_unit(where: str, dtype: str, fact: str) -> None:
    """isl writes no loop over an atom's depth there."""
    a, b = CASTS[dtype].format("A[m,k]"), CASTS[dtype].format("B[k,n]")
    operator = polyop.op(f"op mm(A: {dtype}[M, K], B: {dtype}[K, N]) -> (C: {SUMS[dtype]}[M, N]) where {fact} {{\n"
                         f"  C[m,n] += {a} * {b} }}")
    op = operator._op(operator.choice())
    made = compile_op(op, contiguous(op), target(where), Options())
    assert made.rung == "tuned" and made.module is not None
    for sizes in ((17, 1, 129), (1, 1, 1), *([] if "==" in fact else [(17, 0, 33)])):
        given, want = arrays(dtype, "nn", sizes)
        report = emulated.run(made.module, dict(zip("MKN", sizes, strict=True)), {}, given)
        assert str(report) == "no fault found" and np.array_equal(given["C"], want)


def least(where: str, dtype: str) -> Compiled:
    """Least sums, for which no unit is: their tiles lie along rows and columns, and A across its own."""
    operator = polyop.op(f"op mm(A: {dtype}[M, K], B: {dtype}[K, N]) -> (C: {dtype}[M, N]) {{ C[m,n] min= A[m,k] + B[k,n] }}")
    op = operator._op(operator.choice())
    return compile_op(op, contiguous(op), target(where), Options())


@pytest.mark.parametrize(("where", "dtype"), [("hip:gfx942", "u8"), ("hip:gfx1100", "f16")])
@pytest.mark.parametrize("sizes", [(129, 33, 65), (1, 1, 1), (127, 17, 128)])
def test_narrow_numbers_without_a_unit_are_turned_a_word_at_a_time(where: str, dtype: str, sizes: tuple[int, int, int]) -> None:
    module = least(where, dtype).module
    assert module is not None
    g, (m, k, n), numpy = np.random.default_rng(3), sizes, DTYPES[dtype].numpy
    given = {name: g.integers(0, 99, shape).astype(numpy) for name, shape in (("A", (m, k)), ("B", (k, n)), ("C", (m, n)))}
    report = emulated.run(module, dict(zip("MKN", sizes, strict=True)), {}, given, order="backward", banks=True)
    want = (given["A"].astype(int)[:, :, None] + given["B"].astype(int)).min(1)
    assert np.array_equal(given["C"].astype(int), want) and not report.findings
    assert [str(t) for t in report.traffic if t.conflicts] == []


@pytest.mark.parametrize(("where", "dtype"), [("cuda:sm_80", "f64"), ("hip:gfx1100", "f64"), ("hip:gfx942", "i64")])
def test_threads_that_read_neighbours_of_8_bytes_meet_in_no_bank(where: str, dtype: str) -> None:
    """A thread has two groups of two, 16 bytes each: of groups of four each half met the neighbour's. Of what AMD's threads turn
    in registers, two lanes go along a row: four of them wrote lines that met two ways.
    """
    module = least(where, dtype).module
    assert module is not None
    g, (m, k, n), numpy = np.random.default_rng(3), (129, 17, 131), DTYPES[dtype].numpy
    given = {name: g.integers(0, 99, shape).astype(numpy) for name, shape in (("A", (m, k)), ("B", (k, n)), ("C", (m, n)))}
    report = emulated.run(module, {"M": m, "K": k, "N": n}, {}, given, order="backward", banks=True)
    want = (given["A"].astype(int)[:, :, None] + given["B"].astype(int)).min(1)
    assert np.array_equal(given["C"].astype(int), want) and not report.findings
    wide = [t for t in report.traffic if not t.write and "pop_wide<2>(" in t.code]
    assert wide and not [str(t) for t in report.traffic if t.conflicts]
    if where == "hip:gfx1100" and not amdgcn.unavailable():
        (taken,) = usage(amdgcn.assemble(module))
        assert taken.local == 0  # of 8 x 8 results, 128 registers, 189 were spilled


@pytest.mark.skipif(bool(amdgcn.unavailable()), reason=amdgcn.unavailable())
def test_narrow_numbers_on_their_way_to_a_tile_leave_registers() -> None:
    """All of a tile of 2 KB was with 16 of 256 threads, 128 numbers each."""
    operator = polyop.op("op f(A: u8[M, K], B: u8[K, N]) -> (C: u32[M, N]) { s[i, j] min= A[i, k] + B[k, j]; "
                         "t[i, j] += u32(A[i, k]) * u32(B[k, j]); C[i, j] = u32(s[i, j]) * t[i, j] }")
    op = operator._op(operator.choice())
    module = compile_op(op, contiguous(op), target("hip:gfx1100"), Options()).module
    assert module is not None
    assert [u.local for u in usage(amdgcn.assemble(module))] == [0, 0]


@pytest.mark.skipif(bool(amdgcn.unavailable()), reason=amdgcn.unavailable())
@pytest.mark.parametrize(("where", "unit"), [("hip:gfx90a", "v_mfma_f32_16x16x16"), ("hip:gfx942", "v_mfma_f32_16x16x16"),
                                             ("hip:gfx1100", "v_wmma_f32_16x16x16")])
def test_code_for_amd_reads_16_bytes_at_once_for_its_matrix_units(where: str, unit: str, tmp_path: Path) -> None:
    made = product(where, "f16", "nt")
    assert made.module is not None
    code = amd(made.module.text, target(where).arch, tmp_path)
    assert unit in code
    assert "ds_read_b128" in code or "ds_load_b128" in code
    assert "global_load_dwordx4" in code or "global_load_b128" in code or "buffer_load_dwordx4" in code
    assert "\tscratch_" not in code and "\tbuffer_store_dword_" not in code


@pytest.mark.parametrize(("where", "dtype", "condition", "end"), [
    ("cuda:sm_80", "f32", "k <= m", "m_c + 128"), ("hip:gfx942", "f32", "k + 200 <= m", "m_c - 64"),
    ("hip:gfx1100", "f64", "k < n", "n_c +"), ("cuda:sm_80", "f16", "2*k <= m", "(m_c / 2) +")])
def test_a_triangular_sum_ends_where_no_row_of_a_block_has_terms(where: str, dtype: str, condition: str, end: str) -> None:
    """Of 128 rows the last one has most terms; of rows before 200 none has any, and their block goes through nothing."""
    a, b = (CASTS[dtype].format(x) for x in ("A[m,k]", "B[k,n]"))
    operator = polyop.op(f"op mm(A: {dtype}[M, K], B: {dtype}[K, N]) -> (C: {SUMS[dtype]}[M, N]) {{\n"
                         f"  C[m,n] += {a} * {b} where {condition} }}")
    op = operator._op(operator.choice())
    made = compile_op(op, contiguous(op), target(where), Options())
    assert made.rung == "tuned" and made.module is not None
    (loop,) = (x for x in made.module.text.splitlines() if x.strip().startswith("for (int k_c"))
    assert f"pop_index_min({end}" in loop
    for m, k, n in ((1, 1, 1), (205, 131, 67)):
        given, _ = arrays(dtype, "nn", (m, k, n))
        report = emulated.run(made.module, {"M": m, "K": k, "N": n}, {}, given, order="backward")
        known = {"m": np.arange(m)[:, None, None], "k": np.arange(k)[None, :, None], "n": np.arange(n)[None, None, :]}
        has = eval(condition, {}, known)
        want = (given["A"].astype(float)[:, :, None] * given["B"].astype(float) * has).sum(1)
        assert not report.findings and np.array_equal(given["C"], want), (m, k, n)
