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

from polyop.ir.dtypes import BF16, U8, DType
from polyop.ir.op import Op
from polyop.runtime import arrays
from polyop.runtime.bind import Bound
from polyop.runtime.call import FORMATS, LONG, NUMBERS, key
from polyop.runtime.gpu import table
from polyop.runtime.gpu.home import Exchange, Home, Make, Torch, given_back
from polyop.runtime.gpu.kernel import Prepared, bits
from polyop.runtime.gpu.maps import FORMATTED, Map
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
    prepared.run(prepared.row(row), stream)
    for s in others:
        follow(home.device, s, stream)
    del memory  # the next one to have it comes later on the stream
    names = [t.name for t in bound.op.outputs]
    results = tuple(given_back(home, r) if n in fresh else r for n, r in zip(names, bound.results, strict=True))
    return results[0] if len(results) == 1 else results


@dataclass(frozen=True, slots=True)
class Lying:
    """An array among the values of a call, and the slot that takes its address.

    mask    bits of the address that must be 0
    reach   the bytes [first, last) it covers, from its address
    """

    position: int
    slot: int
    mask: int
    reach: tuple[int, int]


@dataclass(frozen=True, eq=False, slots=True)
class Way:
    """What Python needs to carry out a plan.

    program   how what calls give is looked at and put into rows: see `launch.ll`
    count     how many values that is: addresses, numbers, addresses of what is fresh, and of work memory
    pack      puts them where they are given
    maps      (what is told of a tensor, the position among what is given of memory that it has, how far from its start it begins,
              where in the row that stands)
    makes     what makes each of the fresh ones; `work`: what makes work memory
    stream    tells the one that work goes on now; `launch`: what carries out
    spare     what no call is using
    """

    program: bytes
    count: int
    pack: Any
    maps: tuple[tuple[Map, int, int, int], ...]
    makes: tuple[Make, ...]
    work: Make | None
    stream: Callable[[], int]
    launch: Callable[[int, int], int]
    spare: list[Given]


