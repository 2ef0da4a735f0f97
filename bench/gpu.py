"""What a GPU says of polyop: calls of frameworks, wrappers beside the emulator, the library beside NumPy, and speed.

    python bench/gpu.py                       all of it, in less than 8 minutes, without network; speed beside torch and Triton
    python bench/gpu.py wrappers library      of them
    python bench/gpu.py nests                 all other kernels of the emulator's tests beside it, as far as 4 minutes go
    python bench/gpu.py speed --groups gemm   some groups of cases
    python bench/gpu.py --json FILE           all in numbers, as it is found; --markdown FILE: speed, as a table

Everything runs in processes of its own: one that faults or never ends is told and replaced. Without torch or Triton the rest
is measured. Exits with 0 if all is right, 1 if something differs, 2 if there is no GPU here, no compiler for it, or
nothing that wrappers or the library are compared by.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from bench.device import apart, cases, frameworks, helpers, speed, twice  # noqa: E402
from bench.device.about import about, lacking  # noqa: E402
from polyop.ir.target import target  # noqa: E402
from polyop.runtime import device as compilers  # noqa: E402
from polyop.runtime.gpu import chips, driver  # noqa: E402

PARTS = ("calls", "wrappers", "library", "speed")
SECONDS = {"calls": 30.0, "wrappers": 100.0, "library": 110.0, "speed": 225.0, "nests": 240.0}
"""Of these parts, at most; what is left then is told."""

Results = dict[str, Any]


def found() -> tuple[driver.Device | None, str]:
    """The first device; or none, and why."""
    reasons = [driver.unavailable(f) for f in ("cuda", "hip")]
    for family, reason in zip(("cuda", "hip"), reasons, strict=True):
        if not reason:
            return driver.Device(family, 0), ""
    return None, "; ".join(reasons)


def calls(device: driver.Device, seconds: float, workers: int) -> Results:
    """What users do, one after the other: what a call costs the host is among it."""
    start, wrong, rows = time.perf_counter(), list[str](), dict[str, str]()
    jobs = [(k, device) for k in range(len(frameworks.CHECKS))]
    for done in helpers.each(frameworks.tried, jobs, seconds, is_wrong=lambda r: bool(r[1])):
        name = frameworks.CHECKS[done.index].__name__
        rows[name], bad = done.result or ("", done.lost)
        wrong += [f"{name}: {bad}"] if bad else []
    wrong += [f"{c.__name__}: no time was left" for c in frameworks.CHECKS if c.__name__ not in rows]
    print(f"calls: {len(frameworks.CHECKS) - len(wrong)} of {len(frameworks.CHECKS)} are as they should be, "
          f"{time.perf_counter() - start:.0f} s", flush=True)
    for line in (*(f"{n}: {said}" for n, said in rows.items() if said), *wrong):
        print(f"  {line}")
    return {"seen": rows, "differ": wrong}


def wrappers(device: driver.Device, seconds: float, workers: int, files: Sequence[str] = twice.FILES) -> Results:
    """The kernels of tests beside the emulator, in processes that are asked for one test at a time."""
    start, kernels, wrong, differ = time.perf_counter(), 0, 0, list[str]()
    if workers > 1:
        every = twice.tests(files)
        late = dict.fromkeys(every)
        for done in helpers.each(apart.wrappers, [(device, t) for t in every], seconds, workers, is_wrong=lambda r: bool(r[2])):
            del late[every[done.index]]
            ran, bad, said = done.result or (0, 0, [f"{every[done.index]}: {done.lost}"])
            kernels, wrong, differ = kernels + ran, wrong + bad, differ + said
        differ += [f"{len(late)} tests not done after {seconds:.0f} s: {', '.join(late)}"] if late else []
    else:
        made = twice.compared(device, files)
        kernels, wrong, differ = len(made.agreed), len(made.wrong), made.differ
    part = "wrappers" if files == twice.FILES else "nests"
    print(f"{part}: {kernels - wrong} of {kernels} kernels agree with the emulator, "
          f"{time.perf_counter() - start:.0f} s", flush=True)
    for line in differ:
        print(f"  {line}")
    return {"kernels": kernels, "differ": differ}


def operators(device: driver.Device, seconds: float, workers: int) -> Results:
    """Each operator of the library beside NumPy in float64."""
    from bench.device import library  # whose cases are the tests' own, and need what these need

    start = time.perf_counter()
    seen, left = library.all_of(library.jobs(("f16", "bf16")), device, seconds, workers)
    wrong = [o for o in seen if o.wrong]
    print(f"library: {len(seen) - len(wrong)} of {len(seen)} cases agree with float64, {left} were left, "
          f"{time.perf_counter() - start:.0f} s", flush=True)
    for o in wrong:
        print(f"  {o.name} {o.dtype}: {o.wrong}")
    return {"cases": len(seen), "left": left, "wrong": [asdict(o) for o in wrong]}


def speeds(device: driver.Device | None, seconds: float, groups: Sequence[str], compiled: bool,
           keep: Callable[[Results], None]) -> Results:
    """Speed beside torch, torch.compile and Triton; what is there so far is kept after each case. None is the CPU."""
    stop, index = time.monotonic() + seconds, device.index if device else -1
    first = next(helpers.each(apart.machine, [(index,)], seconds, longest=seconds), helpers.Done(0, lost="no time was left"))
    if first.lost:
        print(f"speed: nothing can be measured: {first.lost}")
        return {"missing": first.lost}
    name, version, copy, peak = first.result
    print(f"speed: {name}, torch {version}, copies {copy / 1e9:.0f} GB/s, bf16 products {peak / 1e12:.0f} TF/s\n{speed.TITLE}")
    every = cases.cases(small=index < 0)
    runs = {c.target: not c.target or (device is not None and chips.runs(device, target(c.target))) for c in every}
    asked = [k for k, c in enumerate(every) if (not groups or c.group in groups) and runs[c.target]]
    ends = stop - seconds / 4 if compiled else 0.0
    rows: dict[int, speed.Row] = {}

    def results() -> Results:
        return {"device": name, "torch": version, "copy": copy, "peak": peak, "rows": [asdict(rows[k]) for k in sorted(rows)]}

    def seen(k: int, row: speed.Row) -> None:
        rows[k] = row
        print(speed.line(row), flush=True)
        keep(results())

    jobs = [(k, index, copy, peak, ends) for k in asked]
    for done in helpers.each(apart.case, jobs, stop - time.monotonic(), is_wrong=lambda row: bool(row.wrong)):
        k = asked[done.index]
        seen(k, done.result or speed.missing(every[k], done.lost))
    for k in asked:
        if k not in rows:
            seen(k, speed.missing(every[k], "no time was left"))
    for said in dict.fromkeys(r.said for r in rows.values() if r.said):
        print(f"  {said}: {sum(r.said == said for r in rows.values())} cases")
    return results()


def plain(x: Any) -> Any:
    """`x` as JSON has it, which knows neither infinity nor NaN: their names."""
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [plain(v) for v in x]
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *SECONDS], help=f"of {', '.join(SECONDS)}")
    groups = tuple(dict.fromkeys(c.group for c in cases.cases()))
    parser.add_argument("--groups", nargs="*", default=[], choices=groups, metavar="GROUP", help=f"of {', '.join(groups)}")
    parser.add_argument("--json", type=Path, help="where everything is written in numbers")
    parser.add_argument("--markdown", type=Path, help="where speed is written as a table")
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1),
                        help="processes at a time; 1: wrappers and library in this one")
    parser.add_argument("--no-compile", action="store_true", help="ask neither torch.compile nor Triton")
    given = parser.parse_args(arguments)
    device, reason = found()
    if device is None:
        print(f"there is no GPU here: {reason}")
        return 2
    missing = compilers.unavailable(device.family)
    if missing:
        print(f"{device} is {chips.arch(device)}, and there are no kernels for it: {missing}")
        return 2
    parts, results = given.parts or list(PARTS), Results(about(device))
    print(f"{device} is {results['device']}; kernels are made for {results['made_for']}; {results['date']}, "
          f"driver for {results['driver']}, {', '.join(f'{n} {v}' for n, v in results['versions'].items())}", flush=True)

    def keep(part: str, said: Results) -> None:
        results[part] = said
        if given.json:
            given.json.write_text(json.dumps(plain(results), indent=1, allow_nan=False) + "\n", encoding="utf-8")

    nests = partial(wrappers, files=twice.NESTS)
    for part, run in (("calls", calls), ("wrappers", wrappers), ("library", operators), ("nests", nests)):
        reason = lacking(part)
        if part in parts and reason:
            print(f"{part}: nothing can be compared: {reason}", flush=True)
            keep(part, {"missing": reason})
        elif part in parts:
            keep(part, run(device, SECONDS[part], given.workers))
    if "speed" in parts:
        so_far = partial(keep, "speed")
        so_far(speeds(device, SECONDS["speed"], given.groups, not given.no_compile, so_far))
        if given.markdown and "rows" in results["speed"]:
            given.markdown.write_text(speed.page(results["speed"]), encoding="utf-8")
    wrong = [*(x for part in ("calls", "wrappers", "nests") for x in results.get(part, {}).get("differ", ())),
             *results.get("library", {}).get("wrong", ()),
             *(r for r in results.get("speed", {}).get("rows", ()) if r["wrong"])]
    lacks = any("missing" in results.get(part, {}) for part in ("wrappers", "library", "nests"))
    return 1 if wrong else 2 if lacks else 0


if __name__ == "__main__":
    sys.exit(main())
