"""What machine code makes of the values of a call: see `polyop/runtime/gpu/launch.ll`."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
from fake_gpu import FakeGpu

from polyop.runtime.gpu import table
from polyop.runtime.gpu.driver import Device

SLOTS, COUNT = 7, 5
Words = list[tuple[int, ...]]


def wanted(values: list[int], checks: Words, pairs: Words, copies: Words, before: list[int]) -> list[int] | None:
    """The slots of a table by integers of any size; None where the values do not fit it."""
    if any(values[k] == 0 or values[k] & mask for k, mask in checks):
        return None
    for a, first, last, b, start, end in pairs:
        if values[a] + first < values[b] + end and values[b] + start < values[a] + last:
            return None
    after = list(before)
    for k, slot, distance in copies:
        after[slot] = (values[k] + distance) % 2**64
    return after


def test_a_program_looks_at_what_is_given_and_fills_in_the_table(cuda: FakeGpu) -> None:
    rng, run, seen = np.random.default_rng(1), table.code().run, set()

    def some(most: int, *ends: int) -> Words:
        return [tuple(int(rng.integers(e)) for e in ends) for _ in range(rng.integers(most))]

    for _ in range(1000):
        values = [int(v) for v in rng.choice([0, 1, 4, 8, 12, 16, 32, 40, 2**47 + 8], COUNT)]
        checks = [(k, (0, 1, 3, 7)[m]) for k, m in some(3, COUNT, 4)]
        pairs = [(a, f, f + n, b, s, s + m) for a, f, n, b, s, m in some(3, COUNT, 3, 9, COUNT, 3, 9)]
        copies = some(SLOTS, COUNT, SLOTS, 1000)
        made, program = table.table(Device("cuda", 0), (), SLOTS), table.program(checks, pairs, copies)
        before, row = list(range(100, 100 + SLOTS)), made.row()
        struct.pack_into(f"<{SLOTS}Q", row.memory, 0, *before)
        given = table.given(made, row, program, COUNT)
        struct.pack_into(f"<{COUNT}Q", given.memory, table.FRONT, *values)
        want = wanted(values, checks, pairs, copies, before)
        assert run(given.address, 0) == (table.LONG if want is None else 0)
        assert list((ctypes.c_uint64 * SLOTS).from_buffer(row.memory)) == (before if want is None else want)
        seen.add(want is None)
    assert seen == {True, False}
