"""Calls on GPUs: the first one of a look, and the plan that it leaves behind, in which only addresses and numbers are open.

Nothing waits for the device. Results and work memory come from the framework's own allocator, which hands memory on in the
order of the stream, so that calls may be captured into graphs; a call that is captured is put on the framework's current
stream like any other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyop.ir.dtypes import BF16, U8
from polyop.ir.op import Op
from polyop.runtime import arrays
from polyop.runtime.bind import Bound
from polyop.runtime.call import FORMATS, LONG, NUMBERS, key
from polyop.runtime.gpu.home import Exchange, Home, Make, given_back
from polyop.runtime.gpu.kernel import Prepared, bits
from polyop.runtime.gpu.maps import FORMAT, MAP
from polyop.runtime.gpu.memory import follow
from polyop.runtime.gpu.status import Word
from polyop.runtime.gpu.table import Table, launcher

_SPARE = 8  # tables of a plan that are kept for the next calls


def carry_out(prepared: Prepared, bound: Bound, fresh: Sequence[str]) -> Any:
    """Run on bound arguments; the results, of which those in `fresh` are new.

    Raises CallError, if an earlier call met a position outside its tensor.
    """
    if prepared.word is not None:
        prepared.word.look()
    signature, home = prepared.kernel.binary.signature, bound.home
    stream = home.streamer()()
    others = {v.kind.streamer()() for v in bound.views.values() if v.device is not None} - {stream}
    for s in others:
        follow(home.device, stream, s)
    row = [bound.views[b.name].address for b in signature.tensors]
    memory = None
    if prepared.work:
        memory, start = arrays.empty((prepared.bytes_,), U8, home)
        row += [start + distance for distance in prepared.work]
    row += [bits(bound.scalars[n]) for n, _ in signature.scalars]
    made = prepared.table()
    prepared.fill(made, row)
    prepared.run(made, stream)
    for s in others:
        follow(home.device, s, stream)
    del memory  # the next one to have it comes later on the stream
    names = [t.name for t in bound.op.outputs]
    results = tuple(given_back(home, r) if n in fresh else r for n, r in zip(names, bound.results, strict=True))
    return results[0] if len(results) == 1 else results


@dataclass(frozen=True, eq=False, slots=True)
class LaunchPlan:
    """A call with open addresses and numbers.

    places    (position in the addresses, slot in the row, bits of the address that must be 0)
    written   (slot, first, last, others) of arrays among the values that the kernel writes: the bytes they cover, from their
              address, and (slot, first, last) of every other array
    numbers   (position in the values, slot in the row) of scalars
    fresh     (slot, what makes it) of the results
    back      for each result, which of the fresh ones it is, or ~position of the value that is given back
    work      what makes work memory, and (slot, distance from its start) of each buffer
    spare     tables that no call is using
    """

    prepared: Prepared
    row: list[Any]
    pack: Any
    places: tuple[tuple[int, int, int], ...]
    written: tuple[tuple[int, int, int, tuple[tuple[int, int, int], ...]], ...]
    numbers: tuple[tuple[int, int], ...]
    fresh: tuple[tuple[int, Make], ...]
    back: tuple[int, ...]
    work: tuple[Make, tuple[tuple[int, int], ...]] | None
    stream: Callable[[], int]
    launch: Callable[[int, int], int]
    word: Word | None
    spare: list[Table]

    def run(self, values: Sequence[Any], addresses: Sequence[int]) -> Any:
        """The results, or LONG. `addresses`: those of the arrays among the values.

        Raises CallError, if an earlier call met a position outside its tensor.
        """
        if self.word is not None and self.word.cell.value:
            self.word.look()
        row = self.row.copy()
        for position, slot, mask in self.places:
            at = addresses[position]
            if at & mask or not at:
                return LONG
            row[slot] = at
        for slot, first, last, others in self.written:
            at = row[slot]
            for other, start, end in others:
                if row[other] + start < at + last and at + first < row[other] + end:
                    return LONG
        for position, slot in self.numbers:
            row[slot] = values[position]
        made, memory = [], None
        try:
            for slot, make in self.fresh:
                array, row[slot] = make()
                made.append(array)
            if self.work is not None:
                memory, start = self.work[0]()
                for slot, distance in self.work[1]:
                    row[slot] = start + distance
        except (MemoryError, RuntimeError):
            return LONG
        for m in self.prepared.maps:
            row.append(m.known.get(row[m.slot]) or m.at(row[m.slot]))
        try:
            table = self.spare.pop()
        except IndexError:  # others have taken all
            table = self.prepared.table()
        try:
            self.pack(table.memory, table.at, *row)
        except (struct.error, OverflowError):
            return LONG  # a number that does not fit its dtype
        code = self.launch(table.address, self.stream())
        if code:
            raise self.prepared.refused(code)
        if len(self.spare) < _SPARE:
            self.spare.append(table)  # the driver has read it
        del memory  # the next one to have it comes later on the stream
        if len(made) == 1 and len(self.back) == 1:
            return made[0]
        results = tuple(made[k] if k >= 0 else values[~k] for k in self.back)
        return results[0] if len(results) == 1 else results


def plan(op: Op, prepared: Prepared, bound: Bound, names: Sequence[str], values: Sequence[Any]) -> LaunchPlan | None:
    """The plan of calls that look like this one; None if they cannot have one.

    names   what each value is: a parameter of `op`, an output for `out`, or anything else
    """
    signature, home = prepared.kernel.binary.signature, bound.home
    if op.updates and (signature.sites or any(bound.views[i].address != bound.views[o].address for i, o in op.updates)):
        return None  # the old value was set aside
    if any(v.kind != home for v in bound.views.values()) or (isinstance(home, Exchange) and home.namespace is not None):
        return None  # streams that follow each other, or capsules
    slots = {b.name: k for k, b in enumerate(signature.tensors)}
    position = {n: k for k, n in enumerate(names)}
    ends = dict(op.updates)
    places, reach, at, counted = [], {}, {}, _counted(values)
    for n, k in position.items():
        if n not in bound.views:
            continue
        v = bound.views[n]
        if isinstance(values[k], bool | int | float | np.generic):
            return None  # a plain number for a tensor of rank 0
        first, last = v.span()
        for name in dict.fromkeys((n, ends.get(n, n))):
            if name in slots:
                places.append((counted[k], slots[name], v.dtype.bytes_ - 1))
                reach[name], at[name] = (slots[name], first - v.address, last - v.address), k
    plain = prepared.open - MAP * len(prepared.maps)
    numbers, formats = [], ["Q"] * plain + [FORMAT] * len(prepared.maps)
    front = prepared.tensors + len(prepared.work)
    for k, (n, dtype) in enumerate(signature.scalars):
        if n in position and values[position[n]] is None:
            continue  # the default, which follows from consts
        if dtype == BF16 or n not in position or type(values[position[n]]) not in NUMBERS:
            return None
        formats[front + k] = FORMATS[dtype.name]
        numbers.append((position[n], front + k))
    row: list[Any] = [0] * plain
    for k, (n, _) in enumerate(signature.scalars):
        row[front + k] = bits(bound.scalars[n])
    fresh: list[tuple[int, Make]] = []
    back = []
    for t in op.outputs:
        if t.name in at:
            back.append(~at[t.name])
            continue
        back.append(len(fresh))
        fresh.append((slots[t.name], home.maker(bound.views[t.name].shape, t.dtype)))
    written = tuple((*reach[t.name], tuple(r for n, r in reach.items() if at[n] != at[t.name]))
                    for t in op.outputs if t.name in at)
    pack = struct.Struct("<" + "".join(formats)).pack_into
    return LaunchPlan(prepared, row, pack, tuple(places), written, tuple(numbers), tuple(fresh), tuple(back),
                      _work(prepared, home), home.streamer(), launcher(), prepared.word, [])


def _counted(values: Sequence[Any]) -> list[int]:
    """For each value how many addresses `key` puts down before it."""
    out, found = [], list[int]()
    for v in values:
        out.append(len(found))
        key((v,), (False,), found)
    return out


def _work(prepared: Prepared, home: Home) -> tuple[Make, tuple[tuple[int, int], ...]] | None:
    if not prepared.work:
        return None
    return home.maker((prepared.bytes_,), U8), tuple((prepared.tensors + k, d) for k, d in enumerate(prepared.work))
