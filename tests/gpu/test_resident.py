"""Recurrences in one block of threads: attention as one kernel, its scores in nobody's memory but the block's."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from math import prod

import numpy as np
import pytest

import polyop
from polyop.compiler import Compiled, compile_op
from polyop.ir.dtypes import DTYPES
from polyop.ir.errors import UnsupportedError
from polyop.ir.loops import For, Space, stores, walk
from polyop.ir.module import launches
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.poly.blocks import staged
from polyop.rewrite.regimes.block_regimes import in_blocks
from polyop.rewrite.regimes.questions import questions
from polyop.runtime import amdgcn, cxx, emulated, nvrtc
from polyop.runtime.layout import contiguous
from polyop.runtime.usage import usage
from tests.library.catalog import CASES, IDS, instance

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

TEXT = """op attention(Q: T[B, S, D], K: T[B, N, D], V: T[B, N, E]) -> (O: T[B, S, E]) {
    s[b, i, j]  += f32(Q[b, i, d]) * f32(K[b, j, d])
    m[b, i]    max= s[b, i, j]
    p[b, i, j]   = exp(s[b, i, j] - m[b, i])
    z[b, i]     += p[b, i, j]
    o[b, i, v]  += f32(T(p[b, i, j])) * f32(V[b, j, v])
    O[b, i, v]   = T(o[b, i, v] / z[b, i])
}"""
SIZES = ((1, 1, 1), (63, 64, 3), (65, 129, 40), (5, 7, 70))  # rows, keys, depth
UNITS = {"cuda:sm_80": "pop_mma_m16n8k16_f16", "hip:gfx942": "pop_mfma_f32_16x16x32_f16",
         "hip:gfx1100": "pop_wmma_f32_16x16x16_f16"}


@cache
def attention(where: str, dtype: str, channels: int, options: Options | None = None, depth: int = 0) -> Compiled:
    text = TEXT.replace("T[", f"{dtype}[").replace("T(", f"{dtype}(").replace("E]", f"{channels}]" if channels else "E]")
    text = text.replace("D]", f"{depth}]") if depth else text
    operator = polyop.op(text)
    op = operator._op(operator.choice())
    return compile_op(op, contiguous(op), target(where), options or Options())


def arrays(dtype: str, channels: int, sizes: tuple[int, int, int]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rows, keys, depth = sizes
    g = np.random.default_rng(rows + keys)
    shapes = {"Q": (2, rows, depth), "K": (2, keys, depth), "V": (2, keys, channels)}
    given = {n: g.standard_normal(s).astype(DTYPES[dtype].numpy) for n, s in shapes.items()}
    q, k, v = (given[n].astype(np.float64) for n in "QKV")
    s = q @ k.transpose(0, 2, 1)
    p = np.exp(s - s.max(-1, keepdims=True))
    return given | {"O": np.zeros((2, rows, channels), DTYPES[dtype].numpy)}, p @ v / p.sum(-1, keepdims=True)


def run(made: Compiled, dtype: str, channels: int, sizes: tuple[int, int, int], **how) -> tuple[emulated.Report, float]:
    given, want = arrays(dtype, channels, sizes)
    named = {"B": 2, "S": sizes[0], "N": sizes[1], "D": sizes[2], "E": channels}
    report = emulated.run(made.module, {n: named[n] for n in made.op.sizes}, {}, given, **how)
    return report, float(np.abs(given["O"].astype(np.float64) - want).max())


@pytest.mark.parametrize(("where", "dtype", "channels"), [
    ("cuda:sm_80", "f16", 64), ("cuda:sm_80", "f32", 32), ("cuda:sm_90a", "f16", 128), ("hip:gfx90a", "f32", 128),
    ("hip:gfx942", "f16", 128), ("hip:gfx1100", "f16", 64)])
def test_attention_is_one_proved_kernel_whose_values_are_right(where, dtype, channels):
    made = attention(where, dtype, channels)
    assert made.rung == "tuned" and len(launches(made.module.launch)) == 1
    assert not [b for b in made.nest.buffers if b.space == Space.WORK]
    assert all(p.holds for p in made.proofs)
    if dtype == "f16" and where in UNITS:
        assert made.module.text.count(UNITS[where]) == 2
    for sizes in SIZES:
        for order in ("forward", "backward"):
            report, error = run(made, dtype, channels, sizes, order=order)
            assert not report.findings, report
            assert error < (4e-3 if dtype == "f16" else 2e-5), (sizes, order)


def test_a_block_has_more_threads_where_each_would_have_more_results_than_registers():
    """Those of the scores are as many: else each contraction has a kernel of its own. Eight threads have a row of the scores, and
    four rows side by side would meet two ways, had their lines not changed places.
    """
    made = attention("cuda:sm_80", "f32", 256)
    assert len(launches(made.module.launch)) == 1 and "in a block of 512 threads" in made.chosen[0]
    report, error = run(made, "f32", 256, (65, 129, 5), order="backward", banks=True)
    assert not report.findings and error < 2e-5
    assert report.traffic and not [str(t) for t in report.traffic if t.conflicts]


def test_channels_are_kept_for_as_many_as_a_call_has():
    made = attention("cuda:sm_80", "f32", 0, Options(held=(("E", 32),)))
    assert len(launches(made.module.launch)) == 1
    for channels in (1, 31, 32):
        report, error = run(made, "f32", channels, (33, 65, 5), order="shuffled")
        assert not report.findings and error < 2e-5
    assert len(launches(attention("cuda:sm_80", "f32", 0).module.launch)) == 3  # of any number of channels


@pytest.mark.parametrize("where", ["cuda:sm_80", "hip:gfx1100"])
def test_fewer_rows_than_a_block_has_are_one_kernel_too(where):
    operator = polyop.op(TEXT.replace("T[", "f16[").replace("T(", "f16(").replace("S,", "5,").replace("E]", "24]"))
    op = operator._op(operator.choice())
    made = compile_op(op, contiguous(op), target(where))
    assert len(launches(made.module.launch)) == 1
    report, error = run(made, "f16", 24, (5, 70, 9))
    assert not report.findings and error < 4e-3


@pytest.mark.parametrize("where", ["cuda:sm_80", "hip:gfx942"])
def test_keys_of_batches_read_backwards_are_copied_like_others(where):
    text = TEXT.replace("T[", "f16[").replace("T(", "f16(").replace("E]", "64]").replace("D]", "64]")
    operator = polyop.op(text.replace("K[b, j, d]", "K[B - 1 - b, j, d]"))  # the size is no loop
    op = operator._op(operator.choice())
    made = compile_op(op, contiguous(op), target(where), Options())
    assert made.rung == "tuned" and len(launches(made.module.launch)) == 1
    given, want = arrays("f16", 64, (33, 70, 64))
    given["K"] = given["K"][::-1].copy()
    report = emulated.run(made.module, {"B": 2, "S": 33, "N": 70}, {}, given, order="backward")
    assert str(report) == "no fault found"
    assert np.abs(given["O"].astype(np.float64) - want).max() < 4e-3


def test_strict_numerics_keep_the_sums_of_the_text():
    assert len(launches(attention("cuda:sm_80", "f32", 64, Options(numerics="strict")).module.launch)) > 1


@pytest.mark.parametrize(("name", "where"), [
    *((n, "cuda:sm_80") for n in ("attention", "attention_causal", "attention_window", "attention_masked", "attention_padded",
                                  "attention_alibi", "attention_gqa", "attention_mqa")), ("attention_gqa", "cuda:sm_90a")])
def test_each_attention_of_the_library_is_one_kernel(name, where):
    at = next(k for k, x in enumerate(IDS) if x.startswith(f"attention-{name},"))
    file, case = CASES[at]
    given = case.sizes[0]
    op = instance(file, case, "f16", case.arguments("f16", given), case.keywords(given))
    options = in_blocks(op, questions(op), dict.fromkeys(op.sizes, 64), Options(special=False), target(where))
    made = compile_op(op, contiguous(op), target(where), options)
    large = [b.name for b in made.nest.buffers if b.space == Space.WORK and len(b.dims) > 2]
    assert not large and any("64 rows in a block" in c for c in made.chosen), made.notes


@pytest.mark.parametrize(("where", "channels", "slots"), [("cuda:sm_80", 64, 2), ("cuda:sm_80", 128, 1), ("cuda:sm_90a", 64, 2),
                                                          ("cuda:sm_90a", 80, 1),  # room for three blocks
                                                          ("hip:gfx942", 64, 1), ("hip:gfx1100", 33, 1)])
def test_a_turn_copies_only_what_it_changes_and_a_turn_ahead(where, channels, slots):
    made = attention(where, "f16", channels, depth=channels)
    (turns,) = [n for n in walk(made.nest.body) if isinstance(n, For) and n.index == "j_b"]
    inside = {s.stmt for s in stores(turns.body)}
    every = {s.stmt for s in stores(made.nest.body)}
    assert "S0_first0" in every - inside and not [s for s in every if s.startswith("S0_next0")]  # Q is copied once
    assert "S0_first1" in every - inside and "S0_next1" in inside  # K before its turn
    assert [made.nest.buffer(b).dims[0][0].const for b in ("Q_S0_tile0", "K_S0_tile1", "V_S9_tile1")] == [1, slots, slots]
    for sizes in ((1, 1), (63, 64), (64, 65), (65, 129)):
        for order in ("forward", "backward"):
            report, error = run(made, "f16", channels, (*sizes, channels), order=order)
            assert not report.findings and error < 4e-3, (sizes, order)


def test_depths_of_at_most_so_much_are_one_tile():
    made = attention("cuda:sm_80", "f16", 64, Options(held=(("D", 64),)))
    assert [b.dims[2][0].const for b in made.nest.buffers if b.name == "Q_S0_tile0"] == [64 + 8]
    for depth in (1, 33, 64):
        report, error = run(made, "f16", 64, (65, 129, depth))
        assert not report.findings and error < 4e-3, depth


@pytest.mark.parametrize("channels", [64, 128])
def test_units_that_read_shared_memory_take_both_products_and_boxes_what_they_read(channels):
    made = attention("cuda:sm_90a", "f16", channels, depth=channels)
    assert not [n for n in made.notes if "loops are not rewritten" in n]
    assert made.module.text.count("pop_wgmma_m64n64k16_f16<0, 0>") == channels // 16  # scores
    assert made.module.text.count(f"pop_wgmma_m64n{channels}k16_f16_a<1>") == 4  # values, across the sum; weights in registers
    # Q, and K and V before the first turn and in each, but V in one slot
    assert made.module.text.count("pop_ring_load") == (5 if channels == 64 else 4) * channels // 64
    shared = {b.name: b.swizzle for b in made.nest.buffers if b.space == Space.SHARED}
    assert shared == dict.fromkeys(("Q_S0_tile0", "K_S0_tile1", "V_S9_tile1"), 128)
    for sizes in SIZES:
        for order in ("forward", "shuffled"):
            report, error = run(made, "f16", channels, (*sizes[:2], channels), order=order)
            assert not report.findings and error < 4e-3, (sizes, order)


def test_depths_that_no_line_of_a_unit_ends_with_are_right():
    made = attention("cuda:sm_90a", "f16", 64, Options(held=(("D", 128),)))
    assert "pop_wgmma" in made.module.text
    for depth in (1, 33, 65, 80, 128):
        report, error = run(made, "f16", 64, (66, 130, depth))
        assert not report.findings and error < 4e-3, depth


def test_rows_in_shared_memory_are_moved_by_16_bytes_and_no_lanes_meet():
    made = attention("hip:gfx942", "f16", 64, depth=64)
    given, _ = arrays("f16", 64, (64, 128, 64))
    traffic = emulated.run(made.module, {"B": 2, "S": 64, "N": 128}, {}, given, banks=True).traffic
    mine = [t for t in traffic if "pop_wide" in t.code]
    assert len(mine) >= 6 and all(t.cycles == t.phases for t in mine)


@pytest.mark.parametrize("where", ["cuda:sm_80", "cuda:sm_90a"])
def test_up_to_256_channels_are_one_kernel_where_shared_memory_holds_them(where):
    made = attention(where, "f16", 0, Options(held=(("D", 256), ("E", 256))))
    assert len(launches(made.module.launch)) == 1 and all(" by mma_" in c for c in made.chosen if "staged" in c)
    for channels in (129, 256):
        report, error = run(made, "f16", channels, (65, 66, channels))
        assert not report.findings and error < 4e-3, channels
    if not nvrtc.unavailable():
        (kernel,) = usage(nvrtc.assemble(made.module))
        assert kernel.local == 0, kernel


def test_nothing_is_built_of_tiles_that_have_no_room_and_their_bytes_are_told_before(monkeypatch):
    """Two slots of 256 channels have none on sm_80: each contraction is built once, not twice."""
    built, build = [], staged.build

    def told(*asked):
        part = build(*asked)
        shared = [b for b in part.buffers if b.space == Space.SHARED]
        assert staged.tile_bytes(*asked) == sum(prod(e.const for e, _ in b.dims) * b.dtype.bytes_ for b in shared) > 0
        return built.append(part) or part

    monkeypatch.setattr(staged, "build", told)
    made = attention("cuda:sm_80", "f16", 200, depth=200)
    assert len(built) == 2 and len(launches(made.module.launch)) == 1


def test_no_contraction_goes_without_its_unit_so_that_all_have_room_in_a_block():
    made = attention("hip:gfx942", "f16", 256, depth=256)
    assert len(launches(made.module.launch)) == 3 and all(" by mfma_" in c for c in made.chosen if "staged" in c)


BARRIER = re.compile(r"pop_(copies|units)_barrier<\d>\((pop_arriving)?\);")


@pytest.mark.parametrize(("where", "depth", "pending"), [("cuda:sm_80", 0, [0, 0]), ("cuda:sm_80", 64, [0]),
                                                         ("cuda:sm_90a", 64, [0, 0])])
def test_barriers_are_few_and_leave_the_next_tiles_on_their_way(where, depth, pending):
    text = attention(where, "f16", 64, depth=depth).module.text
    assert [int(x[0][x[0].index("<") + 1]) for x in BARRIER.finditer(text)] == pending


def without_barrier(where: str, depth: int, at: int) -> list[tuple[emulated.Report, float]]:
    """What three orders of threads find without one of the barriers."""
    made = attention(where, "f16", 64, depth=depth)
    x = [*BARRIER.finditer(made.module.text)][at]
    text = made.module.text[:x.start()] + ";" + made.module.text[x.end():]
    broken = replace(made, module=replace(made.module, text=text))
    return [run(broken, "f16", 64, (65, 129, depth or 40), order=x) for x in ("forward", "backward", "shuffled")]


@pytest.mark.parametrize(("where", "depth", "at"), [
    *(("cuda:sm_80", 0, k) for k in range(2)), ("cuda:sm_80", 64, 0), ("cuda:sm_90a", 64, 1)])
def test_each_barrier_left_out_is_found(where, depth, at):
    assert any(report.findings for report, _ in without_barrier(where, depth, at))


def test_a_barrier_that_parts_groups_of_which_all_are_waited_for_may_be_left_out():
    for report, error in without_barrier("cuda:sm_90a", 64, 0):
        assert not report.findings and error < 4e-3, report


def test_a_barrier_that_leaves_more_on_their_way_is_found():
    made = attention("cuda:sm_80", "f16", 64, depth=64)
    text = made.module.text.replace("pop_copies_barrier<0>", "pop_copies_barrier<1>")
    broken = replace(made, module=replace(made.module, text=text))
    assert run(broken, "f16", 64, (65, 129, 64))[0].findings


@pytest.mark.parametrize("where", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx90a", "hip:gfx942", "hip:gfx1100"])
def test_nothing_is_spilled_to_memory(where):
    tool = nvrtc if where.startswith("cuda") else amdgcn
    if tool.unavailable():
        pytest.skip(tool.unavailable())
    for dtype, channels, depth in (("f16", 128, 0), ("f16", 64, 64), ("f16", 128, 128), ("f32", 64, 0)):
        made = attention(where, dtype, channels, depth=depth)
        (kernel,) = usage(tool.assemble(made.module))
        assert kernel.spills == kernel.local == 0, kernel
