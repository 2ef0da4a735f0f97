"""Texts of kernels with one thing wrong at a time, and whether the emulator or the values tell.

All mutants of a kernel are one text: what each changes is asked of a number, so a compiler starts once for hundreds of them.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from polyop.ir.errors import UnsupportedError
from polyop.ir.module import Module
from polyop.runtime import cxx, emulated

Array = np.ndarray
Way = tuple[str, int, str]
FIRST = 1 << 20  # number of a mutant in a header
SECONDS = 30  # of a processor that a mutant may take, whatever else runs: a loop may have lost its end

HEAD = """
extern "C" __attribute__((visibility("default"))) int pop_mutant = -1;
static inline int pop_mutated(int n) { return pop_mutant == n; }
template <class T> static inline T pop_altered(T x, int n) {
    return pop_mutant == n ? x + 1 : pop_mutant == n + 1 ? x - 1 : pop_mutant == n + 2 ? x / 2 : x;
}
"""
START = re.compile(r'^extern "C" __global__ void ', re.MULTILINE)
ROOM = re.compile(r"^\s*(alignas\(\d+\) )?(const )?\w+ \w+(\[\d+\])+( = .*)?;|POP_SHARED|^\s*#|^\s*//|pop_pipe_start|pop_ring<")
TEMPLATE = re.compile(r"\bpop_\w+<[^<>()]*>|alignas\(\d+\)")
NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
COMPARED = re.compile(r" (<|<=|>|>=|==|!=) (?!0\.|-?INF)")
CALLED = re.compile(r"(?:^\s*|[;{}] )(?=pop_\w+(?:<[^<>;]*>)?\()")
ASSIGNED = re.compile(r"(?:^\s*|[;{}] )(?=[A-Za-z_]\w*(?:\[[^;=]*\])* [-+*/|&^]?= )")
BARRIER = re.compile(r"(?:^\s*|[;{}] )(?=(pop_\w*barrier(?:<\d>)?\([^;]*\);|__syncthreads\(\);))")
PENDING = re.compile(r"(pop_(?:copies_barrier|units_barrier(?=<\d>\(\))|(?:producer|consumer)_barrier|wgmma_wait)<)"
                     r"(\d)(>\([^;]*\);)")
ATOMIC = re.compile(r"\bpop_atomic_add\(&([^;]*), ([^;,]*)\);")
MEETING = re.compile(r"(?:^ +|\) )(?=pop_(?:(?:warp_|shared_)?barrier|copy_commit|copy_wait<\w+>|async_fence|mbarrier_\w+)\()")
HEADERS = ("pop_block.h", "pop_copy.h", "pop_hopper.h")
TOGETHER = re.compile(r"pop_\w*(barrier|wait|fence|commit|end|release|copy|put|take|ring|atomic)")
SILENT = re.compile(r"pop_(registers_\w+|interleave|anew|wgmma_hold)\b")


@dataclass(frozen=True, slots=True)
class Mutant:
    """What is wrong in mutant `number` of a text, in line `line` of it, at `column`, from 0."""

    number: int
    line: int
    column: int
    what: str
    code: str

    @property
    def meets(self) -> bool:
        """Whether that is what threads do together, or what goes on meanwhile."""
        return self.what in ("half of the lanes", "one group less", "not atomic") or (
            self.what == "left out" and bool(TOGETHER.match(self.code, self.column)))

    def __str__(self) -> str:
        return f"{self.number}, line {self.line}: {self.what}: `{self.code[:self.column]}>>{self.code[self.column:]}`"


def mutants(text: str) -> tuple[str, tuple[Mutant, ...]]:
    """The text that has all mutants, of which number -1 has no fault, and what they are."""
    found: list[Mutant] = []
    lines = text.splitlines()
    first = next(k for k, x in enumerate(lines) if x == '#include "pop_device.h"')
    inside = False
    for k, line in enumerate(lines):
        inside = (inside or line.startswith("{")) and not line.startswith("}")
        if inside and not ROOM.search(line):
            code = line.partition("  // ")[0].rstrip()
            lines[k] = _changed(code, k + 1, found)
    lines[first - 1] = HEAD.replace("\n", " ")  # instead of a comment: lines keep their numbers
    return "\n".join(lines) + "\n", tuple(found)


def in_headers(folder: Path, shipped: Path) -> tuple[Mutant, ...]:
    """Copies of the shipped headers that kernels include, in whose functions each barrier, wait or fence may be left out."""
    found: list[Mutant] = []
    for path in sorted(shipped.glob("*.h")):
        lines = path.read_text().splitlines()
        for k, code in enumerate(lines):
            for m in [*MEETING.finditer(code)][::-1] if path.name in HEADERS else []:
                found.append(Mutant(FIRST + len(found), k + 1, m.end(), f"left out in {path.name}", code))
                lines[k] = f"{code[: m.end()]}if (!pop_mutated({found[-1].number})) {code[m.end():]}"
        (folder / path.name).write_text("\n".join(lines) + "\n")
    return tuple(found)


def _changed(code: str, line: int, found: list[Mutant]) -> str:
    """The line with all that may be wrong in it."""
    put: list[tuple[int, int, str]] = []  # at which column, before or behind what else is put there

    def mutant(column: int, what: str, numbers: int = 1) -> int:
        number = found[-1].number + 1 if found else 0
        names = (what,) if numbers == 1 else ("one more", "one less", "half")[:numbers]
        found.extend(Mutant(number + k, line, column, x, code.strip()) for k, x in enumerate(names))
        return number

    gap = len(code) - len(code.lstrip())
    hidden = [(m.start(), m.end()) for m in TEMPLATE.finditer(code)]
    header = code.lstrip().startswith("for (")
    for m in [] if header else [*CALLED.finditer(code), *ASSIGNED.finditer(code)]:
        if not SILENT.match(code, m.end()):
            put.append((m.end(), 1, f"if (!pop_mutated({mutant(m.end() - gap, 'left out')})) "))
    for m in BARRIER.finditer(code):
        put.append((m.end(), 2, f"if (!pop_mutated({mutant(m.end() - gap, 'half of the lanes')}) || pop_thread() % 2) "))
    for m in PENDING.finditer(code):
        more = f"{m[1]}{int(m[2]) + 1}{m[3]}"
        put.append((m.start(), 3, f"if (pop_mutated({mutant(m.start() - gap, 'one group less')})) {more} else "))
    for m in ATOMIC.finditer(code):
        put.append((m.start(), 3, f"if (pop_mutated({mutant(m.start() - gap, 'not atomic')})) {m[1]} += {m[2]}; else "))
    for begin, end in _conditions(code):
        put += [(begin, 4, f"(pop_mutated({mutant(begin - gap, 'not asked')}) || ("), (end, -4, "))")]
    for m in COMPARED.finditer(code):
        less = "-" if m[1] in (">", "<=") else ""  # >= and <, or > and <=
        put.append((m.end(), 5, f"{less}pop_mutated({mutant(m.end() - gap, 'an end included or not')}) + "))
    for m in NUMBER.finditer(code):
        if any(b <= m.start() < e for b, e in hidden):
            continue
        count = 1 if m[0] == "0" else 2 if int(m[0]) % 2 or int(m[0]) < 4 else 3
        if m[0] == "1" and code[: m.start()].endswith(("% ", "/ ", "+= ")):
            count = 1
        put += [(m.start(), 6, "pop_altered("), (m.end(), -6, f", {mutant(m.start() - gap, '', count)})")]
    # at one place, what closes comes first, and of what opens or closes the widest is outside
    for column, _, more in sorted(put, key=lambda x: (x[0], x[1] > 0, x[1]), reverse=True):
        code = code[:column] + more + code[column:]
    return code


def _conditions(code: str) -> Iterator[tuple[int, int]]:
    """Where the parts of a condition begin and end, which `&&` joins."""
    at = code.find("if (")
    if at < 0:
        return
    depth, begin = 0, at + 4
    for k in range(at + 3, len(code)):
        depth += (code[k] == "(") - (code[k] == ")")
        if depth == 0:
            yield begin, k
            return
        if depth == 1 and code.startswith(" && ", k):
            yield begin, k
            begin = k + 4


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel and calls of it: sizes and inputs, with room for its results."""

    name: str
    module: Module
    calls: tuple[tuple[dict[str, int], dict[str, Array]], ...]

    @property
    def ways(self) -> tuple[Way, ...]:
        """Orders of threads and a seed of those that are shuffled, and when copies arrive."""
        kinds = emulated.COMPLETIONS if self.module.target.startswith("cuda") else ("late",)
        orders = (("backward", 1), ("forward", 1), ("shuffled", 2), ("shuffled", 4))
        return tuple((*order, kind) for kind in kinds for order in orders)


