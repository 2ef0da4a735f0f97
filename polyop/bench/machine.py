"""What this processor can do at most, by measurement: multiply-adds from registers, and bytes from caches and memory."""

from __future__ import annotations

import ctypes
import math
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyop.ir.module import Module, Signature
from polyop.ir.target import Target
from polyop.runtime import cpu

CHAINS = 12      # independent multiply-adds in flight: more than latency times ports
ROUNDS = 1 << 20
SIZES = tuple(1 << k for k in (19, 21, 23, 25, 28))  # bytes that a thread goes through when bandwidth is measured


@dataclass(frozen=True, slots=True)
class Level:
    """Working sets of `bytes_`: gigabytes a second of reading them, and of copying, read and written counted."""

    bytes_: int
    reads: float
    copies: float


@dataclass(frozen=True, slots=True)
class Machine:
    """What `threads` threads reach together.

    gflops   of f32 multiply-adds, two for each
    levels   bandwidths by working set, from the second-level cache to memory
    """

    name: str
    target: str
    threads: int
    gflops: float
    levels: tuple[Level, ...]

    @property
    def gbytes(self) -> float:
        """Gigabytes a second of copying in memory."""
        return self.levels[-1].copies

    def least_ms(self, flops: float, reads: int, writes: int, wide: bool = False) -> float:
        """Milliseconds below which a call cannot be: arithmetic and traffic run side by side; 0 if neither says anything.

        wide    whether numbers are f64, half as many of which fit into a vector
        Notes   Traffic takes what reading R bytes and copying take on a working set of this size, with the time of writing
                from both: R / read + W * (2 / copy - 1 / read). Below half a megabyte it is not looked at.
        """
        arithmetic = flops * (2 if wide else 1) / self.gflops / 1e6
        if reads + writes < self.threads * self.levels[0].bytes_:
            return arithmetic
        read, copy = self.bandwidth(reads + writes)
        return max(arithmetic, (reads / read + writes * max(1 / copy, 2 / copy - 1 / read)) / 1e6)

    def bandwidth(self, bytes_: int) -> tuple[float, float]:
        """Of reading and of copying, for a working set of `bytes_`; between what was measured it goes with the logarithm."""
        at = [math.log(self.threads * x.bytes_) for x in self.levels]
        found = [float(np.interp(math.log(max(1, bytes_)), at, rates)) for rates in
                 ([x.reads for x in self.levels], [x.copies for x in self.levels])]
        return found[0], found[1]


def machine(threads: int = 1) -> Machine:
    """This machine, measured in about a second."""
    host = cpu.host()
    probes = _probes(host)
    with ThreadPoolExecutor(threads) as pool:
        def together(prepare: Callable[[], Callable[[], Any]], times: int) -> float:
            """Seconds of `prepare()()` when all threads run one of their own, the best of `times`."""
            runs = [prepare() for _ in range(threads)]
            taken = []
            for _ in range(times):
                start = time.perf_counter()
                list(pool.map(lambda run: run(), runs))
                taken.append(time.perf_counter() - start)
            return min(taken)

        data = np.full(2 * host.lanes(4), 0.5, np.float32)
        seconds = together(lambda: lambda: probes["peak"](data.ctypes.data), 15)
        gflops = threads * 2 * host.lanes(4) * CHAINS * ROUNDS / seconds / 1e9
        levels = tuple(_level(bytes_, threads, probes["read"], together) for bytes_ in SIZES)
    return Machine(_name(), host.arch, threads, gflops, levels)


