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
    """Put a record where it belongs; where it meets two others, the table grows, and at last one of them has to go."""
    places = _places(made[0], len(table))
    free = next((k for k in places if table[k] is None), None)
    if free is not None or len(table) >= MOST:
        table[places[0] if free is None else free] = made
        return
    records, length = [*(r for r in table if r is not None), made], len(table)
    larger: list[Any] = []
    while length < MOST and len(records) > sum(r is not None for r in larger):
        length *= 4
        larger = [None] * length
        for r in records:
            places = _places(r[0], length)
            larger[next((k for k in places if larger[k] is None), places[0])] = r
    table[:] = larger  # at once, for whoever looks


def _places(look: bytes, length: int) -> tuple[int, int]:
    """Where in a table of this length a record may stand; see `find` of entry.ll."""
    first = int.from_bytes(look[4:8], "little") & (length - 1)
    return first, first ^ 1
