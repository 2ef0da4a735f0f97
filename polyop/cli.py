"""The command line: the only file that prints, colours and exits."""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table
from rich.text import Text

from polyop import __version__, bench, demo, program, standard
from polyop.bench import process
from polyop.dsl import syntax
from polyop.dsl.check import warnings
from polyop.dsl.describe import describe
from polyop.dsl.interface import interface as interface_of
from polyop.dsl.names import did_you_mean
from polyop.dsl.parse import parse
from polyop.ir.deep import with_room
from polyop.ir.dtypes import DTYPES
from polyop.ir.errors import Diagnostic, InternalError, PolyopError, UserError, fail
from polyop.ir.interface import Interface
from polyop.ir.options import RUNGS, Options
from polyop.ir.target import ROWS
from polyop.operator import Artefact
from polyop.poly.wellformed import check as well_formed
from polyop.rehearsal import Rehearsal
from polyop.report.explain import explain as explained
from polyop.report.work import work
from polyop.runtime import amdgcn, cache, cpu, nvrtc, threads
from polyop.trace import STAGES
from polyop.trial import Called, Trial, compared, sort, trial

OUT = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
ERR = Console(stderr=True, highlight=False, soft_wrap=True, width=None if sys.stderr.isatty() else 160)

_COLOURS = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan", "help": "bold green"}


def main(arguments: list[str] | None = None) -> None:
    """The program `polyop`: exit status 0, 1 if something was wrong, 2 if the command line was."""
    logging.basicConfig(format="%(message)s", handlers=[RichHandler(console=ERR, show_time=False, show_path=False)])
    try:
        status = commands(args=arguments, prog_name="polyop", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        ERR.print("stopped")
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except UserError as error:
        report(error.diagnostic)
        sys.exit(1)
    except InternalError as error:
        ERR.print(Text(f"error: a bug of polyop, please report it: {error}", "bold red"))
        sys.exit(1)
    except (PolyopError, MemoryError, OSError) as error:
        ERR.print(Text(f"error: {str(error) or type(error).__name__}", "bold red"))
        sys.exit(1)
    except Exception as error:
        ERR.print(Text(f"error: a bug of polyop, please report it: {type(error).__name__}: {error}", "bold red"))
        if logging.getLogger("polyop").isEnabledFor(logging.DEBUG):
            ERR.print(Text(traceback.format_exc()))
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)


def report(d: Diagnostic) -> None:
    """A diagnostic on stderr, its headings in colour."""
    for line in str(d).splitlines():
        word = line.split(":")[0].split("[")[0]
        text = Text(line)
        if word in _COLOURS:
            text.stylize(_COLOURS[word], 0, line.index(":") + 1)
        elif set(line) - set(" |0123456789") and line.lstrip().startswith("| ") and "^" in line:
            text.stylize(_COLOURS["error"])
        ERR.print(text)


# --- what the user names -----------------------------------------------------------------------------------------------


def opened(file: str, name: str | None) -> tuple[syntax.Program, str]:
    """The program in `file` and the operator meant by `name`; None means the only one."""
    given = source(file)
    return given, meant(given, file, name)


def meant(given: syntax.Program, file: str, name: str | None) -> str:
    """The operator of `given`, the program in `file`, that is meant by `name`."""
    names = [o.name for o in given.ops]
    if name is None and file in names and file in standard.index():
        name = file
    if name is None and len(names) == 1:
        name = names[0]
    if name is None:
        raise fail("E912", f"{given.source.name} defines {', '.join(names) or 'no operator'}; expected one",
                   hint=f"say which: `{file} {names[0]}`" if names else "")
    if given.op(name) is None:
        raise fail("E912", f"{given.source.name} defines no operator `{name}`" + did_you_mean(name, names))
    return name


def source(file: str) -> syntax.Program:
    """The program that `file` names: a path, "-" for the standard input, a file or an operator of the library."""
    if file == "-":
        return parse(program.decoded("<stdin>", sys.stdin.buffer.read(program.LARGEST + 1)))
    path = Path(file)
    if not path.suffix and not path.exists():
        if f"{file}.pop" in standard.texts():
            return standard.program(f"{file}.pop")
        if file in standard.index():
            return standard.program(standard.index()[file])
        known = [*standard.index(), *(f.removesuffix(".pop") for f in standard.texts())]
        raise fail("E102", f"there is no file {file}, and nothing in the library has that name" + did_you_mean(file, known))
    return parse(program.read(path))


def called(given: syntax.Program, name: str, target: str) -> Called:
    """What runs the operator `name` as `target` would: for a GPU, the emulator."""
    operator, t, make = program.operator(given, name, Options()), cpu.resolve(target), program.maker(given, name)
    if t.family != "x86":
        return Rehearsal(operator.interface, lambda c: make(dict(c.dtypes), dict(c.consts), c.rest), t)
    operator.target = target
    return operator


