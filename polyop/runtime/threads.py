"""How many threads run a kernel, and the pool that they come from (`pool.ll`)."""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from pathlib import Path

from polyop.ir.errors import UserError, fail
from polyop.ir.module import Binary, Module, Signature
from polyop.runtime import cache, cpu, forks

MOST = 512  # threads in the pool; more would only wait for memory

LEAST = 1 << 19   # operations (codegen/llvm/effort.py) that are shared out with workers awake: add and matmul gain from 4 us on
CHUNK = 1 << 22   # operations of a chunk of a share, of which there are two to four
WAKING = 1 << 22  # and with workers asleep, which takes some 20 us, unless that is asked for twice within a moment

# A pause is about 40 ns: workers stay awake for a millisecond after a region, so the next one starts in half a
# microsecond; the caller spins for a tenth of that on stragglers and then lets others run. A worker that waits offers its
# processor once in 64 pauses, and falls asleep if somebody took it: for another pool's thread to wait there for it doubles the
# time of what that pool does. Moments, and how long nobody takes, are counted in cycles of the clock.
_NUMBERS = {"MOST": MOST, "SPINS": 20_000, "PATIENCE": 2_000, "CHUNKS": 4, "CHUNK": CHUNK, "OFFERED": 63, "TAKEN": 20_000,
            "LEAST": LEAST, "WAKING": WAKING, "MOMENT": 1_000_000}  # of two names that begin alike the longer stands first
_SYMBOLS = ("polyop_parallel", "polyop_forked", "polyop_least")
_TEXT = Path(__file__).with_name("pool.ll")

_lock = forks.rlock()
setting: int | None = None  # how many threads; None until someone asks


def pool_text() -> str:
    """The pool as LLVM IR."""
    text = _TEXT.read_text()
    for name, value in _NUMBERS.items():
        text = text.replace(name, str(value))
    return text


def _assemble() -> Binary:
    empty = Signature("polyop_parallel", (), (), (), ())
    return cpu.assemble(Module(empty.name, "x86:host", pool_text(), empty), cpu.host())


@lru_cache(maxsize=1)
def _pool() -> cpu.Loaded:
    code = cache.remember_code(cache.key("pool", cpu.VERSION, pool_text(), str(cpu.host())), lambda: _assemble().code)
    loaded = cpu.link(code, _SYMBOLS).keep()
    os.register_at_fork(after_in_child=ctypes.CFUNCTYPE(None)(loaded.addresses["polyop_forked"]))
    return loaded


def parallel_address() -> int:
    """The address of `parallel` of the calling convention (`ir/module.py`); the pool is loaded on first use."""
    with _lock:
        return _pool().addresses["polyop_parallel"]


def share_from(least: int, waking: int) -> tuple[int, int]:
    """Share out loops of so many operations with workers awake, and of so many with workers asleep; what it was before."""
    with _lock:
        numbers = (ctypes.c_int64 * 2).from_address(_pool().addresses["polyop_least"])
        before, (numbers[0], numbers[1]) = (numbers[0], numbers[1]), (least, waking)
    return before


def get_num_threads() -> int:
    """How many threads a kernel may use: POLYOP_NUM_THREADS, else the physical cores this process may run on."""
    global setting
    if setting is None:
        wanted = os.environ.get("POLYOP_NUM_THREADS", "")
        setting = _checked(wanted, "POLYOP_NUM_THREADS") if wanted else physical_cores()
    return setting


def set_num_threads(n: int) -> None:
    """Let kernels use `n` threads from now on, at least 1.

    Raises UserError, if `n` is no such number.
    """
    global setting
    setting = _checked(n, "the number of threads")


def _checked(value: object, what: str) -> int:
    try:
        n = int(str(value))
    except ValueError:
        n = 0
    if not 1 <= n <= MOST:
        raise _wrong(value, what)
    return n


def _wrong(value: object, what: str) -> UserError:
    return fail("E611", f"{what} is {value}; expected an integer from 1 to {MOST}")


def physical_cores(root: Path = Path("/sys/devices/system/cpu")) -> int:
    """How many cores this process may run on, two hardware threads of one core counted once."""
    cpus = os.sched_getaffinity(0)
    cores = set()
    for c in cpus:
        try:
            cores.add((root / f"cpu{c}/topology/thread_siblings_list").read_text().strip())
        except OSError:
            cores.add(str(c))
    return min(MOST, len(cores))
