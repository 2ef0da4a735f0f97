"""What the emulator found, in words: which access of which thread to which element, and the line of the kernel's text."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile

from polyop.ir.expr import Load
from polyop.ir.module import Module
from polyop.runtime import linetable
from polyop.runtime.banks import Traffic

_WHAT = {1: "race", 2: "race", 3: "race", 4: "out of bounds", 5: "uninitialised read", 6: "write to an input",
         7: "divergent barrier", 8: "access in flight", 9: "misaligned access", 10: "divergent collective", 11: "deadlock",
         12: "copy without a wait", 13: "divergent collective", 14: "access in flight", 15: "access in flight",
         16: "missing fence", 17: "divergent barrier", 18: "overflow of an index"}
_HOW = {1: "written by {0} and by {1}", 2: "read by {0}, written by {1}", 3: "written by {0}, read by {1}",
        8: "by {0}, while a copy of {1} is on its way there", 14: "by {0}, while a copy or a product still reads it",
        15: "by {0} to accumulators of a product that goes on", 16: "by {0}, written by {1}, and no fence between"}
_MEETINGS = {7, 10}
"""The same wait at two places: if both are on one line of the text, it is the compiler that made two of one."""
_MANY = 0xFFFFFFFF
_SHARED = -2
_TEXT = ".cpp"  # how the file with a kernel's text ends


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault that a kernel made while it ran.

    what    "race", "out of bounds", "uninitialised read", "write to an input", "access in flight" (to what asynchronous work
            still writes or reads), "misaligned access", "divergent barrier", "divergent collective" (some lanes of a warp are
            missing or elsewhere), "deadlock", "missing fence" (between a store and the copy engine or matrix unit that reads
            it), "copy without a wait" (a thread ended before what it had started) or "overflow of an index"
    buffer  a parameter, or an array in shared memory
    index   which element of `buffer`; out of bounds, the place where it would be
    who     the threads that took part
    line    of the module's text, from 1; 0 if it could not be found out
    """

    what: str
    kernel: str
    buffer: str
    index: tuple[int, ...]
    who: str
    line: int = 0
    code: str = ""

    def __str__(self) -> str:
        place = f"{self.buffer}[{', '.join(map(str, self.index))}]" if self.index else self.buffer
        where = f", line {self.line}: `{self.code}`" if self.line else ""
        return f"{self.what} in {self.kernel}: {place + ' ' if place else ''}{self.who}{where}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a run showed: the first computed position outside its tensor, if any, the faults found, and, if they were counted,
    accesses to shared memory.
    """

    site: Load | None
    findings: tuple[Finding, ...]
    traffic: tuple[Traffic, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.site} is outside its tensor"] if self.site else []
        return "\n".join([*lines, *map(str, self.findings)]) or "no fault found"


def kept(module: Module) -> Path:
    """A new file with the module's text, whose lines are those of findings. Nobody removes it."""
    kind = ".cu" if module.target.startswith("cuda") else ".hip"
    with NamedTemporaryFile("w", prefix=f"polyop-{module.name}-", suffix=kind, delete=False, encoding="utf-8") as f:
        f.write(module.text)
    return Path(f.name)


class _Found(ctypes.Structure):
    _fields_ = [("what", ctypes.c_int), ("buffer", ctypes.c_int), ("element", ctypes.c_int64), ("block", ctypes.c_uint32),
                ("thread", ctypes.c_uint32), ("other_block", ctypes.c_uint32), ("other_thread", ctypes.c_uint32),
                ("place", ctypes.c_uint64), ("other_place", ctypes.c_uint64), ("name", ctypes.c_char * 64)]


def findings(lib: ctypes.CDLL, path: Path, kernel: str, block: int, module: Module,
             place: Callable[[int, int], tuple[str, tuple[int, ...]]], known: int) -> tuple[list[Finding], int]:
    """What the emulator found after the first `known` faults, and how many it knows now.

    Of a kernel in the library at `path` with `block` threads in a block.

    place  the name and index of an element of a buffer, both by number
    """
    first = ctypes.POINTER(_Found)()
    count = lib.pop_emu_findings(ctypes.byref(first))
    out = []
    text = module.text.splitlines()
    lines = lines_of(path, tuple(p for f in first[known:count] for p in (f.place, f.other_place)))
    lines = {p: line if line <= len(text) else 0 for p, line in lines.items()}  # behind the text stands what starts its kernels
    for f in first[known:count]:
        line, other_line = lines[f.place], lines[f.other_place]
        if f.what in _MEETINGS and line and line == other_line:
            continue
        me, other = _thread(f.thread, f.block, block), _thread(f.other_thread, f.other_block, block)
        who = _HOW.get(f.what, "by {0}").format(me, other)
        if other_line:
            who += f", and by {other} in line {other_line}"
        code = text[line - 1].strip() if line else ""
        buffer, index = (f.name.decode(), (f.element,)) if f.buffer == _SHARED else place(f.buffer, f.element) if f.buffer >= 0 \
            else ("", ())
        out.append(Finding(_WHAT[f.what], kernel, buffer, index, who, line, code))
    return out, count


def _thread(thread: int, of_block: int, block: int) -> str:
    if of_block == _MANY:
        return "other threads"
    return f"the copy engine of block {of_block}" if thread == block else f"thread {thread} of block {of_block}"


def lines_of(path: Path, places: Sequence[int]) -> dict[int, int]:
    """The line of the module's text that the code before each place stands for; 0 if it cannot be found out."""
    before = {p: p - 1 for p in places if p}  # a return address is one past the call
    if not before:  # as after most launches: a library of many kernels takes longer to read than they do
        return dict.fromkeys(places, 0)
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if tool:
        found = _asked(tool, path, before.values())
    else:
        found = linetable.lines(path, before.values(), _TEXT) if find_spec("elftools") else {}
    return {p: found.get(before[p], 0) if p else 0 for p in places}


def _asked(tool: str, path: Path, addresses: Iterable[int]) -> dict[int, int]:
    """The lines of addresses, as binutils or LLVM tell them."""
    # -a writes each address above its lines, the innermost first
    done = subprocess.run([tool, "-a", "-i", "-e", str(path), *map(hex, addresses)], capture_output=True, text=True, check=False)
    lines: dict[int, int] = {}
    at = 0
    for text in done.stdout.splitlines():
        if text.startswith("0x"):
            at = int(text, 16)
            continue
        file, _, line = text.split(" (")[0].rpartition(":")
        if at not in lines and file.endswith(_TEXT) and line.isdigit():  # the rest are headers
            lines[at] = int(line)
    return lines
