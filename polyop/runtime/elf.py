"""Sections of ELF files, as compilers and linkers write them. Source: System V ABI, chapter 4."""

from __future__ import annotations

import struct
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """Units  size: bytes, which `data` has unless they are zeros that the file leaves out."""

    name: str
    type_: int
    data: bytes
    size: int


def sections(code: bytes) -> dict[str, Section]:
    """The sections of a 64-bit little-endian file, by name.

    Raises  ValueError, struct.error or IndexError, if it is none.
    """
    if code[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit ELF file")
    start, size, count, names = struct.unpack_from("<Q10xHHH", code, 0x28)
    heads = [struct.unpack_from("<IIQQQQ", code, start + size * k) for k in range(count)]
    texts = code[heads[names][4]:][: heads[names][5]]
    found = (Section(string(texts, h[0]), h[1], code[h[4] : h[4] + h[5]], h[5]) for h in heads)
    return {s.name: s for s in found}


def string(texts: bytes, at: int) -> str:
    """The text that begins at a place of a section of them, and ends with a 0."""
    return texts[at : texts.index(b"\0", at)].decode()
