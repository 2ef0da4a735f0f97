"""The command line: the only room that prints, colours and exits."""

from __future__ import annotations

import os
import sys


def main(arguments: list[str] | None = None) -> None:
    """The program `polyop`: exit status 0, 1 if something was wrong, 2 if the command line was, 130 if it was stopped."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - stays open
    try:
        from polyop.cli.commands import answer  # takes long enough to be stopped

        status = answer(arguments)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        status = 130
    sys.exit(status)
