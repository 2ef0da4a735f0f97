"""`polyop demo`."""

from __future__ import annotations

import time

import click
from rich.table import Table
from rich.text import Text

from polyop import demo
from polyop.bench import process
from polyop.cli.console import ERR, OUT


@click.command("demo")
@click.option("--torch/--no-torch", "peer", default=True, help="Whether to time PyTorch too, where it is installed.")
def demo_(peer: bool) -> None:
    """Compile operators of real networks once each, run them at several sizes, check and time them."""
    table = Table("operator", "sizes", "compile", "polyop", "NumPy", "PyTorch", "error", "proofs", header_style="bold", box=None)
    for column in table.columns[2:7]:
        column.justify = "right"
    start, wrong, runs, kernels = time.perf_counter(), 0, 0, 0
    process.keep_memory()
    numpys = "" if process.blas_threads(1) else "; NumPy's BLAS uses as many as it likes"
    with ERR.status("importing") as status:
        for subject, result in zip(demo.SUBJECTS, demo.results(peer), strict=False):
            status.update(f"{subject.title} done")
            for k, r in enumerate(result.runs):
                table.add_row(*_demo_row(result, r, k), end_section=k == len(result.runs) - 1)
            wrong += sum(not r.right for r in result.runs) + (not result.proved)
            runs += len(result.runs)
            kernels += result.kernels
    OUT.print(table)
    OUT.print(f"{len(demo.SUBJECTS)} operators, {runs} sizes, {kernels} kernels, {time.perf_counter() - start:.0f} s. "
              "Nothing was cached; proofs hold for all sizes.")
    OUT.print(f"Times are medians in ms, on one thread{numpys}. Errors are against float64, as a part of the greatest element.",
              style="dim")
    if wrong:
        raise click.exceptions.Exit(1)


def _demo_row(result: demo.Result, run: demo.Run, k: int) -> list[Text | str]:
    """One size; the first of an operator says what it is and how it was compiled."""
    s = result.subject
    what = (Text(s.title, "bold"), Text(s.origin, "dim"))[k] if k < 2 else ""
    count = "1 kernel" if result.kernels == 1 else f"{result.kernels} kernels"
    compiled = (f"{result.compile_ms:.0f} ms", count)[k] if k < 2 else ""
    holds = sum(p.holds for p in result.proofs)
    proofs = Text(f"{holds} of {len(result.proofs)} hold", "green" if result.proved else "bold red") if k == 0 else ""
    peer = "-" if run.torch_ms is None else f"{run.torch_ms:.3f}"
    sizes = " ".join(f"{n}={v}" for n, v in run.sizes.items())
    error = Text(f"{run.error:.0e}", "" if run.right else "bold red")
    return [what, sizes, compiled, Text(f"{run.ms:.3f}", "bold"), f"{run.numpy_ms:.3f}", peer, error, proofs]
