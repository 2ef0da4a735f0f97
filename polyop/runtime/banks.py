"""How the warps of an emulated kernel go through the banks of shared memory, by line of the text."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from polyop.ir.module import Module

_TOLD = 5  # lines with conflicts that a user is told of


@dataclass(frozen=True, slots=True)
class Traffic:
    """The accesses to shared memory of one line, whole warps at a time.

    phases  what they would take if no two lanes met in a bank: 128 bytes each
    cycles  what they take: in each phase the most different words of one of 32 banks of 4 bytes
    Notes   The lanes of a phase are neighbours, but of 16-byte reads by warps of 64 lanes: see pop_emu_banks.h. Loads that a
            device's compiler would join into one count as several.
    """

    line: int
    code: str
    write: bool
    accesses: int
    phases: int
    cycles: int

    @property
    def conflicts(self) -> int:
        """Cycles lost."""
        return self.cycles - self.phases

    def __str__(self) -> str:
        how = f"{self.cycles / self.phases:.2f} ways" if self.conflicts else "no conflicts"
        return f"line {self.line}: {'write' if self.write else 'read'} x{self.accesses}, {how}: `{self.code}`"


def in_words(found: tuple[Traffic, ...]) -> str:
    """What a user is told of a run: how long shared memory takes, and the lines in which lanes meet, the longest first."""
    cycles, lost = sum(t.cycles for t in found), sum(t.conflicts for t in found)
    meets = sorted((t for t in found if t.conflicts), key=lambda t: -t.conflicts)
    lines = [f"  {t}" for t in meets[:_TOLD]] + ([f"  and {len(meets) - _TOLD} more lines"] if len(meets) > _TOLD else [])
    how = f"{lost / cycles:.0%} of them lost as lanes meet in a bank" if lost else "no lanes meet in a bank"
    return "\n".join([f"shared memory takes {cycles:,} cycles: {how}", *lines]) if found else "shared memory is not used"


class _Counted(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint64) for n in ("place", "write", "accesses", "cycles", "phases")]


def counted(lib: ctypes.CDLL, module: Module, lines_of: Callable[[tuple[int, ...]], dict[int, int]]) -> tuple[Traffic, ...]:
    """What was counted since the emulator started afresh, a row for reads and one for writes of each line."""
    first = ctypes.POINTER(_Counted)()
    count = lib.pop_emu_traffic(ctypes.byref(first))
    lines = lines_of(tuple(t.place for t in first[:count]))
    rows: dict[tuple[int, bool], list[int]] = {}
    for t in first[:count]:
        row = rows.setdefault((lines[t.place], bool(t.write)), [0, 0, 0])
        for i, n in enumerate((t.accesses, t.phases, t.cycles)):
            row[i] += n
    text = module.text.splitlines()
    return tuple(Traffic(at, text[at - 1].strip() if at else "", write, *rows[at, write]) for at, write in sorted(rows))
