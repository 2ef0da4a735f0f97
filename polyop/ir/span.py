"""Where in the user's text something stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """A text and the name it is reported under, such as `blur.pop` or `<string>`."""

    name: str
    text: str

    def line(self, number: int) -> str:
        """Line `number` (from 1) without its end; empty past the end of the text."""
        lines = self.text.splitlines()
        return lines[number - 1] if 1 <= number <= len(lines) else ""


@dataclass(frozen=True, slots=True)
class Span:
    """Columns `[column, end_column)` of lines `line .. end_line` of a source, all counted from 1."""

    source: Source
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.source.name}:{self.line}:{self.column}"

    @property
    def text(self) -> str:
        """What the user wrote there, cut at the end of the first line."""
        line = self.source.line(self.line)
        end = self.end_column - 1 if self.end_line == self.line else len(line)
        return line[self.column - 1 : end]
