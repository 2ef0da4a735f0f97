"""What the user calls the things of an Op whose names are not his own: for reports."""

from __future__ import annotations

import re
from dataclasses import replace

from polyop.ir.errors import Diagnostic
from polyop.ir.op import Op


def users_words(op: Op, text: str) -> str:
    """`text` with the user's names: `X` for the output of an `inout X`, `mod` where isl would not take it."""
    names = dict(op.names)
    if not names:
        return text
    whole = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, names))})(?!\w)")
    return whole.sub(lambda m: names[m.group()], text)


def in_users_words(op: Op, d: Diagnostic) -> Diagnostic:
    """The same report with the user's names."""
    if not op.names:
        return d
    label = d.label and replace(d.label, text=users_words(op, d.label.text))
    notes = tuple((users_words(op, text), at) for text, at in d.notes)
    return replace(d, message=users_words(op, d.message), label=label, notes=notes, hint=users_words(op, d.hint))
