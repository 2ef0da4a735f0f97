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
from polyop.runtime.gpu import table
from polyop.runtime.gpu.home import Exchange, Make, given_back
from polyop.runtime.gpu.kernel import Prepared, bits
from polyop.runtime.gpu.maps import FORMATTED, MAP, Map
from polyop.runtime.gpu.memory import follow
from polyop.runtime.gpu.status import Word
from polyop.runtime.gpu.table import FRONT, Given

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

    row       what tables have in their slots that no call gives
    program   how what calls give is looked at and put into tables: see `launch.ll`
    count     how many values that is: addresses, numbers, addresses of what is fresh, and of work memory
    pack      puts them where they are given
    numbers   positions of scalars in a call's values
    maps      (what is told of a tensor, the position among what is given of memory that it has, how far from its start it begins,
              where in the table that stands)
    fresh     what makes each of the results that no call gives; `work`: what makes work memory
    back      for each result, which of the fresh ones it is, or ~position of the value that is given back
    spare     what no call is using
    """

    prepared: Prepared
    row: bytes
    program: bytes
    count: int
    pack: Any
    numbers: tuple[int, ...]
    maps: tuple[tuple[Map, int, int, int], ...]
    fresh: tuple[Make, ...]
    work: Make | None
    back: tuple[int, ...]
    stream: Callable[[], int]
    launch: Callable[[int, int], int]
    word: Word | None
    spare: list[Given]

    def run(self, values: Sequence[Any], addresses: Sequence[int]) -> Any:
        """The results, or LONG. `addresses`: those of the arrays among the values.

        Raises CallError, if an earlier call met a position outside its tensor.
        """
        if self.word is not None and self.word.cell.value:
            self.word.look()
        row, made, memory = [*addresses], [], None
        for k in self.numbers:
            row.append(values[k])
        if self.fresh or self.work is not None:
            try:
                for make in self.fresh:
                    array, at = make()
                    made.append(array)
                    row.append(at)
                if self.work is not None:
                    memory, at = self.work()
                    row.append(at)
            except (MemoryError, RuntimeError):
                return LONG
        try:
            given = self.spare.pop()
        except IndexError:  # others have taken all
            given = self._given()
        try:
            self.pack(given.memory, FRONT, *row)
        except (struct.error, OverflowError):
            return LONG  # a number that does not fit its dtype
        for told, position, distance, at in self.maps:
            if not row[position]:
                return LONG
            address = row[position] + distance
            FORMATTED.pack_into(given.table.memory, at, told.known.get(address) or told.at(address))
        code = self.launch(given.address, self.stream())
        if code and code != table.LONG:
            raise self.prepared.refused(code)
        if len(self.spare) < _SPARE:
            self.spare.append(given)  # the driver has read it
        del memory  # the next one to have it comes later on the stream
        if code:
            return LONG
        results = [made[k] if k >= 0 else values[~k] for k in self.back]
        return results[0] if len(results) == 1 else tuple(results)

    def _given(self) -> Given:
        made = self.prepared.table()
        made.memory[made.at:made.at + len(self.row)] = self.row
        return table.given(made, self.program, self.count)


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
    position, ends, (counted, count) = {n: k for k, n in enumerate(names)}, dict(op.updates), _counted(values)
    checks: dict[tuple[int, int], None] = {}
    copies, reach, at = [], {}, {}
    for n, k in position.items():
        if n not in bound.views:
            continue
        v = bound.views[n]
        if isinstance(values[k], bool | int | float | np.generic):
            return None  # a plain number for a tensor of rank 0
        first, last = v.span()
        for name in dict.fromkeys((n, ends.get(n, n))):
            if name in slots:
                checks[counted[k], v.dtype.bytes_ - 1] = None
                copies.append((counted[k], slots[name], 0))
                reach[name], at[name] = (counted[k], first - v.address, last - v.address), k
    written = [t.name for t in op.outputs if t.name in at]
    pairs = dict.fromkeys((*reach[w], *r) for w in written for n, r in reach.items() if at[n] != at[w])
    formats, numbers, row = ["Q"] * count, [], [0] * (prepared.open - MAP * len(prepared.maps))
    front = prepared.tensors + len(prepared.work)
    for k, (n, dtype) in enumerate(signature.scalars):
        row[front + k] = bits(bound.scalars[n])
        if n in position and values[position[n]] is None:
            continue  # the default, which follows from consts
        if dtype == BF16 or n not in position or type(values[position[n]]) not in NUMBERS:
            return None
        copies.append((len(formats), front + k, 0))
        formats.append(FORMATS[dtype.name])
        numbers.append(position[n])
    fresh: list[Make] = []
    back = []
    for t in op.outputs:
        if t.name in reach:
            back.append(~at[t.name])
            continue
        back.append(len(fresh))
        copies.append((len(formats), slots[t.name], 0))
        formats.append("Q")
        fresh.append(home.maker(bound.views[t.name].shape, t.dtype))
    work = home.maker((prepared.bytes_,), U8) if prepared.work else None
    if work is not None:
        copies += [(len(formats), prepared.tensors + k, distance) for k, distance in enumerate(prepared.work)]
        formats.append("Q")
    where = {slot: (k, distance) for k, slot, distance in copies}
    behind = prepared.table().at + 8 * len(row)
    maps = tuple((m, *where[m.slot], behind + FORMATTED.size * k) for k, m in enumerate(prepared.maps))
    program = table.program(tuple(checks), tuple(pairs), copies)
    pack, slotted = struct.Struct("<" + "".join(formats)).pack_into, struct.pack(f"<{len(row)}Q", *row)
    return LaunchPlan(prepared, slotted, program, len(formats), pack, tuple(numbers), maps, tuple(fresh), work, tuple(back),
                      home.streamer(), table.caller(), prepared.word, [])


def _counted(values: Sequence[Any]) -> tuple[list[int], int]:
    """For each value how many addresses `key` puts down before it; and for all."""
    out, found = [], list[int]()
    for v in values:
        out.append(len(found))
        key((v,), (False,), found)
    return out, len(found)
