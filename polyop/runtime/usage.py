"""What the kernels of a cubin or code object take of a GPU, read off the file itself."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from polyop.ir.errors import InternalError
from polyop.ir.module import Binary, launches
from polyop.ir.target import BY_NAME, Multiprocessor, Target
from polyop.runtime.elf import sections, string


@dataclass(frozen=True, slots=True)
class Usage:
    """One kernel.

    Units   registers of 32 bits for each thread (on AMD the vector ones); local: bytes of slow memory for each thread, which
            is where registers are spilled to; spills: how many of them the file itself counts; shared: bytes of shared memory
            of each block, of `threads`; occupancy: warps on a multiprocessor, and how many it could hold
    """

    kernel: str
    registers: int
    local: int
    spills: int = 0
    shared: int = 0
    threads: int = 0
    occupancy: tuple[int, int] = (0, 0)
    bound: str = ""

    def __str__(self) -> str:
        spills = f"{self.local} bytes of local memory a thread, so registers may be spilled" if self.local else "nothing spilled"
        if self.spills:
            spills = f"{self.spills} registers spilled to {self.local} bytes of local memory a thread"
        parts = [f"{self.registers} registers a thread", spills]
        parts += [f"{self.shared:,} bytes of shared memory"] if self.shared else []
        if self.occupancy[1]:
            here, most = self.occupancy
            why = f", bounded by {self.bound}" if here < most else ""
            parts.append(f"{here} of {most} warps on a multiprocessor in blocks of {self.threads}{why}")
        return f"{self.kernel}: {', '.join(parts)}"


def usage(binary: Binary) -> tuple[Usage, ...]:
    """Every kernel of `binary`, by name; none for code of a CPU.

    Raises  InternalError, if the file is not what its compiler is known to write.
    """
    readers = {"cuda": _cubin, "hip": _code_object}
    read = readers.get(binary.target.partition(":")[0])
    if read is None:
        return ()
    try:
        found = sorted(read(binary.code), key=lambda u: u.kernel)
    except (struct.error, IndexError, KeyError, ValueError, TypeError, StopIteration) as error:
        raise InternalError(f"usage: {binary.name} for {binary.target} cannot be read: {error!r}") from error
    row = BY_NAME.get(binary.target)
    return tuple(_launched(u, binary, row) if row else u for u in found)


def _launched(u: Usage, binary: Binary, row: Target) -> Usage:
    """`u` with what its launches add: dynamic shared memory, and how many warps fit on a multiprocessor."""
    mine = [x for x in launches(binary.launch) if x.kernel == u.kernel]
    if not mine or row.multi is None:
        return u
    threads, shared = max(x.block for x in mine), u.shared + max(x.shared for x in mine)
    here, bound = occupancy(row.multi, row.warp, threads, u.registers, shared)
    return replace(u, shared=shared, threads=threads, occupancy=(here, row.multi.parts * row.multi.warps), bound=bound)


def occupancy(m: Multiprocessor, warp: int, threads: int, registers: int, shared: int) -> tuple[int, str]:
    """How many warps of blocks of `threads` run on one multiprocessor at a time, and what bounds that.

    Source  CUDA's occupancy calculator: registers are handed out to warps, all else to blocks.
    """
    warps = -(-threads // warp)
    each = -(-max(1, registers) // m.granule) * m.granule
    bounds = {
        "threads": m.parts * m.warps // warps,
        "registers": m.registers // each * m.parts // warps,
        "shared memory": m.shared // (shared + m.reserved) if shared + m.reserved else m.blocks,
        "blocks": m.blocks,
    }
    least = min(bounds, key=lambda k: bounds[k])
    return bounds[least] * warps, least


_FRAME, _REGISTERS = 0x11, 0x2F


def _cubin(code: bytes) -> Iterator[Usage]:
    """`.nv.info` holds records { u8 format, u8 what, u16 size, data }; format 4 with 8 bytes is (symbol, value).

    Source  EIATTR_FRAME_SIZE and EIATTR_REGCOUNT as `cuobjdump -elf` prints them.
    """
    parts = sections(code)
    info, symbols, texts = parts[".nv.info"].data, parts[".symtab"].data, parts[".strtab"].data
    found: dict[int, dict[int, int]] = {}
    at = 0
    while at < len(info):
        form, what, size = struct.unpack_from("<BBH", info, at)
        if form == 4 and size == 8:
            symbol, value = struct.unpack_from("<II", info, at + 4)
            found.setdefault(symbol, {})[what] = value
        at += 4 + (size if form == 4 else 0)
    for symbol, values in found.items():
        name = string(texts, struct.unpack_from("<I", symbols, 24 * symbol)[0])
        if _REGISTERS in values:
            shared = parts.get(f".nv.shared.{name}")
            yield Usage(name, values[_REGISTERS], values.get(_FRAME, 0), shared=shared.size if shared else 0)


def _code_object(code: bytes) -> Iterator[Usage]:
    """The note of type 32 is a MessagePack map. Source: LLVM, User Guide for AMDGPU Backend, Code Object V5 Metadata."""
    note = next(s.data for s in sections(code).values() if s.type_ == 7)
    name, size, kind = struct.unpack_from("<III", note)
    if kind != 32:
        raise ValueError(f"a note of type {kind}")
    at = 12 + -(-name // 4) * 4
    for kernel in _unpacked(note[at : at + size], 0)[0]["amdhsa.kernels"]:
        # scalars that find no register move to lanes of a vector register, which takes no memory if there is one left
        scalars = kernel.get(".sgpr_spill_count", 0) if kernel[".private_segment_fixed_size"] else 0
        spills = kernel.get(".vgpr_spill_count", 0) + scalars
        yield Usage(kernel[".name"], kernel[".vgpr_count"], kernel[".private_segment_fixed_size"], spills,
                    kernel[".group_segment_fixed_size"])


_COUNTED = {0xDC: ("list", ">H"), 0xDD: ("list", ">I"), 0xDE: ("map", ">H"), 0xDF: ("map", ">I"), 0xD9: ("text", ">B"),
            0xDA: ("text", ">H"), 0xDB: ("text", ">I")}
_NUMBERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
_PLAIN = {0xC0: None, 0xC2: False, 0xC3: True}


def _unpacked(data: bytes, at: int) -> tuple[Any, int]:
    """The MessagePack value at `at`, of the sorts that such notes have, and where the next one starts."""
    head = data[at]
    at += 1
    if head < 0x80:
        return head, at
    if head in _PLAIN:
        return _PLAIN[head], at
    if head in _NUMBERS:
        return struct.unpack_from(_NUMBERS[head], data, at)[0], at + struct.calcsize(_NUMBERS[head])
    if head in _COUNTED:
        sort, form = _COUNTED[head]
        count = struct.unpack_from(form, data, at)[0]
        at += struct.calcsize(form)
    elif head < 0xC0:
        sort, count = ("map", head & 15) if head < 0x90 else ("list", head & 15) if head < 0xA0 else ("text", head & 31)
    else:
        raise ValueError(f"a value of sort {head:#x}")
    if sort == "text":
        return data[at : at + count].decode(), at + count
    parts = []
    for _ in range(count * (2 if sort == "map" else 1)):
        part, at = _unpacked(data, at)
        parts.append(part)
    return (dict(zip(parts[::2], parts[1::2], strict=True)) if sort == "map" else parts), at
