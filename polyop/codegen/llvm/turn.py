"""Stores whose unit stride runs along the rows, not along the lanes: squares are turned in registers.

    Y[v, p] = acc[p, v]      rows p of 7, lanes v of 16: eight vectors, the last one empty, become sixteen of up to 7 elements
"""

from __future__ import annotations

from polyop.codegen.llvm.addresses import Place, locate
from polyop.codegen.llvm.convert import to_memory
from polyop.codegen.llvm.expressions import operand
from polyop.codegen.llvm.loads import transpose
from polyop.codegen.llvm.masked import part, store_first
from polyop.codegen.llvm.pointers import gep
from polyop.codegen.llvm.reach import row_stride
from polyop.codegen.llvm.repeat import points, row_exists
from polyop.codegen.llvm.rounds import go_round
from polyop.codegen.llvm.state import State, Value, only_if
from polyop.codegen.llvm.types import Int, alignment, vector
from polyop.codegen.llvm.woven import between
from polyop.codegen.vecmath.ops import V
from polyop.ir.expr import Affine
from polyop.ir.integers import power_of_two
from polyop.ir.loops import Store


def store_turned(s: State, n: Store, x: Value) -> bool:
    """Carry out `n` in squares, if its place has stride 1 along rows and none that is known along the lanes."""
    lanes = s.lanes
    if n.reduce is not None or s.active or lanes is None or lanes.extent % s.width or not x.lanes:
        return False
    if not all(isinstance(p, Affine) for p in n.target.index):
        return False
    place = locate(s, n.target, (None,) * len(n.target.index))
    if place.offsets is not None or place.stride in (-1, 0, 1) or between(s, place) is not None:
        return False
    axis = next((a for a in s.rows if a.extent > 1 and row_stride(s, place, a) == 1), None)
    if axis is None:
        return False
    s.forget(n.target.source)
    height = min(s.width, power_of_two(axis.extent))
    others = tuple(a for a in s.rows if a is not axis)
    for point in points(s, place.rows.union(x.rows) - {axis.index}):
        start = place.base({**point, axis.index: 0}, None)
        exists = row_exists(s, others, point)
        for first in range(0, axis.extent, height):
            there = range(first, min(first + height, axis.extent))
            squares = [[operand(s, x, {**point, axis.index: r}, v, True) for r in there] for v in range(s.vectors())]
            with only_if(s, exists):
                turned = [_turned(s, place, rows, height) for rows in squares]
                _put(s, place, start, first, turned, len(there) if axis.valid is None else s.b.add(axis.valid, -first))
    return True


def _turned(s: State, place: Place, rows: list[V], height: int) -> list[str]:
    """Vectors in each of which lie those of lanes k, k + height, .., for k below `height`: all rows of each one."""
    lines = [to_memory(r, place.buffer.dtype, s.shared.target).text for r in rows]
    return transpose(s, lines + ["poison"] * (height - len(lines)), place.element)


def _put(s: State, place: Place, start: str, first: int, turned: list[list[str]], count: Int) -> None:
    """Store what each lane has of `count` rows from `first` on; `turned` has it for each vector of lanes.

    Where lanes may be missing, a loop goes over those that are there, and takes what is turned out of memory: for 64 lanes these
    are a fifth of the lines that asking for each would be, and there is such a tile for each number of vectors.
    """
    t, b, lanes = vector(place.element, s.width), s.b, s.lanes
    assert lanes is not None
    height = len(turned[0])
    if lanes.valid is None:
        for v, lines in enumerate(turned):
            for lane in range(s.width):
                line, group = lines[lane % height], lane - lane % height
                raw = part(s, place.element, s.width, line, group, height)
                p = gep(s, place.element, start, b.add(b.mul(place.stride, v * s.width + lane), first))
                store_first(s, place.element, height, raw, p, count)
        return
    room = b.pure(f"alloca [{len(turned) * height} x {t}], align 64 ; turned")
    for k, line in enumerate(x for lines in turned for x in lines):
        b.line(f"store {t} {line}, ptr {gep(s, t, room, k)}, align 64")

    def one(lane: str, to: list[str]) -> list[str]:
        line, group = (b.pure(f"and i64 {lane}, {bits}", lane) for bits in (height - 1, s.width - height))
        square = b.mul(b.pure(f"lshr i64 {lane}, {s.width.bit_length() - 1}", lane), height)
        at = gep(s, place.element, room, b.add(b.mul(b.add(square, line), s.width), group))
        raw = b.do(f"load {vector(place.element, height)}, ptr {at}, align {alignment(place.element)}")
        store_first(s, place.element, height, raw, to[0], count)
        return [gep(s, place.element, to[0], place.stride)]
    go_round(s, 0, lanes.valid, 1, [("ptr", gep(s, place.element, start, first))], one)