def defined(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    """The values of `-D NAME=VALUE`."""
    out: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.isidentifier() or not value:
            raise click.BadParameter(f"expected NAME=VALUE, got {text!r}")
        if name in out:
            raise click.BadParameter(f"{name} is given twice")
        out[name] = _value(name, value)
    return out


def _value(name: str, text: str) -> Any:
    if text.endswith(".npy"):
        return _array(name, Path(text))
    if text in DTYPES:
        return text
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise click.BadParameter(f"{name}={text[:60]}: expected a number, true, false, a dtype or a .npy file")


def _array(name: str, path: Path) -> Any:
    try:
        found = np.load(path, allow_pickle=False)
    except OSError as error:
        raise fail("E911", f"cannot read {path} for `{name}`: {error.strerror or error}") from None
    except Exception as error:  # whatever a damaged file makes NumPy raise
        raise fail("E911", f"{path} for `{name}` is no .npy file of numbers: {error}") from None
    if not isinstance(found, np.ndarray):
        raise fail("E911", f"{path} for `{name}` holds several arrays; expected a .npy file with one")
    return found


def ready(file: str, name: str | None, given: dict[str, Any], rank: int | None, target: str, rung: str = "tuned") -> Artefact:
    """An operator, compiled for contiguous arguments."""
    text, name = opened(file, name)
    operator = program.operator(text, name, Options(rung=rung))
    known = sort(operator.interface, given)
    with ERR.status(f"compiling {name} for {target}"):
        return operator.compile(target, known.dtypes, known.consts, rank)


FILE = click.argument("file")
NAME = click.argument("name", required=False, metavar="[OPERATOR]")
DEFINE = click.option("-D", "--define", "given", multiple=True, callback=defined, metavar="NAME=VALUE",
                      help="A size, a scalar, a const, a dtype variable, or a .npy file for a tensor.")
RANK = click.option("--rank", type=click.IntRange(0, 16), help="How many dimensions `...` stands for.")
TARGET = click.option("--target", default="x86", show_default=True, help="What to compile for; see `polyop targets`.")
RUNG = click.option("--rung", type=click.Choice(RUNGS), default="tuned", show_default=True, help="First rung of the ladder.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="polyop")
@click.option("--debug", is_flag=True, help="Say more when something goes wrong.")
def commands(debug: bool) -> None:
    """Einstein notation to fast, proven kernels.

    FILE is a .pop file, "-", or the name of a file or an operator of the standard library, as in `polyop run softmax`.
    """
    logging.getLogger("polyop").setLevel(logging.DEBUG if debug else logging.WARNING)


# --- run ---------------------------------------------------------------------------------------------------------------


@commands.command()
@FILE
@NAME
@DEFINE
@RANK
@TARGET
@click.option("--seed", default=0, type=click.IntRange(0), help="Of the random inputs.")
@click.option("--check", "checked", is_flag=True, help="Compare with a plain evaluation in float64.")
@click.option("--time", "timed", is_flag=True, help="Repeat the call and say how fast it is.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="A folder for the results, as .npy files.")
def run(file: str, name: str | None, given: dict[str, Any], rank: int | None, target: str, seed: int, checked: bool,
        timed: bool, out: Path | None) -> None:
    """Run an operator on .npy files or random inputs."""
    text, name = opened(file, name)
    is_emulated = cpu.resolve(target).family != "x86"
    if is_emulated and timed:
        raise fail("E914", f"`--time` says nothing about {target}: calls for a GPU run on an emulator here")
    operator = called(text, name, target)
    call = trial(operator.interface, program.maker(text, name), given, rank, seed)
    if call.assumed:
        OUT.print(Text(f"not given, so assumed: {', '.join(f'{n} = {v}' for n, v in call.assumed.items())}", "dim"))
    start = time.perf_counter()
    with ERR.status(f"compiling and running {name}"):
        results = operator(**call.arguments)
    first = time.perf_counter() - start
    named = list(zip((r.name for r in operator.interface.results), results if isinstance(results, tuple) else (results,),
                     strict=True))
    _summary(named)
    where = f", on the emulator of {target}, which saw no fault" if is_emulated else ""
    OUT.print(f"first call {_seconds(first)}, compiling or loading included{where}")
    if timed:
        _timing(operator, call)
    if out is not None:
        _save(named, out)
    if checked:
        with ERR.status("checking"):
            outcome = compared(operator, program.maker(text, name), given, rank, seed)
        OUT.print(Text(str(outcome), "green" if outcome.right else "bold red"))
        if not outcome.right:
            raise click.exceptions.Exit(1)


def _summary(results: Iterable[tuple[str, Any]]) -> None:
    table = Table("result", "dtype", "shape", "least", "mean", "greatest", "first elements", box=None, header_style="bold")
    for name, value in results:
        a = np.asarray(value)
        wide = a.astype(np.float64)
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
    OUT.print(f"median of {len(times)} calls {_seconds(median)} on {threads.get_num_threads()} threads:"
              f"{bound} {operations / median / 1e9:.3g} G operations/s, {bytes_ / median / 1e9:.3g} GB/s of arguments")


def _seconds(s: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if s >= size:
            return f"{s / size:.3g} {unit}"
    return f"{s * 1e6:.3g} us"


def _save(results: Iterable[tuple[str, Any]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in results:
        a = np.asarray(value)
        if a.dtype.kind == "V":  # bf16: a .npy file would not remember what it is
            a = a.astype(np.float32)
        np.save(folder / f"{name}.npy", a)
        OUT.print(f"{name} is in {folder / name}.npy" + (" as float32" if a is not value and a.dtype == np.float32 else ""))


# --- look --------------------------------------------------------------------------------------------------------------


@commands.command()
@FILE
@click.argument("names", nargs=-1, metavar="[OPERATOR]...")
@DEFINE
@RANK
def check(file: str, names: tuple[str, ...], given: dict[str, Any], rank: int | None) -> None:
    """Say what is inferred about operators: sizes, ranges, shapes, dtypes, conditions; prove that they make sense."""
    text = source(file)
    wrong = 0
    for name in names:
        meant(text, file, name)
    for name in names or [o.name for o in text.ops]:
        try:
            _checked(text, name, given, rank)
        except UserError as error:
            report(error.diagnostic)
            wrong += 1
    if not names and not text.ops:
        OUT.print(f"{text.source.name} defines no operator")
    if wrong:
        raise click.exceptions.Exit(1)


def _checked(text: syntax.Program, name: str, given: dict[str, Any], rank: int | None) -> None:
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


def _names(interface: Interface) -> set[str]:
    return {p.name for p in interface.parameters} | {n for n, _ in interface.variables}


@commands.command()
@FILE
@NAME
@click.option("--stage", help=f"One of {', '.join(STAGES)}; without it, a table of them.")
@DEFINE
@RANK
@TARGET
@RUNG
def show(file: str, name: str | None, stage: str | None, given: dict[str, Any], rank: int | None, target: str, rung: str) -> None:
    """Print what a stage of the compiler made of an operator."""
    made = ready(file, name, given, rank, target, rung)
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


@commands.command()
@FILE
@NAME
@DEFINE
@RANK
@TARGET
@RUNG
def explain(file: str, name: str | None, given: dict[str, Any], rank: int | None, target: str, rung: str) -> None:
    """Say why a kernel is the way it is: loops, fusion, work, memory, proofs. Sizes given with -D are put into the formulas."""
    made = ready(file, name, given, rank, target, rung)
    sizes = {n: v for n, v in given.items() if n in made.op.sizes and isinstance(v, int) and not isinstance(v, bool)}
    for line in with_room(lambda: explained(made, sizes)).splitlines():
        style = "bold" if line and not line.startswith(" ") else "red" if line.startswith("  FAILS") else ""
        OUT.print(Text(line, style))


@commands.command()
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
        table.add_row(name, wide, str(t.registers), _here(t.name, t.family) if t.name != "x86:host" else f"runs: {t.arch}")
    OUT.print(table)


def _here(name: str, family: str) -> str:
    if family == "x86":
        return "runs" if cpu.runs_here(cpu.resolve(name)) else "assembles; this CPU cannot run it"
    if family == "cuda":
        return "text and cubin" if not nvrtc.unavailable() else "text; `polyop[cuda]` adds the cubin"
    try:
        amdgcn.tools()
    except PolyopError:
        return "text; `polyop[hip]` adds the code object"
    return "text and code object"


@commands.command()
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


@commands.command("cache")
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


# --- demo --------------------------------------------------------------------------------------------------------------


@commands.command("demo")
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


# --- bench -------------------------------------------------------------------------------------------------------------

SECONDS = {"small": 0.03, "full": 0.1}  # for each thing that is timed


@commands.command("bench", epilog=f"Groups: {', '.join(bench.GROUPS)}.")
@click.argument("what", nargs=-1, metavar="[GROUP]... | FILE [OPERATOR]")
@DEFINE
@RANK
@click.option("--size", type=click.Choice([*SECONDS]), default="small", show_default=True, help="How many cases of each group.")
@click.option("--threads", "count", type=click.IntRange(1, threads.MOST), default=1, show_default=True, help="For everybody.")
@click.option("--peer", "peers", multiple=True, type=click.Choice([p.name for p in bench.PEERS]),
              help="Whom to compare with; all who are installed, if none is named.")
@click.option("--seconds", type=click.FloatRange(0, 100),
              help="For each thing that is timed; 0.03 for small and 0.1 for full, unless given.")
@click.option("--json", "json_", type=click.Path(dir_okay=False, path_type=Path), help="Where to write the numbers.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Where to draw a roofline: .svg, .png or .pdf.")
@click.option("--markdown", type=click.Path(dir_okay=False, path_type=Path),
              help="A page whose place between <!-- measured --> and <!-- end --> takes the tables.")
def bench_(what: tuple[str, ...], given: dict[str, Any], rank: int | None, size: str, count: int, peers: tuple[str, ...],
           seconds: float | None, json_: Path | None, plot: Path | None, markdown: Path | None) -> None:
    """Time operators beside NumPy, PyTorch and others who are installed, and beside what this machine can do.

    With FILE, or any -D, an operator of yours or of the library is timed alone.
    """
    if plot:
        bench.needs_matplotlib(plot)
    if markdown:
        bench.place(markdown, "measured")
    for path in (json_, plot):
        if path:
            path.touch()  # better now than after minutes
    is_own = bool(given) or any(w not in bench.GROUPS for w in what)
    own = _own_case(what, given, rank) if is_own else None
    with ERR.status("measuring what the machine can do"):
        settings, missing = bench.settings(count, ("numpy",) if own else peers, seconds or SECONDS[size], size == "full")
    OUT.print(bench.limits(settings.limits))
    if own:
        book = _own_book(own, settings, size)
    else:
        for name, why in missing.items():
            OUT.print(Text(f"without {name}: {why}", "dim"))
        OUT.print("ratio above 1: polyop is faster; spread: half of what lies between the quartiles", style="dim")
        book = _book(what, settings, size, missing)
        OUT.print(_plain(*bench.summary(book)))
    if json_:
        json_.write_text(bench.to_json(book), encoding="utf-8")
    if markdown:
        bench.fill(markdown, "measured", bench.markdown(book))
    if plot:
        bench.roofline(book, plot)
    if book.wrong:
        raise click.exceptions.Exit(1)


def _own_case(what: tuple[str, ...], given: dict[str, Any], rank: int | None) -> bench.Case:
    """The case of one operator: `FILE [OPERATOR]`."""
    if not 1 <= len(what) <= 2:
        raise click.UsageError(f"expected groups, or FILE and OPERATOR; got {' '.join(what) or 'neither'}")
    text, name = opened(what[0], what[1] if len(what) > 1 else None)
    label = " ".join(f"{n}={v}" for n, v in given.items() if not isinstance(v, np.ndarray))
    return bench.Case(name, label, text, name, given, rank)


def _own_book(case: bench.Case, settings: bench.Settings, size: str) -> bench.Book:
    """One row, and whatever is wrong with the operator or the call as an error."""
    bound = bench.bind(case)
    if bound.call.assumed:
        OUT.print(Text(f"not given, so assumed: {', '.join(f'{n} = {v}' for n, v in bound.call.assumed.items())}", "dim"))
    start = time.perf_counter()
    with ERR.status(f"compiling and running {case.name}"):
        got = bench.results(bound.run[0](), np.asarray)
    OUT.print(f"first call {_seconds(time.perf_counter() - start)}, compiling or loading included")
    row = bench.measured(bound, got, settings)
    t = row.times[bench.OURS]
    limit = f", {100 * row.limit:.0f} % of what the machine allows" if row.limit else ""
    quartiles = f"quartiles {_seconds(t.low / 1e3)} and {_seconds(t.high / 1e3)}"
    OUT.print(f"median {_seconds(t.median / 1e3)}, {quartiles}, of {t.samples} samples:"
              f"{'' if row.exact else ' at most'} {row.gflops:.3g} GF/s, {row.gbytes:.3g} GB/s{limit}")
    return bench.book([], settings, size, {}, (row,))


def _book(groups: tuple[str, ...], settings: bench.Settings, size: str, missing: dict[str, str]) -> bench.Book:
    """The book of `groups`; each is printed as soon as it is done."""
    rows: list[bench.Row] = []

    def flush() -> None:
        if rows:
            OUT.print(Text(rows[0].group, "bold"))
            OUT.print(_plain(bench.HEAD, [bench.cells(r) for r in rows]))
            rows.clear()
    with ERR.status("measuring") as status:
        def seen(row: bench.Row) -> None:
            if rows and rows[0].group != row.group:
                flush()
            rows.append(row)
            status.update(f"{row.group}: {row.case}")
        book = bench.book(bench.cases(groups, size), settings, size, missing, seen=seen)
    flush()
    return book


def _plain(head: Iterable[str], lines: Iterable[Iterable[str]]) -> Table:
    table = Table(*head, box=None, header_style="bold")
    for line in lines:
        cells = [*line]
        table.add_row(*map(Text, cells), style="bold red" if cells[1] in ("WRONG", "failed") else "")
    return table


if __name__ == "__main__":
    main()
