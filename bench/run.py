"""How fast kernels are, beside PyTorch and NumPy, and beside what the processor can do: one thread, calls taken in turn,
the lower quartile of the times.

    python bench/run.py                    everything
    python bench/run.py matmul rows        some groups
    python bench/run.py --json out.json    the numbers as well
    python bench/run.py --readme           the summary into the README
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import polyop

sys.path.insert(0, str(Path(__file__).parent))

from cases import GROUPS, Case
from machine import Machine, machine
from readme import fill

from polyop.demo.measure import interleaved, keep_memory, one_blas_thread

L2 = 1 << 20      # bytes below which memory is no limit
QUARTILE = 0.25   # of the times: whatever else a machine does only ever adds to them


def measure(case: Case, limits: Machine, torch: Any, budget: float) -> dict[str, Any]:
    """One line: times in ms, ratios above 1 where polyop is faster, and how near the limit it is."""
    tensors = [torch.from_numpy(x) for x in case.inputs] if torch else list(case.inputs)
    things: list[tuple[str, Callable[[], Any]]] = [("polyop", lambda: case.ours(*tensors, **case.keywords))]
    if torch and case.torch:
        theirs = case.torch
        things.append(("torch", lambda: theirs(torch, *tensors)))
    if case.numpy and (not torch or case.group in ("calls", "matmul")):
        arrays = case.numpy
        things.append(("numpy", lambda: arrays(*case.inputs)))
    got = np.asarray(things[0][1]())
    row: dict[str, Any] = {"group": case.group, "case": case.label}
    if len(things) > 1:
        want = np.asarray(things[1][1]())
        row["error"] = float(np.abs(got - want).max() / max(1e-9, float(np.abs(want).max()))) if got.size else 0.0
        row["right"] = got.shape == want.shape and row["error"] <= case.tolerance
    for _, call in things:
        call()
    ms = interleaved([call for _, call in things], budget, QUARTILE)
    row |= {name: t for (name, _), t in zip(things, ms, strict=True)}
    row |= {f"over_{name}": t / ms[0] for (name, _), t in zip(things[1:], ms[1:], strict=True)}
    bytes_ = sum(x.nbytes for x in case.inputs) + got.nbytes
    least = max(case.flops / limits.gflops, bytes_ / limits.gbytes if bytes_ > L2 else 0.0) / 1e6
    row |= {"gflops": case.flops / ms[0] / 1e6, "gbytes": bytes_ / ms[0] / 1e6, "limit": least / ms[0]}
    return row


def line(r: dict[str, Any]) -> str:
    peers = "  ".join(f"{n} {r[n]:9.4f} ({r[f'over_{n}']:5.2f}x)" for n in ("torch", "numpy") if n in r)
    rate = f"{r['gflops']:7.1f} GF/s" if r["gflops"] else f"{r['gbytes']:7.1f} GB/s"
    limit = f"{100 * r['limit']:4.0f} %" if r["limit"] else "     -"
    return f"{r['case']:36s} {r['polyop']:9.4f} ms  {peers}  {rate} {limit}" + ("" if r.get("right", True) else "  WRONG")


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """The groups as a table in Markdown: geometric means of the ratios, and the least one."""
    lines = ["| group | cases | over PyTorch | least | over NumPy |", "|---|---|---|---|---|"]
    for group in dict.fromkeys(r["group"] for r in rows):
        mine = [r for r in rows if r["group"] == group]
        torch, numpy = ([r[f"over_{n}"] for r in mine if f"over_{n}" in r] for n in ("torch", "numpy"))
        cells = [f"{mean(torch):.2f}x" if torch else "-", f"{min(torch):.2f}x" if torch else "-",
                 f"{mean(numpy):.2f}x" if numpy else "-"]
        lines.append(f"| {group} | {len(mine)} | {' | '.join(cells)} |")
    return lines


def mean(ratios: list[float]) -> float:
    return float(np.exp(np.mean(np.log(ratios))))


def measured(limits: Machine, rows: list[dict[str, Any]], torch: Any) -> list[str]:
    """The summary with all that is needed to judge it."""
    peers = f"PyTorch {torch.__version__.split('+')[0]} (eager) and " if torch else ""
    on_amd = ["", "PyTorch's matrix products are MKL's, which is slower on AMD than on Intel; NumPy's are OpenBLAS's."]
    return [f"Measured by `bench/run.py` on one thread of an {limits.name} ({limits.target}; {limits.gflops:.0f} GF/s of f32 "
            f"multiply-adds, {limits.gbytes:.0f} GB/s of copying), beside {peers}NumPy {np.__version__}: how many times as fast "
            "polyop is, as a geometric mean over the cases of a group and for the worst of them.", "",
            *summary(rows), *(on_amd if "AMD" in limits.name and torch else [])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", choices=[[], *GROUPS], help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--readme", action="store_true", help="put the summary into the README")
    parser.add_argument("--budget", type=float, default=0.2, help="seconds for each thing that is timed")
    given = parser.parse_args()
    polyop.set_num_threads(1)
    one_blas_thread()
    keep_memory()
    torch = None
    if importlib.util.find_spec("torch"):
        import torch  # type: ignore[no-redef]

        torch.set_num_threads(1)
    limits = machine()
    print(f"{limits.name}: {limits.gflops:.0f} GF/s of f32 multiply-adds, {limits.gbytes:.1f} GB/s of copying, on one thread")
    print("ratios above 1: polyop is faster; %: of what multiply-adds or memory allow\n")
    rows = []
    for group in given.groups or GROUPS:
        print(group)
        mine = []
        for case in GROUPS[group]():
            mine.append(measure(case, limits, torch, given.budget))
            print("  " + line(mine[-1]), flush=True)
        rows += mine
        print()
    print("\n".join(summary(rows)))
    if given.readme:
        fill("measured", measured(limits, rows, torch))
    if given.json:
        given.json.write_text(json.dumps({"machine": limits.row(), "rows": rows}, indent=1))
    return 1 if any(not r.get("right", True) for r in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