def _level(bytes_: int, threads: int, read: Any, together: Callable[[Callable[[], Callable[[], Any]], int], float]) -> Level:
    rounds = max(1, (1 << 25) // bytes_)

    def reading() -> Callable[[], Any]:
        x, slots = np.ones(bytes_ // 4, np.float32), np.zeros(8 + 16, np.int64)  # arguments, then room for the sum
        slots[:4] = x.ctypes.data, bytes_, rounds, slots[8:].ctypes.data
        return lambda: (read(slots.ctypes.data), x)

    def copying() -> Callable[[], Any]:
        a, b = np.ones(bytes_ // 8, np.float32), np.empty(bytes_ // 8, np.float32)

        def run() -> None:
            for _ in range(rounds):
                np.copyto(b, a)
        return run

    times = 5 if bytes_ < SIZES[-1] else 3
    moved = threads * rounds * bytes_ / 1e9
    return Level(bytes_, moved / together(reading, times), moved / together(copying, times))


def _name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), platform.processor())


def _probes(host: Target) -> dict[str, Any]:
    """Functions `i64 name(ptr)`: `peak` of multiply-adds, `read` of (address, bytes, rounds, address for the sum)."""
    found = {}
    for name, text in (("peak", _peak(host)), ("read", _read(host))):
        loaded = cpu.load(cpu.assemble(Module(name, host.name, text, Signature(name, (), (), (), ())), host)).keep()
        found[name] = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(loaded.addresses[name])
    return found


def _peak(host: Target) -> str:
    """CHAINS chains of vector multiply-adds, nothing else in the loop."""
    lanes = host.lanes(4)
    v = f"<{lanes} x float>"
    phis = "\n".join(f"  %x{k} = phi {v} [ %a, %entry ], [ %y{k}, %loop ]" for k in range(CHAINS))
    steps = "\n".join(f"  %y{k} = call {v} @llvm.fma.v{lanes}f32({v} %x{k}, {v} %m, {v} %a)" for k in range(CHAINS))
    return f"""declare {v} @llvm.fma.v{lanes}f32({v}, {v}, {v})
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
{_sum(v, CHAINS)}
  %all = bitcast {v} %s{CHAINS - 1} to i{32 * lanes}
  %low = trunc i{32 * lanes} %all to i64
  ret i64 %low
}}
"""


def _read(host: Target) -> str:
    """Every vector of some memory added to one of eight sums, again and again."""
    lanes, chains = host.lanes(4), 8
    v = f"<{lanes} x float>"
    phis = "\n".join(f"  %x{k} = phi {v} [ zeroinitializer, %outer ], [ %y{k}, %loop ]" for k in range(chains))
    steps = "\n".join(f"""  %p{k} = getelementptr i8, ptr %q, i64 {4 * lanes * k}
  %v{k} = load {v}, ptr %p{k}, align 4
  %y{k} = fadd {v} %x{k}, %v{k}""" for k in range(chains))
    return f"""define i64 @read(ptr %args) {{
entry:
  %data = load ptr, ptr %args
  %a1 = getelementptr i64, ptr %args, i64 1
  %bytes = load i64, ptr %a1
  %a2 = getelementptr i64, ptr %args, i64 2
  %rounds = load i64, ptr %a2
  %a3 = getelementptr i64, ptr %args, i64 3
  %sink = load ptr, ptr %a3
  br label %outer
outer:
  %r = phi i64 [ 0, %entry ], [ %r1, %next ]
  br label %loop
loop:
  %i = phi i64 [ 0, %outer ], [ %j, %loop ]
{phis}
  %q = getelementptr i8, ptr %data, i64 %i
{steps}
  %j = add i64 %i, {4 * lanes * chains}
  %again = icmp ult i64 %j, %bytes
  br i1 %again, label %loop, label %next
next:
{_sum(v, chains)}
  store {v} %s{chains - 1}, ptr %sink, align 4
  %r1 = add i64 %r, 1
  %more = icmp ult i64 %r1, %rounds
  br i1 %more, label %outer, label %done
done:
  ret i64 0
}}
"""


def _sum(v: str, count: int) -> str:
    """`%s` of the last number: the sum of `%y0` and so on."""
    return "\n".join(f"  %s{k} = fadd {v} %s{k - 1}, %y{k}" if k else f"  %s0 = fadd {v} %y0, zeroinitializer"
                     for k in range(count))
