"""Which Layout a call needs, read off the strides of its arrays."""

from __future__ import annotations

from collections.abc import Mapping

from polyop.ir.expr import affine
from polyop.ir.op import Op, Tensor
from polyop.ir.options import Layout
from polyop.runtime.arrays import View


def unit(shape: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """The dimension whose stride may be taken to be 1, or None.

    A dimension with at most one element has any stride one likes. The last dimension is preferred, so every array that
    is contiguous in C's order, whatever its extents, answers with it, and equal uses meet in one kernel.
    """
    rank = len(shape)
    if not rank:
        return None
    if 0 in shape or shape[-1] == 1 or strides[-1] == 1:
        return rank - 1
    ones = [d for d in range(rank) if strides[d] == 1 and shape[d] > 1]
    return ones[-1] if ones else next((d for d in reversed(range(rank)) if shape[d] == 1), None)


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in C's order."""
    out, step = [], 1
    for n in reversed(shape):
        out.append(step)
        step *= max(1, n)
    return tuple(reversed(out))


def layout(op: Op, views: Mapping[str, View], ones: tuple[str, ...] = ()) -> Layout:
    """The Layout of a call's arrays, inputs and outputs in the Op's order; dimensions of 1 or a size in `ones` do not count."""
    return Layout(tuple((t.name, _unit(t, views[t.name], ones)) for t in op.tensors if t.role != "temp"))


def _unit(t: Tensor, v: View, ones: tuple[str, ...]) -> int | None:
    kept = _counted(t, ones)
    found = unit(tuple(v.shape[d] for d in kept), tuple(v.strides[d] for d in kept))
    return None if found is None else kept[found]


def _counted(t: Tensor, ones: tuple[str, ...]) -> list[int]:
    """The dimensions of `t` without those of 1 or of a size in `ones`, or all if nothing is left."""
    return [d for d, e in enumerate(t.shape) if e.name not in ones and e != affine(1)] or list(range(len(t.shape)))


def contiguous(op: Op, ones: tuple[str, ...] = ()) -> Layout:
    """The Layout in which every array is contiguous in C's order; dimensions of 1 or a size in `ones` do not count."""
    return Layout(tuple((t.name, _counted(t, ones)[-1] if t.shape else None) for t in op.tensors if t.role != "temp"))
