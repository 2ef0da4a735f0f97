"""The table of an operator's records: what `find` of entry.ll looks into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polyop.runtime.entry_plan import PLACES

LEAST, MOST = 16, 4096  # records that a table has room for

Front = tuple[list[Any], bytes, dict[bytes, int]]
"""What the code needs of an operator: the table of records and what its parameters are; and how many new looks an outline had."""


def front(names: Sequence[str], by_value: Sequence[bool], most: int) -> Front | None:
    """The front of an operator with such parameters, of which `most` may go by position; None if they are too many."""
    if len(names) > PLACES // 2:
        return None
    words = [len(names), most]
    for name, fixed in zip(names, by_value, strict=True):
        words += [id(name), fixed]
    return [None] * LEAST, np.array(words, np.int64).tobytes(), {}


def has(table: list[Any], look: bytes) -> bool:
    """Whether there is a record of this look."""
    return any(table[k] is not None and table[k][0] == look for k in _places(look, len(table)))


def put(table: list[Any], made: tuple[Any, ...]) -> None:
    """Put a record where it belongs. Where it meets two others, the table grows, and at last one of the three has to go: one of
    a look before one of an outline, which serves calls of many sizes.
    """
    if len(table) >= MOST or any(table[k] is None or table[k][0] == made[0] for k in _places(made[0], len(table))):
        _put(table, made)
        return
    records, length = sorted([*(r for r in table if r is not None), made], key=_is_look), len(table)
    larger: list[Any] = []
    while length < MOST and len(records) > sum(r is not None for r in larger):
        length *= 4
        larger = [None] * length
        for r in records:
            _put(larger, r)
    table[:] = larger  # at once, for whoever looks


def _put(table: list[Any], made: tuple[Any, ...]) -> None:
    """Put a record in the place of another of its look, at one that is free, else at one whose record has to go; nowhere, if that
    is this one.
    """
    places = _places(made[0], len(table))
    at = next((k for k in places if table[k] is not None and table[k][0] == made[0]), None)
    if at is None:
        at = next((k for k in places if table[k] is None), None)
    if at is None:
        at = next((k for k in places if _is_look(table[k])), None if _is_look(made) else places[0])
    if at is not None:
        table[at] = made


def _is_look(record: tuple[Any, ...]) -> bool:
    """Whether a record is of one look, not of an outline; the third word of either says it, see `look` of entry_look.ll."""
    return not record[0][16] & 1


def _places(look: bytes, length: int) -> tuple[int, int]:
    """Where in a table of this length a record may stand; see `find` of entry.ll."""
    first = int.from_bytes(look[4:8], "little") & (length - 1)
    return first, first ^ 1
