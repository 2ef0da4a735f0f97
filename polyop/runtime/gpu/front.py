"""A LaunchPlan as words that the native front of calls follows: see `../entry_run.ll`, and `polyop_follow` of `launch.ll`.

Calls with tensors of torch have this way; it says where tensors lie, and which stream is its current one, without Python.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from math import prod
from typing import Any

from polyop.ir.dtypes import U8
from polyop.runtime import entry_load
from polyop.runtime.entry_plan import FIRST, PLACES, ROW, TENSOR, Words, number, words
from polyop.runtime.entry_sizes import Places
from polyop.runtime.gpu import table
from polyop.runtime.gpu.call import LaunchPlan
from polyop.runtime.gpu.dlpack import NUMBERS
from polyop.runtime.gpu.home import Torch
from polyop.runtime.gpu.maps import MAP


def record(plan: LaunchPlan, values: Sequence[Any]) -> Words | None:
    """`plan` for the machine; None if it does something that the code does not know.

    values    as for `entry_plan.record`
    """
    home, prepared = plan.home, plan.prepared
    stream = entry_load.current_stream() if isinstance(home, Torch) else 0
    numbers = [number(position, slot + 1, dtype, values[position]) for position, slot, dtype in plan.numbers]
    row = plan.row + bytes(8 * MAP * len(prepared.maps)) + prepared.table.fixed
    if not isinstance(home, Torch) or not stream or not plan.has_words or None in numbers:
        return None
    if max(len(values), len(plan.fresh) + 1) > PLACES or not plan.back or len(row) // 8 >= ROW:
        return None
    arrays = [(a.position, a.slot + 1, a.mask) for a in plan.lying]
    written = [(w.position, w.slot + 1, *w.reach, len(others), *(x for o in others for x in (o.slot + 1, *o.reach)))
               for w, others in plan.written]
    made = [*plan.fresh, *[(prepared.tensors, (prepared.bytes_,), U8)] * bool(prepared.work)]
    new = [(slot + 1, TENSOR, FIRST + k, prod(shape) * dtype.bytes_, len(shape), *shape)
           for k, (slot, shape, dtype) in enumerate(made)]
    job = _job(plan, stream)
    sections = (arrays, written, [n for n in numbers if n], new, (), [plan.back])
    packed = struct.pack("<Q", ctypes.addressof(job)) + row
    return Words(words((table.code().follow, 0, 0, 0), packed, sections), (*(home.says(t) for _, _, t in made), job),
                 Places((), (), ()))


def _job(plan: LaunchPlan, stream: int) -> Any:
    """The %job of `launch.ll`, in memory."""
    prepared, device = plan.prepared, plan.home.device
    copies = [(prepared.tensors, prepared.tensors + k, distance) for k, distance in enumerate(prepared.work) if k]
    tensors = [(m.slot, 0, len(plan.row) // 8 + MAP * k, m.nearby()) for k, m in enumerate(prepared.maps)]
    word = ctypes.addressof(plan.word.cell) if plan.word is not None else 0
    rest = [x for part in (*copies, *tensors) for x in part]
    return ctypes.create_string_buffer(struct.pack(f"<QQiiQqqq{len(rest)}q", word, stream, NUMBERS[device.family], device.index,
                                                   prepared.table.address, MAP, len(copies), len(tensors), *rest))
