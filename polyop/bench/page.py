"""A book in words: cells of tables, summaries, and Markdown between the marks of a page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from polyop.bench.book import OURS, Book, Row, mean
from polyop.bench.machine import Machine
from polyop.ir.errors import UnsupportedError

_CALL = 1e-3  # ms: what a call costs beside its kernel, roughly

HEAD = ("case", "polyop ms", "spread", "best peer", "ms", "ratio", "rate", "of the limit")


def place(path: Path, block: str) -> tuple[str, str]:
    """What stands before and behind the place between `<!-- block -->` and the next `<!-- end -->` of a page.

    Raises UnsupportedError, if the page has no such place.
    """
    page = path.read_text(encoding="utf-8")
    found = re.search(rf"<!-- {block} -->\n(.*?)<!-- end -->", page, re.S)
    if found is None:
        raise UnsupportedError(f"{path} has no place between `<!-- {block} -->` and `<!-- end -->`")
    return page[: found.start(1)], page[found.end(1) :]


def fill(path: Path, block: str, lines: Sequence[str]) -> None:
    """Put `lines` into a place of a page."""
    before, behind = place(path, block)
    path.write_text("\n".join([before, *lines, "", behind]), encoding="utf-8")


def cells(row: Row) -> tuple[str, ...]:
    """A row as text, in the order of HEAD."""
    if OURS not in row.times:
        return row.case, row.verdict, row.reason, "", "", "", "", ""
    ours, best, ratio = row.times[OURS], row.best, row.over(row.best)
    theirs = (best, as_ms(row.times[best].median), as_ratio(ratio)) if best and ratio else ("-", "", "")
    return (row.case, as_ms(ours.median), f"{100 * ours.spread:.0f} %" if ours.samples > 1 else "", *theirs, rate(row),
            f"{100 * row.limit:.0f} %" if row.limit else "-")


def rate(row: Row) -> str:
    """Arithmetic where there is more than an operation for a byte, else traffic; empty where neither was counted."""
    bound = "" if row.exact else "<= "
    if row.flops > row.bytes_:
        return f"{bound}{row.gflops:.1f} GF/s"
    return f"{row.gbytes:.1f} GB/s" if row.bytes_ else ""


def as_ms(ms: float) -> str:
    return f"{ms:.3g}" if ms < 100 else f"{ms:.0f}"


def as_ratio(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio >= 0.1 else f"{ratio:.2g}x"


def limits(m: Machine) -> str:
    """The machine in one line."""
    threads = "one thread" if m.threads == 1 else f"{m.threads} threads"
    return f"{m.name} ({m.target}), {threads}: {m.gflops:.0f} GF/s of f32 multiply-adds, {m.gbytes:.0f} GB/s of copying in memory"


def ratios(rows: Sequence[Row], peer: str | None = None) -> list[float]:
    """How many times as fast polyop is as `peer`, or as the best one of each row."""
    found = [r.over(peer or r.best) for r in rows]
    return [x for x in found if x is not None]


def ceilings(rows: Sequence[Row]) -> list[float]:
    """What `ratios` would be of a kernel at the machine's limit, where that is known, and more than the call itself takes."""
    return [x / min(1.0, r.limit) for r in rows
            if (x := r.over(r.best)) is not None and r.limit and r.exact and r.least_ms >= _CALL]


def summary(book: Book) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and lines: of each group the geometric mean over the best peer of each case and over each peer, and the losses.

    "at the limit"   the mean over the best that a kernel would have which takes no longer than the machine's limits leave
    """
    names = [n for n in book.versions if any(n in r.times for r in book.rows)]
    peers = [n for n in dict.fromkeys([*names, *(n for r in book.rows for n in r.times)]) if n != OURS]
    lines = []
    for group, rows in [*book.groups.items(), ("all", book.rows)]:
        best = ratios(rows)
        worst = min((r for r in rows if r.over(r.best)), key=lambda r: r.over(r.best) or 0.0, default=None)
        lines.append((group, str(len(rows)), as_mean(best), as_mean(ceilings(rows)), f"{sum(x < 1 for x in best)} of {len(best)}",
                      f"{as_ratio(worst.over(worst.best) or 0.0)} {worst.case}" if worst else "-",
                      *(as_mean(ratios(rows, peer)) for peer in peers)))
    return ("group", "cases", "over the best", "at the limit", "slower", "least", *(f"over {p}" for p in peers)), lines


def as_mean(ratios: list[float]) -> str:
    return as_ratio(mean(ratios)) if ratios else "-"


def preface(book: Book) -> list[str]:
    """The machine, the versions, and who is not compared with."""
    peers = ", ".join(f"{n} {v}" for n, v in book.versions.items())
    levels = "; ".join(f"{_bytes(x.bytes_)}: {x.reads:.0f} and {x.copies:.0f}" for x in book.machine.levels)
    missing = "; ".join(f"{n}: {why}" for n, why in book.missing.items())
    lines = [f"{limits(book.machine)}. GB/s of reading and of copying by working set: {levels}.", "", f"Versions: {peers}."]
    return [*lines, f"Not compared with: {missing}."] if missing else lines


def left_out(book: Book) -> list[str]:
    """Which peers are not in a line that they have something for, and why."""
    left = [(r.group, r.case, n, why) for r in book.rows for n, why in r.skipped.items()]
    return ["", "### Peers left out of single lines", "", *table(("group", "case", "peer", "why"), left)] if left else []


def markdown(book: Book) -> list[str]:
    """The whole book: machine, versions, summary, losses first, who was left out where, then every row."""
    lines = [*preface(book), "", "### Summary", "", *table(*summary(book))]
    losses = sorted((r for r in book.rows if (r.over(r.best) or 1.0) < 1), key=lambda r: r.over(r.best) or 0.0)
    if losses:
        slower = [(r.group, *cells(r)) for r in losses]
        lines += ["", "### Where polyop is slower than the best peer", "", *table(("group", *HEAD), slower)]
    lines += left_out(book)
    for group, rows in book.groups.items():
        lines += ["", f"### {group}", "", *table(HEAD, [cells(r) for r in rows])]
    return lines


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    return [f"| {' | '.join(x)} |" for x in (head, ["---"] * len(head), *rows)]


def _bytes(n: int) -> str:
    return f"{n >> 20} MiB" if n >= 1 << 20 else f"{n >> 10} KiB"
