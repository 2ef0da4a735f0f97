"""Tables that registers hold: few elements, that lanes look up at places known from data.

    Y[n] = t[X[n]]      with 256 elements of t or fewer, and many of X

A gather takes a cycle for each lane, and a check of the place besides; of bytes more. `codegen/llvm/tables.py` has what is done
instead. How many elements there are is known in the call, and a kernel is for all tables of at most so many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyop.ir.expr import Affine, evaluate, is_computed, names, volume
from polyop.ir.op import Op
from polyop.ir.options import Layout
from polyop.ir.tables import lookup, size_class
from polyop.ir.target import Target

LOOKED_UP = 256
"""Elements that are looked up at least: to bring a table into registers takes as long as a gather of a hundred."""


@dataclass(frozen=True, slots=True)
class Table:
    """An input that may be one.

    extent, bytes_  its elements, and how many bytes each of them has
    lookups         extents of what looks them up
    """

    tensor: str
    extent: Affine
    bytes_: int
    lookups: tuple[Affine, ...]


def find_tables(op: Op) -> tuple[Table, ...]:
    """The inputs of one dimension in which steps look places up."""
    found = []
    for s in op.steps:
        extents = tuple(r.upper - r.lower for r in s.ranges)
        if any(names(e) - set(op.sizes) for e in extents):
            continue
        for x in s.reads:
            t = op.tensor(x.source)
            if t.role == "in" and len(x.index) == 1 and is_computed(x.index[0]):
                found.append(Table(t.name, t.shape[0], t.dtype.bytes_, extents))
    return tuple(found)


def to_hold(found: Sequence[Table], sizes: Mapping[str, int], target: Target) -> tuple[tuple[str, int], ...]:
    """(input, how many elements it has at most) of those which registers hold in a call of these sizes."""
    held: dict[str, int] = {}
    for x in found:
        most = size_class(evaluate(x.extent, sizes))
        if most and volume(x.lookups, sizes) >= LOOKED_UP and lookup(target, x.bytes_, most) is not None:
            held[x.tensor] = most
    return tuple(sorted(held.items()))


def lie_so(units: Layout, held: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Those of `held` whose elements lie side by side."""
    return tuple((t, n) for t, n in held if units.unit(t) == 0)
