"""What this processor can do at most, by measurement: multiply-adds from registers, and bytes from memory, on one thread."""

from __future__ import annotations

import ctypes
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import binding

from polyop.ir.module import Module, Signature
from polyop.runtime import cpu

CHAINS = 12      # independent multiply-adds in flight: more than latency times ports
ROUNDS = 1 << 20


@dataclass(frozen=True, slots=True)
class Machine:
    """gflops: peak of f32 multiply-adds; gbytes: a copy of arrays far larger than any cache, read and written."""

    name: str
    target: str
    gflops: float
    gbytes: float

    def row(self) -> dict[str, Any]:
        return asdict(self)


def machine() -> Machine:
    """This machine, measured in about a second."""
    return Machine(_name(), cpu.host().arch, _peak(), _bandwidth())


def _name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), platform.processor())


def _best(run: Any, times: int) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return min(taken)


def _peak() -> float:
    """CHAINS chains of vector multiply-adds, nothing else in the loop."""
    host = cpu.host()
    lanes = host.lanes(4)
    v = f"<{lanes} x float>"
    phis = "\n".join(f"  %x{k} = phi {v} [ %a, %entry ], [ %y{k}, %loop ]" for k in range(CHAINS))
    steps = "\n".join(f"  %y{k} = call {v} @llvm.fma.v{lanes}f32({v} %x{k}, {v} %m, {v} %a)" for k in range(CHAINS))
    sums = "\n".join(f"  %s{k} = fadd {v} %s{k - 1}, %y{k}" if k else f"  %s0 = fadd {v} %y0, %a" for k in range(CHAINS))
    text = f"""declare {v} @llvm.fma.v{lanes}f32({v}, {v}, {v})
define i64 @peak(ptr %args) {{
entry:
  %a = load {v}, ptr %args, align 4
  %p = getelementptr i8, ptr %args, i64 {4 * lanes}
  %m = load {v}, ptr %p, align 4
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
{phis}
{steps}
  %j = add i64 %i, 1
  %again = icmp ult i64 %j, {ROUNDS}
  br i1 %again, label %loop, label %done
done:
{sums}
  store {v} %s{CHAINS - 1}, ptr %args, align 4
  ret i64 0
}}
"""
    binding.check_jit_execution()
    loaded = cpu.load(cpu.assemble(Module("peak", host.name, text, Signature("peak", (), (), (), ())), host))
    entry = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(loaded.addresses["peak"])
    data = np.full(2 * lanes, 0.5, np.float32)
    return 2 * lanes * CHAINS * ROUNDS / _best(lambda: entry(data.ctypes.data), 15) / 1e9


def _bandwidth() -> float:
    a, b = np.ones(1 << 26, np.float32), np.empty(1 << 26, np.float32)
    return 2 * a.nbytes / _best(lambda: np.copyto(b, a), 5) / 1e9
