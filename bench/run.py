"""The summary of `polyop bench` into the README: every group beside NumPy and PyTorch as they are, one thread.

    python bench/run.py                    prints it
    python bench/run.py --readme           puts it into the README
    python bench/run.py matmul rows        of some groups only
    polyop bench --help                    everything else: all peers, tables, JSON, pictures, your own operators
"""

from __future__ import annotations

import argparse
from pathlib import Path

import polyop.bench as core

README = Path(__file__).parents[1] / "README.md"
PEERS = ("torch", "numpy")
WIDTHS = (12, 40, 9, 6, 6, 9, 7, 14, 5)


def measured(book: core.Book) -> list[str]:
    """The summary with all that is needed to judge it."""
    names = {"torch": "PyTorch", "numpy": "NumPy"}
    peers = " and ".join(f"{names[n]} {v.split('+')[0]}" for n, v in book.versions.items() if n in names)
    intel = ["", "PyTorch's matrix products are MKL's, which is slower on AMD than on Intel; NumPy's are OpenBLAS's."]
    return [f"Measured by `bench/run.py` on an {core.limits(book.machine)}; beside {peers}: how many times as fast polyop is, as "
            "a geometric mean over the cases of a group, over the faster of the two in each case and over each of them. "
            "In `dynamic` compiling counts: up to two hundred shapes, each once; in `cached` the kernels are on disk.", "",
            *core.table(*core.summary(book)), *(intel if "AMD" in book.machine.name and "torch" in book.versions else [])]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", choices=[[], *core.GROUPS], help=f"of {', '.join(core.GROUPS)}")
    parser.add_argument("--readme", action="store_true", help="put the summary into the README")
    parser.add_argument("--size", choices=("small", "full"), default="full", help="how many cases of each group")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each thing that is timed")
    given = parser.parse_args(arguments)
    settings, missing = core.settings(1, PEERS, given.seconds)
    print(core.limits(settings.limits), flush=True)

    def seen(row: core.Row) -> None:
        print(" ".join(f"{x:{w}s}" for x, w in zip((row.group, *core.cells(row)), WIDTHS, strict=True)), flush=True)
    book = core.book(core.cases(given.groups, given.size), settings, given.size, missing, seen=seen)
    print("\n".join(measured(book)))
    if given.readme:
        core.fill(README, "measured", measured(book))
    return 1 if book.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