def results(module: Module, sizes: dict[str, int], given: dict[str, Array], way: Way) -> tuple[emulated.Report, dict[str, Array]]:
    """What the emulator says, and the tensors after a call."""
    arrays = {n: a.copy() for n, a in given.items()}
    return emulated.run(module, sizes, {}, arrays, order=way[0], seed=way[1], completion=way[2]), arrays


def looked_at(kernel: Kernel, wanted: Sequence[int]) -> dict[int, str]:
    """What mutants show, by number: a fault, "values", "" for nothing.

    They run in processes of their own, since one may end its process ("crash") or run for ever ("endless").
    """
    module = replace(kernel.module, text=mutants(kernel.module.text)[0])
    cxx.library(module, True)
    said: dict[int, str] = {}
    while len(said) < len(wanted):
        left = wanted[len(said):]
        said |= dict(zip(left, _in_a_process(lambda of=left: _shown(kernel, module, of)), strict=False))
    return said


def _shown(kernel: Kernel, module: Module, numbers: Sequence[int]) -> Iterator[str]:
    emulated.LONG = 0.0  # in this process: all runs take one library, which is told the mutant's number
    chosen = ctypes.c_int.in_dll(emulated._load(emulated.built(module, True)), "pop_mutant")
    calls = [(sizes, given, way) for way in kernel.ways for sizes, given in kernel.calls]
    right: dict[int, tuple[emulated.Report, dict[str, Array]]] = {}
    for number in numbers:
        shown = ""
        for k, call in enumerate(calls):
            if k not in right:
                chosen.value = -1
                right[k] = results(module, *call)
                assert not right[k][0].findings, right[k][0]
            chosen.value = number
            try:
                report, arrays = results(module, *call)
            except (IndexError, UnsupportedError) as error:  # a site that the module does not have
                shown = f"raised {error!r}"
                break
            other = [n for n, x in arrays.items() if not np.array_equal(x, right[k][1][n], equal_nan=x.dtype.kind == "f")]
            shown = str(report) if str(report) != str(right[k][0]) else "values" if other else ""
            if shown:
                break
        yield shown


def _in_a_process(work: Callable[[], Iterator[str]]) -> list[str]:
    """What `work` yields in a process, and how that ended where it did before its time."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        try:
            with os.fdopen(write, "wb") as out:
                signal.setitimer(signal.ITIMER_PROF, SECONDS)
                for said in work():
                    pickle.dump(said, out)
                    out.flush()
                    signal.setitimer(signal.ITIMER_PROF, SECONDS)
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
        finally:
            os._exit(1)
    os.close(write)
    found = []
    with os.fdopen(read, "rb") as taken:
        while True:
            try:
                found.append(pickle.load(taken))
            except EOFError:
                break
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        found.append("endless" if os.WTERMSIG(status) == signal.SIGPROF else f"crash, signal {os.WTERMSIG(status)}")
    elif status:
        raise RuntimeError("the process of mutants failed")
    return found
