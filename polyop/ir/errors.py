"""Every error of polyop, and the report that a user's mistake gets.

    PolyopError
      UserError          the text, an argument or a file is wrong; carries a Diagnostic
        CallError        a call's arguments do not fit the operator
      UnsupportedError   legal, but this target or strategy cannot do it; says why
        RegistersError   the target has too few registers for it, which smaller tiles may leave
      LegalityError      a transformation was refused; carries a witness
      InternalError      a bug of polyop; names the stage
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from polyop.ir.span import Span


@dataclass(frozen=True, slots=True)
class Label:
    """A place in the text and what is to be said about it."""

    span: Span
    text: str = ""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One report: `error[E203]: message`, the user's text with carets, notes, at most one hint."""

    code: str
    message: str
    label: Label | None = None
    notes: tuple[tuple[str, Label], ...] = ()
    hint: str = ""
    severity: str = "error"

    def __str__(self) -> str:
        parts = [f"{self.severity}[{self.code}]: {self.message}"]
        if self.label:
            parts += _snippet(self.label)
        for text, label in self.notes:
            parts += [f"note: {text}", *_snippet(label)]
        if self.hint:
            parts.append(f"help: {self.hint}")
        return "\n".join(parts)


_WIDEST = 160  # columns of a user's line that a report shows


def _snippet(label: Label) -> list[str]:
    span = label.span
    number, line = str(span.line), "".join(map(_visible, span.source.line(span.line)))
    shift = max(0, span.column - _WIDEST // 2) if len(line) > _WIDEST else 0
    shown = line[shift : shift + _WIDEST]
    end = span.end_column if span.end_line == span.line else len(line) + 1
    start = span.column - 1 - shift
    width = max(1, min(end - span.column, len(shown) - start))
    pad = " " * len(number)
    return [
        f"{pad}--> {span}",
        f"{pad} |",
        f"{number} | {shown}",
        f"{pad} | {' ' * start}{'^' * width} {label.text}".rstrip(),
    ]


def _visible(c: str) -> str:
    """`c`, unless a terminal would obey it rather than show it."""
    return c if c.isprintable() else " " if c == "\t" else "\ufffd"


class PolyopError(Exception):
    """The root of all that polyop raises on purpose."""


class UserError(PolyopError):
    """Something the user gave is wrong; `diagnostic` is the report."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(str(diagnostic))
        self.diagnostic = diagnostic


class CallError(UserError):
    """The arguments of a call do not fit the operator."""


class UnsupportedError(PolyopError):
    """Legal, but not possible here; the text says why."""


class RegistersError(UnsupportedError):
    """More vectors are live than the target has registers, by `missing` of them."""

    def __init__(self, message: str, missing: int) -> None:
        super().__init__(message)
        self.missing = missing


class LegalityError(PolyopError):
    """A transformation would change the result; `witness` is the smallest case that was found."""

    def __init__(self, message: str, witness: str = "") -> None:
        super().__init__(f"{message}: {witness}" if witness else message)
        self.witness = witness


class InternalError(PolyopError):
    """A bug of polyop, not of the user's."""


def assert_never(value: NoReturn) -> NoReturn:
    """Reached only if a `match` over a union misses a case; mypy proves that it is not."""
    raise InternalError(f"unexpected {value!r}")


def fail(code: str, message: str, span: Span | None = None, label: str = "", hint: str = "",
         notes: tuple[tuple[str, Label], ...] = ()) -> UserError:
    """A `UserError` to raise, from the parts of its report."""
    return UserError(Diagnostic(code, message, Label(span, label) if span else None, notes, hint))
