"""Instructions that look elements up in registers, as rows of data: { out[v] = t[at[v]] }, of a table t of a few elements.

One or two registers of elements are one table for an instruction; of four, a further bit of the place says in which two. A byte's
place names one of 256 bytes, four registers, so larger elements of more than four registers are looked up byte by byte: all their
first bytes are one table, all their second ones another.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyop.ir.target import LINE, Target

BYTE = 256
"""Places that a byte can say: of a table that has as many, no byte says one outside."""

FULL = BYTE - 1
"""Elements at most of tables that have fewer."""

REGISTERS = 4
"""Those that hold a table whose elements are looked up as a whole, at most."""

WIDEST = 4
"""Bytes of elements that are looked up byte by byte, at most: of eight, 32 registers would hold the table."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Instructions for elements of so many bytes, in vectors of `LINE`.

    one, two  LLVM's names: (table, places) and (first half, places, second half); places are of the elements' width
    feature   what the target must have
    """

    bytes_: int
    one: str
    two: str
    feature: str

    @property
    def width(self) -> int:
        """Elements of a register."""
        return LINE // self.bytes_

    def runs_on(self, t: Target) -> bool:
        return t.vector_bytes == LINE and t.has(self.feature)


# https://www.intel.com/content/www/us/en/docs/intrinsics-guide: VPERMB, VPERMI2B, VPERMW, VPERMI2W, VPERMD, VPERMI2D, ..
BYTES = Lookup(1, "llvm.x86.avx512.permvar.qi.512", "llvm.x86.avx512.vpermi2var.qi.512", "avx512vbmi")
ROWS = (BYTES, Lookup(2, "llvm.x86.avx512.permvar.hi.512", "llvm.x86.avx512.vpermi2var.hi.512", "avx512bw"),
        Lookup(4, "llvm.x86.avx512.permvar.si.512", "llvm.x86.avx512.vpermi2var.d.512", "avx512f"),
        Lookup(8, "llvm.x86.avx512.permvar.di.512", "llvm.x86.avx512.vpermi2var.q.512", "avx512f"))


def lookup(t: Target, bytes_: int, most: int) -> Lookup | None:
    """What looks up elements of so many bytes in a table of at most `most`: their own row, or that of bytes."""
    row = next((r for r in ROWS if r.bytes_ == bytes_ and r.runs_on(t)), None)
    if row is not None and most <= REGISTERS * row.width:
        return row
    return BYTES if bytes_ <= WIDEST and most <= BYTE and BYTES.runs_on(t) else None


def size_class(count: int) -> int:
    """The least number of elements that tables are distinguished by, of tables which have `count`; 0 for larger ones.

    16, 32, 64 or 128 at most; fewer than `BYTE`; or all of these.
    """
    return next((n for n in (16, 32, 64, 128, FULL, BYTE) if count <= n), 0)