@dataclass(frozen=True, eq=False, slots=True)
class LaunchPlan:
    """A call with open addresses and numbers.

    lying     the arrays; `written`: which of them the kernels write, each with those that it must not meet
    numbers   (position of a scalar in a call's values, slot, dtype)
    fresh     (slot, shape, dtype) of each result that no call gives
    back      for each result, which of the fresh ones it is, or ~position of the value that is given back
    row       what rows have in their slots that no call gives
    is_once   whether nothing is lost where a call is made again after a launch that was refused
    word      where the kernel says that a position was outside
    way       how Python goes through it; how machine code does: `front.py`
    """

    prepared: Prepared
    home: Home
    lying: tuple[Lying, ...]
    written: tuple[tuple[Lying, tuple[Lying, ...]], ...]
    numbers: tuple[tuple[int, int, DType], ...]
    fresh: tuple[tuple[int, tuple[int, ...], DType], ...]
    back: tuple[int, ...]
    row: bytes
    is_once: bool
    word: Word | None
    way: Way

    @property
    def has_words(self) -> bool:
        """Whether machine code may know it: `front.record` has the last word."""
        return self.has_torch and self.is_once

    @property
    def has_torch(self) -> bool:
        """Whether tensors of torch go in or come out."""
        return isinstance(self.home, Torch)

    def run(self, values: Sequence[Any], addresses: Sequence[int]) -> Any:
        """The results, or LONG. `addresses`: those of the arrays among the values.

        Raises CallError, if an earlier call met a position outside its tensor.
        """
        if self.word is not None and self.word.cell.value:
            self.word.look()
        way, row, made, memory = self.way, [*addresses], [], None
        for position, _, _ in self.numbers:
            row.append(values[position])
        if way.makes or way.work is not None:
            try:
                for make in way.makes:
                    array, at = make()
                    made.append(array)
                    row.append(at)
                if way.work is not None:
                    memory, at = way.work()
                    row.append(at)
            except (MemoryError, RuntimeError):
                return LONG
        try:
            given = way.spare.pop()
        except IndexError:  # others have taken all
            given = self._given()
        try:
            way.pack(given.memory, FRONT, *row)
        except (struct.error, OverflowError):
            return LONG  # a number that does not fit its dtype
        for told, position, distance, at in way.maps:
            if not row[position]:
                return LONG
            FORMATTED.pack_into(given.row.memory, at, told.at(row[position] + distance))
        code = way.launch(given.address, way.stream())
        if code and code != table.LONG:
            raise self.prepared.refused(code)
        if len(way.spare) < _SPARE:
            way.spare.append(given)  # the driver has read it
        del memory  # the next one to have it comes later on the stream
        if code:
            return LONG
        results = [made[k] if k >= 0 else values[~k] for k in self.back]
        return results[0] if len(results) == 1 else tuple(results)

    def _given(self) -> Given:
        row = self.prepared.table.row()
        row.memory[:len(self.row)] = self.row
        return table.given(self.prepared.table, row, self.way.program, self.way.count)


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
    position, ends = {n: k for k, n in enumerate(names)}, dict(op.updates)
    lying: dict[str, Lying] = {}
    for n, k in position.items():
        if n not in bound.views:
            continue
        v = bound.views[n]
        if isinstance(values[k], bool | int | float | np.generic):
            return None  # a plain number for a tensor of rank 0
        first, last = v.span()
        for name in dict.fromkeys((n, ends.get(n, n))):
            if name in slots:
                lying[name] = Lying(k, slots[name], v.dtype.bytes_ - 1, (first - v.address, last - v.address))
    written = tuple((w, tuple(r for r in lying.values() if r.position != w.position))
                    for w in (lying[t.name] for t in op.outputs if t.name in lying))
    numbers, row = [], [0] * (prepared.tensors + len(prepared.work) + prepared.scalars)
    front = prepared.tensors + len(prepared.work)
    for k, (n, dtype) in enumerate(signature.scalars):
        row[front + k] = bits(bound.scalars[n])
        if n in position and values[position[n]] is None:
            continue  # the default, which follows from consts
        if dtype == BF16 or n not in position or type(values[position[n]]) not in NUMBERS:
            return None
        numbers.append((position[n], front + k, dtype))
    fresh: list[tuple[int, tuple[int, ...], DType]] = []
    back = []
    for t in op.outputs:
        if t.name in lying:
            back.append(~lying[t.name].position)
            continue
        back.append(len(fresh))
        fresh.append((slots[t.name], bound.views[t.name].shape, t.dtype))
    counted, count = _counted(values)
    formats = ["Q"] * count + [FORMATS[dtype.name] for _, _, dtype in numbers] + ["Q"] * (len(fresh) + bool(prepared.work))
    copies = [(counted[a.position], a.slot, 0) for a in lying.values()]
    copies += [(count + k, slot, 0) for k, slot in enumerate((*(s for _, s, _ in numbers), *(s for s, _, _ in fresh)))]
    copies += [(len(formats) - 1, prepared.tensors + k, distance) for k, distance in enumerate(prepared.work)]
    where = {slot: (k, distance) for k, slot, distance in copies}
    maps = tuple((m, *where[m.slot], 8 * len(row) + FORMATTED.size * k) for k, m in enumerate(prepared.maps))
    checks = dict.fromkeys((counted[a.position], a.mask) for a in lying.values())
    pairs = dict.fromkeys((counted[w.position], *w.reach, counted[r.position], *r.reach) for w, others in written for r in others)
    pack = struct.Struct("<" + "".join(formats)).pack_into
    way = Way(table.program(tuple(checks), tuple(pairs), copies), len(formats), pack, maps,
              tuple(home.maker(s, t) for _, s, t in fresh), home.maker((prepared.bytes_,), U8) if prepared.work else None,
              home.streamer(), table.code().run, [])
    return LaunchPlan(prepared, home, tuple(lying.values()), written, tuple(numbers), tuple(fresh), tuple(back),
                      struct.pack(f"<{len(row)}Q", *row), not op.updates or len(prepared.starts) == 1, prepared.word, way)


def _counted(values: Sequence[Any]) -> tuple[list[int], int]:
    """For each value how many addresses `key` puts down before it; and for all."""
    out, found = [], list[int]()
    for v in values:
        out.append(len(found))
        key((v,), (False,), found)
    return out, len(found)
