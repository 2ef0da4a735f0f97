"""The standard library: `polyop/library/*.pop`, read when a name is asked for."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from polyop.ir.span import Source
from polyop.reading import parse

if TYPE_CHECKING:
    from polyop.dsl.syntax import FnDef, MonoidDef, OpDef, Program

FOLDER = Path(__file__).parent / "library"


@cache
def texts() -> dict[str, str]:
    """file -> text."""
    return {p.name: p.read_text(encoding="utf-8") for p in sorted(FOLDER.glob("*.pop"))}


@cache
def index() -> dict[str, str]:
    """Every defined name -> the file it is in."""
    found: dict[str, str] = {}
    for file, text in texts().items():
        for name in re.findall(r"^(?:op|fn|monoid)\s+(\w+)", text, re.M):
            found.setdefault(name, file)
    return found


@cache
def program(file: str) -> Program:
    return parse(Source(file, texts()[file]))


@cache
def alone(name: str) -> Program:
    """The definition of `name` by itself, in the lines that it has in its file; those of the others are empty.

    Parsing takes 20 us for each token, and a file has a dozen definitions. What this one uses is another one of the library.
    """
    file = index()[name]
    start, end = _lines(name)
    return parse(Source(file, "\n" * start + "\n".join(texts()[file].splitlines()[start:end])))


class Library:
    """Looks like one Program of all files, but parses only the definitions that a name leads to."""

    source = Source("library", "")
    fns: tuple[FnDef, ...] = ()
    monoids: tuple[MonoidDef, ...] = ()
    depth = 0  # no expression of the library is deep, and asking would parse all of it

    @property
    def ops(self) -> tuple[OpDef, ...]:
        return tuple(o for file in texts() for o in program(file).ops)

    def op(self, name: str) -> OpDef | None:
        return alone(name).op(name) if name in index() else None

    def fn(self, name: str) -> FnDef | None:
        return alone(name).fn(name) if name in index() else None

    def monoid(self, name: str) -> MonoidDef | None:
        return alone(name).monoid(name) if name in index() else None


LIBRARY = Library()


def definition(name: str) -> str:
    """The text of one definition, with the comment above it."""
    start, end = _lines(name)
    return "\n".join(texts()[index()[name]].splitlines()[start:end])


def _lines(name: str) -> tuple[int, int]:
    """The lines [first, last) of one definition in its file, with the comment above it."""
    lines = texts()[index()[name]].splitlines()
    start = next(k for k, x in enumerate(lines) if re.match(rf"(op|fn|monoid)\s+{re.escape(name)}\b", x))
    end = start
    if lines[start].startswith("op"):
        end = next(k for k in range(start, len(lines)) if lines[k].startswith("}") or lines[k].endswith("}"))
    while start and lines[start - 1].startswith("#"):
        start -= 1
    return start, end + 1
