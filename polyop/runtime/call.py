"""The short way of a call: arguments that look like those of an earlier call need no second look.

A CallPlan is a finished call in which only addresses and numbers are open. It is found by a key of dtypes, shapes and strides;
everything that a key does not show (alignment, overlap, read-only memory) is tested again, and whatever is unusual goes
the long way, which knows how to complain.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import copysign
from typing import Any

import numpy as np
from numpy import ndarray

from polyop.ir.dtypes import BF16, BY_NUMPY, DType
from polyop.ir.op import Op
from polyop.runtime import arrays, blocks, threads
from polyop.runtime.arrays import address
from polyop.runtime.bind import Bound
from polyop.runtime.blocks import fill
from polyop.runtime.kernel import Kernel, Prepared, arena
from polyop.runtime.lasting import Held

LONG = object()  # this call must go the long way

LONG_POINTS = 1 << 12  # of a call that is long: its kernel takes longer than it takes to let other threads run

NUMBERS = frozenset({bool, int, float, type(None), *(d.type for d in BY_NUMPY if d.isbuiltin == 1)})
FORMATS = {"f16": "e6x", "f32": "f4x", "f64": "d", "i8": "b7x", "i16": "h6x", "i32": "i4x", "i64": "q", "u8": "B7x",
            "u16": "H6x", "u32": "I4x", "u64": "Q", "bool": "?7x"}


Look = Callable[[Any, list[int]], "tuple[Any, ...] | None"]
"""What the plan of a call depends on of an array, if that can have one; an array on a GPU puts its address on the list."""

_looks: dict[type, Look] = {}


def key(values: Sequence[Any], by_value: Sequence[bool], at: list[int]) -> tuple[Any, ...] | None:
    """What the plan of a call depends on; None if a value is of a kind that has no plan.

    by_value   for each value whether it is a number that chooses sizes or the Op itself
    at         where the addresses of arrays on a GPU are put, in order: asking such an array what it is tells that, too
    """
    parts: list[Any] = [threads.setting]
    for v, fixed in zip(values, by_value):  # noqa: B905, strict costs a tenth of the key
        t = type(v)
        look = _looks.get(t)
        if look is not None:
            seen = look(v, at)
            if seen is None:
                return None
            parts += seen
        elif t is ndarray:
            if fixed:
                return None  # a size, in an array of rank 0
            parts += (v.dtype, v.shape, v.strides)
        elif t in NUMBERS:
            parts += (t, v, copysign(1, v) if t is float else 0) if fixed else (t,)  # -0.0 is not 0.0, though they are equal
        else:
            look = _look_of(t)
            seen = look(v, at) if look is not None else None
            if seen is None:
                return None
            parts += seen
    return tuple(parts)


def _look_of(t: type) -> Look | None:
    """The look of arrays of type `t`; None where they are of no framework, or of one of a GPU and there has been none yet."""
    torch = "torch" in sys.modules
    if torch and t in _torch_types():
        found: Look = _look_of_tensor()
    else:
        views = sys.modules.get("polyop.runtime.gpu.views")
        if views is None:
            return None
        found = views.look_of(t)
        if torch and not _torch:
            return found  # what will be a tensor's type when torch has been imported
    _looks[t] = found
    return found


_torch: tuple[Any, ...] = ()


def _torch_types() -> tuple[Any, ...]:
    global _torch
    if not _torch:
        torch = sys.modules["torch"]
        if not hasattr(torch, "nn"):  # still being imported
            return ()
        _torch = (torch.Tensor, torch.nn.Parameter)
    return _torch


def _look_of_tensor() -> Look:
    torch = sys.modules["torch"]
    strided = torch.strided

    def look(t: Any, at: list[int]) -> tuple[Any, ...] | None:
        if t.layout is not strided or (t.requires_grad and torch.is_grad_enabled()) or t.is_neg():
            return None
        if t.is_cpu:
            return t.dtype, t.shape, t.stride()
        if not t.is_cuda or t.is_conj():
            return None
        try:
            at.append(t.data_ptr())
        except RuntimeError:  # a tensor without memory
            return None
        return t.get_device(), t.dtype, t.shape, t.stride()

    return look


@dataclass(frozen=True, slots=True)
class _Array:
    """An array among the values of a call.

    position   in the values
    slot       of its address in the row
    mask       bits of the address that must be 0
    reach      the bytes [first, last) it covers, from its address
    """

    position: int
    slot: int
    is_torch: bool
    mask: int
    reach: tuple[int, int]


@dataclass(frozen=True, eq=False, slots=True)
class Runs:
    """Which dimensions of a call's arrays are one to its kernel, since their elements lie one after the other.

    of      for each tensor, those that make up each dimension of the kernel's, outermost first
    sizes   for each size that the kernel has instead of several, those that it is the product of
    """

    of: Mapping[str, tuple[tuple[int, ...], ...]]
    sizes: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, eq=False, slots=True)
class CallPlan:
    """A call with open addresses and numbers.

    places    (position in the values, slot in the row, is_torch, mask) of the arrays among the values
    written   (position, slot, is_torch, first, last, others) of those the kernel writes: the bytes they cover, from their
              address, and (slot, first, last) of every other array
    numbers   (position in the values, slot in the row) of scalars, and `scalars` their dtypes
    fresh     (slot, shape, dtype, size of class, NumPy's dtype) of the results to allocate, each of `kind`
    back      for each result, which of the fresh ones it is, or ~position of the value that is given back
    is_long   whether other threads should run Python code meanwhile
    names     what each value is: a parameter of `op`, an output of it, or anything else
    sizes     of the call that the plan was made for
    runs      the dimensions that the kernel sees
    held      what the kernel keeps from call to call, and has filled
    """

    kernel: Kernel
    row: list[Any]
    pack: Any
    places: tuple[tuple[int, int, bool, int], ...]
    written: tuple[tuple[int, int, bool, int, int, tuple[tuple[int, int, int], ...]], ...]
    numbers: tuple[tuple[int, int], ...]
    scalars: tuple[DType, ...]
    fresh: tuple[tuple[int, tuple[int, ...], DType, int, Any], ...]
    kind: Any
    back: tuple[int, ...]
    work: tuple[tuple[int, int], ...]
    bytes_: int
    is_long: bool
    op: Op
    names: tuple[str, ...]
    sizes: dict[str, int]
    runs: Runs
    held: Held | None = None

    @property
    def has_words(self) -> bool:
        """Whether machine code may know it: `entry_plan.record` has the last word."""
        return True

    @property
    def has_torch(self) -> bool:
        """Whether tensors of torch go in or come out."""
        return self.kind == "torch" or any(is_torch for _, _, is_torch, _ in self.places)

    def run(self, values: Sequence[Any], _: Sequence[int]) -> Any:
        """The results, or LONG."""
        row = self.row.copy()
        for position, slot, is_torch, mask in self.places:
            v = values[position]
            try:
                at = v.data_ptr() if is_torch else address(v)
            except RuntimeError:  # a tensor without memory
                return LONG
            if at & mask or not at:
                return LONG
            row[slot] = at
        if self.written and not self._may_write(values, row):
            return LONG
        for position, slot in self.numbers:
            row[slot] = values[position]
        made = []
        for slot, shape, dtype, size, plain in self.fresh:
            array, row[slot] = fill(size, shape, plain) if self.kind == "numpy" else arrays.empty(shape, dtype, self.kind)
            made.append(array)
        if self.work:
            start = arena.take(self.bytes_)
            for slot, distance in self.work:
                row[slot] = start + distance
        try:
            packed = self.pack(*row)
        except (struct.error, OverflowError):
            return LONG  # a number that does not fit its dtype
        if self.kernel.entry(packed):
            return LONG
        if len(made) == 1 and len(self.back) == 1:
            return made[0]
        results = tuple(made[k] if k >= 0 else values[~k] for k in self.back)
        return results[0] if len(results) == 1 else results

    def _may_write(self, values: Sequence[Any], row: list[Any]) -> bool:
        for position, slot, is_torch, first, last, others in self.written:
            if not is_torch and not values[position].flags.writeable:
                return False
            at = row[slot]
            for other, start, end in others:
                if row[other] + start < at + last and at + first < row[other] + end:
                    return False
        return True


def plan(op: Op, kernel: Kernel, prepared: Prepared, bound: Bound, runs: Runs, names: Sequence[str], values: Sequence[Any],
         points: int) -> CallPlan | None:
    """The plan of calls that look like this one; None if they cannot have one.

    prepared   the call as the kernel sees it: with dimensions that lie one after the other as one, which `runs` says
    names      what each value is: a parameter of `op`, an output for `out`, or anything else
    points     how much is computed
    """
    signature = kernel.binary.signature
    slot = {b.name: s for b, s in zip(signature.tensors, prepared.pointers, strict=True)}
    position = {n: k for k, n in enumerate(names)}
    if op.updates and (signature.sites or any(bound.views[i].address != bound.views[o].address for i, o in op.updates)):
        return None  # a second, long run would find other values; or the old value was set aside
    ends = {i: o for i, o in op.updates if i not in slot}  # an `inout` that is never read
    found, row = {}, list(prepared.row)
    for n, k in [(ends.get(n, n), k) for n, k in position.items()]:
        if n not in slot:
            continue
        v, is_torch = bound.views[n], arrays.is_torch(values[k])
        if not is_torch and type(values[k]) is not np.ndarray:
            return None  # a plain number for a tensor of rank 0
        first, last = v.span()
        found[n] = _Array(k, slot[n], is_torch, v.dtype.bytes_ - 1, (first - v.address, last - v.address))
    for i, o in op.updates:
        if i not in found:
            continue
        found[o] = _Array(found[i].position, slot[o], found[i].is_torch, found[i].mask, found[i].reach)
    formats, numbers, scalars = ["q"] * len(row), [], []
    for k, (n, dtype) in enumerate(signature.scalars):
        at = 2 + len(signature.sizes) + k
        if n in position and values[position[n]] is None:
            continue  # the default, which follows from consts
        if dtype == BF16 or n not in position or type(values[position[n]]) not in NUMBERS:
            return None
        formats[at] = FORMATS[dtype.name]
        numbers.append((position[n], at))
        scalars.append(dtype)
    fresh: list[tuple[int, tuple[int, ...], DType, int, Any]] = []
    back, kind = [], "numpy"
    for t in op.outputs:
        if t.name in found:
            back.append(~found[t.name].position)
            continue
        kind, shape = bound.views[t.name].kind, bound.views[t.name].shape
        back.append(len(fresh))
        fresh.append((slot[t.name], shape, t.dtype, blocks.size_of(shape, t.dtype.numpy), t.dtype.numpy))
    places = tuple((a.position, a.slot, a.is_torch, a.mask) for a in found.values())
    written = tuple((a.position, a.slot, a.is_torch, *a.reach, _others(a, found.values())) for a in
                    (found[t.name] for t in op.outputs if t.name in found))
    return CallPlan(kernel, row, struct.Struct("<" + "".join(formats)).pack, places, written, tuple(numbers),
                    tuple(scalars), tuple(fresh), kind, tuple(back), prepared.work, prepared.bytes_, points >= LONG_POINTS, op,
                    tuple(names), bound.sizes, runs, prepared.held)


def _others(a: _Array, found: Iterable[_Array]) -> tuple[tuple[int, int, int], ...]:
    return tuple((b.slot, *b.reach) for b in found if b.position != a.position)
