"""A book by turns in words: of each worker the least time and the median of the rounds, and how many times that is polyop's."""

from __future__ import annotations

from collections.abc import Sequence

from polyop.bench.book import OURS, Book, Row
from polyop.bench.page import as_mean, as_ms, as_ratio, left_out, preface, table


def others(rows: Sequence[Row]) -> tuple[str, ...]:
    """Who was timed beside polyop, in the order in which they were asked."""
    return tuple(n for n in dict.fromkeys(n for r in rows for n in r.times) if n != OURS)


def turn_head(names: Sequence[str]) -> tuple[str, ...]:
    """The head of a table with `names` beside polyop."""
    return ("case", f"{OURS} ms", *(x for n in names for x in (f"{n} ms", f"over {n}")))


def turn_cells(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    """A row as text: least times, and medians; `over` says how many times as fast polyop is, by the one and by the other."""
    if OURS not in row.times:
        return (row.case, f"{row.verdict}: {row.reason}", *[""] * (2 * len(names)))
    return (row.case, _both(row, OURS), *(x for n in names for x in (_both(row, n), _over(row, n))))


def turn_summary(book: Book) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and lines: of each group the geometric means over each of the others, of the least times and of the medians."""
    names, lines = others(book.rows), []
    for group, rows in [*book.groups.items(), ("all", book.rows)]:
        lines.append((group, str(len(rows)), *(_means(rows, n) for n in names)))
    return ("group", "cases", *(f"over {n}" for n in names)), lines


def turn_markdown(book: Book) -> list[str]:
    """The whole book: machine, versions, means, who was left out where, then every row."""
    what = f"Least processor time of a call, by turns in a process for each: of {book.rounds} rounds the least, and the median."
    lines = [*preface(book), what, "", "### Summary", "", *table(*turn_summary(book)), *left_out(book)]
    for group, rows in book.groups.items():
        names = others(rows)
        lines += ["", f"### {group}", "", *table(turn_head(names), [turn_cells(r, names) for r in rows])]
    return lines


def _both(row: Row, name: str) -> str:
    t = row.times.get(name)
    return f"{as_ms(t.least or t.median)}, {as_ms(t.median)}" if t else "-"


def _over(row: Row, name: str) -> str:
    least, median = row.least_over(name), row.over(name)
    return f"{as_ratio(least)}, {as_ratio(median)}" if least and median else "-"


def _means(rows: Sequence[Row], name: str) -> str:
    both = [(least, median) for r in rows if (least := r.least_over(name)) and (median := r.over(name))]
    return ", ".join(as_mean(list(x)) for x in zip(*both, strict=True)) or "-"
