"""Which line of a source each address of a library stands for, read off the table that its compiler wrote.

A row of the table says from which address on which line of which file it is, up to the next row. Of what was inlined it knows
the innermost function alone, so functions that are not to be told of must be compiled without a line of their own.

Source  DWARF 5, section 6.2; `-gdwarf-5` asks compilers for it.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from polyop.runtime.elf import sections, string

Row = tuple[int, str, int]
"""An address, a file and a line; behind the last address of a function the line is 0."""

_ADVANCE_PC, _ADVANCE_LINE, _SET_FILE, _CONST_ADD, _FIXED_ADVANCE = 2, 3, 4, 8, 9
_END, _SET_ADDRESS = 1, 2
_PATH = 1  # of the contents that a row of files may have
_UDATA, _STRING, _LINE_STRP, _STRP = 0x0F, 0x08, 0x1F, 0x0E
_FIXED = {0x0B: 1, 0x05: 2, 0x06: 4, 0x07: 8, 0x1E: 16}  # forms of so many bytes


def lines(code: bytes, addresses: Iterable[int], ending: str) -> dict[int, int]:
    """The line of each of `addresses` in the library with this code; 0 if it is of no file with this `ending`, or not known."""
    parts = sections(code)
    texts = {form: parts[n].data for form, n in ((_LINE_STRP, ".debug_line_str"), (_STRP, ".debug_str")) if n in parts}
    table = parts[".debug_line"].data if ".debug_line" in parts else b""
    rows = sorted(_rows(table, texts), key=lambda r: (r[0], r[2] > 0))  # where one ends another may begin
    starts = [r[0] for r in rows]
    found = {}
    for at in addresses:
        k = bisect_right(starts, at) - 1
        found[at] = rows[k][2] if k >= 0 and rows[k][1].endswith(ending) else 0
    return found


def _rows(data: bytes, texts: dict[int, bytes]) -> Iterator[Row]:
    at = 0
    while at < len(data):
        size, version = struct.unpack_from("<IH", data, at)
        end = at + 4 + size
        if size >= 0xFFFFFFF0:
            raise ValueError("a table of lines for large files")
        if version == 5:  # others are of what was compiled without being asked for it
            yield from _program(data[at:end], texts)
        at = end


def _program(data: bytes, texts: dict[int, bytes]) -> Iterator[Row]:
    """What a unit's program writes, which starts behind its head."""
    (head,) = struct.unpack_from("<I", data, 8)
    shortest, _, _, base, width, first = struct.unpack_from("<BBBbBB", data, 12)
    files = _files(data, 18 + first - 1, texts)
    operands = data[18 : 18 + first - 1]  # of each instruction below `first`
    at, address, file, line = 12 + head, 0, 1, 1
    while at < len(data):
        what = data[at]
        at += 1
        if what >= first:  # both at once, and a row
            address += (what - first) // width * shortest
            line += base + (what - first) % width
            yield address, files[file], line
        elif what == 0:
            size, at = _unsigned(data, at)
            if data[at] == _END:
                yield address, "", 0
                address, file, line = 0, 1, 1
            elif data[at] == _SET_ADDRESS:
                (address,) = struct.unpack_from("<Q", data, at + 1)
            at += size
        elif what == _ADVANCE_LINE:
            step, at = _signed(data, at)
            line += step
        elif what == _FIXED_ADVANCE:
            address += struct.unpack_from("<H", data, at)[0]
            at += 2
        else:
            given = []
            for _ in range(operands[what - 1]):
                value, at = _unsigned(data, at)
                given.append(value)
            if what == 1:  # a row
                yield address, files[file], line
            elif what == _ADVANCE_PC:
                address += given[0] * shortest
            elif what == _SET_FILE:
                (file,) = given
            elif what == _CONST_ADD:
                address += (255 - first) // width * shortest


def _files(data: bytes, at: int, texts: dict[int, bytes]) -> list[str]:
    """The names of a unit's files: behind its folders, which are a table like this one."""
    for _ in range(2):
        pairs, at = data[at], at + 1
        form = []
        for _ in range(pairs):
            content, at = _unsigned(data, at)
            kind, at = _unsigned(data, at)
            form.append((content, kind))
        count, at = _unsigned(data, at)
        names = [""] * count
        for k in range(count):
            for content, kind in form:
                value, at = _value(data, at, kind, texts)
                names[k] = value if content == _PATH else names[k]
    return names


def _value(data: bytes, at: int, form: int, texts: dict[int, bytes]) -> tuple[str, int]:
    """A value of a table of files, if it is a text, and where the next one is."""
    if form in texts:
        return string(texts[form], struct.unpack_from("<I", data, at)[0]), at + 4
    if form == _STRING:
        name = string(data, at)
        return name, at + len(name.encode()) + 1
    if form == _UDATA:
        return "", _unsigned(data, at)[1]
    if form not in _FIXED:
        raise ValueError(f"a value of form {form:#x}")
    return "", at + _FIXED[form]


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    """A number in sevens of bits, the lowest first, and what is behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _signed(data: bytes, at: int) -> tuple[int, int]:
    value, behind = _unsigned(data, at)
    bits = 7 * (behind - at)
    return (value - (1 << bits) if value >> (bits - 1) else value), behind
