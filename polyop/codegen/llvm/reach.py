"""Which lanes may be touched: where a partial lanes loop needs a mask, and what can be transposed."""

from __future__ import annotations

from polyop.codegen.llvm.addresses import Place
from polyop.codegen.llvm.index import existing, index, without_lanes
from polyop.codegen.llvm.pointers import FAR, is_large, strides
from polyop.codegen.llvm.state import Axis, State
from polyop.codegen.llvm.types import Int, alignment
from polyop.ir.expr import Affine, affine, bounds, names
from polyop.ir.loops import Space
from polyop.ir.target import PAGE


def _extra(axis: Axis) -> tuple[Affine, ...]:
    """The bounds of the loop beside its extent."""
    return tuple(x for x in bounds(axis.upper) if x != affine(axis.extent))


def readable(s: State, place: Place) -> bool:
    """Whether lanes that do not exist may be read, since the buffer's rows are long enough."""
    lanes, b = s.lanes, place.buffer
    if lanes is None or b.space != Space.WORK or place.stride != 1:
        return False
    last = place.load.index[-1]
    if not isinstance(last, Affine) or last.factor(lanes.index) != 1 or b.dims[-1][1] != 1:
        return False
    rest, extent = without_lanes(s, last), b.dims[-1][0]
    whole = s.vectors() * s.width
    if rest == Affine() and extent.is_constant and -(-extent.const // b.pad) * b.pad >= whole:
        return True
    return b.pad % whole == 0 and s.multiple(rest) % whole == 0


def writable(s: State, place: Place) -> bool:
    """Whether lanes that do not exist may even be written, since they lie past the end of the dimension."""
    lanes = s.lanes
    if lanes is None or not readable(s, place):
        return False
    last = place.load.index[-1]
    assert isinstance(last, Affine)
    return any(x + without_lanes(s, last) == place.buffer.dims[-1][0] for x in _extra(lanes)) if lanes.valid is not None else True


def lane_mask(s: State, place: Place, v: int, write: bool) -> str | None:
    """The lanes of vector `v` that are touched, or None if all are.

    Where masks are free, floats that nobody wrote are not read either: a product with a number of theirs that happens to be
    denormal takes Intel's CPUs 100 cycles, and a product of 100 x 100 x 100 took 18 times as long so.
    """
    mask = existing(s, v)
    free = writable(s, place) if write else readable(s, place) and not (place.buffer.dtype.is_float and s.shared.target.masks)
    return None if mask is None or free else mask


def transposable(s: State, place: Place) -> Axis | None:
    """The rows axis along which `place` has stride 1, if squares of its copies and the lanes can be transposed.

    A vector has room for several squares of few copies.
    """
    if s.lanes is None or s.lanes.extent % s.width:
        return None
    return next((a for a in s.rows if a.extent > 1 and row_stride(s, place, a) == 1), None)


def bypasses(s: State, place: Place) -> str:
    """Whether what is written there bypasses the caches, if addresses are aligned.

    It is so much that it would not stay there; its rows are whole vectors, or long, since lines that are written both ways are
    written twice; and rows of a tile do not meet on their way to memory (`Target.pages_meet`).
    """
    found = is_large(s, place.buffer)
    if place.buffer.dense is not None:
        count = index(s, place.buffer.dims[place.buffer.dense][0], {})
        whole = s.b.compare("eq", s.b.pure(f"and i64 {count}, {s.width - 1}", count), 0)
        long = s.b.compare("sge", count, FAR // alignment(place.element))
        found = s.b.pure(f"and i1 {found}, {s.b.pure(f'or i1 {whole}, {long}', whole, long)}", found, whole, long)
    for step in [row_stride(s, place, axis) for axis in s.rows] if s.shared.target.pages_meet else []:
        if step is not None:
            low = s.b.pure(f"and i64 {step}, {PAGE // alignment(place.element) - 1}", step)
            found = s.b.pure(f"and i1 {found}, {s.b.compare('ne', low, 0)}", found, low)
    return found


def row_stride(s: State, place: Place, axis: Axis) -> Int | None:
    """Elements from copy to copy along `axis`, None if it is not constant."""
    total: Int = 0
    for position, step, (_, unit) in zip(place.load.index, strides(s, place.buffer), place.buffer.dims, strict=True):
        if not isinstance(position, Affine) or unit != 1:
            return None
        if any(not isinstance(a, str) and axis.index in names(affine(a)) for a, _ in position.terms):
            return None
        total = s.b.add(total, s.b.mul(step, position.factor(axis.index)))
    return total


