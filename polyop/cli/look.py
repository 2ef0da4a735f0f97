"""The commands that only look: `polyop check`, `show`, `explain`, `targets`, `library`, `cache`."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table
from rich.text import Text

from polyop import program, standard
from polyop.cli.console import ERR, OUT, report
from polyop.cli.named import DEFINE, FILE, NAME, NUMERICS, RANK, RUNG, TARGET, meant, ready, source
from polyop.dsl import syntax
from polyop.dsl.check import warnings
from polyop.dsl.describe import describe
from polyop.dsl.interface import interface as interface_of
from polyop.dsl.names import did_you_mean
from polyop.ir.deep import with_room
from polyop.ir.errors import PolyopError, UserError, fail
from polyop.ir.interface import Interface
from polyop.ir.target import ROWS, Target
from polyop.poly.wellformed import check as well_formed
from polyop.rehearsal import device_for
from polyop.runtime import amdgcn, cache, cpu, nvrtc
from polyop.runtime.gpu import chips, driver
from polyop.trace import STAGES
from polyop.trial import sort


@click.command()
@FILE
@click.argument("names", nargs=-1, metavar="[OPERATOR]...")
@DEFINE
@RANK
def check(file: str, names: tuple[str, ...], given: dict[str, Any], rank: int | None) -> None:
    """Say what is inferred about operators: sizes, ranges, shapes, dtypes, conditions; prove that they make sense."""
    text = source(file)
    wrong = 0
    known: set[str] = set()
    for name in names:
        meant(text, file, name)
    for name in names or [o.name for o in text.ops]:
        try:
            known |= _checked(text, name, given, rank)
        except UserError as error:
            report(error.diagnostic)
            wrong += 1
    for name in given.keys() - known if not wrong else ():
        raise fail("E910", f"nothing in {text.source.name} has a size or parameter `{name}`" + did_you_mean(name, sorted(known)))
    if not names and not text.ops:
        OUT.print(f"{text.source.name} defines no operator")
    if wrong:
        raise click.exceptions.Exit(1)


def _checked(text: syntax.Program, name: str, given: dict[str, Any], rank: int | None) -> set[str]:
    """Print what is inferred about an operator; the names that it gives a meaning."""
    interface = interface_of(text, name)
    known = sort(interface, {n: v for n, v in given.items() if n in _names(interface)})
    consts = {p.name: 1 for p in interface.consts if p.required and p.dtype == "i64"} | known.consts
    op = program.maker(text, name)(known.dtypes, consts, rank)
    for line in with_room(lambda: describe(op)):
        OUT.print(Text(line, "bold" if not line.startswith(" ") else ""))
    for p in interface.consts:
        if p.name in consts and p.name not in known.consts:
            OUT.print(Text(f"  {p.name} has no default; checked for {p.name} = {consts[p.name]}, give another with -D", "dim"))
    for d in warnings(text, name, consts=consts, dtypes=known.dtypes, rank=rank, library=standard.LIBRARY):
        report(d)
    with_room(lambda: well_formed(op))
    OUT.print(Text("  proved for all sizes: reads and writes inside, results written once and in full, an order exists", "green"))
    return _names(interface) | {*op.sizes}


def _names(interface: Interface) -> set[str]:
    return {p.name for p in interface.parameters} | {n for n, _ in interface.variables}


@click.command()
@FILE
@NAME
@click.option("--stage", help=f"One of {', '.join(STAGES)}; without it, a table of them.")
@DEFINE
@RANK
@TARGET
@NUMERICS
@RUNG
def show(file: str, name: str | None, stage: str | None, given: dict[str, Any], rank: int | None, target: str, numerics: str,
         rung: str) -> None:
    """Print what a stage of the compiler made of an operator; for a GPU, with all sizes given, as for such a call."""
    made = ready(file, name, given, rank, target, numerics, rung)
    if stage is None:
        table = Table("stage", "lines", "ms", box=None, header_style="bold")
        spent = dict(getattr(made.trace, "ms", ()))
        for s in [*made.trace, *(s for s in spent if s not in made.trace)]:
            table.add_row(s, str(len(made.trace[s].splitlines())) if s in made.trace else "",
                          f"{spent[s]:.1f}" if s in spent else "")
        OUT.print(table)
    elif stage in made.trace:
        OUT.print(Text(made.trace[stage]))
    else:
        why = f" of {made.op.name} on this rung of the ladder" if stage in STAGES else ""
        raise fail("E913", f"there is no stage `{stage}`{why}" + did_you_mean(stage, list(made.trace)),
                   hint=f"stages are {', '.join(made.trace)}")


@click.command()
@FILE
@NAME
@DEFINE
@RANK
@TARGET
@NUMERICS
@RUNG
def explain(file: str, name: str | None, given: dict[str, Any], rank: int | None, target: str, numerics: str,
         rung: str) -> None:
    """Say why a kernel is the way it is: loops, fusion, work, memory, proofs.

    With all sizes given, formulas are worked out, and for a GPU the kernel is the one that such a call gets.
    """
    made = ready(file, name, given, rank, target, numerics, rung)
    sizes = {n: v for n, v in given.items() if isinstance(v, int) and not isinstance(v, bool)}
    for line in made.explain(sizes).splitlines():
        style = "bold" if line and not line.startswith(" ") else "red" if line.startswith("  FAILS") else ""
        OUT.print(Text(line, style))


@click.command()
def targets() -> None:
    """List what can be compiled for, and what of it this machine can assemble and run."""
    table = Table("target", "vectors or warps", "registers", "here", box=None, header_style="bold")
    rows = [*ROWS]
    try:
        rows.insert(0, cpu.host())
    except PolyopError as error:
        ERR.print(Text(f"warning: {error}", "bold yellow"))
    for t in rows:
        wide = f"{t.vector_bytes} bytes" if t.family == "x86" else f"{t.warp} threads"
        name = "x86" if t.name == "x86:host" else t.name
        table.add_row(name, wide, str(t.registers), Text(_here(t)) if t.name != "x86:host" else f"runs: {t.arch}")
    OUT.print(table)
    for family in ("cuda", "hip"):
        reason = driver.unavailable(family)
        if reason:
            OUT.print(Text(reason, "dim"))


def _here(t: Target) -> str:
    if t.family == "x86":
        return "runs" if cpu.runs_here(t) else "assembles; this CPU cannot run it"
    device = device_for(t)
    return _assembled(t.family) + (f"; runs on {device}, which is {chips.arch(device)}" if device else "")


def _assembled(family: str) -> str:
    if family == "cuda":
        return "text and cubin" if not nvrtc.unavailable() else "text; `polyop[cuda]` adds the cubin"
    try:
        amdgcn.tools()
    except PolyopError:
        return "text; `polyop[hip]` adds the code object"
    return "text and code object"


@click.command()
@click.argument("name", required=False)
def library(name: str | None) -> None:
    """List the standard operators, or print one, or a file of them."""
    if name is None:
        table = Table("file", "operators", box=None, header_style="bold")
        for file in standard.texts():
            table.add_row(file.removesuffix(".pop"), ", ".join(o.name for o in standard.program(file).ops))
        OUT.print(table)
    elif name in standard.index():
        OUT.print(Text(standard.definition(name)))
    elif f"{name}.pop" in standard.texts():
        OUT.print(Text(standard.texts()[f"{name}.pop"]), end="")
    else:
        known = [*standard.index(), *(f.removesuffix(".pop") for f in standard.texts())]
        raise fail("E201", f"the library has no `{name}`" + did_you_mean(name, known))


@click.command("cache")
@click.argument("action", type=click.Choice(["show", "clear"]), default="show")
def cache_(action: str) -> None:
    """Say where compiled kernels are kept and how much they take; `clear` removes them."""
    folder = cache.folder()
    entries = cache.entries()
    bytes_ = sum(p.stat().st_size for p in entries)
    kernels = sum(p.suffix == cache.KERNEL for p in entries)
    count = f"{kernels} kernel{'' if kernels == 1 else 's'}"
    if action == "clear":
        for p in entries:
            p.unlink(missing_ok=True)
        OUT.print(f"removed {count}, {bytes_ / 1e6:.1f} MB, from {folder}")
    else:
        OUT.print(f"{folder}: {count}, {bytes_ / 1e6:.1f} MB of at most {cache.limit() / 1e6:.0f} MB")
