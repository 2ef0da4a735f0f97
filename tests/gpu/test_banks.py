"""Conflicts in the banks of shared memory, counted on the emulator by line."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_kernels import module

from polyop.ir.errors import UnsupportedError
from polyop.runtime import cxx, emulated
from polyop.runtime.banks import Traffic

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)


def counted(body: str, block: int = 32, where: str = "cuda:sm_80", **arrays: np.ndarray) -> dict[str, Traffic]:
    """The traffic of each line, by what the line says, of a kernel that has first filled `S_s`, 4096 floats."""
    fill = "for (int i = t; i < 4096; i += (int)blockDim.x) S_s[i] = 0;\npop_barrier();\n"
    text = f"POP_SHARED_VIEW(S_s, float, 0, 4096);\nfloat* S_s = (float*)(pop_shared + 0);\n{fill}{body}"
    arrays = {"Y": np.zeros(4 * block, np.float32), **arrays}
    report = emulated.run(module(text, arrays, block=block, shared=16384, target=where), {}, {}, arrays, banks=True)
    assert not report.findings, report
    return {x.code: x for x in report.traffic}


@pytest.mark.parametrize(("index", "ways"), [
    ("t", 1), ("2 * t", 2), ("3 * t", 1), ("32 * t", 32), ("33 * t", 1), ("0", 1), ("t / 2", 1), ("8 * t", 8),
    ("32 * (t % 4) + t / 4", 4), ("32 * (t % 4) + (t / 4 ^ t % 4 * 8)", 1)])
def test_words_in_one_bank_take_a_cycle_each(index: str, ways: int) -> None:
    line = f"Y[t] = S_s[{index}];"
    x = counted(line)[line]
    assert (x.accesses, x.phases, x.cycles, x.write) == (1, 1, ways, False)


@pytest.mark.parametrize(("pitch", "ways"), [(4, 1), (32, 8), (36, 1), (16, 4), (20, 1)])
def test_sixteen_bytes_go_in_four_phases_of_eight_lanes(pitch: int, ways: int) -> None:
    line = f"pop_move<16>(Y + 4 * t, S_s + {pitch} * t);"
    x = counted(line)[line]
    assert (x.accesses, x.phases, x.cycles) == (1, 4, 4 * ways)


@pytest.mark.parametrize(("lane", "reads", "writes"), [
    ("t % 8", 0, 0), ("t % 4 + 4 * (t / 4 % 2 ^ t / 16 % 2)", 8, 0), ("t % 4 + 4 * (t / 16 % 2)", 0, 8),
    ("t % 4 + 4 * (t / 4 % 2 * (t / 16 % 2))", 4, 4)])
def test_sixteen_bytes_of_64_lanes_are_read_by_eight_lanes_that_are_no_neighbours(lane: str, reads: int, writes: int) -> None:
    """Lanes 0 to 3 and 20 to 23, 4 to 7 and 16 to 19, ..: what they read lies in 32 banks, if they have all eight `lane`s."""
    at = f"S_s + 4 * ({lane}) + 32 * t"
    read, write = f"pop_move<16>(Y + 4 * t, {at});", f"pop_move<16>({at}, Y + 4 * t);"
    found = counted(f"{read}\npop_barrier();\n{write}", block=64, where="hip:gfx942")
    assert (found[read].phases, found[read].conflicts, found[write].conflicts) == (8, reads, writes)


def test_eight_bytes_go_in_two_phases() -> None:
    line = "pop_move<8>(Y + 2 * t, S_s + 2 * t);"
    assert (counted(line)[line].phases, counted(line)[line].conflicts) == (2, 0)


@pytest.mark.parametrize(("row", "conflicts"), [("32 * t", 28), ("32 * t + 4 * (t % 8 ^ 0)", 0), ("36 * t", 0)])
def test_rows_of_ldmatrix_are_phases(row: str, conflicts: int) -> None:
    line = f"pop_ldmatrix_x4(r, S_s + {row});"
    x = counted(f"pop_u32 r[4];\n{line}\nY[t] = (float)r[0];")[line]
    assert (x.phases, x.conflicts) == (4, conflicts)


def test_each_warp_and_each_turn_of_a_loop_is_an_access() -> None:
    line = "for (int i = 0; i < 5; i++) Y[t] += S_s[32 * i + t % 32];"
    x = counted("Y[t] = 0;\n" + line, block=64)[line]
    assert (x.accesses, x.conflicts) == (10, 0)


def test_lanes_that_skip_a_turn_of_a_loop_meet_the_others_in_the_next_one() -> None:
    line = "if (i >= t % 2) Y[t] += S_s[(t ^ i) + 32 * t];"  # a bank for each lane in each turn
    x = counted(f"Y[t] = 0;\nfor (int i = 0; i < 2; ++i) {{\n{line}\n}}")[line]
    assert (x.accesses, x.conflicts) == (2, 0)


def test_lanes_that_leave_an_access_out_do_not_count() -> None:
    line = "if (t < 7) Y[t] = S_s[32 * t];"
    x = counted(line)[line]
    assert (x.accesses, x.cycles) == (1, 7)


def test_copies_write_in_phases_and_a_row_reads_like_a_sentence() -> None:
    line = "pop_copy_async<16>(S_s + 64 * t, X + 4 * t, true);"
    x = counted(f"{line}\npop_copy_commit();\npop_copy_wait<0>();\nY[t] = S_s[64 * t];", X=np.ones(128, np.float32))[line]
    assert str(x) == f"line 10: write x1, 8.00 ways: `{line}`"


def test_nothing_is_counted_unless_asked() -> None:
    arrays = {"Y": np.zeros(32, np.float32)}
    body = "float* S_s = (float*)(pop_shared + 0); S_s[t] = 1; Y[t] = S_s[t];"
    assert emulated.run(module(body, arrays, shared=128), {}, {}, arrays).traffic == ()
