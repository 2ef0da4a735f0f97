"""Compile every operator of the library for GPUs, with NVRTC and amdgcn's clang: all of it is accepted, and nothing is spilled.

    python scripts/compile_library.py [TARGET ..] [FILE ..]       cuda:sm_80 softmax; without words, five targets and all files
    python scripts/compile_library.py --times [..]                each operator alone, f32 and f16, and attention in one kernel:
                                                                  seconds of a processor that it takes, and seconds of a
                                                                  clock that somebody waits for it

Exits with 0 if so, 1 if not, 2 if there is no compiler for a target. Takes some minutes for each target; the tests
compile each operator for one of them, and a dozen for all.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "gpu")]

from gpu_operators import CASES, FILES, IDS, OWN, calls, in_turn, made, together, typed  # noqa: E402

import polyop  # noqa: E402
from polyop import program  # noqa: E402
from polyop.ir.module import Module  # noqa: E402
from polyop.ir.op import Op  # noqa: E402
from polyop.ir.options import Options  # noqa: E402
from polyop.runtime import amdgcn, cpu, nvrtc  # noqa: E402
from polyop.runtime.layout import contiguous  # noqa: E402
from polyop.runtime.usage import usage  # noqa: E402

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx90a", "hip:gfx942", "hip:gfx1100")


LIMIT, WORST = 1.0, 20
"""Seconds that generating and compiling a kernel may take; how many of the slowest operators are shown."""

ONE_KERNEL = "op a(Q: f16[B, H, S, {d}], K: f16[B, H, {t}, {d}], V: f16[B, H, {t}, {d}]; w: int) " \
             "-> (O: f16[B, H, S, {d}]) where w >= 1 {{ O = {call}) }}"
"""Attention whose channels are known."""

ATTENTION = (("attention(Q, K, V, scale=0.125", "T"), ("attention_causal(Q, K, V, scale=0.125", "S"),
             ("attention_window(Q, K, V, scale=0.125, window=w", "S"))


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of a processor: to generate the text of an operator, proofs included, and to compile its `kernels`.

    waits   seconds of a clock from the operator to the code of its kernels, which is compiled while the text is proved
    """

    name: str
    generated: float
    compiled: float
    waits: float
    kernels: int

    @property
    def each(self) -> float:
        return (self.generated + self.compiled) / max(1, self.kernels)

    @property
    def wait(self) -> float:
        return self.waits / max(1, self.kernels)

    def __str__(self) -> str:
        return f"{self.name:44} {self.kernels:3} {self.generated:6.2f} {self.compiled:8.2f} {self.each:6.2f} {self.wait:6.2f}"


@dataclass(frozen=True, slots=True)
class Made:
    """An operator, what it was compiled to, and the seconds that its text took."""

    name: str
    op: Op
    options: Options
    module: Module
    seconds: float


def spent() -> float:
    """Seconds of a processor so far, those of other programs that were called included."""
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


def took(m: Made, tool: ModuleType) -> Took:
    """One operator, compiled anew."""
    start = spent()
    code, _ = tool.compiled(m.module)
    seconds, begun = spent() - start, time.perf_counter()
    binary = program.compiled(m.op, contiguous(m.op), cpu.resolve(m.module.target), m.options).binary
    waits = time.perf_counter() - begun
    assert binary is not None and binary.code == code, m.name
    return Took(m.name, m.seconds, seconds, waits, len(usage(binary)))


def all_of(files: list[str], target: str) -> Iterator[Made]:
    """Operators of the library, in each of their types that GPUs are asked for."""
    for name in OWN:
        file, case = CASES[IDS.index(name)]
        for dtype in typed(case) if file in files else ():
            call = calls(name, dtype, target, turn=0)[0]
            yield Made(f"{name} {dtype}", call.op, call.options, call.module, call.seconds)
    for what, keys in ATTENTION if "attention" in files else ():
        for d in (64, 128, 256):
            operator = polyop.op(ONE_KERNEL.format(call=what, d=d, t=keys))
            op = operator._op(operator.choice())
            _, module, seconds = made(op, target, Options())  # of at least one row and key
            yield Made(f"{what.partition('(')[0]}, {d} channels, f16", op, Options(), module, seconds)


def times(targets: list[str], files: list[str]) -> int:
    for target in targets:
        tool = nvrtc if target.startswith("cuda") else amdgcn
        if tool.unavailable():
            print(f"{target}: {tool.unavailable()}")
            return 2
        in_turn(0, target)  # what is made once for all of them
        found = sorted((took(m, tool) for m in all_of(files, target)), key=lambda x: -x.each)
        middle = found[len(found) // 2]
        print(f"{target}: {len(found)} operators, median {middle.each:.2f} s a kernel, {sum(x.each > LIMIT for x in found)} "
              f"of more than {LIMIT:.0f} s, {sum(x.wait > LIMIT for x in found)} for which somebody waits longer")
        print(f"  {'':44} kernels  text compiled  each  wait", *(f"  {x}" for x in found[:WORST]), sep="\n", flush=True)
    return 0


def main(words: list[str]) -> int:
    targets = [w for w in words if ":" in w] or list(TARGETS)
    files = [w for w in words if ":" not in w and not w.startswith("--")] or list(FILES)
    if "--times" in words:
        os.environ["POLYOP_CACHE_SIZE"] = "0"  # what somebody waits for is not found again
        return times(targets, files)
    failed = 0
    for target in targets:
        tool = nvrtc if target.startswith("cuda") else amdgcn
        if tool.unavailable():
            print(f"{target}: {tool.unavailable()}")
            return 2
        for file in files:
            module = together(file, target)[0].module
            try:
                found = usage(tool.assemble(module))
            except Exception as error:  # the rest is to be tried in any case
                failed += 1
                print(f"FAILED  {target} {file}: {error}")
                continue
            failed += any(u.spills for u in found)
            # arrays that are indexed at run time lie in local memory, too: the steps of sin and cos for large numbers
            local = [f"    {u}" for u in found if u.spills or u.local]
            print("\n".join([f"{'SPILLS' if any(u.spills for u in found) else 'accepts'} {target} {file}: {len(found)} kernels",
                             *local]), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
