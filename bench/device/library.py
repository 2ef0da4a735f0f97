"""Every operator of the library on a device, compared with NumPy in float64."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import polyop
from bench.device import helpers
from polyop.runtime.gpu.driver import Device
from polyop.runtime.gpu.memory import put
from tests.library.case import check
from tests.library.catalog import CASES, IDS, accuracy


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one case in one dtype: "" if all its sizes agree, else what went wrong."""

    name: str
    dtype: str
    wrong: str
    seconds: float


@cache
def _load(file: str) -> Any:
    return polyop.load(file)


def tried(index: int, dtype: str, device: Device) -> Outcome:
    """One case, at all its sizes, through the calls that users make."""
    file, case = CASES[index]
    start, wrong = time.perf_counter(), ""
    try:
        for sizes in case.sizes:
            arrays, keywords = case.arguments(dtype, sizes), case.keywords(sizes)
            want = case.expected(arrays, sizes)
            operator = _load(file)[case.op]
            if arrays:
                got = operator(*(put(a, device) for a in arrays), **keywords)
            else:  # its results alone say where it runs
                host = operator(**keywords)
                outs = tuple(put(np.zeros_like(a), device) for a in (host if isinstance(host, tuple) else (host,)))
                got = operator(**keywords, out=outs)
            polyop.synchronize()
            results = tuple(r.numpy() for r in (got if isinstance(got, tuple) else (got,)))
            check(case, accuracy(dtype), sizes, results, want)
    except Exception as error:  # the rest is to be tried in any case
        wrong = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    return Outcome(IDS[index], dtype, wrong, time.perf_counter() - start)


def jobs(dtypes: Iterable[str] = ()) -> list[tuple[int, str]]:
    """Each case in its own first dtype, and in those of `dtypes` that it has."""
    first = [(k, case.dtypes[0]) for k, (_, case) in enumerate(CASES)]
    return first + [(k, d) for d in dtypes for k, (_, case) in enumerate(CASES) if d in case.dtypes[1:]]


def all_of(work: list[tuple[int, str]], device: Device, seconds: float, workers: int) -> tuple[list[Outcome], int]:
    """The outcomes of as many jobs as fit into `seconds`, and how many do not; compiling takes most, so in several processes.

    A case that kills its process, or never ends, is an outcome as well.
    """
    stop, out = time.monotonic() + seconds, []
    if workers <= 1:
        for k, (index, dtype) in enumerate(work):
            if time.monotonic() > stop:
                return out, len(work) - k
            out.append(tried(index, dtype, device))
        return out, 0
    asked = [(index, dtype, device) for index, dtype in work]
    for done in helpers.each(tried, asked, seconds, workers, is_wrong=lambda o: bool(o.wrong)):
        index, dtype = work[done.index]
        out.append(done.result or Outcome(IDS[index], dtype, done.lost, 0.0))
    return out, len(work) - len(out)
