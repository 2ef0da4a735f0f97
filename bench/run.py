"""The summary of `polyop bench` into the README: every group beside the best peer of each case, one thread.

    polyop bench --size full --json book.json     measures beside every peer that is installed
    python bench/run.py book.json                 prints the summary of that
    python bench/run.py book.json --readme        puts it into the README
    python bench/run.py                           measures beside NumPy and PyTorch alone, and prints that
    polyop bench --help                           everything else: tables, pictures, your own operators
"""

from __future__ import annotations

import argparse
from pathlib import Path

import polyop.bench as core

README = Path(__file__).parents[1] / "README.md"
NAMES = {"numpy": "NumPy", "torch": "PyTorch", "opt_einsum": "opt_einsum", "jax": "JAX", "onnx": "onnxruntime", "numba": "numba"}
COLUMNS = ("group", "cases", "over the best", "at the limit", "slower", "least",
           "over numpy", "over torch", "over jax", "over onnx")
WIDTHS = (12, 40, 9, 6, 6, 9, 7, 14, 5)


def summary(book: core.Book) -> list[str]:
    """The summary with all that is needed to judge it."""
    peers = ", ".join(f"{NAMES[n]} {v.split('+')[0]}" for n, v in book.versions.items() if n in NAMES)
    peers += " and torch.compile" if "compile" in book.versions else ""
    head, rows = core.summary(book)
    kept = [k for k, name in enumerate(head) if name in COLUMNS]
    lines = [f"Measured by `polyop bench` on an {core.limits(book.machine)}; beside {peers}: how many "
             "times as fast polyop is, as a geometric mean over the cases of a group, over the fastest of them in each case, and "
             "over some of them where they have the same. `At the limit` is the mean over the fastest that a kernel would have "
             "which takes no longer than the measured limits of arithmetic and memory leave. In `dynamic` compiling counts: up "
             "to two hundred shapes, each once; in `cached` the kernels are on disk.", "",
             *core.table([head[k] for k in kept], [[row[k] for k in kept] for row in rows])]
    if "AMD" in book.machine.name and "torch" in book.versions:
        lines += ["", "PyTorch's matrix products are MKL's, which is slower on AMD than on Intel; NumPy's are OpenBLAS's."]
    return lines


def measured(groups: list[str], size: str, seconds: float) -> core.Book:
    """A run beside NumPy and PyTorch, each row printed as it comes."""
    settings, missing = core.settings(1, ("torch", "numpy"), seconds)
    print(core.limits(settings.limits), flush=True)

    def seen(row: core.Row) -> None:
        print(" ".join(f"{x:{w}s}" for x, w in zip((row.group, *core.cells(row)), WIDTHS, strict=True)), flush=True)
    return core.book(core.cases(groups, size), settings, size, missing, seen=seen)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("book", nargs="?", type=Path, help="what `polyop bench --json` wrote")
    parser.add_argument("--readme", action="store_true", help="put the summary into the README")
    parser.add_argument("--group", action="append", default=[], choices=[*core.GROUPS], help="measure this one only")
    parser.add_argument("--size", choices=("small", "full"), default="full", help="how many cases of each group")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each thing that is timed")
    given = parser.parse_args(arguments)
    if given.book:
        book = core.from_json(given.book.read_text(encoding="utf-8"))
    else:
        book = measured(given.group, given.size, given.seconds)
    print("\n".join(summary(book)))
    if given.readme:
        core.fill(README, "measured", summary(book))
    return 1 if book.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
