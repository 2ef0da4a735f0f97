"""`polyop run`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table
from rich.text import Text

from polyop import program
from polyop.cli.console import ERR, OUT, seconds
from polyop.cli.named import DEFINE, FILE, NAME, NUMERICS, RANK, TARGET, called, opened
from polyop.ir.errors import fail
from polyop.outcome import Called, compared
from polyop.rehearsal import Rehearsal
from polyop.report.work import work
from polyop.runtime import cpu, threads
from polyop.runtime.banks import Traffic, in_words
from polyop.trial import POINTS, Trial, trial

EMULATED = 1 << 22  # points of a call on the emulator, as long as sizes are left that nobody gave: some seconds


@click.command()
@FILE
@NAME
@DEFINE
@RANK
@TARGET
@NUMERICS
@click.option("--seed", default=0, type=click.IntRange(0), help="Of the random inputs.")
@click.option("--check", "checked", is_flag=True, help="Compare with float64; on the emulator, in all orders.")
@click.option("--emulate", is_flag=True, help="For a GPU: run on the emulator, even if there is such a device.")
@click.option("--time", "timed", is_flag=True, help="Repeat the call and say how fast it is.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="A folder for the results, as .npy files.")
def run(file: str, name: str | None, given: dict[str, Any], rank: int | None, target: str, numerics: str, seed: int,
        checked: bool, emulate: bool, timed: bool, out: Path | None) -> None:
    """Run an operator on .npy files or random inputs."""
    text, name = opened(file, name)
    is_for_gpu = cpu.resolve(target).family != "x86"
    if is_for_gpu and timed:
        raise fail("E914", f"`--time` says nothing about {target}: arrays are copied to and fro here; see bench/gpu.py")
    traffic: list[tuple[Traffic, ...]] = []
    operator = called(text, name, target, emulate, checked, numerics, traffic.append if checked else None)
    points = EMULATED if isinstance(operator, Rehearsal) else POINTS
    call = trial(operator.interface, program.maker(text, name), given, rank, seed, points=points)
    if call.assumed:
        OUT.print(Text(f"not given, so assumed: {', '.join(f'{n} = {v}' for n, v in call.assumed.items())}", "dim"))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # better now than after minutes
    start = time.perf_counter()
    with ERR.status(f"compiling and running {name}"):
        results = operator(**call.arguments)
    first = time.perf_counter() - start
    named = list(zip((r.name for r in operator.interface.results), results if isinstance(results, tuple) else (results,),
                     strict=True))
    _summary(named)
    where = f", {operator}" if is_for_gpu else ""
    OUT.print(f"first call {seconds(first)}, compiling or loading included{where}")
    for found in traffic:
        OUT.print(Text(in_words(found)))
    if timed:
        _timing(operator, call)
    if out is not None:
        _save(named, out)
    if checked:
        with ERR.status("checking"):
            outcome = compared(operator, program.maker(text, name), given | call.assumed, rank, seed, numerics, results)
        OUT.print(Text(str(outcome), "green" if outcome.right else "bold red"))
        if not outcome.right:
            raise click.exceptions.Exit(1)


def _summary(results: Iterable[tuple[str, Any]]) -> None:
    table = Table("result", "dtype", "shape", "least", "mean", "greatest", "first elements", box=None, header_style="bold")
    for name, value in results:
        a = np.asarray(value)
        wide = a.astype(np.float64)
        with np.errstate(all="ignore"):  # infinities of both signs have no mean, which the table says in its own way
            numbers = [f"{f(wide):.6g}" if a.size else "-" for f in (np.min, np.mean, np.max)]
        head = ", ".join(f"{x:.6g}" for x in wide.reshape(-1)[:4])
        table.add_row(name, str(a.dtype), " x ".join(map(str, a.shape)) or "scalar", *numbers, head)
    OUT.print(table)


def _timing(operator: Called, call: Trial) -> None:
    """Repeat the call for half a second."""
    times: list[float] = []
    stop = time.perf_counter() + 0.5
    while len(times) < 3 or time.perf_counter() < stop:
        start = time.perf_counter()
        operator(**call.arguments)
        times.append(time.perf_counter() - start)
    median = sorted(times)[len(times) // 2]
    w = work(call.op)
    operations, bytes_ = w.operations.value(call.sizes), (w.reads + w.writes).value(call.sizes)
    bound = "" if w.operations.exact else " at most"
    OUT.print(f"median of {len(times)} calls {seconds(median)} on {threads.get_num_threads()} threads:"
              f"{bound} {operations / median / 1e9:.3g} G operations/s, {bytes_ / median / 1e9:.3g} GB/s of arguments")


def _save(results: Iterable[tuple[str, Any]], folder: Path) -> None:
    for name, value in results:
        a = np.asarray(value)
        if a.dtype.kind == "V":  # bf16: a .npy file would not remember what it is
            a = a.astype(np.float32)
        np.save(folder / f"{name}.npy", a)
        OUT.print(f"{name} is in {folder / name}.npy" + (" as float32" if a is not value and a.dtype == np.float32 else ""))
