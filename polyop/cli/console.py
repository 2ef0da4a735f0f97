"""Where the command line prints to, and how what went wrong looks there."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

from polyop.ir.errors import Diagnostic

OUT = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
ERR = Console(stderr=True, highlight=False, soft_wrap=True, width=None if sys.stderr.isatty() else 160)

_COLOURS = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan", "help": "bold green"}


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


def seconds(s: float) -> str:
    """A duration, in a unit that fits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if s >= size:
            return f"{s / size:.3g} {unit}"
    return f"{s * 1e6:.3g} us"
