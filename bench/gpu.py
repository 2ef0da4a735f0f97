"""What a GPU says of polyop: wrappers beside the emulator, the library beside NumPy, and speed beside torch. Without network.

    python bench/gpu.py                       all three, in less than 8 minutes
    python bench/gpu.py wrappers library      of them
    python bench/gpu.py speed --groups gemm   some groups of cases
    python bench/gpu.py --json FILE           everything in numbers

Exits with 0 if all is right, 1 if something differs, 2 if there is no GPU here.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from bench.device import cases, clock, library, speed, twice  # noqa: E402
from polyop.runtime.gpu import chips, driver  # noqa: E402

PARTS = ("wrappers", "library", "speed")
SECONDS = {"library": 150.0, "speed": 190.0}
"""Of these parts, at most; what is left then is told."""


def found() -> tuple[driver.Device | None, str]:
    """The first device; or none, and why."""
    reasons = [driver.unavailable(f) for f in ("cuda", "hip")]
    for family, reason in zip(("cuda", "hip"), reasons, strict=True):
        if not reason:
            return driver.Device(family, 0), ""
    return None, "; ".join(reasons)


def _both(device: driver.Device) -> tuple[int, int, list[str]]:
    made = twice.compared(device)
    return len(made.agreed), len(made.left), made.differ


def wrappers(device: driver.Device, workers: int) -> dict[str, Any]:
    """Each wrapper beside the emulator, in a process of its own: after a fault nothing else runs in it."""
    start = time.perf_counter()
    if workers > 1:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            kernels, left, differ = pool.submit(_both, device).result()
    else:
        kernels, left, differ = _both(device)
    print(f"wrappers: {kernels - len(differ)} of {kernels} kernels agree with the emulator, {left} cannot run here, "
          f"{time.perf_counter() - start:.0f} s", flush=True)
    for line in differ:
        print(f"  {line}")
    return {"kernels": kernels, "left": left, "differ": differ}


def operators(device: driver.Device, seconds: float, workers: int) -> dict[str, Any]:
    """Each operator of the library beside NumPy in float64."""
    start = time.perf_counter()
    seen, left = library.all_of(library.jobs(("f16", "bf16")), device, seconds, workers)
    wrong = [o for o in seen if o.wrong]
    print(f"library: {len(seen) - len(wrong)} of {len(seen)} cases agree with float64, {left} were left, "
          f"{time.perf_counter() - start:.0f} s", flush=True)
    for o in wrong:
        print(f"  {o.name} {o.dtype}: {o.wrong}")
    return {"cases": len(seen), "left": left, "wrong": [asdict(o) for o in wrong]}


def speeds(device: driver.Device, seconds: float, groups: Sequence[str], compiled: bool) -> dict[str, Any]:
    """Speed beside torch."""
    try:
        import torch
    except ImportError as e:
        print(f"speed: there is no torch here: {e}")
        return {"missing": str(e)}
    if not torch.cuda.is_available():
        print("speed: this torch sees no GPU")
        return {"missing": "torch sees no GPU"}
    name = f"cuda:{device.index}"
    properties = torch.cuda.get_device_properties(device.index)
    l2 = int(getattr(properties, "L2_cache_size", 64 << 20))
    stage = speed.limits(speed.Stage(torch, name, clock.Events(torch), l2), 100.0)
    print(f"speed: {properties.name}, torch {torch.__version__}, copies {stage.copy / 1e9:.0f} GB/s, "
          f"bf16 products {stage.peak / 1e12:.0f} TF/s", flush=True)
    chosen = [c for c in cases.cases() if not groups or c.group in groups]
    rows = speed.all_of(chosen, stage, seconds, 60.0, compiled, lambda row: print(".", end="", flush=True))
    print()
    print("\n".join(speed.table(rows)))
    return {"device": properties.name, "torch": torch.__version__, "copy": stage.copy, "peak": stage.peak,
            "rows": [asdict(r) for r in rows]}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help=f"of {', '.join(PARTS)}")
    parser.add_argument("--groups", nargs="*", default=[], help="of what is measured")
    parser.add_argument("--json", type=Path, help="where everything is written in numbers")
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1), help="processes; 1: all in this one")
    parser.add_argument("--no-compile", action="store_true", help="do not ask torch.compile")
    given = parser.parse_args(arguments)
    device, reason = found()
    if device is None:
        print(f"there is no GPU here: {reason}")
        return 2
    print(f"{device} is {chips.arch(device)}; kernels are made for {chips.native(device).name}", flush=True)
    parts, results = given.parts or list(PARTS), {}
    if "wrappers" in parts:
        results["wrappers"] = wrappers(device, given.workers)
    if "library" in parts:
        results["library"] = operators(device, SECONDS["library"], given.workers)
    if "speed" in parts:
        results["speed"] = speeds(device, SECONDS["speed"], given.groups, not given.no_compile)
    if given.json:
        given.json.write_text(json.dumps({"device": chips.arch(device), **results}, indent=1) + "\n", encoding="utf-8")
    wrong = [*results.get("wrappers", {}).get("differ", ()), *results.get("library", {}).get("wrong", ()),
             *(r for r in results.get("speed", {}).get("rows", ()) if r["wrong"])]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
