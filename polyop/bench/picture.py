"""A roofline: every case by its operations for a byte and its operations a second, below what the machine can do."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

from polyop.bench.book import OURS, Book
from polyop.bench.page import limits
from polyop.ir.errors import UnsupportedError


def needs_matplotlib(path: Path) -> None:
    """Raises UnsupportedError, if no picture can be drawn to `path`."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError("pictures need matplotlib, which `polyop[plots]` installs")
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise UnsupportedError(f"a picture is a .svg, .png or .pdf file, got {path.name}")


def roofline(book: Book, path: Path) -> int:
    """Draw the cases that have operations to count; how many there are."""
    needs_matplotlib(path)
    figures = importlib.import_module("matplotlib.figure")
    m = book.machine
    shown = [r for r in book.rows if OURS in r.times and r.flops and r.bytes_]
    figure = figures.Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    intensities = [r.flops / r.bytes_ for r in shown]
    span = [min(intensities, default=0.1) / 2, max(intensities, default=100.0) * 2]
    for level, style in ((m.levels[-1], "-"), (m.levels[0], "--")):
        knee = m.gflops / level.copies
        xs = sorted({span[0], min(max(knee, span[0]), span[1]), span[1]})
        where = "in memory" if style == "-" else "in the second-level cache"
        axes.plot(xs, [min(m.gflops, x * level.copies) for x in xs], style, color="0.3", label=f"multiply-adds, copying {where}")
    for number, (group, rows) in enumerate(book.groups.items()):
        mine = [r for r in rows if r in shown]
        if mine:
            at = [r.flops / r.bytes_ for r in mine], [r.gflops for r in mine]
            axes.plot(*at, "os^Dv"[number // 10 % 5], color=f"C{number % 10}", label=group, markersize=5, alpha=0.7)
    axes.set(xscale="log", yscale="log", xlabel="operations for a byte of inputs and results", ylabel="GF/s", title=limits(m))
    axes.legend(fontsize=7, ncols=2, loc="lower right")
    axes.grid(alpha=0.3)
    figure.savefig(path)
    return len(shown)
