"""How this process runs what it measures: threads of NumPy's matrix library, and memory that is kept, and an empty cache."""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STEP = 0.01  # seconds in which threads are seen to spin
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of mallopt


def blas_threads(count: int) -> bool:
    """Let NumPy's own matrix library use `count` threads; whether that could be done."""
    try:
        libraries = {x.split()[-1] for x in Path("/proc/self/maps").read_text().splitlines() if "openblas" in x}
    except OSError:
        return False
    for path in libraries:
        library = ctypes.CDLL(path)
        for name in ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads"):
            if hasattr(library, name):
                getattr(library, name)(count)
                return True
    return False


def keep_memory() -> None:
    """Let malloc keep what is freed: otherwise every large result of PyTorch is paid for in page faults, not in computing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def rest(most: float = 0.5) -> None:
    """Wait until no thread of this process spins, for so many seconds at most: idle threads of OpenBLAS do for a tenth of one."""
    stop = time.perf_counter() + most
    busy = STEP
    while busy > STEP / 8 and time.perf_counter() < stop:
        before = time.process_time()
        time.sleep(STEP)
        busy = time.process_time() - before


@contextmanager
def on_one_core() -> Iterator[None]:
    """This thread, and processes that it starts meanwhile, on the last core that it may use, if the system lets one choose."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def empty_cache() -> Iterator[Path]:
    """A folder without kernels in the place of the cache, for as long as this lasts."""
    before = os.environ.get("POLYOP_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="polyop-") as folder:
        os.environ["POLYOP_CACHE_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["POLYOP_CACHE_DIR"]
            else:
                os.environ["POLYOP_CACHE_DIR"] = before
