"""A CallPlan as words that machine code follows: what `@run` of entry_run.ll reads."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from polyop.ir.dtypes import BOOL, F32, F64, DType
from polyop.runtime import arrays, blocks
from polyop.runtime.call import CallPlan
from polyop.runtime.entry_sizes import HEAD, LARGEST, Fresh, Places
from polyop.runtime.kernel import arena

PLACES = 64        # most values of a call, and most results
SMALL = 1 << 16    # bytes of a result up to which the C library has memory at hand
STACK = 1 << 15    # bytes of work memory that the stack has
_TINY = 1 << 12    # bytes of a tensor that is worth keeping as a pattern
ROW = 1 << 9       # most slots
FIRST = 2          # objects of a record stand behind its look and its plan
_EXACT = 1 << 53   # all integers up to here are doubles
NUMPY, CALL, LIKE, TENSOR, KEPT, WRAPPED, SIZED = range(7)  # how a result comes about


@dataclass(frozen=True, eq=False, slots=True)
class Words:
    """`plan` is the row of words, `objects` are what it speaks of, the first one as number 2; `places` says what is where."""

    plan: bytes
    objects: tuple[Any, ...]
    places: Places


def record(plan: CallPlan, values: Sequence[Any], outline: bool = False) -> Words | None:
    """`plan` for the machine; None if it does something that the code does not know.

    values    those of a call that the plan was just carried out for: the types are the same in all others, and where a call
              gives no number, it means the default that stands here
    outline   whether other sizes will be written into it
    """
    objects: list[Any] = []
    numbers = [number(position, slot, dtype, values[position])
               for (position, slot), dtype in zip(plan.numbers, plan.scalars, strict=True)]
    if len(values) > PLACES or len(plan.fresh) > PLACES or not plan.back or len(plan.row) > ROW or None in numbers:
        return None
    if outline and plan.fresh and plan.kind not in ("numpy", "torch"):
        return None
    ways = [_ways(plan, k, objects) for k in range(len(plan.fresh))] if outline else []
    new = [_of_any_size(plan, k, *w) for k, w in enumerate(ways)] or [_result(plan, k, objects) for k in range(len(plan.fresh))]
    arrays_ = [(position, slot, mask) for position, slot, _, mask in plan.places]
    written = [(position, slot, first, last, len(others), *(w for o in others for w in o))
               for position, slot, _, first, last, others in plan.written]
    where = 0
    if plan.work:
        where = FIRST + len(objects)
        objects.append(arena.take)
    row = list(plan.row)
    for position, slot in plan.numbers:
        row[slot] = values[position]
    try:
        packed = plan.pack(*row)
    except (struct.error, OverflowError):
        return None  # a number that does not fit its dtype, and was not given to the plan but to the long way
    sections = (arrays_, written, [n for n in numbers if n], new, plan.work, [plan.back])
    starts = _starts(sections, HEAD + len(row))
    return Words(words((plan.kernel.address, plan.is_long, plan.bytes_, where), packed, sections), tuple(objects),
                 Places(starts[1], tuple(Fresh(at, *w) for at, w in zip(starts[3], ways, strict=False)), starts[4]))


def words(head: tuple[int, int, int, int], row: bytes, sections: Sequence[Sequence[Sequence[int]]]) -> bytes:
    """What `@run` reads.

    head      the code, whether others may run meanwhile, bytes of work memory, which object of the record gives it
    sections  arrays, written ones, numbers, new results and work buffers; then results, as one part
    """
    counts = [*map(len, sections[:-1]), len(sections[-1][0])]
    parts = [w for section in sections for part in section for w in part]
    return _words((head[0], len(row) // 8, *head[1:], *counts, 0)) + row + _words(parts)


def _starts(sections: Sequence[Sequence[Sequence[int]]], at: int) -> list[tuple[int, ...]]:
    """Where each part of each section begins, the first one at `at`."""
    out = []
    for section in sections:
        here = []
        for part in section:
            here.append(at)
            at += len(part)
        out.append(tuple(here))
    return out


def _words(numbers: Sequence[int]) -> bytes:
    return np.array(numbers, np.int64).tobytes()


def number(position: int, slot: int, dtype: DType, value: Any) -> tuple[int, ...] | None:
    """Value, slot, how, least, greatest; None if `@number` cannot convert what is of the type of `value`."""
    how = _how(dtype, value)
    if how is None:
        return None
    least, greatest = (-_EXACT, _EXACT) if dtype.is_float else (int(dtype.lowest), min(int(dtype.highest), (1 << 63) - 1))
    return position, slot, how, least, greatest


def _how(dtype: DType, value: Any) -> int | None:
    """How `@number` converts a value of this type; None if it cannot."""
    if dtype == BOOL:
        return 5
    if dtype.is_integer:
        return 4
    if dtype not in (F32, F64):
        return None
    return (0 if isinstance(value, float | np.floating) else 2) + (dtype == F32)


def _ways(plan: CallPlan, k: int, objects: list[Any]) -> tuple[tuple[int, int], tuple[int, int]]:
    """How a result of any size comes about if it is small, and if it is large, each with which object; these are put last."""
    _, _, dtype, _, plain = plan.fresh[k]
    if plan.kind == "numpy":
        how, thing = NUMPY, plain
    else:
        how, thing = TENSOR, {"dtype": arrays.empty((), dtype, "torch")[0].dtype}
    at = FIRST + len(objects)
    objects += (thing, partial(arrays.empty, dtype=dtype, kind=plan.kind))
    return (how, at), (SIZED, at + 1)


def _of_any_size(plan: CallPlan, k: int, small: tuple[int, int], large: tuple[int, int]) -> tuple[int, ...]:
    """As `_result`, in one of two ways."""
    slot, shape, dtype, *_ = plan.fresh[k]
    bytes_ = prod(shape) * dtype.bytes_
    return slot, *(small if bytes_ < LARGEST else large), bytes_ + blocks.ALIGN, len(shape), *shape


def _result(plan: CallPlan, k: int, objects: list[Any]) -> tuple[int, ...]:
    """Slot, how, which object, bytes (of a kept block: at which multiples it begins), rank, extents; the object is put last."""
    slot, shape, dtype, size, plain = plan.fresh[k]
    bytes_ = prod(shape) * dtype.bytes_
    room = bytes_ + blocks.ALIGN
    thing: Any
    if plan.kind == "numpy" and bytes_ <= SMALL:
        how, thing = NUMPY, plain
    elif plan.kind == "torch" and _TINY < bytes_ < arrays.OWN:
        how, thing = TENSOR, {"dtype": arrays.empty((), dtype, "torch")[0].dtype}
    elif plan.kind == "torch" and bytes_ < arrays.OWN:
        how, thing = LIKE, arrays.empty(shape, dtype, "torch")[0]
    elif plan.kind == "numpy":
        how, thing, room = KEPT, (plain, blocks.kept(size), partial(blocks.fill, size, shape, plain)), blocks.alignment(size)
    elif plan.kind == "torch" and arrays.wraps(dtype):
        maker = partial(arrays.empty, shape, dtype, "torch")
        how, thing, room = WRAPPED, (plain, blocks.kept(size), maker, arrays.wrapper()), blocks.alignment(size)
    else:
        how, thing = CALL, partial(arrays.empty, shape, dtype, plan.kind)
    objects.append(thing)
    return slot, how, FIRST + len(objects) - 1, room, len(shape), *shape
