"""`polyop bench`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table
from rich.text import Text

from polyop import bench
from polyop.bench.machine import machine
from polyop.cli.console import ERR, OUT
from polyop.cli.console import seconds as duration
from polyop.cli.named import DEFINE, RANK, opened
from polyop.runtime import threads

SECONDS = {"small": 0.03, "full": 0.1}  # for each thing that is timed
TURN = 0.06  # seconds of a turn


@click.command("bench", epilog=f"Groups: {', '.join(bench.GROUPS)}.")
@click.argument("what", nargs=-1, metavar="[GROUP]... | FILE [OPERATOR]")
@DEFINE
@RANK
@click.option("--size", type=click.Choice([*SECONDS]), default="small", show_default=True, help="How many cases of each group.")
@click.option("--threads", "count", type=click.IntRange(1, threads.MOST), default=1, show_default=True, help="For everybody.")
@click.option("--peer", "peers", multiple=True, type=click.Choice([p.name for p in bench.PEERS]),
              help="Whom to compare with; all who are installed, if none is named.")
@click.option("--seconds", type=click.FloatRange(0, 100),
              help="For each thing that is timed; 0.03 for small and 0.1 for full, unless given, 0.06 for each of --turns.")
@click.option("--turns", type=click.IntRange(1, 10_000), metavar="ROUNDS",
              help="A process for each, asked by turns so many times: the least processor time of a call, on one core.")
@click.option("--against", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="CHECKOUT",
              help="Another checkout of polyop to compare with by --turns.")
@click.option("--json", "json_", type=click.Path(dir_okay=False, path_type=Path), help="Where to write the numbers.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Where to draw a roofline: .svg, .png or .pdf.")
@click.option("--markdown", type=click.Path(dir_okay=False, path_type=Path),
              help="A page whose place between <!-- measured --> and <!-- end --> takes the tables.")
def bench_(what: tuple[str, ...], given: dict[str, Any], rank: int | None, size: str, count: int, peers: tuple[str, ...],
           seconds: float | None, turns: int | None, against: Path | None, json_: Path | None, plot: Path | None,
           markdown: Path | None) -> None:
    """Time operators beside NumPy, PyTorch and others who are installed, and beside what this machine can do.

    With FILE, or any -D, an operator of yours or of the library is timed alone, or beside itself in another checkout.
    """
    if against and not turns:
        raise click.UsageError("`--against` needs `--turns`")
    if turns and count > 1:
        raise click.UsageError("`--turns` measures one thread of everybody")
    if plot:
        bench.needs_matplotlib(plot)
    if markdown:
        bench.place(markdown, "measured")
    for path in (json_, plot):
        if path:
            path.touch()  # better now than after minutes
    is_own = bool(given) or any(w not in bench.GROUPS for w in what)
    own = _own_case(what, given, rank) if is_own else None
    if turns:
        found, missing = ((), {}) if own else bench.chosen(peers, size == "full")
        how = bench.Turns(turns, seconds or TURN, found, against, own is not None)
        book = _turned(own, what, how, size, missing)
    else:
        book = _at_once(own, what, count, peers, seconds or SECONDS[size], size)
    if json_:
        json_.write_text(bench.to_json(book), encoding="utf-8")
    if markdown:
        bench.fill(markdown, "measured", bench.turn_markdown(book) if turns else bench.markdown(book))
    if plot:
        bench.roofline(book, plot)
    if book.wrong:
        raise click.exceptions.Exit(1)


def _at_once(own: bench.Case | None, what: tuple[str, ...], count: int, peers: tuple[str, ...], seconds: float,
             size: str) -> bench.Book:
    """The book of everybody in this process."""
    with ERR.status("measuring what the machine can do"):
        settings, missing = bench.settings(count, ("numpy",) if own else peers, seconds, size == "full")
    OUT.print(bench.limits(settings.limits))
    if own:
        return _own_book(own, settings, size)
    _say_missing(missing)
    OUT.print("ratio above 1: polyop is faster; spread: half of what lies between the quartiles", style="dim")
    book = _book(what, settings, size, missing)
    OUT.print(_plain(*bench.summary(book)))
    return book


def _say_missing(missing: Mapping[str, str]) -> None:
    for name, why in missing.items():
        OUT.print(Text(f"without {name}: {why}", "dim"))


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
    OUT.print(f"first call {duration(time.perf_counter() - start)}, compiling or loading included")
    row = bench.measured(bound, got, settings)
    t = row.times[bench.OURS]
    limit = f", {100 * row.limit:.0f} % of what the machine allows" if row.limit else ""
    quartiles = f"quartiles {duration(t.low / 1e3)} and {duration(t.high / 1e3)}"
    OUT.print(f"median {duration(t.median / 1e3)}, {quartiles}, of {t.samples} samples:"
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


def _turned(own: bench.Case | None, groups: tuple[str, ...], how: bench.Turns, size: str, missing: dict[str, str]) -> bench.Book:
    """The book of everybody in a process of its own; each group is printed as soon as it is done."""
    chosen = [own] if own else [*bench.cases(groups, size)]
    cases = [c for c in chosen if isinstance(c, bench.Case)]
    if not cases:
        raise click.UsageError(f"`--turns` measures calls that can be repeated; there are none in {' and '.join(groups)}")
    if left := {c.group for c in chosen} - {c.group for c in cases}:
        OUT.print(Text(f"without {' and '.join(sorted(left))}, where each call is the first one", "dim"))
    with ERR.status("measuring what the machine can do") as status:
        limits = machine(1)
        OUT.print(bench.limits(limits))
        _say_missing(missing)
        OUT.print("least processor time of a call, and the median of the rounds; over: above 1, polyop is faster", style="dim")

        def seen(rows: tuple[bench.Row, ...]) -> None:
            names = bench.others(rows)
            OUT.print(Text(rows[0].group, "bold"))
            OUT.print(_plain(bench.turn_head(names), [bench.turn_cells(r, names) for r in rows]))
            for row in rows:
                for name, why in row.skipped.items():
                    OUT.print(Text(f"without {name} in {row.case}: {why}", "dim"))
        book = bench.turned(cases, limits, how, size, missing, seen, status.update)
    _say_missing({n: why for n, why in book.missing.items() if n not in missing})
    OUT.print(_plain(*bench.turn_summary(book)))
    return book


def _plain(head: Iterable[str], lines: Iterable[Iterable[str]]) -> Table:
    table = Table(*head, box=None, header_style="bold")
    for line in lines:
        cells = [*line]
        table.add_row(*map(Text, cells), style="bold red" if cells[1].startswith(("WRONG", "failed")) else "")
    return table
