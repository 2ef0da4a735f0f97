"""Which line of a source each address of a library stands for, read off what its compiler wrote for debuggers.

Of what was inlined at an address the innermost function comes first, as its own file and line, then the places of the calls.

Source  DWARF 5, sections 3.3.8 and 6.2.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elftools.dwarf.compileunit import CompileUnit
    from elftools.dwarf.die import DIE
    from elftools.dwarf.dwarfinfo import DWARFInfo
    from elftools.dwarf.lineprogram import LineProgram

Place = tuple[str, int]
"""A file and a line."""

Call = tuple[int, int, int, Place]
"""How deep in other calls, the first address of what was inlined, the one behind it, and where it was called."""


def lines(path: Path, addresses: Iterable[int], ending: str) -> dict[int, int]:
    """The innermost line of each of `addresses` that is of a file with this `ending`; those without one are left out.

    Raises  ImportError, without pyelftools.
    """
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as f:
        file = ELFFile(f)  # type: ignore[no-untyped-call]
        if not file.has_dwarf_info():
            return {}
        dwarf = file.get_dwarf_info()
        rows = [row for unit in dwarf.iter_CUs() for row in _rows(dwarf, unit)]
        calls = [call for unit in dwarf.iter_CUs() for call in _calls(dwarf, unit)]
    rows.sort(key=lambda r: (r[0], r[1][1] > 0))  # one function may begin where another one ends
    starts = [at for at, _ in rows]
    found = {}
    for at in addresses:
        k = bisect_right(starts, at) - 1
        own = [rows[k][1]] if k >= 0 else []
        around = sorted((c for c in calls if c[1] <= at < c[2]), reverse=True)
        line = next((n for file, n in (*own, *(c[3] for c in around)) if n and file.endswith(ending)), 0)
        if line:
            found[at] = line
    return found


def _rows(dwarf: DWARFInfo, unit: CompileUnit) -> Iterator[tuple[int, Place]]:
    """From which address on code is of which line; behind the last address of a function the line is 0."""
    program = dwarf.line_program_for_CU(unit)
    if program is None:
        return
    files = _files(program)
    for entry in program.get_entries():
        s = entry.state
        if s is not None:
            yield s.address, ("", 0) if s.end_sequence else (files[s.file], s.line)


def _files(program: LineProgram) -> dict[int, str]:
    """The names of a unit's files by number, which begins with 1 before DWARF 5."""
    first = 0 if program["version"] >= 5 else 1
    return {k: f.name.decode() for k, f in enumerate(program["file_entry"], first)}


def _calls(dwarf: DWARFInfo, unit: CompileUnit) -> Iterator[Call]:
    """Where functions were inlined in a unit, and who called them."""
    program, top = dwarf.line_program_for_CU(unit), unit.get_top_DIE()
    if program is None:
        return
    files = _files(program)
    pending = [(0, die) for die in top.iter_children()]
    while pending:
        depth, die = pending.pop()
        pending += [(depth + 1, child) for child in die.iter_children()]
        if die.tag == "DW_TAG_inlined_subroutine" and "DW_AT_call_line" in die.attributes:
            file = files[die.attributes["DW_AT_call_file"].value]
            for low, high in _ranges(dwarf, unit, top, die):
                yield depth, low, high, (file, die.attributes["DW_AT_call_line"].value)


def _ranges(dwarf: DWARFInfo, unit: CompileUnit, top: DIE, die: DIE) -> Iterator[tuple[int, int]]:
    """The addresses of an entry: from one up to another, or several pieces."""
    from elftools.dwarf.ranges import BaseAddressEntry

    of = die.attributes
    if "DW_AT_high_pc" in of:
        low, high = of["DW_AT_low_pc"].value, of["DW_AT_high_pc"].value
        yield low, high if of["DW_AT_high_pc"].form == "DW_FORM_addr" else low + high
    lists = dwarf.range_lists()
    if "DW_AT_ranges" in of and lists is not None:
        base = top.attributes["DW_AT_low_pc"].value if "DW_AT_low_pc" in top.attributes else 0
        for piece in lists.get_range_list_at_offset(of["DW_AT_ranges"].value, cu=unit):
            if isinstance(piece, BaseAddressEntry):
                base = piece.base_address
            else:
                start = 0 if piece.is_absolute else base
                yield start + piece.begin_offset, start + piece.end_offset
