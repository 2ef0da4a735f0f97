"""What an engine that copies boxes must be told of a tensor: whether it lies as the engine needs it, and how it lies then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyop.ir.module import Boxes

WORDS = 16
"""Words of 64 bits that tell of a tensor."""

_GRAIN = 16  # bytes of which addresses and strides are multiples
_FARTHEST, _LONGEST = 1 << 40, 1 << 32  # bytes of a stride, elements of a dimension: less


@dataclass(frozen=True, slots=True)
class View:
    """A tensor as the engine counts its dimensions, that of neighbours in memory first; strides of the others, in bytes."""

    boxes: Boxes
    element: int
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def view_of(boxes: Boxes, element: int, address: int, shape: Sequence[int], strides: Sequence[int]) -> View | None:
    """The tensor of elements of so many bytes; None if it does not lie as the engine needs it.

    Units   strides: elements
    Source  CUDA Driver API, cuTensorMapEncodeTiled
    """
    extents = tuple(shape[d] for d in boxes.dims)
    # where a dimension has but one element, its stride says nothing
    steps = tuple(strides[d] * element if shape[d] > 1 else _GRAIN for d in boxes.dims[1:])
    lies = address % _GRAIN == 0 and all(0 < x < _FARTHEST and x % _GRAIN == 0 for x in steps)
    if not lies or not all(0 < n < _LONGEST for n in extents) or (extents[0] > 1 and strides[boxes.dims[0]] != 1):
        return None
    return View(boxes, element, address, extents, steps)


def emulated(v: View | None) -> tuple[int, ...]:
    """The words that the emulator's engine reads (`pop_emu_tiles.h`); all of them 0, if there is no view."""
    if v is None:
        return (0,) * WORDS
    more = len(v.shape) - 2
    others = (*v.shape[2:], *(0,) * (3 - more))
    bytes_ = (*v.strides[1:], *(0,) * (3 - more))
    head = (v.address, v.shape[0], v.shape[1], v.strides[0], v.boxes.box[0], v.boxes.box[1], v.element, v.boxes.swizzle)
    thick = sum(n << 16 * d for d, n in enumerate(v.boxes.box[2:]))
    steps = sum(n << 16 * d for d, n in enumerate(v.boxes.steps[1:]))
    return (*head, *others, *bytes_, thick, steps)
